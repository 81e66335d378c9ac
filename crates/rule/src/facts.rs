//! What is known of the request that this task serves.

use std::{net::IpAddr, sync::Arc};

tokio::task_local! {
    static CURRENT: Arc<Facts>;
}

/// What is known of a request: who sent it, and from where.
///
/// Middleware finds it out and puts it around the task; a function deep below is then limited by `key = ip` or
/// `key = user` without having either among its arguments.
///
/// ```
/// use tidegate_rule::Facts;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let facts = Facts::default().with_user("alice");
/// let user = facts.scope(async { Facts::current().and_then(|facts| facts.user().map(str::to_owned)) }).await;
/// assert_eq!(user.as_deref(), Some("alice"));
/// # });
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    ip: Option<IpAddr>,
    user: Option<Arc<str>>,
}

impl Facts {
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

    /// The address of the client.
    pub fn ip(&self) -> Option<IpAddr> {
        self.ip
    }

    /// The name by which the application knows the client.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Those of the request that this task serves; `None` outside of one. A task that was spawned from it has none:
    /// put them around it too.
    pub fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
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
