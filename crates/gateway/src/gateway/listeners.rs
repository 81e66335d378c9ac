//! The listeners of a policy, and whether the next policy keeps them.

use std::borrow::Cow;
use tidegate_http_server::{BoundListener, StartupError};
use tidegate_policy::{Policy, model::ListenerSpec};

/// Binds the listeners of a policy. Sockets that are bound already are reused.
pub(super) fn bind_listeners(
    policy: &Policy,
    existing: &[BoundListener],
) -> Result<Vec<BoundListener>, StartupError> {
    declared_listeners(policy)
        .iter()
        .map(|declared| BoundListener::bind_or_reuse(declared, existing))
        .collect()
}

/// The declared listeners, or the default one. A policy that only decides for other programs has none.
pub(super) fn declared_listeners(policy: &Policy) -> Cow<'_, [ListenerSpec]> {
    let has_decisions = policy.decisions.is_some() || policy.envoy.is_some();
    let is_decision_only = has_decisions && policy.upstreams.is_empty() && policy.routes.is_empty();
    match policy.listen.is_empty() {
        true if is_decision_only => Cow::Borrowed(&[]),
        true => {
            Cow::Owned(vec![ListenerSpec { name: None, address: ListenerSpec::DEFAULT_ADDRESS, tls: None }])
        }
        false => Cow::Borrowed(&policy.listen),
    }
}

/// Whether two policies have the same listeners, upstreams, connection settings, log and traces.
pub(super) fn has_same_connections(one: &Policy, other: &Policy) -> bool {
    declared_listeners(one) == declared_listeners(other)
        && one.connections == other.connections
        && one.upstreams == other.upstreams
        && one.trusted_proxies == other.trusted_proxies
        && one.forwarded_headers == other.forwarded_headers
        && one.log == other.log
        && one.traces == other.traces
}
