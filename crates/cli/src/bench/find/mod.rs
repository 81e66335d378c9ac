//! `tidegate bench --find`: the highest rate at which a server keeps a target for latency and errors.
//!
//! ```text
//!   RateSearch ──rate──▶ a load at this rate ──outcome──▶ LoadStep: within the target, or not
//!        ▲                                                    │
//!        └────────────────────────────────────────────────────┘
//! ```

mod json;
mod policy;
mod search;
mod svg;
mod text;

pub(crate) use json::render_json;
pub(crate) use policy::build_policy;
pub(crate) use search::RateSearch;
pub(crate) use svg::draw;
pub(crate) use text::render_text;

use super::{BenchOutcome, text::reached_rate};
use std::collections::BTreeSet;
use tidegate_core::{Micros, Percent};

/// The target that a server must keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FindTarget {
    /// The maximum 99th percentile of the latency, from the due time.
    pub(crate) max_latency: Micros,
    /// The maximum share of requests without a response or with status 5xx.
    pub(crate) max_errors: Percent,
}

/// A load at one rate.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LoadStep {
    /// Requests per second.
    pub(crate) rate: u64,
    /// The rate of responses.
    pub(crate) reached_rate: f64,
    pub(crate) p50: Micros,
    pub(crate) p99: Micros,
    /// The share of requests that failed.
    pub(crate) errors: f64,
    /// The share of requests that were denied.
    pub(crate) denied: f64,
    /// Whether all connections were busy at the same time.
    pub(crate) used_all_connections: bool,
    /// The first part of the target that was missed.
    pub(crate) missed: Option<MissedTarget>,
}

/// The part of a target that a step missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissedTarget {
    Latency,
    Errors,
    /// A rate limit denied requests, so the load did not reach the server.
    Denied,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub(crate) struct FindOutcome {
    pub(crate) url: String,
    pub(crate) target: FindTarget,
    /// How far the quota is below the knee.
    pub(crate) headroom: Percent,
    /// The steps, in the order in which they ran.
    pub(crate) steps: Vec<LoadStep>,
    /// The highest rate within the target; `None` if no rate was, if a rate limit denied requests, or if the search was
    /// interrupted.
    pub(crate) knee: Option<u64>,
    /// Whether the search ended at its maximum rate.
    pub(crate) is_max_rate: bool,
}

impl LoadStep {
    pub(crate) fn new(
        rate: u64,
        outcome: &BenchOutcome,
        denied_statuses: &BTreeSet<u16>,
        connections: usize,
        target: FindTarget,
    ) -> Self {
        let is_error = |status: u16| status >= 500 && !denied_statuses.contains(&status);
        let error_responses: u64 =
            outcome.statuses.iter().filter(|(status, _)| is_error(**status)).map(|(_, count)| count).sum();
        let failed = error_responses + outcome.failures.values().sum::<u64>() + outcome.unsent;
        let share = |count: u64| count as f64 / outcome.due.max(1) as f64;
        let (p50, p99) = (outcome.latency.permille(500), outcome.latency.permille(990));
        let (errors, denied) = (share(failed), share(outcome.denied));
        let max_errors = target.max_errors.as_f64();
        let missed = match () {
            () if denied > max_errors => Some(MissedTarget::Denied),
            () if errors > max_errors => Some(MissedTarget::Errors),
            () if p99 > target.max_latency => Some(MissedTarget::Latency),
            () => None,
        };
        Self {
            rate,
            reached_rate: reached_rate(outcome),
            p50,
            p99,
            errors,
            denied,
            used_all_connections: outcome.max_in_flight >= connections,
            missed,
        }
    }
}

impl FindOutcome {
    /// The last step at the knee.
    pub(crate) fn knee_step(&self) -> Option<&LoadStep> {
        let knee = self.knee?;
        self.steps.iter().rev().find(|step| step.rate == knee && step.missed.is_none())
    }

    /// The step with the lowest rate that missed the target.
    pub(crate) fn first_missed(&self) -> Option<&LoadStep> {
        self.steps.iter().filter(|step| step.missed.is_some()).min_by_key(|step| step.rate)
    }

    /// The step in which a rate limit denied requests, which ended the search.
    pub(crate) fn denied_step(&self) -> Option<&LoadStep> {
        self.steps.iter().find(|step| step.missed == Some(MissedTarget::Denied))
    }

