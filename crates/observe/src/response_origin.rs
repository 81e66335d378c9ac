//! Who made a response.

/// Who made a response. The place of each is that of its counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseOrigin {
    /// A server of an upstream.
    Server,
    /// The gateway itself: a denial, a server that cannot be reached, a request that makes no sense.
    Gateway,
}
