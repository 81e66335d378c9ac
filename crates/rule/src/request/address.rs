//! The address of a client as a key.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

/// An address as a key: one IPv4 address, or one IPv6 network, since a client can use all addresses of its
/// network.
///
/// A single integer, which hashes faster than bytes: an IPv4 address is stored as the IPv4-mapped IPv6
/// address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressKey(u128);

impl AddressKey {
    /// The default prefix length of an IPv6 client: clients get a network of at least this size. Many get a
    /// /56 or /48, and so have several keys.
    pub const IPV6_PREFIX_LEN: u8 = 64;

    /// Creates the key of a client: an IPv4 address, or the first 64 bits of an IPv6 address. IPv4-mapped
    /// IPv6 counts as IPv4.
    pub fn new(address: IpAddr) -> Self {
        Self::with_prefix(address, Self::IPV6_PREFIX_LEN)
    }

    /// Creates a key with this number of bits of an IPv6 address; at most 128.
    #[inline]
    pub fn with_prefix(address: IpAddr, prefix_len: u8) -> Self {
        match address {
            IpAddr::V4(address) => Self(address.to_ipv6_mapped().to_bits()),
            IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => Self(address.to_bits()),
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128_u32.saturating_sub(prefix_len.into())).unwrap_or(0);
                Self(address.to_bits() & mask)
            }
        }
    }

    /// The base address of the network.
    pub(crate) fn network_address(self) -> IpAddr {
        Ipv6Addr::from_bits(self.0).to_canonical()
    }
}

impl fmt::Display for AddressKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.network_address().fmt(f)
    }
}
