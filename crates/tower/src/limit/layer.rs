//! Puts a gate in front of services.

use super::LimitService;
use tidegate_core::Quota;
use tidegate_limiter::BuildError;
use tidegate_rule::{Gate, RequestLimit, RuleConfig, Rules, request::key};
use tower_layer::Layer;

/// Puts a gate in front of services, which all share it.
///
/// ```
/// use tidegate_tower::LimitLayer;
///
/// let layer = LimitLayer::per_ip("100/min burst 20")?;
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
///
/// Rules with names, which a policy file may change:
///
/// ```
/// use tidegate_rule::{RuleConfig, RequestLimit, request::key};
/// use tidegate_tower::LimitLayer;
///
/// let limit = RequestLimit::from_config(RuleConfig::new("api").quota("100/min")?)?.key(key::peer());
/// let layer = LimitLayer::new(limit);
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
///
/// | a request | pays | gets |
/// |---|---|---|
/// | that is let through | its cost, settled with the answer | the service's answer, and headers that tell what is left |
/// | that is refused | nothing | 429 with `Retry-After`, or what the gate's function says; `RESOURCE_EXHAUSTED` in gRPC |
/// | that is cancelled while it waits for its turn or for a store | nothing | |
/// | that is cancelled, or fails, in the service | what was taken; its slots are given back | the service's error |
///
/// The decision is made when the service is called, never while it is asked whether it is ready, and before anything of the
/// body is read.
#[derive(Clone, Debug)]
pub struct LimitLayer {
    gate: Gate,
}

impl LimitLayer {
    /// A layer with this gate, or with a gate of this one rule or of these rules: `LimitLayer::new([client, login])`.
    pub fn new(gate: impl Into<Gate>) -> Self {
        Self { gate: gate.into() }
    }

    /// A layer that limits each client by the address of its connection, with counters of its own. Headers call its rule
    /// `per-ip`.
    ///
    /// All clients behind one proxy share its address: behind proxies that set `X-Forwarded-For`, use
    /// [`key::client`](tidegate_rule::request::key::client), or a policy file with `trusted-proxies`.
    pub fn per_ip<Q>(quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let rule = Rules::new().declare(RuleConfig::new("per-ip").quota(quota)?)?;
        Ok(Self::new(RequestLimit::new(rule).key(key::peer())))
    }

    /// A layer with all rules of a policy file, which is read again when it changes: the same file as that of the gateway.
    ///
    /// ```no_run
    /// use tidegate_tower::LimitLayer;
    ///
    /// let layer = LimitLayer::from_policy("policy.yaml")?;
    /// // axum: Router::new().route(…).layer(layer)
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A file with problems is an error, with the line, the column and the fix of each; later it is logged, and the previous
    /// policy stays. It is a [`PolicyLayer`](crate::PolicyLayer), since a policy has more than limits. Counters in Redis need
    /// a call of `tidegate::init` or `tidegate::rules` before, which tells how to connect.
    #[cfg(feature = "policy")]
    pub fn from_policy(
        path: impl Into<std::path::PathBuf>,
    ) -> Result<crate::PolicyLayer, tidegate_policy::Problems> {
        let compiler = tidegate_policy::compile::Compiler::new(Rules::global().with_same_connect());
        tidegate_policy::compile::LivePolicy::from_file(path, compiler).map(crate::PolicyLayer::from_checked)
    }
}

impl<S> Layer<S> for LimitLayer {
    type Service = LimitService<S>;

    fn layer(&self, inner: S) -> LimitService<S> {
        LimitService::new(self.gate.clone(), inner)
    }
}
