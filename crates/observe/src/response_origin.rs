//! The origin of a response.

/// The origin of a response. The discriminant is the index of its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseOrigin {
    /// A server of an upstream.
    Server,
    /// The gateway: a denial, an unreachable server, an invalid request.
    Gateway,
}
