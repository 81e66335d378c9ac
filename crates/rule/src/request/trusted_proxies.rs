//! The proxies that are trusted to report the client address.

use super::{RequestHead, forwarded, parse_name};
use std::{fmt, net::IpAddr, sync::Arc};
use tidegate_access::{AccessList, AccessMatch, Prefix};
use tidegate_core::SettingError;

/// The trusted proxies in front of a program, and the header in which they report the client address.
///
/// ```text
///   client ──▶ proxy 10.0.0.2 ──▶ proxy 10.0.0.1 ──▶ here        X-Forwarded-For: anything, 203.0.113.7, 10.0.0.2
///                                  the peer                                        └ the client
/// ```
///
/// Resolution starts at the peer. While an address belongs to a trusted proxy, the next address to the left
/// is the one that this proxy saw. The first address that is not trusted is the client: everything left of it
/// was written by the client itself, and is never read.
///
/// * A peer that is not trusted is the client, whatever its headers say.
/// * If the peer address was not recorded, there is no client address.
/// * If a trusted proxy wrote nothing, `unknown`, an obfuscated name or an invalid address, that proxy counts as the
///   client. Its clients share a bucket, and none can impersonate another.
/// * If all addresses are trusted, the left-most is the client. At most 32 are read.
/// * Only the declared header is read. A proxy writes one of them and forwards the others as the client sent them.
///
/// ```
/// use tidegate_rule::request::TrustedProxies;
///
/// let proxies = TrustedProxies::new(["10.0.0.0/8", "2001:db8::1"])?;     // they write X-Forwarded-For
/// let cdn = TrustedProxies::private().custom_header("cf-connecting-ip")?;
/// let error = TrustedProxies::new(["10.0.0.1/8"]).unwrap_err();
/// assert!(error.to_string().contains("write `10.0.0.0/8`"));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone)]
pub struct TrustedProxies {
    networks: Arc<[Prefix]>,
    /// A lookup table, if there are too many networks to scan.
    table: Option<Arc<AccessList>>,
    header: ClientIpHeader,
}

/// The header in which proxies report the client address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientIpHeader {
    /// `X-Forwarded-For`: each proxy appends the address that it saw.
    #[default]
    XForwardedFor,
    /// `Forwarded` of RFC 7239: each proxy appends the address that it saw, and more.
    Forwarded,
    /// A header with one address, such as `x-real-ip`, that the outermost proxy sets and overwrites.
    Custom(Arc<str>),
}

/// Loopback, private networks, link-local and unique local addresses.
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

/// The maximum number of networks that are scanned; more use a table.
const MAX_LINEAR_NETWORKS: usize = 16;

impl TrustedProxies {
    /// Trusts these addresses or networks: `10.0.0.0/8`, `::1`.
    pub fn new<P: AsRef<str>>(networks: impl IntoIterator<Item = P>) -> Result<Self, SettingError> {
        Self::none().with_networks(networks)
    }

    /// Trusts no proxies: the peer is the client.
    pub fn none() -> Self {
        Self { networks: Arc::default(), table: None, header: ClientIpHeader::default() }
    }

    /// Trusts proxies on this machine.
    pub fn loopback() -> Self {
        PRIVATE_NETWORKS[..2].iter().flat_map(|network| network.parse()).collect::<Vec<_>>().into()
    }

    /// Trusts proxies on this machine and in private networks. Use it only if no client can be in one of
    /// these networks.
    pub fn private() -> Self {
        PRIVATE_NETWORKS.iter().flat_map(|network| network.parse()).collect::<Vec<_>>().into()
    }

    /// Also trusts these addresses or networks.
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

    /// Sets the header in which they report the client address; `X-Forwarded-For` by default.
    #[must_use]
    pub fn header(self, header: ClientIpHeader) -> Self {
        Self { header, ..self }
    }

    /// Reads `Forwarded`, as in RFC 7239.
    #[must_use]
    pub fn forwarded(self) -> Self {
        self.header(ClientIpHeader::Forwarded)
    }

    /// Reads the client address from a header of its own, such as `x-real-ip` or `cf-connecting-ip`, which
    /// the proxies must overwrite.
    pub fn custom_header(self, header: &str) -> Result<Self, SettingError> {
        Ok(self.header(ClientIpHeader::Custom(parse_name(header, "header")?.into())))
    }

    /// The client address of this request; `None` if the peer address is unknown. An address that the
    /// framework integration [has resolved](RequestHead::client) is returned unchanged.
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

    /// Whether this is the address of a trusted proxy.
    pub fn is_trusted(&self, address: IpAddr) -> bool {
        match &self.table {
            Some(table) => table.check(address) == AccessMatch::Allowed,
            None => self.networks.iter().any(|network| network.contains(address)),
        }
    }
}

/// Trusts proxies in these networks, which write `X-Forwarded-For`.
impl From<Vec<Prefix>> for TrustedProxies {
    fn from(mut networks: Vec<Prefix>) -> Self {
        networks.sort_unstable();
        networks.dedup();
        let table = (networks.len() > MAX_LINEAR_NETWORKS).then(|| {
            networks.iter().fold(AccessList::builder(), |list, network| list.allow(*network)).build()
        });
        // Networks that a table cannot represent are scanned.
        let table = table.and_then(Result::ok).map(Arc::new);
        Self { networks: networks.into(), table, header: ClientIpHeader::default() }
    }
}

impl fmt::Debug for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let networks = f.debug_list().entries(self.networks.iter().map(ToString::to_string)).finish();
        networks.and_then(|()| write!(f, " by {:?}", self.header))
    }
}
