//! Facts about the request that the current task serves.

use crate::request::{RequestHead, TrustedProxies};
use std::{borrow::Cow, net::IpAddr, sync::Arc};

tokio::task_local! {
    static CURRENT: Arc<Facts>;
}

/// Facts about a request: its client address, its user, and any other facts that the application adds.
///
/// Middleware determines them and sets them for the task, so that a function below can be limited by `key =
/// ip` or `key = user` without taking either as an argument.
///
/// ```
/// use tidegate_rule::Facts;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let facts = Facts::default().with_user("alice").with("tenant", "acme");
/// let text = facts.scope(async {
///     Facts::with_current(|facts| format!("{:?} of {:?}", facts.user(), facts.get("tenant")))
/// });
/// assert_eq!(text.await.as_deref(), Some(r#"Some("alice") of Some("acme")"#));
/// # });
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    ip: Option<IpAddr>,
    user: Option<Arc<str>>,
    extra: Vec<(Cow<'static, str>, Arc<str>)>,
}

impl Facts {
    /// Creates the facts of a request: the client address according to these proxies, and the user, if the
    /// application has identified one.
    pub fn from_head(head: &dyn RequestHead, proxies: &TrustedProxies, user: Option<Arc<str>>) -> Self {
        Self { ip: proxies.client_address(head), user, extra: Vec::new() }
    }

    /// Sets the address of the client: the client itself, not a proxy in front of it.
    #[must_use]
    pub fn with_ip(self, ip: IpAddr) -> Self {
        Self { ip: Some(ip), ..self }
    }

    /// Sets the user name of the client.
    #[must_use]
    pub fn with_user(self, user: impl Into<Arc<str>>) -> Self {
        Self { user: Some(user.into()), ..self }
    }

    /// Adds a fact, replacing an earlier one of the same name.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Arc<str>>) -> Self {
        let (name, value) = (name.into(), value.into());
        match self.extra.iter_mut().find(|(existing, _)| *existing == name) {
            Some((_, existing)) => *existing = value,
            None => self.extra.push((name, value)),
        }
        self
    }

    /// The address of the client.
    pub fn ip(&self) -> Option<IpAddr> {
        self.ip
    }

    /// The user name of the client.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The user name, as a shared string that is cheap to clone.
    pub fn shared_user(&self) -> Option<Arc<str>> {
        self.user.clone()
    }

    /// The fact with this name, as added by the application.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.extra.iter().find(|(existing, _)| existing == name).map(|(_, value)| &**value)
    }

    /// The facts of the request that this task serves; `None` outside of one. A spawned task does not inherit
    /// them: set them there too.
    pub fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Reads the facts of the current request in place; `None` outside of one.
    pub fn with_current<R>(read: impl FnOnce(&Self) -> R) -> Option<R> {
        CURRENT.try_with(|facts| read(facts)).ok()
    }

    /// Runs a future with these facts as the current ones.
    pub fn scope<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(Arc::new(self), future)
    }

    /// Runs a function with these facts as the current ones.
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
            // Only the innermost facts are visible.
            inner.scope_blocking(|| {
                let facts = Facts::current().unwrap();
                assert_eq!((facts.shared_user().as_deref(), facts.ip()), (Some("bob"), None));
                assert_eq!(facts.get("tenant"), None);
            });
        });
        assert_eq!(Facts::current(), None);
    }
}
