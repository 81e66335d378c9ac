//! One policy and its clock.

use super::{ReplayError, stats::PolicyStats};
use crate::log::{LoggedRequest, LoggedRequests};
use foldhash::quality::FixedState;
use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    hash::BuildHasher as _,
    path::Path,
};
use tidegate_core::Micros;
use tidegate_limiter::{Clock, KeyId, ManualClock};
use tidegate_policy::{
    Policy,
    compile::{
        Compiler, DryRun, OverrideStep, PolicyAdmission, PolicyGate, Prefetch, RuleDecision, RuleResult,
    },
    model::{KeyPart, KeySpec, OverrideLocation, Stores},
    overrides::read_overrides,
};
use tidegate_rule::{
    Mode, Rules,
    request::{MissingKey, ResponseHead},
};

/// One policy and its clock, which shows the time of the log. All counters are in memory; the stores of the policy are
/// ignored.
pub struct Replay {
    gate: PolicyGate,
    clock: ManualClock,
    now: Micros,
    prefetch: Prefetch,
    dry_run: DryRun,
    stats: PolicyStats,
    key_hasher: KeyHasher,
    /// Requests with permits, ordered by the time at which they end.
    in_flight: BinaryHeap<Reverse<ReplayedRequest>>,
    next_sequence: u64,
    /// The time of the next schedule update; `None` without schedules.
    next_schedule_check: Option<Micros>,
    /// The key of each rule.
    keys: Vec<RuleKey>,
}

/// The key of a rule.
struct RuleKey {
    /// The key in the syntax of a policy.
    text: String,
    /// The key of requests without a key, if they are counted together.
    missing_key_id: Option<KeyId>,
    /// Whether requests without a key are counted by their client address.
    has_fallback: bool,
}

/// The decision for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayVerdict {
    /// Admitted without a delay.
    Admitted,
    /// Admitted after a delay.
    Delayed,
    /// Denied by the rule at this index.
    DeniedBy(usize),
}

/// The maximum number of requests with permits; beyond that, the oldest one ends early.
const MAX_IN_FLIGHT: usize = 1 << 20;
/// The interval of schedule updates.
const SCHEDULE_INTERVAL: Micros = Micros::from_secs(1);

impl Replay {
    /// Compiles a policy with a clock that shows `start`. `base` is the base of relative file names; `memory` is the
    /// maximum size of the tables in bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the policy cannot be compiled.
    pub fn new(policy: &Policy, base: &Path, start: Micros, memory: u64) -> Result<Self, ReplayError> {
        let mut policy = Policy { stores: Stores::default(), ..policy.clone() };
        policy.rules.iter_mut().for_each(|rule| rule.store = None);
        policy.overrides.take_if(|stored_in| *stored_in == OverrideLocation::Store);
        let (clock, manual_clock) = Clock::manual();
        // Set the clock first, because counters start at the time of their creation.
        manual_clock.set(start);
        let compiler = Compiler::new(Rules::new()).base(base).clock(clock).memory(memory).ignore_load();
        let gate = compiler.compile(&policy, None)?;
        let overrides = read_overrides(&policy, start)?;
        gate.install_overrides(overrides.values().map(|record| (record, OverrideStep::Apply)));
        let keys = policy.rules.iter().enumerate().map(|(index, rule)| {
            let key_id = if rule.key == KeySpec::All { None } else { gate.key_id_of_all(index) };
            let is_address = matches!(rule.key, KeySpec::All | KeySpec::Part(KeyPart::Ip { .. }));
            let has_fallback = rule.missing == MissingKey::Ip && !is_address;
            RuleKey {
                text: describe_key(&rule.key, policy.user.as_ref()),
                missing_key_id: key_id,
                has_fallback,
            }
        });
        let keys = keys.collect();
        Ok(Self {
            next_schedule_check: gate.has_schedules().then_some(start),
            dry_run: DryRun::new(&gate),
            gate,
            clock: manual_clock,
            now: start,
            prefetch: Prefetch::default(),
            stats: PolicyStats::new(policy.rules.iter().map(|rule| rule.name.clone()), start),
            key_hasher: KeyHasher::default(),
            in_flight: BinaryHeap::new(),
            next_sequence: 0,
            keys,
        })
    }

