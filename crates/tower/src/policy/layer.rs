//! Puts a policy in front of services.

use super::PolicyService;
use std::sync::Arc;
use tidegate_policy::compile::{LivePolicy, PolicyError};
use tower_layer::Layer;

/// Puts all rules of a policy file in front of services, as the gateway does: lists and bans, breakers and adaptive limits,
/// quotas and waiting, bandwidth, and what is answered to whoever is refused.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_policy::{Policy, compile::{Compiler, LivePolicy}};
/// use tidegate_rule::Rules;
/// use tidegate_tower::PolicyLayer;
///
/// let policy: Policy = "rules: [{ name: everybody, key: ip, quota: 100/min }]".parse()?;
/// let live = Arc::new(LivePolicy::new(Compiler::new(Rules::new()), &policy)?);
/// let layer = PolicyLayer::new(live.clone())?;
/// // axum: Router::new().route(…).layer(layer)
/// live.replace(&"rules: [{ name: everybody, key: ip, quota: 50/min }]".parse()?)?;   // counters stay
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// What a policy says of listeners, upstreams and routes is for the gateway, and means nothing here; a rule that falls back
/// to an upstream is refused. A rule that drops connections (`on-limit: drop`) answers with an empty 444, and closes the
/// connection behind it where that is one of HTTP/1: a service cannot do more. In gRPC every refusal is a status,
/// `RESOURCE_EXHAUSTED` or `UNAVAILABLE`.
///
/// Schedules follow the time as requests come in. Paths are those that the layer sees: put it around the whole of a router,
/// not into a part that is nested in another.
#[derive(Clone, Debug)]
pub struct PolicyLayer {
    policy: Arc<LivePolicy>,
}

impl PolicyLayer {
    /// A layer with this policy, whatever it is replaced by. Rules that fall back to an upstream are an error, now and in
    /// what is to replace it: there is none here.
    pub fn new(live: Arc<LivePolicy>) -> Result<Self, PolicyError> {
        live.forbid_upstream_fallbacks()?;
        Ok(Self { policy: live })
    }

    /// A layer with a policy that was checked to need no upstreams.
    pub(crate) fn from_checked(live: Arc<LivePolicy>) -> Self {
        Self { policy: live }
    }
}

impl<S> Layer<S> for PolicyLayer {
    type Service = PolicyService<S>;

    fn layer(&self, inner: S) -> PolicyService<S> {
        PolicyService::new(self.policy.clone(), inner)
    }
}
