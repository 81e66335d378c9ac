//! The layer of a policy.

use super::PolicyService;
use std::sync::Arc;
use tidegate_policy::compile::{LivePolicy, PolicyError};
use tower_layer::Layer;

/// Applies all rules of a policy file to services, as the gateway does: access lists and bans, circuit breakers and
/// adaptive limits, quotas and waiting, bandwidth, and rejection responses.
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
/// Listeners, upstreams and routes of the policy apply only to the gateway and are ignored; a rule that falls back to an
/// upstream is an error. A rule that drops connections (`on-limit: drop`) responds with an empty 444 and closes an HTTP/1
/// connection, because a service cannot drop it. In gRPC every rejection is a status such as `RESOURCE_EXHAUSTED` or
/// `UNAVAILABLE`.
///
/// Schedules are updated when requests arrive. Paths are those that the layer sees: apply it to the outermost router,
/// not to a nested one.
#[derive(Clone, Debug)]
pub struct PolicyLayer {
    policy: Arc<LivePolicy>,
}

impl PolicyLayer {
    /// Creates a layer with this policy and its replacements.
    ///
    /// # Errors
    ///
    /// Returns an error if a rule falls back to an upstream. Later replacements with such a rule are rejected.
    pub fn new(live: Arc<LivePolicy>) -> Result<Self, PolicyError> {
        live.forbid_gateway_fallbacks()?;
        Ok(Self { policy: live })
    }

    /// Creates a layer with a policy without upstream fallbacks.
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