    /// Returns the key of the user of a policy, as in `header x-user` or `jwt sub`, if the user of a log can be its value.
    pub fn user_key(policy: &Policy) -> Option<String> {
        match policy.user.as_ref()? {
            KeySpec::Part(
                part @ (KeyPart::Header(_)
                | KeyPart::Jwt(_)
                | KeyPart::ApiKey(_)
                | KeyPart::ClientCertificate(_)),
            ) => Some(part.to_string()),
            _ => None,
        }
    }

    /// Whether the key table of a rule has overflowed, so that keys share counters.
    pub fn has_overflowed(&self) -> bool {
        self.gate.has_overflowed()
    }

    /// Whether the durations of requests affect the decisions.
    pub fn has_concurrency_rules(&self) -> bool {
        self.gate.has_in_flight_limits()
    }

    /// The statistics so far.
    pub fn stats(&self) -> &PolicyStats {
        &self.stats
    }

    /// Returns the hash and the displayed text of a request's key under a rule.
    pub fn key_of(&self, rule: usize, line: &LoggedRequest<'_>) -> (u64, String) {
        match self.gate.key_at(rule, line) {
            Some(key) => (self.key_hasher.0.hash_one(&key), display_key(&key.to_string())),
            None => (0, "(none)".to_owned()),
        }
    }

    /// The compiled policy, for preparing requests ahead of time.
    pub fn gate(&self) -> &PolicyGate {
        &self.gate
    }

    /// Evaluates the policy for consecutive requests, which must not precede those of the previous call. `known` are
    /// prepared requests and the index of the first of these. `verdicts` is replaced with the verdicts.
    pub fn evaluate(
        &mut self,
        lines: LoggedRequests<'_>,
        known: Option<(&Prefetch, usize)>,
        verdicts: &mut Vec<ReplayVerdict>,
    ) {
        let mut own = std::mem::take(&mut self.prefetch);
        let (prefetch, first) = known.unwrap_or_else(|| {
            own.clear();
            lines.iter().for_each(|(line, _)| self.gate.prepare(&self.gate.view_request(&line), &mut own));
            (&own, 0)
        });
        self.gate.prefetch(prefetch, first..first + lines.len());
        verdicts.clear();
        for (at, (line, now)) in lines.iter().enumerate() {
            self.advance(now);
            self.gate.dry_run(&line, (prefetch, first + at), &mut self.dry_run);
            let (verdict, delay) = self.record(&line, now);
            verdicts.push(verdict);
            if let Some(admission) = self.dry_run.take_admission() {
                self.track_in_flight(admission, delay, &line, now);
            }
        }
        self.prefetch = own;
    }

    /// Releases all permits and returns the statistics.
    ///
    /// # Errors
    ///
    /// Returns [`ReplayError::NoKey`] if no request has the key of a rule.
    pub fn finish(mut self) -> Result<PolicyStats, ReplayError> {
        self.in_flight.clear();
        let without_key =
            self.stats.rules.iter().position(|rule| rule.requests > 0 && rule.keyless == rule.requests);
        match without_key {
            None => Ok(self.stats),
            Some(place) => Err(ReplayError::NoKey {
                rule: self.stats.rules[place].name.clone(),
                key: self.keys.get(place).map(|key| key.text.clone()).unwrap_or_default(),
            }),
        }
    }

    /// Returns notes about requests without a key and about full key tables.
    pub fn notes(&self) -> Vec<String> {
        let rules = self.stats.rules.iter().zip(&self.keys).filter(|(rule, _)| rule.keyless > 0);
        let keyless = rules.map(|(rule, RuleKey { text: key, has_fallback, .. })| {
            let (name, keyless, all) = (&rule.name, rule.keyless, rule.requests);
            let how = if *has_fallback { "by client address" } else { "together" };
            format!("{keyless} of {all} requests of rule `{name}` have no {key}; they are counted {how}")
        });
        let overflows = self.gate.overflows().into_iter().map(|(rule, times)| {
            format!(
                "rule `{rule}`: the key table was full for {times} new keys; these share counters, as in a gateway, so the rule \
                 denied more than its quota"
            )
        });
        keyless.chain(overflows).collect()
    }

