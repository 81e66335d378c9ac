//! Where a policy listens, and whether the next one listens there, too.

use std::{borrow::Cow, net::SocketAddr};
use tidegate_http_server::{BoundListener, Fault};
use tidegate_policy::{Policy, model::ListenerSpec};

/// Where a policy listens that does not say it.
const USUAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8_080);

/// Binds the listeners of a policy. Sockets that are bound already are reused.
pub(super) fn listeners(policy: &Policy, existing: &[BoundListener]) -> Result<Vec<BoundListener>, Fault> {
    declared(policy).iter().map(|declared| BoundListener::bind_or_reuse(declared, existing)).collect()
}

/// The usual one where none is declared; none where there is nothing to go to, and decisions are asked for elsewhere.
pub(super) fn declared(policy: &Policy) -> Cow<'_, [ListenerSpec]> {
    let only_decides = policy.decisions.is_some() && policy.upstreams.is_empty() && policy.routes.is_empty();
    match policy.listen.is_empty() {
        true if only_decides => Cow::Borrowed(&[]),
        true => Cow::Owned(vec![ListenerSpec { name: None, address: USUAL, tls: None }]),
        false => Cow::Borrowed(&policy.listen),
    }
}

/// Whether connections can stay as they are from one of these policies to the other.
pub(super) fn has_same_connections(one: &Policy, other: &Policy) -> bool {
    declared(one) == declared(other)
        && one.connections == other.connections
        && one.upstreams == other.upstreams
        && one.trusted_proxies == other.trusted_proxies
        && one.forwarded_headers == other.forwarded_headers
        && one.log == other.log
        && one.traces == other.traces
}
