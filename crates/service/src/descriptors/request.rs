//! Requests to a domain and their verdicts.

use std::{sync::Arc, time::Duration};
use tidegate_policy::descriptors::{CalendarUnit, DescriptorEntry};

/// A request to a domain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DomainRequest {
    /// The name of the domain.
    pub domain: String,
    /// The descriptors to count.
    pub descriptors: Vec<RequestDescriptor>,
    /// The hits of each descriptor that has none of its own; zero means one.
    pub hits: u32,
    /// How long the caller waits for the response, if it sends a timeout.
    pub deadline: Option<Duration>,
}

impl DomainRequest {
    /// Checks that it has a domain, and neither too many nor too few descriptors and entries.
    pub(crate) fn validate(&self, max_descriptors: usize, max_entries: usize) -> Result<(), DecisionError> {
        let reject = |problem: String| Err(DecisionError::Invalid(problem));
        if self.domain.is_empty() {
            return reject("rate limit domain must not be empty".to_owned());
        }
        if self.descriptors.is_empty() {
            return reject("rate limit descriptor list must not be empty".to_owned());
        }
        if self.descriptors.len() > max_descriptors {
            let count = self.descriptors.len();
            return reject(format!("too many descriptors: {count}; send at most {max_descriptors}"));
        }
        for (index, descriptor) in self.descriptors.iter().enumerate() {
            if descriptor.entries.len() > max_entries {
                let count = descriptor.entries.len();
                return reject(format!(
                    "descriptors[{index}]: too many entries: {count}; send at most {max_entries}"
                ));
            }
        }
        Ok(())
    }

    /// The hits of a descriptor of this request.
    pub(crate) fn hits_of(&self, descriptor: &RequestDescriptor) -> u64 {
        descriptor.hits.unwrap_or_else(|| self.hits.max(1).into())
    }
}

/// One descriptor of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestDescriptor {
    /// The entries, in order.
    pub entries: Vec<DescriptorEntry>,
    /// A limit that replaces the configured one.
    pub limit: Option<LimitOverride>,
    /// The number of hits; zero only peeks.
    pub hits: Option<u64>,
}

/// A limit that is part of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitOverride {
    /// The number of requests per unit.
    pub requests: u32,
    /// The unit.
    pub unit: CalendarUnit,
}

/// The decision on a request.
#[derive(Clone, Debug, PartialEq)]
pub struct DomainVerdict {
    /// Whether the request is denied.
    pub overall_code: LimitCode,
    /// The status of each descriptor, in order.
    pub statuses: Vec<LimitStatus>,
    /// Names and values of response headers, if they are enabled.
    pub headers: Vec<(String, String)>,
    /// The body of a denial as RFC 9457 problem details, if it is enabled.
    pub body: Option<String>,
    /// Dynamic metadata for Envoy, as JSON.
    pub metadata: Option<serde_json::Value>,
}

/// Whether a limit is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitCode {
    /// The limit is not exceeded.
    Ok,
    /// The limit is exceeded.
    OverLimit,
}

/// The status of one descriptor.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitStatus {
    /// Whether it is over its limit.
    pub code: LimitCode,
    /// The limit that applies: requests, unit and name. A quota whose window is not a calendar unit is reported with the
    /// closest unit.
    pub limit: Option<(u32, CalendarUnit, Option<Arc<str>>)>,
    /// The remaining requests; `u32::MAX` if there is no limit.
    pub remaining: u32,
    /// The time until the window ends, or until the next request is allowed.
    pub reset: Option<Duration>,
}

/// An error without a verdict; a denial is not an error. Transports map each error to a status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecisionError {
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// No configuration is loaded.
    #[error("no rate limit configuration loaded")]
    NoConfiguration,
    /// The store is unavailable, and the failure mode is `closed`.
    #[error("{0}")]
    Unavailable(String),
}
