//! What files of descriptors say.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};
use tidegate_core::Quota;

/// A key and a value of a request. A value may be empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DescriptorEntry {
    /// Such as `user`.
    pub key: String,
    /// Such as `alice`.
    pub value: String,
}

/// What is said at one place of a tree.
#[derive(Clone, Debug, PartialEq)]
pub struct DescriptorLimit {
    /// Where it stands, as in `shop.path_/search.user`: domain, then keys with the values that the file says.
    pub path: Arc<str>,
    /// How much.
    pub amount: DescriptorAmount,
    /// `name`: what others call it in `replaces`, and what clients are told.
    pub name: Option<Arc<str>>,
    /// `replaces`: names of limits that do not apply where this one does.
    pub replaces: Vec<String>,
    /// `lease`, which only we know: for how long tokens of a store may lie in a process that has taken them ahead.
    pub lease: Option<Duration>,
    /// What else it is.
    pub flags: DescriptorFlags,
    /// `metadata`: what Envoy is told of it, as JSON.
    pub metadata: Option<Arc<serde_json::Value>>,
}

/// How much.
#[derive(Clone, Debug, PartialEq)]
pub enum DescriptorAmount {
    /// `unlimited: true`.
    Unlimited,
    /// So many in each unit of the calendar; none at all where it is zero.
    PerUnit {
        /// `requests_per_unit`.
        requests: u32,
        /// `unit`.
        unit: CalendarUnit,
    },
    /// `quotas`, which only we know: any algorithm, any window, several of them; all are charged or none.
    Quotas(Vec<Quota>),
}

/// A unit of the calendar: fixed numbers of seconds, counted from the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "they are what they say")]
pub enum CalendarUnit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

/// What a limit is besides how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "they are those of the file")]
pub struct DescriptorFlags {
    /// `shadow_mode`: counts, and denies nothing.
    pub shadow_mode: bool,
    /// `quota_mode`: denies only if all limits of this kind in a request are over.
    pub quota_mode: bool,
    /// `detailed_metric`: metrics say the values of all entries.
    pub detailed_metric: bool,
    /// `value_to_metric`: metrics say the value of this entry.
    pub value_to_metric: bool,
    /// `share_threshold`: all values that match the pattern are counted together.
    pub share_threshold: bool,
}

/// A limit that applies to a descriptor.
#[derive(Clone, Debug)]
pub struct DescriptorMatch<'a> {
    /// What applies.
    pub limit: &'a Arc<DescriptorLimit>,
    /// As what it is counted: the entries of the request, with the pattern in place of values that share a threshold.
    pub counter_entries: Cow<'a, [DescriptorEntry]>,
    /// What metrics call it.
    pub metric: MetricName,
}

/// What metrics call a limit: its place, or one with values of the request in it (`detailed_metric`, `value_to_metric`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MetricName {
    /// [`DescriptorLimit::path`]: as many of them as the files have limits.
    Path,
    /// One of as many as there are values: whoever counts by it must bound them.
    Detailed(String),
}

impl CalendarUnit {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// How long it is: a month has 30 days, and a year 365.
    pub fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 604_800,
            Self::Month => 2_592_000,
            Self::Year => 31_536_000,
        }
    }

    /// That of this name, in upper or lower case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// Its name in upper case, as the protocol has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Second => "SECOND",
            Self::Minute => "MINUTE",
            Self::Hour => "HOUR",
            Self::Day => "DAY",
            Self::Week => "WEEK",
            Self::Month => "MONTH",
            Self::Year => "YEAR",
        }
    }
}

impl fmt::Display for CalendarUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
