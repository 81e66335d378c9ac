//! The statistics of a policy on a log.

use super::{episodes::Episodes, timeline::Timeline};
use tidegate_core::Micros;
use tidegate_limiter::TopKeys;

/// The statistics of a policy on a log.
#[derive(Clone, Debug)]
pub struct PolicyStats {
    /// All requests over time.
    pub timeline: Timeline,
    /// Requests admitted without a delay.
    pub admitted: u64,
    /// Requests admitted after a delay.
    pub delayed: u64,
    /// Requests denied.
    pub denied: u64,
    /// Admitted or delayed requests that a rule in shadow mode would have denied.
    pub shadow: u64,
    /// The sum of all delays.
    pub total_wait: Micros,
    /// The statistics of each rule, in the order of the policy.
    pub rules: Vec<RuleStats>,
}

/// The statistics of one rule.
#[derive(Clone, Debug)]
pub struct RuleStats {
    /// The name of the rule.
    pub name: String,
    /// Requests that the rule matched.
    pub requests: u64,
    /// Requests that this rule admitted without a delay, and no rule denied.
    pub admitted: u64,
    /// Requests that this rule delayed, and no rule denied.
    pub delayed: u64,
    /// Requests that this rule denied.
    pub denied: u64,
    /// Requests that this rule would have denied if it were enforced.
    pub shadow: u64,
    /// The longest delay by this rule.
    pub longest_wait: Micros,
    /// The denied keys, including those in shadow mode.
    pub keys: TopKeys,
    /// How long keys stayed denied.
    pub episodes: Episodes,
    /// The decisions over time.
    pub timeline: Timeline,
    /// Requests without the key of the rule. They are counted together or by their client address.
    pub keyless: u64,
}

/// The number of keys that are tracked for each rule.
const TRACKED_KEYS: usize = 2_000;

impl PolicyStats {
    /// Creates empty statistics.
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

    /// The number of all requests.
    pub fn requests(&self) -> u64 {
        self.admitted + self.delayed + self.denied
    }
}

impl RuleStats {
    /// Requests that this rule admitted and another rule denied.
    pub fn denied_by_other_rules(&self) -> u64 {
        self.requests.saturating_sub(self.admitted + self.delayed + self.denied + self.shadow)
    }
}