    /// Advances the clock, and ends requests and updates schedules that are due.
    #[inline]
    fn advance(&mut self, now: Micros) {
        if now <= self.now && self.in_flight.is_empty() && self.next_schedule_check.is_none() {
            return;
        }
        while self.in_flight.peek().is_some_and(|Reverse(request)| request.ends_at <= now) {
            let Some(Reverse(request)) = self.in_flight.pop() else { break };
            self.clock.set(request.ends_at);
            self.advance_request(request);
        }
        if now > self.now {
            self.clock.set(now);
            self.now = now;
        }
        if self.next_schedule_check.is_some_and(|next| next <= now) {
            self.gate.update_schedules();
            self.next_schedule_check = Some(now.saturating_add(SCHEDULE_INTERVAL));
        }
    }

    /// Counts the decisions of a dry run. Returns its delay, too.
    #[inline]
    fn record(&mut self, line: &LoggedRequest<'_>, now: Micros) -> (ReplayVerdict, Micros) {
        let Self { gate, dry_run, stats, key_hasher: identities, keys, .. } = self;
        let (denied_by, mut is_shadowed, mut delay) = (dry_run.rejected_by(), false, Micros::ZERO);
        for decision in dry_run.decisions() {
            record_rule(gate, stats, (&*identities, &keys[..]), &decision, denied_by.is_some(), line, now);
            match (decision.mode, decision.result) {
                (Mode::Enforce, RuleResult::Delayed(wait)) => delay = delay.max(wait.into()),
                (Mode::Shadow | Mode::Off, RuleResult::Rejected(_)) => is_shadowed = true,
                _ => {}
            }
        }
        stats.shadow += u64::from(denied_by.is_none() && is_shadowed);
        let bin = stats.timeline.bin_at(now);
        let verdict = match denied_by {
            Some(rule) => {
                bin.denied += 1;
                stats.denied += 1;
                ReplayVerdict::DeniedBy(rule)
            }
            None if delay == Micros::ZERO => {
                bin.admitted += 1;
                stats.admitted += 1;
                ReplayVerdict::Admitted
            }
            None => {
                bin.delayed += 1;
                stats.delayed += 1;
                stats.total_wait = stats.total_wait.saturating_add(delay);
                ReplayVerdict::Delayed
            }
        };
        (verdict, delay)
    }

    /// Holds the permits of a request until its delay and its duration are over.
    fn track_in_flight(
        &mut self,
        admission: Box<PolicyAdmission>,
        delay: Micros,
        line: &LoggedRequest<'_>,
        now: Micros,
    ) {
        let started_at = now.saturating_add(delay);
        let completed_at = started_at.saturating_add(line.duration().unwrap_or(Micros::ZERO));
        let request = ReplayedRequest {
            ends_at: started_at,
            sequence: self.next_sequence,
            completed_at,
            response: LoggedResponse { status: line.status(), costs: line.stated_costs() },
            admission,
        };
        self.next_sequence += 1;
        match started_at > now {
            true => self.in_flight.push(Reverse(request)),
            false => self.advance_request(request),
        }
        if self.in_flight.len() > MAX_IN_FLIGHT
            && let Some(Reverse(first)) = self.in_flight.pop()
        {
            drop(first.admission.settle(&first.response));
        }
    }

    /// Ends the delay of a request, or the request.
    fn advance_request(&mut self, mut request: ReplayedRequest) {
        request.admission.leave_queues();
        if request.completed_at > request.ends_at {
            request.ends_at = request.completed_at;
            self.in_flight.push(Reverse(request));
            return;
        }
        drop(request.admission.settle(&request.response));
    }
}

