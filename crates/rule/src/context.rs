//! The context of the request that the current task serves.

use crate::request::{RequestHead, TrustedProxies};
use std::{borrow::Cow, net::IpAddr, sync::Arc};

tokio::task_local! {
    static CURRENT: Arc<RequestContext>;
}

/// The context of a request: its client address, its user, and any other values that the application adds.
///
/// Middleware determines them and sets them for the task, so that a function below can be limited by `key =
/// ip` or `key = user` without taking either as an argument.
///
/// ```
/// use tidegate_rule::RequestContext;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let context = RequestContext::default().with_user("alice").with("tenant", "acme");
/// let text = context.scope(async {
///     RequestContext::with_current(|context| format!("{:?} of {:?}", context.user(), context.get("tenant")))
/// });
/// assert_eq!(text.await.as_deref(), Some(r#"Some("alice") of Some("acme")"#));
/// # });
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestContext {
    ip: Option<IpAddr>,
    user: Option<Arc<str>>,
    extra: Vec<(Cow<'static, str>, Arc<str>)>,
}

impl RequestContext {
    /// Creates the context of a request: the client address according to these proxies, and the user, if the
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

    /// The context of the request that this task serves; `None` outside of one. A spawned task does not inherit
    /// them: set them there too.
    pub fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Reads the context of the current request in place; `None` outside of one.
    pub fn with_current<R>(read: impl FnOnce(&Self) -> R) -> Option<R> {
        CURRENT.try_with(|context| read(context)).ok()
    }

    /// Runs a future with this context as the current one.
    pub fn scope<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(Arc::new(self), future)
    }

    /// Runs a function with this context as the current one.
    pub fn scope_blocking<R>(self, call: impl FnOnce() -> R) -> R {
        CURRENT.sync_scope(Arc::new(self), call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_is_visible_only_in_scope() {
        let context = RequestContext::default()
            .with_ip([203, 0, 113, 7].into())
            .with("tenant", "old")
            .with("tenant", "acme");
        let inner = RequestContext::default().with_user("bob");
        assert_eq!(RequestContext::with_current(|_| ()), None);
        context.scope_blocking(|| {
            let known = RequestContext::with_current(|context| {
                (context.ip(), context.get("tenant").map(str::to_owned))
            });
            assert_eq!(known, Some((Some([203, 0, 113, 7].into()), Some("acme".to_owned()))));
            // Only the innermost context is visible.
            inner.scope_blocking(|| {
                let context = RequestContext::current().unwrap();
                assert_eq!((context.shared_user().as_deref(), context.ip()), (Some("bob"), None));
                assert_eq!(context.get("tenant"), None);
            });
        });
        assert_eq!(RequestContext::current(), None);
    }
}
