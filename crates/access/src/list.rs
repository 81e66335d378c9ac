//! A list of who is let in and who is not: addresses, prefixes and keys.

use super::{
    build::{AccessListBuilder, ListError},
    keys::KeySet,
    prefix::Prefix,
    ranges::Ranges,
};
use std::{fmt, net::IpAddr, str::FromStr};

/// What a list says of an address or a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessMatch {
    /// It is on the list, and let in.
    Allowed,
    /// It is on the list, and kept out.
    Denied,
    /// It is not on the list.
    Unlisted,
}

/// What an entry of a list does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListAction {
    /// Lets in.
    Allow,
    /// Keeps out.
    Deny,
}

/// Who is let in and who is not. The longest prefix around an address wins, whether it allows or denies.
///
/// ```
/// use tidegate_access::{AccessMatch, AccessList};
///
/// let list: AccessList = "
///     deny  10.0.0.0/8
///     allow 10.1.0.0/16       # the office
///     deny  2001:db8::/32
///     deny  key mallory
/// ".parse()?;
/// assert_eq!(list.check([10, 2, 3, 4]), AccessMatch::Denied);
/// assert_eq!(list.check([10, 1, 3, 4]), AccessMatch::Allowed);
/// assert_eq!(list.check([192, 0, 2, 7]), AccessMatch::Unlisted);
/// assert_eq!(list.check_key("mallory"), AccessMatch::Denied);
/// # Ok::<(), tidegate_access::ListError>(())
/// ```
///
/// It never changes once it is built: to change a list, build another and put it in its place
/// ([`crate::AccessControl::replace`]). Keys are kept and compared in full, so that nobody is taken for another.
pub struct AccessList {
    pub(super) v4: Ranges<u32>,
    pub(super) v6: Ranges<u128>,
    pub(super) keys: KeySet,
    pub(super) entries: usize,
}

impl AccessList {
    /// A list to be filled entry by entry.
    pub fn builder() -> AccessListBuilder {
        AccessListBuilder::default()
    }

    /// What the list says of an address. A mapped IPv4 address is the IPv4 address.
    #[inline]
    pub fn check(&self, address: impl Into<IpAddr>) -> AccessMatch {
        AccessMatch::from_code(match address.into() {
            IpAddr::V4(address) => self.v4.code(address.into()),
            IpAddr::V6(address) => match address.to_ipv4_mapped() {
                Some(address) => self.v4.code(address.into()),
                None => self.v6.code(address.into()),
            },
        })
    }

    /// What the list says of a key: a user, a token, anything that has a name.
    pub fn check_key(&self, key: &str) -> AccessMatch {
        AccessMatch::from_code(self.keys.code(key))
    }

    /// The entry that decides about an address, and what it does.
    ///
    /// ```
    /// use tidegate_access::{AccessList, ListAction};
    ///
    /// let list: AccessList = "deny 10.0.0.0/8".parse()?;
    /// let (stance, prefix) = list.find([10, 1, 2, 3]).unwrap();
    /// assert_eq!((stance, prefix.to_string().as_str()), (ListAction::Deny, "10.0.0.0/8"));
    /// # Ok::<(), tidegate_access::ListError>(())
    /// ```
    pub fn find(&self, address: impl Into<IpAddr>) -> Option<(ListAction, Prefix)> {
        let address = address.into().to_canonical();
        let (answer, bits) = match address {
            IpAddr::V4(address) => self.v4.find(address.into()),
            IpAddr::V6(address) => self.v6.find(address.into()),
        }?;
        let stance = if answer == ListAction::Allow.code() { ListAction::Allow } else { ListAction::Deny };
        Some((stance, Prefix::containing(address, bits)))
    }

    /// How many entries it has; one that was given twice counts once.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Whether it has no entries.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        self.v4.memory_bytes() + self.v6.memory_bytes() + self.keys.memory_bytes()
    }
}

/// Reads a list, one entry per line, where an entry without `allow` or `deny` is denied. See
/// [`AccessListBuilder::text`].
impl FromStr for AccessList {
    type Err = ListError;

    fn from_str(text: &str) -> Result<Self, ListError> {
        Self::builder().text(text, ListAction::Deny).build()
    }
}

impl Default for AccessList {
    /// An empty list.
    fn default() -> Self {
        Self { v4: Ranges::new(&[]), v6: Ranges::new(&[]), keys: KeySet::default(), entries: 0 }
    }
}

impl fmt::Debug for AccessList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessList").field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl AccessMatch {
    #[inline]
    fn from_code(answer: u8) -> Self {
        match answer {
            1 => Self::Allowed,
            2 => Self::Denied,
            _ => Self::Unlisted,
        }
    }
}

impl ListAction {
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Allow => 1,
            Self::Deny => 2,
        }
    }
}
