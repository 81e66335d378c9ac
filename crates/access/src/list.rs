//! A list of allowed and denied addresses, prefixes and keys.

use super::{
    build::{AccessListBuilder, ListError},
    keys::KeySet,
    prefix::Prefix,
    ranges::Ranges,
};
use std::{fmt, net::IpAddr, str::FromStr};

/// The result of looking up an address or a key in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessMatch {
    /// Listed, and allowed.
    Allowed,
    /// Listed, and denied.
    Denied,
    /// Not listed.
    Unlisted,
}

/// The action of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListAction {
    /// Allows the address or key.
    Allow,
    /// Denies the address or key.
    Deny,
}

/// A list of allowed and denied addresses, prefixes and keys. The longest matching prefix wins, whether it allows
/// or denies.
///
/// ```
/// use tidegate_access::{AccessMatch, AccessList};
///
/// let list: AccessList = "
///     deny  10.0.0.0/8
///     allow 10.1.0.0/16       # internal clients
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
/// A list is immutable; [`crate::AccessControl::replace`] replaces it with a new one. Keys are stored and compared
/// in full, so that there are no collisions.
pub struct AccessList {
    pub(super) v4: Ranges<u32>,
    pub(super) v6: Ranges<u128>,
    pub(super) keys: KeySet,
    pub(super) entries: usize,
}

impl AccessList {
    /// Returns an empty builder.
    pub fn builder() -> AccessListBuilder {
        AccessListBuilder::default()
    }

    /// Looks up an address. An IPv4-mapped IPv6 address is looked up as IPv4.
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

    /// Looks up a key, such as a user or a token.
    pub fn check_key(&self, key: &str) -> AccessMatch {
        AccessMatch::from_code(self.keys.code(key))
    }

    /// Returns the entry that matches an address, and its action.
    ///
    /// ```
    /// use tidegate_access::{AccessList, ListAction};
    ///
    /// let list: AccessList = "deny 10.0.0.0/8".parse()?;
    /// let (action, prefix) = list.find([10, 1, 2, 3]).unwrap();
    /// assert_eq!((action, prefix.to_string().as_str()), (ListAction::Deny, "10.0.0.0/8"));
    /// # Ok::<(), tidegate_access::ListError>(())
    /// ```
    pub fn find(&self, address: impl Into<IpAddr>) -> Option<(ListAction, Prefix)> {
        let address = address.into().to_canonical();
        let (code, prefix_len) = match address {
            IpAddr::V4(address) => self.v4.find(address.into()),
            IpAddr::V6(address) => self.v6.find(address.into()),
        }?;
        let action = if code == ListAction::Allow.code() { ListAction::Allow } else { ListAction::Deny };
        Some((action, Prefix::containing(address, prefix_len)))
    }

    /// The number of entries, without duplicates.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Whether it has no entries.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// The memory of the list, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.v4.memory_bytes() + self.v6.memory_bytes() + self.keys.memory_bytes()
    }
}

/// Parses a list, one entry per line; entries without `allow` or `deny` are denied. See [`AccessListBuilder::text`].
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
    fn from_code(code: u8) -> Self {
        match code {
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
