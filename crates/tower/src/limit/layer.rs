//! Puts a gate in front of services.

use super::Limit;
use tidegate_rule::Gate;
use tower_layer::Layer;

/// Puts a gate in front of services, which all share it.
///
/// ```
/// use tidegate_rule::{Declaration, RequestLimit, request::key};
/// use tidegate_tower::LimitLayer;
///
/// let limit = RequestLimit::of(Declaration::of("api").quota("100/min")?)?.key(key::peer());
/// let layer = LimitLayer::new(limit);
/// # Ok::<(), tidegate_engine::BuildError>(())
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
}

impl<S> Layer<S> for LimitLayer {
    type Service = Limit<S>;

    fn layer(&self, inner: S) -> Limit<S> {
        Limit::new(self.gate.clone(), inner)
    }
}
