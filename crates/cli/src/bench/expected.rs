//! Evaluates the policy in memory for each request that is sent, to compute the expected decisions.

use super::request::SentRequest;
use crate::error::CliError;
use http::HeaderMap;
use std::{collections::BTreeSet, path::Path};
use tidegate::{Clock, limiter::ManualClock};
use tidegate_core::Micros;
use tidegate_policy::{
    Policy,
    compile::{Compiler, DryRun, PolicyAdmission, PolicyGate, Prefetch},
    model::{Fallback, FallbackResponse, OnLimit, Stores},
};
use tidegate_rule::{Rules, request::ResponseHead};

/// A policy in memory, without any previous counts.
pub(crate) struct ExpectedPolicy {
    gate: PolicyGate,
    clock: ManualClock,
    now: Micros,
    prefetch: Prefetch,
    dry_run: DryRun,
    /// The next update of schedules; `None` without schedules.
    next_schedule_update: Option<Micros>,
    rule_names: Vec<String>,
    denial_statuses: BTreeSet<u16>,
    notes: Vec<String>,
}

/// The expected decision on a request.
pub(super) struct ExpectedDecision {
    /// The index of the rule that denies it.
    pub(super) denied_by: Option<usize>,
    /// Settled with the response.
    pub(super) admission: Option<Box<PolicyAdmission>>,
}

/// The interval between updates of schedules.
const SCHEDULE_INTERVAL: Micros = Micros::from_secs(1);

impl ExpectedPolicy {
    /// Creates the policy of a gateway that starts at `start`. Relative file names are resolved from `base`.
    pub(crate) fn new(policy: &Policy, base: &Path, start: Micros) -> Result<Self, CliError> {
        let mut notes = Vec::new();
        if policy.rules.iter().any(|rule| rule.store.is_some()) || policy.stores != Stores::default() {
            notes.push(
                "counts from before the run or from other processes in stores are not included".to_owned(),
            );
        }
        let mut policy = Policy { stores: Stores::default(), overrides: None, ..policy.clone() };
        policy.rules.iter_mut().for_each(|rule| rule.store = None);
        let (clock, manual_clock) = Clock::manual();
        // Set the clock before compiling: limiters count from their creation.
        manual_clock.set(start);
        let compiler = Compiler::new(Rules::new()).base(base).clock(clock).ignore_load();
        let gate = compiler.compile(&policy, None).map_err(|error| CliError::input(error.to_string()))?;
        let mut statuses = BTreeSet::new();
        for rule in &policy.rules {
            match denial_status(&rule.on_limit) {
                Ok(status) => _ = statuses.insert(status),
                Err(action) => {
                    notes
                        .push(format!("rule `{}` {action}, which cannot be detected as a denial", rule.name));
                }
            }
        }
        Ok(Self {
            next_schedule_update: gate.has_schedules().then_some(start),
            rule_names: policy.rules.iter().map(|rule| rule.name.clone()).collect(),
            prefetch: Prefetch::default(),
            dry_run: DryRun::new(&gate),
            now: start,
            gate,
            clock: manual_clock,
            denial_statuses: statuses,
            notes,
        })
    }

    /// The names of the rules, in the order of the policy.
    pub(crate) fn rule_names(&self) -> &[String] {
        &self.rule_names
    }

    /// The statuses of denials.
    pub(crate) fn denial_statuses(&self) -> &BTreeSet<u16> {
        &self.denial_statuses
    }

    /// The limitations of the comparison.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Evaluates a request that is sent now.
    pub(super) fn evaluate(&mut self, sent: &SentRequest<'_>, now: Micros) -> ExpectedDecision {
        self.advance(now);
        self.prefetch.clear();
        self.gate.prepare(&self.gate.view_request(sent), &mut self.prefetch);
        self.gate.dry_run(sent, (&self.prefetch, 0), &mut self.dry_run);
        let denied_by = self.dry_run.rejected_by();
        ExpectedDecision { denied_by, admission: self.dry_run.take_admission() }
    }

    /// Settles a request with its response.
    pub(super) fn settle(
        &mut self,
        mut admission: PolicyAdmission,
        response: &BenchResponse<'_>,
        now: Micros,
    ) {
        self.advance(now);
        admission.leave_queues();
        drop(admission.settle(response));
    }

    fn advance(&mut self, now: Micros) {
        if now > self.now {
            self.now = now;
            self.clock.set(now);
        }
        if self.next_schedule_update.is_some_and(|next| next <= self.now) {
            self.gate.update_schedules();
            self.next_schedule_update = Some(self.now.saturating_add(SCHEDULE_INTERVAL));
        }
    }
}

/// Returns the status of a denial, or a description of the alternative action.
fn denial_status(on_limit: &OnLimit) -> Result<u16, &'static str> {
    match on_limit {
        OnLimit::Reject(reject) => Ok(reject.status.unwrap_or(429)),
        OnLimit::Redirect { status, .. } => Ok(*status),
        OnLimit::Drop => Ok(444),
        OnLimit::Fallback(Fallback { cache: Some(_), .. }) => Err("responds with a cached response"),
        OnLimit::Fallback(Fallback { response: Some(FallbackResponse::Upstream(_)), .. }) => {
            Err("forwards to a fallback upstream")
        }
        OnLimit::Fallback(_) => Err("responds with a fallback body"),
    }
}

/// A response; the status is 0 if there was none.
pub(super) struct BenchResponse<'a> {
    pub(super) status: u16,
    pub(super) headers: Option<&'a HeaderMap>,
}

impl ResponseHead for BenchResponse<'_> {
    fn status(&self) -> u16 {
        self.status
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers?.get(name).map(http::HeaderValue::as_bytes)
    }
}
