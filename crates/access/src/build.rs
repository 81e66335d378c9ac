//! The builder of an access list, and its errors.

use super::{
    keys::KeySet,
    list::{AccessList, ListAction},
    parse,
    prefix::Prefix,
    ranges::{PrefixEntry, Ranges},
};
use std::{
    error, fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};
use tidegate_core::SettingError;

/// Collects the entries of an [`AccessList`], in any order. `build` reports all errors together.
///
/// ```
/// use std::net::Ipv4Addr;
/// use tidegate_access::{AccessMatch, AccessList, Prefix};
///
/// let mut builder = AccessList::builder().allow(Ipv4Addr::new(10, 1, 2, 3)).allow_key("alice");
/// for prefix in ["10.0.0.0/8", "2001:db8::/32"] {
///     builder = builder.deny(prefix.parse::<Prefix>()?);
/// }
/// let list = builder.build()?;
/// assert_eq!(list.check([10, 1, 2, 3]), AccessMatch::Allowed);
/// assert_eq!(list.check([10, 1, 2, 4]), AccessMatch::Denied);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct AccessListBuilder {
    v4: Vec<ListEntry<(u32, u8)>>,
    v6: Vec<ListEntry<(u128, u8)>>,
    keys: Vec<ListEntry<Box<str>>>,
    problems: Vec<ListProblem>,
}

/// An entry, its action, and the line that it was parsed from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ListEntry<T> {
    value: T,
    code: u8,
    line: Option<u32>,
}

/// The maximum number of prefixes of a family, or of keys: the range of the table index.
const MAX_ENTRIES: usize = 1 << 29;

impl AccessListBuilder {
    /// Allows an address or a prefix.
    #[must_use]
    pub fn allow(mut self, prefix: impl Into<Prefix>) -> Self {
        self.add(prefix.into(), ListAction::Allow, None);
        self
    }

    /// Denies an address or a prefix.
    #[must_use]
    pub fn deny(mut self, prefix: impl Into<Prefix>) -> Self {
        self.add(prefix.into(), ListAction::Deny, None);
        self
    }

    /// Allows a key.
    #[must_use]
    pub fn allow_key(mut self, key: impl Into<Box<str>>) -> Self {
        self.add_key(key.into(), ListAction::Allow, None);
        self
    }

    /// Denies a key.
    #[must_use]
    pub fn deny_key(mut self, key: impl Into<Box<str>>) -> Self {
        self.add_key(key.into(), ListAction::Deny, None);
        self
    }

    /// Parses entries, one per line. Entries without `allow` or `deny` get `default_action`. A `#` at the start of
    /// a line or after a space starts a comment.
    ///
    /// ```
    /// use tidegate_access::{AccessList, ListAction};
    ///
    /// let text = "192.0.2.7\n10.0.0.1/8  # a comment\nallow key alice";
    /// let error = AccessList::builder().text(text, ListAction::Deny).build().unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "line 2: `10.0.0.1/8` has bits set after the first 8; \
    ///      write `10.0.0.0/8`, or `10.0.0.1` for a single address",
    /// );
    /// ```
    #[must_use]
    pub fn text(mut self, text: &str, default_action: ListAction) -> Self {
        parse::parse_entries(text, default_action, &mut self);
        self
    }

    /// Builds the list.
    ///
    /// # Errors
    ///
    /// All invalid lines, and entries that are both allowed and denied.
    pub fn build(mut self) -> Result<AccessList, ListError> {
        let largest_len = self.v4.len().max(self.v6.len()).max(self.keys.len());
        if let Err(error) = SettingError::require_in_range("a number of entries", largest_len, 0, MAX_ENTRIES)
        {
            self.problems.push(ListProblem { line: None, error });
            return Err(ListError { problems: self.problems });
        }
        sort_and_dedup(&mut self.v4, &mut self.problems, |(network_address, prefix_len)| {
            Prefix::containing(Ipv4Addr::from(*network_address).into(), *prefix_len).to_string()
        });
        sort_and_dedup(&mut self.v6, &mut self.problems, |(network_address, prefix_len)| {
            Prefix::containing(Ipv6Addr::from(*network_address).into(), *prefix_len).to_string()
        });
        sort_and_dedup(&mut self.keys, &mut self.problems, |key| format!("key {key}"));
        if !self.problems.is_empty() {
            self.problems.sort_by_key(|problem| problem.line);
            return Err(ListError { problems: self.problems });
        }
        Ok(AccessList {
            entries: self.v4.len() + self.v6.len() + self.keys.len(),
            v4: Ranges::new(&to_prefix_entries(self.v4)),
            v6: Ranges::new(&to_prefix_entries(self.v6)),
            keys: KeySet::new(self.keys.iter().map(|key| (&*key.value, key.code))),
        })
    }

    pub(super) fn add(&mut self, prefix: Prefix, action: ListAction, line: Option<u32>) {
        let (prefix_len, code) = (prefix.prefix_len(), action.code());
        match prefix.network_address() {
            IpAddr::V4(network_address) => {
                self.v4.push(ListEntry { value: (network_address.into(), prefix_len), code, line });
            }
            IpAddr::V6(network_address) => {
                self.v6.push(ListEntry { value: (network_address.into(), prefix_len), code, line });
            }
        }
    }

    pub(super) fn add_key(&mut self, key: Box<str>, action: ListAction, line: Option<u32>) {
        self.keys.push(ListEntry { value: key, code: action.code(), line });
    }

    pub(super) fn add_problem(&mut self, line: u32, error: SettingError) {
        self.problems.push(ListProblem { line: Some(line), error });
    }
}

/// All errors of a list. Prints at most twenty, one per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListError {
    problems: Vec<ListProblem>,
}

/// One error of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListProblem {
    /// The line, counted from one, if it was parsed from text.
    pub line: Option<u32>,
    /// The problem and the fix.
    pub error: SettingError,
}

const MAX_PRINTED_PROBLEMS: usize = 20;

impl ListError {
    /// All problems, in the order of the lines.
    pub fn problems(&self) -> &[ListProblem] {
        &self.problems
    }
}

impl fmt::Display for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().take(MAX_PRINTED_PROBLEMS).enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(f, "{end}{problem}")?;
        }
        match self.problems.len().saturating_sub(MAX_PRINTED_PROBLEMS) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl fmt::Display for ListProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.error),
            None => self.error.fmt(f),
        }
    }
}

impl error::Error for ListError {}

/// Sorts entries, drops duplicates, and reports contradictions.
fn sort_and_dedup<T: Ord>(
    entries: &mut Vec<ListEntry<T>>,
    problems: &mut Vec<ListProblem>,
    name: impl Fn(&T) -> String,
) {
    entries.sort_unstable();
    entries.dedup_by(|later, first| {
        let same = later.value == first.value;
        // After sorting, the entry that allows is the first.
        if same && later.code != first.code {
            let on = |line: Option<u32>| line.map_or(String::new(), |line| format!(" on line {line}"));
            let name = name(&first.value);
            problems.push(ListProblem {
                line: later.line.max(first.line),
                error: SettingError::new(
                    format!("`{name}` is allowed{} and denied{}", on(first.line), on(later.line)),
                    "remove one of the two",
                ),
            });
        }
        same
    });
}

fn to_prefix_entries<W>(entries: Vec<ListEntry<(W, u8)>>) -> Vec<PrefixEntry<W>> {
    entries
        .into_iter()
        .map(|it| PrefixEntry { network_address: it.value.0, prefix_len: it.value.1, code: it.code })
        .collect()
}
