//! Where a policy listens, and whether the next one listens there, too.

use std::{borrow::Cow, net::SocketAddr};
use tidegate_http_server::{BoundListener, StartupError};
use tidegate_policy::{Policy, model::ListenerSpec};

/// Where a policy listens that does not say it.
const DEFAULT_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8_080);

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

/// The usual one where none is declared; none where there is nothing to go to, and decisions are asked for elsewhere.
pub(super) fn declared_listeners(policy: &Policy) -> Cow<'_, [ListenerSpec]> {
    let only_decides = policy.decisions.is_some() && policy.upstreams.is_empty() && policy.routes.is_empty();
    match policy.listen.is_empty() {
        true if only_decides => Cow::Borrowed(&[]),
        true => Cow::Owned(vec![ListenerSpec { name: None, address: DEFAULT_ADDRESS, tls: None }]),
        false => Cow::Borrowed(&policy.listen),
    }
}

/// Whether connections can stay as they are from one of these policies to the other.
pub(super) fn has_same_connections(one: &Policy, other: &Policy) -> bool {
    declared_listeners(one) == declared_listeners(other)
        && one.connections == other.connections
        && one.upstreams == other.upstreams
        && one.trusted_proxies == other.trusted_proxies
        && one.forwarded_headers == other.forwarded_headers
        && one.log == other.log
        && one.traces == other.traces
}
