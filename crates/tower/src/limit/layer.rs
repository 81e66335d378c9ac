//! The layer of a gate.

use super::LimitService;
use tidegate_core::Quota;
use tidegate_limiter::BuildError;
use tidegate_rule::{Gate, RequestLimit, RuleConfig, Rules, request::key};
use tower_layer::Layer;

/// Limits requests to services, which share one gate.
///
/// ```
/// use tidegate_tower::LimitLayer;
///
/// let layer = LimitLayer::per_peer_ip("100/min burst 20")?;
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
///
/// Named rules, whose settings a policy file can change:
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
/// | request | is charged | response |
/// |---|---|---|
/// | admitted | its cost, settled with the response | that of the service, with rate limit headers |
/// | denied | nothing | 429 with `Retry-After`, or a custom rejection; `RESOURCE_EXHAUSTED` in gRPC |
/// | cancelled while it waits for a quota or a store | nothing | |
/// | cancelled or failed in the service | the reserved cost; its slots are released | the error of the service |
///
/// The decision is made in `call`, never in `poll_ready`, and before the body is read.
#[derive(Clone, Debug)]
pub struct LimitLayer {
    gate: Gate,
}

impl LimitLayer {
    /// Creates a layer with a gate, a single rule or several rules: `LimitLayer::new([client, login])`.
    pub fn new(gate: impl Into<Gate>) -> Self {
        Self { gate: gate.into() }
    }

    /// Creates a layer that limits each peer address, with its own counters. The rule is named `per-ip` in headers.
    ///
    /// All clients behind a proxy share its address. Behind proxies that set `X-Forwarded-For`, use
    /// [`key::client`](tidegate_rule::request::key::client), or a policy file with `trusted-proxies`.
    pub fn per_peer_ip<Q>(quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let rule = Rules::new().declare(RuleConfig::new("per-ip").quota(quota)?)?;
        Ok(Self::new(RequestLimit::new(rule).key(key::peer())))
    }

    /// Creates a layer with all rules of a policy file in the format of the gateway. The file is reloaded when it changes.
    ///
    /// ```no_run
    /// use tidegate_tower::LimitLayer;
    ///
    /// let layer = LimitLayer::from_policy("policy.yaml")?;
    /// // axum: Router::new().route(…).layer(layer)
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// An invalid file is an error with the line, the column and the fix of each problem. After a later change, the
    /// problems are logged and the previous policy stays in force. The result is a [`PolicyLayer`](crate::PolicyLayer),
    /// because a policy has more than limits. Counters in Redis need a prior call of `tidegate::init` or
    /// `tidegate::rules`, which configures the connection.
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
