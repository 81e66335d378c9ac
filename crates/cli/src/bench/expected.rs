//! The policy in memory, asked about each request when it is sent: what should have been admitted.

use super::request::SentRequest;
use crate::error::CliError;
use http::HeaderMap;
use std::{collections::BTreeSet, path::Path};
use tidegate::{Clock, limiter::ManualClock};
use tidegate_core::Micros;
use tidegate_policy::{
    Policy,
    compile::{Compiler, DryRun, PolicyAdmission, PolicyGate, Prefetch},
    model::{Fallback, OnLimit, Stores},
};
use tidegate_rule::{Rules, request::ResponseHead};

/// A policy that has counted nothing but what it is asked here.
pub(crate) struct ExpectedPolicy {
    gate: PolicyGate,
    clock: ManualClock,
    now: Micros,
    prefetch: Prefetch,
    dry_run: DryRun,
    /// When schedules are followed next; never where there are none.
    next_schedule_update: Option<Micros>,
    rule_names: Vec<String>,
    denial_statuses: BTreeSet<u16>,
    notes: Vec<String>,
}

/// What should become of a request.
pub(super) struct ExpectedDecision {
    /// The rule that denies it.
    pub(super) denied_by: Option<usize>,
    /// What it holds until its response.
    pub(super) admission: Option<Box<PolicyAdmission>>,
}

/// How often schedules are followed.
const SCHEDULE_INTERVAL: Micros = Micros::from_secs(1);

impl ExpectedPolicy {
    /// A policy from this moment on, as a gateway would have it that has just begun. Names of files in it start from `base`.
    pub(crate) fn new(policy: &Policy, base: &Path, start: Micros) -> Result<Self, CliError> {
        let mut notes = Vec::new();
        if policy.rules.iter().any(|rule| rule.store.is_some()) || policy.stores != Stores::default() {
            notes.push(
                "what was counted in stores before, or by others meanwhile, is not known here".to_owned(),
            );
        }
        let mut policy = Policy { stores: Stores::default(), ..policy.clone() };
        policy.rules.iter_mut().for_each(|rule| rule.store = None);
        let (clock, manual_clock) = Clock::manual();
        // Before anything is made: what is counted is counted from when it was made.
        manual_clock.set(start);
        let compiler = Compiler::new(Rules::new()).base(base).clock(clock);
        let gate = compiler.compile(&policy, None).map_err(|error| CliError::input(error.to_string()))?;
        let mut statuses = BTreeSet::new();
        for rule in &policy.rules {
            match denial_status(&rule.on_limit) {
                Ok(status) => _ = statuses.insert(status),
                Err(what) => {
                    notes.push(format!("rule `{}` {what}, which is not seen to be a denial", rule.name));
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

    /// How denials are answered.
    pub(crate) fn denial_statuses(&self) -> &BTreeSet<u16> {
        &self.denial_statuses
    }

    /// What it cannot know.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Asks about a request that is sent now.
    pub(super) fn evaluate(&mut self, sent: &SentRequest<'_>, now: Micros) -> ExpectedDecision {
        self.advance(now);
        self.prefetch.clear();
        self.gate.prepare(&self.gate.view_request(sent), &mut self.prefetch);
        self.gate.dry_run(sent, (&self.prefetch, 0), &mut self.dry_run);
        let denied_by = self.dry_run.denied_by();
        ExpectedDecision { denied_by, admission: self.dry_run.take_admission() }
    }

    /// A request was answered.
    pub(super) fn settle(&mut self, mut admission: PolicyAdmission, answer: &BenchResponse<'_>, now: Micros) {
        self.advance(now);
        admission.leave_queues();
        drop(admission.settle(answer));
    }

    fn advance(&mut self, now: Micros) {
        if now > self.now {
            self.now = now;
            self.clock.set(now);
        }
        if self.next_schedule_update.is_some_and(|next| next <= self.now) {
            self.gate.update_schedules();
            self.next_schedule_update = Some(self.now.plus(SCHEDULE_INTERVAL));
        }
    }
}

/// How a rule answers who is over its limit, or what it does instead.
fn denial_status(on_limit: &OnLimit) -> Result<u16, &'static str> {
    match on_limit {
        OnLimit::Reject(reject) => Ok(reject.status.unwrap_or(429)),
        OnLimit::Redirect { status, .. } => Ok(*status),
        OnLimit::Drop => Ok(444),
        OnLimit::Fallback(Fallback::Body { .. }) => Err("answers with something else"),
        OnLimit::Fallback(Fallback::Upstream(_)) => Err("asks somebody else"),
    }
}

/// An answer, or that there was none.
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
