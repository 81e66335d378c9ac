//! For whom, and at what cost.

use std::sync::Arc;

/// `key`: what of a request names its bucket.
///
/// ```yaml
/// key: ip                                   # one part
/// key: [header x-tenant, capture id]        # several, together
/// key: { first: [user, ip] }                # the first of these that a request has
/// key: { cel: "request.path.split('/')[1]" }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub enum KeySpec {
    /// `all`: one bucket for all requests.
    #[default]
    All,
    /// One part.
    Part(KeyPart),
    /// All of these together.
    Composite(Vec<Self>),
    /// The first of these that a request has.
    First(Vec<Self>),
}

/// One thing that can be found in a request.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyPart {
    /// `ip`, or `ip/56`: the address of the client, as trusted proxies tell it, with so many bits of one of IPv6.
    Ip {
        /// The bits of an address of IPv6 that count.
        bits: u8,
    },
    /// `user`, as the policy's `user` finds it.
    User,
    /// `method`.
    Method,
    /// `host`.
    Host,
    /// `request`: each request by itself. Only bandwidth has a use for that.
    Request,
    /// `path`, as it came.
    Path,
    /// `route`: the pattern of the rule's `match` that fits the path.
    Route,
    /// `header NAME`, in lower case.
    Header(String),
    /// `cookie NAME`.
    Cookie(String),
    /// `query NAME`.
    Query(String),
    /// `capture NAME`: what a `{name}` of the rule's path stands for.
    Capture(String),
    /// An expression that gives a text or a number.
    Cel(Expression),
}

/// `cost`: what a request takes. One unless told otherwise.
#[derive(Clone, Debug, PartialEq)]
pub enum CostSpec {
    /// Always so much.
    Fixed(u64),
    /// A number that is found in the request, and another where there is none.
    FromRequest {
        /// Where.
        part: KeyPart,
        /// What it costs where there is none, or no number; `cost: { of: header x-cost, else: 1, most: 100 }`.
        default: u64,
        /// The most that a request can be made to cost.
        max: u64,
    },
}

/// An expression in the Common Expression Language, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression(pub Arc<str>);
