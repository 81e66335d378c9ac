//! The data model of descriptors.

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

/// The limit of a node in the tree.
#[derive(Clone, Debug, PartialEq)]
pub struct DescriptorLimit {
    /// The path of the node, as in `shop.path_/search.user`: the domain, then keys with the values in the file.
    pub path: Arc<str>,
    /// The amount.
    pub amount: DescriptorAmount,
    /// `name`: the name in `replaces` of other limits and in responses.
    pub name: Option<Arc<str>>,
    /// `replaces`: names of limits that do not apply if this one does.
    pub replaces: Vec<String>,
    /// `lease`, an extension of Tidegate: the time that a process may keep prefetched tokens of a store.
    pub lease: Option<Duration>,
    /// The flags.
    pub flags: DescriptorFlags,
    /// `metadata` for Envoy, as JSON.
    pub metadata: Option<Arc<serde_json::Value>>,
}

/// The amount of a limit.
#[derive(Clone, Debug, PartialEq)]
pub enum DescriptorAmount {
    /// `unlimited: true`.
    Unlimited,
    /// The number of requests in each calendar unit; 0 denies all requests.
    PerUnit {
        /// `requests_per_unit`.
        requests: u32,
        /// `unit`.
        unit: CalendarUnit,
    },
    /// `quotas`, an extension of Tidegate: any algorithms and windows; either all are charged or none.
    Quotas(Vec<Quota>),
}

/// A calendar unit: a fixed number of seconds, aligned to the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are self-explanatory")]
pub enum CalendarUnit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

/// The flags of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "the flags of the file format")]
pub struct DescriptorFlags {
    /// `shadow_mode`: counts requests, but denies none.
    pub shadow_mode: bool,
    /// `quota_mode`: denies a request only if all its limits with this flag are exceeded.
    pub quota_mode: bool,
    /// `detailed_metric`: metric names contain the values of all entries.
    pub detailed_metric: bool,
    /// `value_to_metric`: metric names contain the value of this entry.
    pub value_to_metric: bool,
    /// `share_threshold`: all values that match the pattern are counted together.
    pub share_threshold: bool,
}

/// A limit that applies to a descriptor.
#[derive(Clone, Debug)]
pub struct DescriptorMatch<'a> {
    /// The limit.
    pub limit: &'a Arc<DescriptorLimit>,
    /// The entries of the counter: those of the request, with the pattern instead of values that share a threshold.
    pub counter_entries: Cow<'a, [DescriptorEntry]>,
    /// The name in metrics.
    pub metric: MetricName,
}

/// The name of a limit in metrics: its path, or a name with values of the request (`detailed_metric`, `value_to_metric`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MetricName {
    /// [`DescriptorLimit::path`]: one name per limit.
    Path,
    /// A name with values of the request. Their number is unbounded, so the caller must limit it.
    Detailed(String),
}

impl CalendarUnit {
    /// All units.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// The length in seconds. A month has 30 days, and a year 365.
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

    /// Returns the unit of this name, in upper or lower case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// The name in upper case, as in the protocol.
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
