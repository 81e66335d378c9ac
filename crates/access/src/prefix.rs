//! Address prefixes: `10.0.0.0/8`, `2001:db8::/32`.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};
use tidegate_core::SettingError;

/// An address, or all addresses with the same first bits.
///
/// An IPv4-mapped IPv6 address is the IPv4 address, and so is a prefix of them. No other IPv6 prefix matches IPv4
/// addresses, not even `::/0`.
///
/// ```
/// use tidegate_access::Prefix;
///
/// let prefix: Prefix = "::ffff:10.0.0.0/104".parse()?;
/// assert_eq!(prefix.to_string(), "10.0.0.0/8");
/// assert!(prefix.contains("10.1.2.3".parse().unwrap()));
/// assert_eq!("192.0.2.7".parse::<Prefix>()?.prefix_len(), 32);
/// assert!("10.0.0.1/8".parse::<Prefix>().is_err()); // write 10.0.0.0/8
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    network_address: IpAddr,
    prefix_len: u8,
}

/// The number of bits before the IPv4 address in an IPv4-mapped one.
const MAPPED_PREFIX_LEN: u8 = 96;

impl Prefix {
    /// All addresses with the same first `bits` as `address`, whose other bits must be zero.
    pub fn new(address: IpAddr, prefix_len: u8) -> Result<Self, SettingError> {
        let (max_len, family) = match address {
            IpAddr::V4(_) => (32, "IPv4"),
            IpAddr::V6(_) => (128, "IPv6"),
        };
        if prefix_len > max_len {
            let problem = format!("`{address}/{prefix_len}`: an {family} address has {max_len} bits");
            return Err(SettingError::new(problem, format!("write `{address}` for a single address")));
        }
        let network_address = mask(address, prefix_len);
        if network_address != address {
            return Err(SettingError::new(
                format!("`{address}/{prefix_len}` has bits set after the first {prefix_len}"),
                format!(
                    "write `{}`, or `{address}` for a single address",
                    Self { network_address, prefix_len }
                ),
            ));
        }
        Ok(match (network_address, address.to_canonical()) {
            // A shorter prefix of an IPv4-mapped address has bits set after it and is rejected above.
            (IpAddr::V6(_), network_address @ IpAddr::V4(_)) => {
                Self { network_address, prefix_len: prefix_len.saturating_sub(MAPPED_PREFIX_LEN) }
            }
            _ => Self { network_address, prefix_len },
        })
    }

    /// The first address.
    pub fn network_address(&self) -> IpAddr {
        self.network_address
    }

    /// The length of the prefix in bits.
    pub fn prefix_len(&self) -> u8 {
        self.prefix_len
    }

    /// Whether the prefix contains the address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.network_address.is_ipv4()
            && mask(address, self.prefix_len) == self.network_address
    }

    /// The prefix of this length that contains the address.
    pub(crate) fn containing(address: IpAddr, prefix_len: u8) -> Self {
        Self { network_address: mask(address, prefix_len), prefix_len }
    }
}

/// A prefix of a single address.
impl From<IpAddr> for Prefix {
    fn from(address: IpAddr) -> Self {
        let network_address = address.to_canonical();
        Self { network_address, prefix_len: if network_address.is_ipv4() { 32 } else { 128 } }
    }
}

impl From<Ipv4Addr> for Prefix {
    fn from(address: Ipv4Addr) -> Self {
        IpAddr::from(address).into()
    }
}

impl From<Ipv6Addr> for Prefix {
    fn from(address: Ipv6Addr) -> Self {
        IpAddr::from(address).into()
    }
}

/// Parses an address, or an address and a prefix length: `192.0.2.7`, `10.0.0.0/8`, `2001:db8::/32`.
impl FromStr for Prefix {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let text = text.trim();
        let (address, prefix_len) = match text.split_once('/') {
            None => (text, None),
            Some((address, prefix_len)) => (address, Some(prefix_len)),
        };
        let Ok(address) = address.parse::<IpAddr>() else { return Err(invalid_address(text, address)) };
        let Some(prefix_len) = prefix_len else { return Ok(address.into()) };
        match prefix_len.parse::<u8>() {
            // The parser accepts `+8` and `08`, which are probably typos.
            Ok(number) if number.to_string() == prefix_len => Self::new(address, number),
            _ => Err(invalid_prefix_len(address, prefix_len)),
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.network_address, self.prefix_len) {
            (IpAddr::V4(_), 32) | (IpAddr::V6(_), 128) => self.network_address.fmt(f),
            (network_address, prefix_len) => write!(f, "{network_address}/{prefix_len}"),
        }
    }
}

fn mask(address: IpAddr, prefix_len: u8) -> IpAddr {
    let rest = u32::from(prefix_len);
    match address {
        IpAddr::V4(it) => Ipv4Addr::from(u32::from(it) & !u32::MAX.checked_shr(rest).unwrap_or(0)).into(),
        IpAddr::V6(it) => Ipv6Addr::from(u128::from(it) & !u128::MAX.checked_shr(rest).unwrap_or(0)).into(),
    }
}

