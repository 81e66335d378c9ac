//! Keys and costs of rules.

use std::sync::Arc;
use tidegate_identity::api_key::ApiKeyPart;
use tidegate_rule::{body::JsonPointer, request::CertificateName};

/// `key`: the part of a request that selects its counter.
///
/// ```yaml
/// key: ip                                   # one part
/// key: [header x-tenant, capture id]        # several, together
/// key: { first: [user, ip] }                # the first of these that a request has
/// key: { cel: "request.path.split('/')[1]" }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub enum KeySpec {
    /// `all`: one counter for all requests.
    #[default]
    All,
    /// One part.
    Part(KeyPart),
    /// All of these together.
    Composite(Vec<Self>),
    /// The first of these that a request has.
    First(Vec<Self>),
}

impl KeySpec {
    /// Whether each request has its own key.
    pub(crate) fn is_per_request(&self) -> bool {
        match self {
            Self::All => false,
            Self::Part(part) => *part == KeyPart::Request,
            Self::Composite(parts) => parts.iter().any(Self::is_per_request),
            Self::First(parts) => parts.first().is_some_and(Self::is_per_request),
        }
    }
}

/// A value that is read from a request.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyPart {
    /// `ip`, or `ip/56`: the address of the client, as trusted proxies report it; for IPv6 a prefix of it.
    Ip {
        /// The prefix length for IPv6 addresses.
        prefix_len: u8,
    },
    /// `user`, by the key that the policy defines as `user`.
    User,
    /// `method`.
    Method,
    /// `host`.
    Host,
    /// `request`: each request by itself. Only useful for bandwidth.
    Request,
    /// `path`, as received.
    Path,
    /// `route`: the path pattern of the rule's `match` that matches.
    Route,
    /// `upstream`: the name of the upstream of the route that matches.
    Upstream,
    /// `header NAME`, in lower case.
    Header(String),
    /// `cookie NAME`.
    Cookie(String),
    /// `query NAME`.
    Query(String),
    /// `descriptor NAME`: an entry of a descriptor of Envoy; `domain` is the domain.
    Descriptor(String),
    /// `body POINTER`: a value in the JSON body, by a JSON pointer.
    Body(JsonPointer),
    /// `jwt CLAIM`: a claim of the verified token, by its name or by a JSON pointer.
    Jwt(JsonPointer),
    /// `api-key`, or `api-key tier`: the name or the tier of the API key.
    ApiKey(ApiKeyPart),
    /// `client-cert subject`, or `client-cert san`: a name in the verified client certificate.
    ClientCertificate(CertificateName),
    /// `capture NAME`: the segment that matches `{name}` in the rule's path.
    Capture(String),
    /// An expression that returns a string or an integer.
    Cel(Expression),
}

/// The default of `cost`.
pub(crate) const DEFAULT_COST: u64 = 1;

/// `cost`: the number of tokens that a request takes; 1 by default.
#[derive(Clone, Debug, PartialEq)]
pub enum CostSpec {
    /// The same cost for every request.
    Fixed(u64),
    /// A number that the request contains.
    FromRequest {
        /// The part of the request that contains the number, or several of which the first counts.
        from: KeySpec,
        /// The cost of a request without a valid number: `cost: { from: header x-cost, default: 1, max: 100 }`.
        default: u64,
        /// The maximum cost of a request.
        max: u64,
    },
}

/// An expression in the Common Expression Language, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression(pub Arc<str>);
