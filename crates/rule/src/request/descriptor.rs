//! Descriptors of Envoy's rate limit protocol, as rules see them.

use super::RequestHead;
use std::{any::Any, net::IpAddr};

/// A descriptor of Envoy's rate limit protocol: named values instead of an HTTP request.
///
/// It has no method, path, host or headers. The client address is the value of its entry `remote_address`.
///
/// ```
/// use tidegate_rule::request::{DescriptorHead, key};
///
/// let head = DescriptorHead::new("shop", [("user", "ann")]);
/// assert_eq!(key::descriptor("user").find(&head), Some("ann".into()));
/// assert_eq!(key::descriptor("domain").find(&head), Some("shop".into()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorHead {
    /// The domain is the first entry.
    entries: Vec<(String, String)>,
    client: Option<IpAddr>,
    hits: u64,
}

impl DescriptorHead {
    /// The name under which rules see the domain of a descriptor. An entry of this name is ignored.
    pub const DOMAIN: &str = "domain";
    /// The name of the entry with the client address.
    pub const REMOTE_ADDRESS: &str = "remote_address";

    /// A descriptor with one hit.
    pub fn new<K, V>(domain: impl Into<String>, entries: impl IntoIterator<Item = (K, V)>) -> Self
    where
        K: Into<String>,
        V: Into<String>,
    {
        let domain = (Self::DOMAIN.to_owned(), domain.into());
        let entries = entries.into_iter().map(|(name, value)| (name.into(), value.into()));
        let entries = entries.filter(|(name, _): &(String, String)| name != Self::DOMAIN);
        let entries: Vec<_> = std::iter::once(domain).chain(entries).collect();
        let client = entries.iter().find(|(name, _)| name == Self::REMOTE_ADDRESS);
        let client = client
            .and_then(|(_, address)| address.trim().parse().ok())
            .map(|client: IpAddr| client.to_canonical());
        Self { entries, client, hits: 1 }
    }

    /// Sets the number of hits, by which the cost of each rule is multiplied; zero only reads the counters.
    #[must_use]
    pub fn with_hits(self, hits: u64) -> Self {
        Self { hits, ..self }
    }

    /// The number of hits.
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// The entries in order, after the domain.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Calls `each` with all values of this name, in order.
    pub fn for_each_value<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.entries.iter().filter(|(known, _)| known == name).for_each(|(_, value)| each(value.as_bytes()));
    }
}

impl RequestHead for DescriptorHead {
    fn method(&self) -> &str {
        ""
    }

    fn path(&self) -> &str {
        ""
    }

    fn host(&self) -> Option<&str> {
        None
    }

    fn route(&self) -> Option<&str> {
        None
    }

    fn peer(&self) -> Option<IpAddr> {
        self.client
    }

    fn client(&self) -> Option<IpAddr> {
        self.client
    }

    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }

    fn for_each_header<'a>(&'a self, _: &str, _: &mut dyn FnMut(&'a [u8])) {}

    fn extensions(&self) -> Option<&dyn Any> {
        None
    }

    fn descriptor(&self) -> Option<&DescriptorHead> {
        Some(self)
    }
}
