//! What is asked of a domain, and what it says.

use std::{sync::Arc, time::Duration};
use tidegate_policy::descriptors::{CalendarUnit, DescriptorEntry};

/// What is asked of a domain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DomainRequest {
    /// Its name.
    pub domain: String,
    /// What is to be counted.
    pub descriptors: Vec<RequestDescriptor>,
    /// What each descriptor costs that does not say; zero means one.
    pub hits: u32,
    /// How long the caller waits for the answer, if it says so.
    pub deadline: Option<Duration>,
}

/// One descriptor of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestDescriptor {
    /// Its entries, in their order.
    pub entries: Vec<DescriptorEntry>,
    /// A limit that is used instead of the one of the files.
    pub limit: Option<LimitOverride>,
    /// What it costs; zero only looks.
    pub hits: Option<u64>,
}

/// A limit that a request brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitOverride {
    /// How many.
    pub requests: u32,
    /// In which time.
    pub unit: CalendarUnit,
}

/// What a domain says.
#[derive(Clone, Debug, PartialEq)]
pub struct DomainVerdict {
    /// Whether the request is let through.
    pub overall: OverLimit,
    /// What is said of each descriptor, in their order.
    pub statuses: Vec<LimitStatus>,
    /// What the client is told, where that is wanted: names and values of headers.
    pub headers: Vec<(String, String)>,
    /// What a client that is refused is told: a problem as in RFC 9457, where that is wanted.
    pub body: Option<String>,
    /// What Envoy may keep of it, as JSON.
    pub metadata: Option<serde_json::Value>,
}

/// Whether there was too much of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverLimit {
    /// There was not.
    No,
    /// There was.
    Yes,
}

/// What is said of one descriptor.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitStatus {
    /// Whether it is over its limit.
    pub over_limit: OverLimit,
    /// The limit that applies: how many in which time; a limit of our own that is no unit of the calendar is told by its
    /// amount and the unit that is closest to its window.
    pub limit: Option<(u32, CalendarUnit, Option<Arc<str>>)>,
    /// How many are left; as many as the protocol can say where there is no limit to it.
    pub remaining: u32,
    /// When the window ends, or the next one fits.
    pub reset: Option<Duration>,
}

/// Why there is no verdict. Wires have a status for each: a denial is none of these.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecisionError {
    /// What was asked makes no sense; with a sentence that says what.
    #[error("{0}")]
    Invalid(String),
    /// No files are loaded.
    #[error("no rate limit configuration loaded")]
    NoConfiguration,
    /// The store is away, and what was declared for that is to say so.
    #[error("{0}")]
    Unavailable(String),
}