    /// The last step of each rate, ordered by rate.
    pub(crate) fn steps_by_rate(&self) -> Vec<&LoadStep> {
        let mut steps: Vec<&LoadStep> = Vec::new();
        for step in &self.steps {
            steps.retain(|other| other.rate != step.rate);
            steps.push(step);
        }
        steps.sort_by_key(|step| step.rate);
        steps
    }

    /// The rate and the burst of the quota. The burst is what the server completes within the latency of the target.
    pub(crate) fn quota(&self) -> Option<(u64, u64)> {
        let rate = (self.knee? as f64 * (1.0 - self.headroom.as_f64())).floor().max(1.0) as u64;
        let burst = u128::from(rate) * u128::from(self.target.max_latency.get()) / 1_000_000;
        Some((rate, u64::try_from(burst).unwrap_or(u64::MAX).clamp(1, rate)))
    }
}

/// A share as a percentage.
fn format_share(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0%".to_owned(),
        percent if percent < 0.1 => "<0.1%".to_owned(),
        percent => format!("{percent:.1}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const TARGET: FindTarget =
        FindTarget { max_latency: Micros::from_millis(200), max_errors: Percent::ZERO };

    /// A step with this latency in milliseconds and this share of errors.
    pub(super) fn step(rate: u64, p99: u64, errors: f64) -> LoadStep {
        let missed = match () {
            () if errors > 0.0 => Some(MissedTarget::Errors),
            () if p99 > 200 => Some(MissedTarget::Latency),
            () => None,
        };
        LoadStep {
            rate,
            reached_rate: rate as f64,
            p50: Micros::from_millis(p99 / 2),
            p99: Micros::from_millis(p99),
            errors,
            denied: 0.0,
            used_all_connections: missed.is_some(),
            missed,
        }
    }

    pub(super) fn outcome() -> FindOutcome {
        FindOutcome {
            url: "http://127.0.0.1:8080/a".to_owned(),
            target: TARGET,
            headroom: Percent::new(20.0).unwrap(),
            steps: vec![step(100, 10, 0.0), step(200, 40, 0.0), step(400, 900, 0.25), step(282, 300, 0.0)],
            knee: Some(200),
            is_max_rate: false,
        }
    }

    fn load(statuses: &[(u16, u64)], latency: u64) -> BenchOutcome {
        let mut outcome =
            BenchOutcome { elapsed: Micros::from_secs(1), max_in_flight: 3, ..BenchOutcome::default() };
        for (status, count) in statuses {
            outcome.statuses.insert(*status, *count);
            (outcome.due, outcome.sent) = (outcome.due + count, outcome.sent + count);
            (0..*count).for_each(|_| outcome.latency.record(Micros::from_millis(latency)));
        }
        outcome.denied = outcome.statuses.get(&429).copied().unwrap_or(0);
        outcome
    }

    #[test]
    fn step_misses_each_part_of_the_target() {
        let denied = BTreeSet::from([429]);
        let target =
            FindTarget { max_latency: Micros::from_millis(200), max_errors: Percent::new(1.0).unwrap() };
        for (statuses, latency, expected) in [
            (&[(200, 100)][..], 200, None),
            (&[(200, 100)], 250, Some(MissedTarget::Latency)),
            (&[(200, 99), (503, 1)], 10, None),
            (&[(200, 98), (503, 2)], 10, Some(MissedTarget::Errors)),
            (&[(200, 98), (429, 2)], 10, Some(MissedTarget::Denied)),
            // A client error is a response.
            (&[(404, 100)], 10, None),
        ] {
            let step = LoadStep::new(100, &load(statuses, latency), &denied, 4, target);
            assert_eq!(step.missed, expected, "{statuses:?}, {latency}ms");
        }
        let mut lost = load(&[(200, 98)], 10);
        lost.failures.insert("timeout".to_owned(), 1);
        (lost.unsent, lost.due) = (1, 100);
        assert_eq!(LoadStep::new(100, &lost, &denied, 4, target).missed, Some(MissedTarget::Errors));
        assert!(LoadStep::new(100, &lost, &denied, 3, target).used_all_connections);
    }

    #[test]
    fn quota_is_below_the_knee_with_a_burst_of_the_latency() {
        assert_eq!(outcome().quota(), Some((160, 32)));
        let slow = FindTarget { max_latency: Micros::from_secs(5), ..TARGET };
        assert_eq!(FindOutcome { target: slow, ..outcome() }.quota(), Some((160, 160)));
        assert_eq!(FindOutcome { knee: Some(1), ..outcome() }.quota(), Some((1, 1)));
        assert_eq!(FindOutcome { knee: None, ..outcome() }.quota(), None);
    }
}
