//! What is known of the request that this task serves.

use crate::request::{RequestHead, TrustedProxies};
use std::{borrow::Cow, net::IpAddr, sync::Arc};

tokio::task_local! {
    static CURRENT: Arc<Facts>;
}

/// What is known of a request: who sent it, from where, and whatever else an application wants to say of it.
///
/// Middleware finds it out and puts it around the task; a function deep below is then limited by `key = ip` or
/// `key = user` without having either among its arguments.
///
/// ```
/// use tidegate_rule::Facts;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let facts = Facts::default().with_user("alice").with("tenant", "acme");
/// let told = facts.scope(async {
///     Facts::with_current(|facts| format!("{:?} of {:?}", facts.user(), facts.get("tenant")))
/// });
/// assert_eq!(told.await.as_deref(), Some(r#"Some("alice") of Some("acme")"#));
/// # });
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    ip: Option<IpAddr>,
    user: Option<Arc<str>>,
    extra: Vec<(Cow<'static, str>, Arc<str>)>,
}

impl Facts {
    /// What a request says of its client: the address, as these proxies tell it, and the name by which the application
    /// knows it, if it has found that out.
    pub fn from_head(head: &dyn RequestHead, proxies: &TrustedProxies, user: Option<Arc<str>>) -> Self {
        Self { ip: proxies.client_address(head), user, extra: Vec::new() }
    }

    /// The same, with the address of the client: the client itself, not a proxy in front of it.
    #[must_use]
    pub fn with_ip(self, ip: IpAddr) -> Self {
        Self { ip: Some(ip), ..self }
    }

    /// The same, with the name by which the application knows the client.
    #[must_use]
    pub fn with_user(self, user: impl Into<Arc<str>>) -> Self {
        Self { user: Some(user.into()), ..self }
    }

    /// The same, with one more fact, in place of an earlier one of this name.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Arc<str>>) -> Self {
        let (name, value) = (name.into(), value.into());
        match self.extra.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.extra.push((name, value)),
        }
        self
    }

    /// The address of the client.
    pub fn ip(&self) -> Option<IpAddr> {
        self.ip
    }

    /// The name by which the application knows the client.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The same, to be kept: copying it costs a count and no memory.
    pub fn shared_user(&self) -> Option<Arc<str>> {
        self.user.clone()
    }

    /// A fact that the application noted down under this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.extra.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// Those of the request that this task serves; `None` outside of one. A task that was spawned from it has none:
    /// put them around it too.
    pub fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Reads those of the request that this task serves, in place; `None` outside of one.
    pub fn with_current<R>(read: impl FnOnce(&Self) -> R) -> Option<R> {
        CURRENT.try_with(|facts| read(facts)).ok()
    }

    /// Runs a future that knows these facts.
    pub fn scope<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(Arc::new(self), future)
    }

    /// Runs a function that knows these facts.
    pub fn scope_blocking<R>(self, call: impl FnOnce() -> R) -> R {
        CURRENT.sync_scope(Arc::new(self), call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_visible_only_in_scope() {
        let facts =
            Facts::default().with_ip([203, 0, 113, 7].into()).with("tenant", "old").with("tenant", "acme");
        let inner = Facts::default().with_user("bob");
        assert_eq!(Facts::with_current(|_| ()), None);
        facts.scope_blocking(|| {
            let known = Facts::with_current(|facts| (facts.ip(), facts.get("tenant").map(str::to_owned)));
            assert_eq!(known, Some((Some([203, 0, 113, 7].into()), Some("acme".to_owned()))));
            // The innermost are known, and nothing of those around them.
            inner.scope_blocking(|| {
                let facts = Facts::current().unwrap();
                assert_eq!((facts.shared_user().as_deref(), facts.ip()), (Some("bob"), None));
                assert_eq!(facts.get("tenant"), None);
            });
        });
        assert_eq!(Facts::current(), None);
    }
}