/// Counts the decision of one rule.
#[inline]
fn record_rule(
    gate: &PolicyGate,
    stats: &mut PolicyStats,
    (identities, keys): (&KeyHasher, &[RuleKey]),
    decision: &RuleDecision<'_>,
    is_denied: bool,
    line: &LoggedRequest<'_>,
    now: Micros,
) {
    let rule = decision.rule;
    let Some(stats) = stats.rules.get_mut(rule) else { return };
    stats.requests += 1;
    let is_keyless = match (decision.key, keys.get(rule)) {
        (Some(mark), Some(key)) if !key.has_fallback => key.missing_key_id == Some(mark),
        _ => !gate.has_key(rule, line),
    };
    stats.keyless += u64::from(is_keyless);
    match decision.result {
        RuleResult::Rejected(_) => {
            let hash = identities.hash(gate, decision, line);
            let key = || gate.key_at(rule, line);
            let text = || key().map_or_else(|| "(none)".to_owned(), |key| display_key(&key.to_string()));
            stats.keys.add(hash, 1, text);
            stats.episodes.record_denied(hash, now);
            let bin = stats.timeline.bin_at(now);
            match decision.mode {
                Mode::Enforce => {
                    bin.denied += 1;
                    stats.denied += 1;
                }
                Mode::Shadow | Mode::Off => {
                    bin.shadow += 1;
                    stats.shadow += 1;
                }
            }
        }
        _ if is_denied => {}
        granted => {
            if !stats.episodes.is_idle() {
                stats.episodes.record_admitted(identities.hash(gate, decision, line), now);
            }
            let bin = stats.timeline.bin_at(now);
            if let RuleResult::Delayed(delay) = granted {
                bin.delayed += 1;
                stats.delayed += 1;
                stats.longest_wait = stats.longest_wait.max(delay.into());
            } else {
                bin.admitted += 1;
                stats.admitted += 1;
            }
        }
    }
}

/// Hashes keys, with the same result for the same key of a rule.
#[derive(Default)]
struct KeyHasher(FixedState);

impl KeyHasher {
    #[inline]
    fn hash(&self, gate: &PolicyGate, decision: &RuleDecision<'_>, line: &LoggedRequest<'_>) -> u64 {
        match decision.key.or_else(|| gate.key_id_at(decision.rule, line)) {
            Some(mark) => mark.get(),
            None => gate.key_at(decision.rule, line).map_or(0, |key| self.0.hash_one(&key)),
        }
    }
}

/// A request with permits.
struct ReplayedRequest {
    ends_at: Micros,
    sequence: u64,
    completed_at: Micros,
    response: LoggedResponse,
    admission: Box<PolicyAdmission>,
}

impl ReplayedRequest {
    fn rank(&self) -> (Micros, u64) {
        (self.ends_at, self.sequence)
    }
}

impl PartialEq for ReplayedRequest {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for ReplayedRequest {}

impl PartialOrd for ReplayedRequest {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ReplayedRequest {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// A response of which only the status and the stated costs are known.
struct LoggedResponse {
    status: u16,
    /// By the names of the rules.
    costs: Vec<(String, u64)>,
}

impl ResponseHead for LoggedResponse {
    fn status(&self) -> u16 {
        self.status
    }

    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }

    fn recorded_cost(&self, rule: &str) -> Option<u64> {
        let find = |rule: &str| self.costs.iter().find(|(name, _)| name == rule).map(|(_, cost)| *cost);
        // The limits that reserve quota for higher priorities are named after the rule and the class.
        find(rule).or_else(|| find(rule.rsplit_once('/')?.0))
    }
}

/// Formats a key for reports, truncated to 120 characters. The key of all requests together is empty.
fn display_key(key: &str) -> String {
    if key.is_empty() {
        return "(all)".to_owned();
    }
    let mut text = key.escape_debug().to_string();
    if let Some((end, _)) = text.char_indices().nth(120) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Formats a key in the syntax of a policy.
fn describe_key(key: &KeySpec, user: Option<&KeySpec>) -> String {
    match key {
        KeySpec::All => "all".to_owned(),
        KeySpec::Part(KeyPart::User) => match user {
            Some(user) => format!("user, by {}", describe_key(user, None)),
            None => "user".to_owned(),
        },
        KeySpec::Part(part) => part.to_string(),
        KeySpec::Composite(parts) => {
            parts.iter().map(|part| describe_key(part, user)).collect::<Vec<_>>().join(" and ")
        }
        KeySpec::First(parts) => {
            parts.iter().map(|part| describe_key(part, user)).collect::<Vec<_>>().join(" or ")
        }
    }
}

impl std::fmt::Debug for Replay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay").field("now", &self.now).finish_non_exhaustive()
    }
}
