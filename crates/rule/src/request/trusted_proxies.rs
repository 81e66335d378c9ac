//! Which proxies are believed when they say who the client is.

use super::{RequestHead, forwarded, parse_name};
use std::{fmt, net::IpAddr, sync::Arc};
use tidegate_access::{AccessList, AccessMatch, Prefix};
use tidegate_core::SettingError;

/// The proxies in front of a program, and the header in which they say who the client is.
///
/// ```text
///   client ──▶ proxy 10.0.0.2 ──▶ proxy 10.0.0.1 ──▶ here        X-Forwarded-For: anything, 203.0.113.7, 10.0.0.2
///                                  the peer                                        └ the client
/// ```
///
/// The walk starts at the peer. As long as an address is that of a trusted proxy, that proxy is believed, and the next
/// address to the left is what it saw. The first address that is not trusted is the client: whatever stands left of it was
/// written by the client itself, and is never read.
///
/// * A peer that is not trusted is the client, whatever its headers say.
/// * A peer that nobody noted down is no client: there is no key.
/// * Where a trusted proxy wrote nothing, `unknown`, a hidden name or what is no address, that proxy is the client. So its
///   clients share a bucket, and nobody can pass for somebody else.
/// * If all are trusted, the left-most is the client. No more than 32 are looked at.
/// * Only the one header that was declared is read. A proxy writes one of them and passes the others on as the client wrote
///   them.
///
/// ```
/// use tidegate_rule::request::TrustedProxies;
///
/// let proxies = TrustedProxies::new(["10.0.0.0/8", "2001:db8::1"])?;     // they write X-Forwarded-For
/// let cdn = TrustedProxies::private().single_header("cf-connecting-ip")?;
/// let error = TrustedProxies::new(["10.0.0.1/8"]).unwrap_err();
/// assert!(error.to_string().contains("write `10.0.0.0/8`"));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone)]
pub struct TrustedProxies {
    networks: Arc<[Prefix]>,
    /// The same to be looked up, where there are too many to look at each.
    table: Option<Arc<AccessList>>,
    header: AddressHeader,
}

/// The header in which proxies say who the client is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AddressHeader {
    /// `X-Forwarded-For`: each proxy appends the address that it saw.
    #[default]
    XForwardedFor,
    /// `Forwarded` of RFC 7239: each proxy appends the address that it saw, and more.
    Forwarded,
    /// A header with one address, such as `x-real-ip`, that the outermost proxy sets and overwrites.
    Single(Arc<str>),
}

/// Where not everybody is on a network of their own: loopback, private networks, link-local and unique local addresses.
const PRIVATE_NETWORKS: [&str; 8] = [
    "127.0.0.0/8",
    "::1",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "169.254.0.0/16",
    "fc00::/7",
    "fe80::/10",
];

/// More networks than this are looked up in a table.
const MAX_LINEAR_NETWORKS: usize = 16;

impl TrustedProxies {
    /// Proxies with these addresses, or in these networks: `10.0.0.0/8`, `::1`.
    pub fn new<P: AsRef<str>>(networks: impl IntoIterator<Item = P>) -> Result<Self, SettingError> {
        Self::none().with_networks(networks)
    }

    /// No proxies: the peer is the client.
    pub fn none() -> Self {
        Self { networks: Arc::default(), table: None, header: AddressHeader::default() }
    }

    /// Proxies on this machine.
    pub fn loopback() -> Self {
        PRIVATE_NETWORKS[..2].iter().flat_map(|network| network.parse()).collect::<Vec<_>>().into()
    }

    /// Proxies on this machine and in private networks. Only where no client can be in one of those too.
    pub fn private() -> Self {
        PRIVATE_NETWORKS.iter().flat_map(|network| network.parse()).collect::<Vec<_>>().into()
    }

    /// These proxies, and those with these addresses or in these networks.
    pub fn with_networks<P: AsRef<str>>(
        self,
        networks: impl IntoIterator<Item = P>,
    ) -> Result<Self, SettingError> {
        let mut all = self.networks.to_vec();
        for network in networks {
            all.push(network.as_ref().parse()?);
        }
        Ok(Self { header: self.header, ..Self::from(all) })
    }

    /// The header in which they say who the client is; `X-Forwarded-For` unless told otherwise.
    #[must_use]
    pub fn header(self, header: AddressHeader) -> Self {
        Self { header, ..self }
    }

    /// They write `Forwarded`, as in RFC 7239.
    #[must_use]
    pub fn forwarded(self) -> Self {
        self.header(AddressHeader::Forwarded)
    }

    /// They write the one address of the client in a header of its own, such as `x-real-ip` or `cf-connecting-ip`, and
    /// overwrite what a client wrote there.
    pub fn single_header(self, header: &str) -> Result<Self, SettingError> {
        Ok(self.header(AddressHeader::Single(parse_name(header, "header")?.into())))
    }

    /// The address of whoever sent this request; `None` if the other end of the connection is not known. An address that
    /// the surface [has resolved](RequestHead::client) is returned as it is.
    pub fn client_address(&self, head: &dyn RequestHead) -> Option<IpAddr> {
        if let Some(client) = head.client() {
            return Some(client);
        }
        let peer = head.peer()?.to_canonical();
        match self.is_trusted(peer) {
            true => {
                Some(forwarded::resolve_client(head, &self.header, peer, |address| self.is_trusted(address)))
            }
            false => Some(peer),
        }
    }

    /// Whether this is the address of such a proxy.
    pub fn is_trusted(&self, address: IpAddr) -> bool {
        match &self.table {
            Some(table) => table.check(address) == AccessMatch::Allowed,
            None => self.networks.iter().any(|network| network.contains(address)),
        }
    }
}

/// Proxies in these networks, which write `X-Forwarded-For`.
impl From<Vec<Prefix>> for TrustedProxies {
    fn from(mut networks: Vec<Prefix>) -> Self {
        networks.sort_unstable();
        networks.dedup();
        let table = (networks.len() > MAX_LINEAR_NETWORKS).then(|| {
            networks.iter().fold(AccessList::builder(), |list, network| list.allow(*network)).build()
        });
        // What no table can hold is looked at one by one.
        let table = table.and_then(Result::ok).map(Arc::new);
        Self { networks: networks.into(), table, header: AddressHeader::default() }
    }
}

impl fmt::Debug for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let networks = f.debug_list().entries(self.networks.iter().map(ToString::to_string)).finish();
        networks.and_then(|()| write!(f, " by {:?}", self.header))
    }
}
