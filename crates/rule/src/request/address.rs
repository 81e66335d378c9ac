//! The address of a client, as a key.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

/// An address as a key: one IPv4 address, or one network of IPv6, since a single client has all the addresses of its own.
///
/// One number, which is hashed quicker than bytes: an IPv4 address is that of IPv6 which stands for it, and which is none of
/// its own here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressKey(u128);

impl AddressKey {
    /// The bits of an address of IPv6 that are one client unless told otherwise: a client is given a network of this size
    /// at least. Many are given one of 56 or 48, and have as many keys as those hold networks.
    pub const IPV6_PREFIX_BITS: u8 = 64;

    /// The key of a client: an IPv4 address, or the first 64 bits of one of IPv6. IPv4 in the clothes of IPv6 is IPv4.
    pub fn new(address: IpAddr) -> Self {
        Self::with_prefix(address, Self::IPV6_PREFIX_BITS)
    }

    /// The same, with so many bits of an address of IPv6; 128 at most.
    #[inline]
    pub fn with_prefix(address: IpAddr, bits: u8) -> Self {
        match address {
            IpAddr::V4(address) => Self(address.to_ipv6_mapped().to_bits()),
            IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => Self(address.to_bits()),
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128_u32.saturating_sub(bits.into())).unwrap_or(0);
                Self(address.to_bits() & mask)
            }
        }
    }

    /// The address that stands for all of them.
    pub(crate) fn network_address(self) -> IpAddr {
        Ipv6Addr::from_bits(self.0).to_canonical()
    }
}

impl fmt::Display for AddressKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.network_address().fmt(f)
    }
}