/// Explains an invalid address, with a fix for common mistakes.
fn invalid_address(text: &str, address: &str) -> SettingError {
    let without_port = |text: &str| text.parse::<std::net::SocketAddr>().ok().map(|it| it.ip());
    let without_brackets = |text: &str| text.strip_prefix('[')?.strip_suffix(']')?.parse::<IpAddr>().ok();
    let without_zone = |text: &str| text.split_once('%')?.0.parse::<IpAddr>().ok();
    let guess = without_port(address).or_else(|| without_brackets(address)).or_else(|| without_zone(address));
    let fix = match guess {
        Some(address) => format!("write `{address}`, without port, brackets or zone"),
        None if address.contains('-') => "write a range as prefixes, as in `192.0.2.0/25`".to_owned(),
        None => "write an address as `192.0.2.7`, or a prefix as `10.0.0.0/8` or `2001:db8::/32`".to_owned(),
    };
    SettingError::new(format!("`{text}` is not an address"), fix)
}

/// Explains an invalid prefix length.
fn invalid_prefix_len(address: IpAddr, prefix_len: &str) -> SettingError {
    let mask = prefix_len.parse::<Ipv4Addr>().ok().map(u32::from);
    let fix = match mask {
        Some(mask) if address.is_ipv4() && mask.count_ones() == mask.leading_ones() => {
            format!("write `{}`", Prefix::containing(address, mask.leading_ones() as u8))
        }
        _ => format!("write a prefix length in bits, as in `{}`", example_prefix(address)),
    };
    SettingError::new(format!("`{address}/{prefix_len}`: invalid prefix length `{prefix_len}`"), fix)
}

fn example_prefix(address: IpAddr) -> Prefix {
    Prefix::containing(address, if address.is_ipv4() { 24 } else { 64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_text_round_trips() {
        for (text, printed) in [
            ("192.0.2.7", "192.0.2.7"),
            ("192.0.2.7/32", "192.0.2.7"),
            (" 10.0.0.0/8 ", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("2001:DB8::/32", "2001:db8::/32"),
            ("2001:db8::1/128", "2001:db8::1"),
            ("::/0", "::/0"),
            ("::1", "::1"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::ffff:192.0.2.7/128", "192.0.2.7"),
        ] {
            let prefix: Prefix = text.parse().unwrap();
            assert_eq!(prefix.to_string(), printed);
            assert_eq!(printed.parse(), Ok(prefix));
        }
    }

    #[test]
    fn prefix_errors_suggest_a_fix() {
        for (text, fix) in [
            ("10.0.0.1/8", "write `10.0.0.0/8`, or `10.0.0.1` for a single address"),
            ("2001:db8::1/32", "write `2001:db8::/32`, or `2001:db8::1` for a single address"),
            ("::ffff:10.0.0.1/104", "write `::ffff:10.0.0.0/104`, or `::ffff:10.0.0.1` for a single address"),
            ("::ffff:0:0/90", "write `::ffc0:0:0/90`, or `::ffff:0.0.0.0` for a single address"),
            ("10.0.0.0/33", "write `10.0.0.0` for a single address"),
            ("::/129", "write `::` for a single address"),
            ("10.0.0.0/255.0.0.0", "write `10.0.0.0/8`"),
            ("10.0.0.0/255.0.255.0", "write a prefix length in bits, as in `10.0.0.0/24`"),
            ("10.0.0.0/", "write a prefix length in bits, as in `10.0.0.0/24`"),
            ("10.0.0.0/08", "write a prefix length in bits, as in `10.0.0.0/24`"),
            ("10.0.0.0/-1", "write a prefix length in bits, as in `10.0.0.0/24`"),
            ("2001:db8::/999", "write a prefix length in bits, as in `2001:db8::/64`"),
            ("192.0.2.7:80", "write `192.0.2.7`, without port, brackets or zone"),
            ("[2001:db8::1]:80", "write `2001:db8::1`, without port, brackets or zone"),
            ("[2001:db8::1]", "write `2001:db8::1`, without port, brackets or zone"),
            ("fe80::1%eth0", "write `fe80::1`, without port, brackets or zone"),
            ("192.0.2.1-192.0.2.9", "write a range as prefixes, as in `192.0.2.0/25`"),
            ("", "write an address as `192.0.2.7`, or a prefix as `10.0.0.0/8` or `2001:db8::/32`"),
            ("10.0.0/8", "write an address as `192.0.2.7`, or a prefix as `10.0.0.0/8` or `2001:db8::/32`"),
            ("010.0.0.1", "write an address as `192.0.2.7`, or a prefix as `10.0.0.0/8` or `2001:db8::/32`"),
            ("alice", "write an address as `192.0.2.7`, or a prefix as `10.0.0.0/8` or `2001:db8::/32`"),
        ] {
            let error = text.parse::<Prefix>().unwrap_err();
            assert_eq!(error.fix(), fix, "{text}");
        }
    }

    #[test]
    fn mapped_address_matches_only_ipv4_prefixes() {
        let mapped: IpAddr = "::ffff:10.1.2.3".parse().unwrap();
        let contains = |prefix: &str| prefix.parse::<Prefix>().unwrap().contains(mapped);
        assert!(contains("10.0.0.0/8") && contains("::ffff:10.0.0.0/104") && contains("0.0.0.0/0"));
        assert!(!contains("::/0") && !contains("::/80") && !contains("11.0.0.0/8"));
    }
}
