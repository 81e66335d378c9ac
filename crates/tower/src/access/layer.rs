//! A list and bans in front of services.

use super::service::Controlled;
use std::sync::Arc;
use tidegate_rule::surface::RequestAccess;
use tower_layer::Layer;

/// Keeps out whom a list or a ban keeps out, and bans whoever is denied too often further inside.
///
/// ```
/// use tidegate_access::{AccessControl, Bans};
/// use tidegate_rule::request::TrustedProxies;
/// use tidegate_tower::{AccessLayer, RequestAccess};
///
/// let bans = Bans::builder().automatic("10/min for 1h".parse()?).build()?;
/// let control = AccessControl::new("deny 192.0.2.0/24".parse()?, bans);
/// let access = RequestAccess::new(control).behind(TrustedProxies::new(["10.0.0.0/8"])?);
/// let layer = AccessLayer::new(access.ban_on(|reply| reply.status() == 429));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Whoever is kept out is answered with 403, in gRPC with `PERMISSION_DENIED`, and a ban says in `Retry-After` when it ends.
/// A request whose sender is not known is kept out too; see [`RequestAccess::unknown`].
#[derive(Clone, Debug)]
pub struct AccessLayer {
    access: Arc<RequestAccess>,
}

impl AccessLayer {
    /// A layer with this list and these bans.
    pub fn new(access: impl Into<RequestAccess>) -> Self {
        Self { access: Arc::new(access.into()) }
    }
}

impl<S> Layer<S> for AccessLayer {
    type Service = Controlled<S>;

    fn layer(&self, inner: S) -> Controlled<S> {
        Controlled::new(inner, self.access.clone())
    }
}
