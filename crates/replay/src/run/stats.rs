//! What a policy has done to a log.

use super::{episodes::Episodes, timeline::Timeline};
use tidegate_core::Micros;
use tidegate_limiter::TopKeys;

/// What a policy has done to a log.
#[derive(Clone, Debug)]
pub struct PolicyStats {
    /// All requests together.
    pub timeline: Timeline,
    /// Went at once.
    pub admitted: u64,
    /// Went after a wait.
    pub delayed: u64,
    /// Did not go.
    pub denied: u64,
    /// Went, though some rule that is not enforced would have denied them: a part of the admitted and delayed ones.
    pub shadow: u64,
    /// How long those waited that did, in all.
    pub total_wait: Micros,
    /// What each rule did, in the order of the policy.
    pub rules: Vec<RuleStats>,
}

/// What one rule has done.
#[derive(Clone, Debug)]
pub struct RuleStats {
    /// Its name.
    pub name: String,
    /// Requests that it was asked about.
    pub requests: u64,
    /// Went at once, as far as this rule goes.
    pub admitted: u64,
    /// Went, and this rule had them wait.
    pub delayed: u64,
    /// Did not go because of it.
    pub denied: u64,
    /// Went, but only since it is not enforced.
    pub shadow: u64,
    /// The longest that it had a request wait.
    pub longest_wait: Micros,
    /// Who was denied, in shadow too.
    pub keys: TopKeys,
    /// How long they stayed denied.
    pub episodes: Episodes,
    /// When.
    pub timeline: Timeline,
    /// Requests that did not have what it counts by, and were counted together or by their addresses.
    pub keyless: u64,
}

/// The keys that are tracked for each rule.
const TRACKED_KEYS: usize = 2_000;

impl PolicyStats {
    /// Nothing so far.
    pub fn new(names: impl Iterator<Item = String>, start: Micros) -> Self {
        let rules = names.map(|name| RuleStats {
            name,
            requests: 0,
            admitted: 0,
            delayed: 0,
            denied: 0,
            shadow: 0,
            longest_wait: Micros::ZERO,
            keys: TopKeys::new(TRACKED_KEYS),
            episodes: Episodes::default(),
            timeline: Timeline::new(start),
            keyless: 0,
        });
        let (all, rules) = (Timeline::new(start), rules.collect());
        Self { timeline: all, admitted: 0, delayed: 0, denied: 0, shadow: 0, total_wait: Micros::ZERO, rules }
    }

    /// All requests.
    pub fn requests(&self) -> u64 {
        self.admitted + self.delayed + self.denied
    }
}

impl RuleStats {
    /// Requests that this rule let through and another one did not.
    pub fn denied_by_other_rules(&self) -> u64 {
        self.requests.saturating_sub(self.admitted + self.delayed + self.denied + self.shadow)
    }
}
