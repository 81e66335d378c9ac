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
    compile::{Compiler, DryRun, PolicyAdmission, PolicyGate, Prefetch, RuleDecision, RuleResult},
    model::{KeyPart, KeySpec, Stores},
};
use tidegate_rule::{
    Mode, Rules,
    request::{MissingKey, ResponseHead},
};

/// One policy and its clock, which shows the time of the log. Counts are kept in memory, whatever the policy says of stores.
pub struct Replay {
    gate: PolicyGate,
    clock: ManualClock,
    now: Micros,
    prefetch: Prefetch,
    dry_run: DryRun,
    stats: PolicyStats,
    key_hasher: KeyHasher,
    /// Requests that hold something, by when that ends.
    in_flight: BinaryHeap<Reverse<ReplayedRequest>>,
    next_sequence: u64,
    /// When schedules are followed next; never where there are none.
    next_schedule_check: Option<Micros>,
    /// For each rule what it counts by.
    keys: Vec<RuleKey>,
}

/// What a rule counts by.
struct RuleKey {
    /// As a policy says it.
    text: String,
    /// What stands for those that have no such thing, where they are counted together.
    missing_key_id: Option<KeyId>,
    /// Whether those are counted by their addresses.
    has_fallback: bool,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayVerdict {
    /// It went at once.
    Admitted,
    /// It went after a wait.
    Delayed,
    /// It did not go because of the rule at this place.
    Denied(usize),
}

/// How many requests can hold something at once; beyond that, the first of them ends early.
const MAX_IN_FLIGHT: usize = 1 << 20;
/// How often schedules are followed.
const SCHEDULE_INTERVAL: Micros = Micros::from_secs(1);

impl Replay {
    /// A policy from this moment on. Names of files in it start from `base`; its tables take so many bytes at most.
    pub fn new(policy: &Policy, base: &Path, start: Micros, memory: u64) -> Result<Self, ReplayError> {
        let mut policy = Policy { stores: Stores::default(), ..policy.clone() };
        policy.rules.iter_mut().for_each(|rule| rule.store = None);
        let (clock, manual_clock) = Clock::manual();
        // Before anything is made: what is counted is counted from when it was made.
        manual_clock.set(start);
        let compiler = Compiler::new(Rules::new()).base(base).clock(clock).memory(memory);
        let gate = compiler.compile(&policy, None)?;
        let keys = policy.rules.iter().enumerate().map(|(place, rule)| {
            let mark = if rule.key == KeySpec::All { None } else { gate.key_id_of_all(place) };
            let is_address = matches!(rule.key, KeySpec::All | KeySpec::Part(KeyPart::Ip { .. }));
            let has_fallback = rule.missing == MissingKey::Address && !is_address;
            RuleKey {
                text: describe_key(&rule.key, policy.user.as_ref()),
                missing_key_id: mark,
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

    /// The header that names the user of a policy, where it is one.
    pub fn user_header(policy: &Policy) -> Option<String> {
        match policy.user.as_ref()? {
            KeySpec::Part(KeyPart::Header(name)) => Some(name.clone()),
            _ => None,
        }
    }

    /// Whether there was no room for a key, so that it was counted with others.
    pub fn has_overflowed(&self) -> bool {
        self.gate.has_overflowed()
    }

    /// Whether it matters how long requests take.
    pub fn has_concurrency_rules(&self) -> bool {
        self.gate.has_in_flight_limits()
    }

    /// What became of all requests so far.
    pub fn stats(&self) -> &PolicyStats {
        &self.stats
    }

    /// For whom a request is counted by the rule at this place, as it is shown; and a number that stands for it.
    pub fn key_of(&self, rule: usize, line: &LoggedRequest<'_>) -> (u64, String) {
        match self.gate.key_at(rule, line) {
            Some(key) => (self.key_hasher.0.hash_one(&key), display_key(&key.to_string())),
            None => (0, "(none)".to_owned()),
        }
    }

    /// The policy, for whoever finds out ahead what it has to know of requests.
    pub fn gate(&self) -> &PolicyGate {
        &self.gate
    }

    /// Evaluates the policy for requests that follow each other; none is before those of the call before. `known` are the
    /// prepared requests, and where these are among them. `verdicts` is emptied first, and gets the result of each.
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

    /// Ends all that still holds something, and says what became of it all; or that a rule never found what it counts by.
    pub fn finish(mut self) -> Result<PolicyStats, ReplayError> {
        self.in_flight.clear();
        let lost =
            self.stats.rules.iter().position(|rule| rule.requests > 0 && rule.keyless == rule.requests);
        match lost {
            None => Ok(self.stats),
            Some(place) => Err(ReplayError::NoKey {
                rule: self.stats.rules[place].name.clone(),
                key: self.keys.get(place).map(|key| key.text.clone()).unwrap_or_default(),
            }),
        }
    }

    /// What has to be told of what it counted: requests without a key, and keys without room.
    pub fn notes(&self) -> Vec<String> {
        let rules = self.stats.rules.iter().zip(&self.keys).filter(|(rule, _)| rule.keyless > 0);
        let keyless = rules.map(|(rule, RuleKey { text: key, has_fallback, .. })| {
            let (name, keyless, asked) = (&rule.name, rule.keyless, rule.requests);
            let how = if *has_fallback { "by their addresses" } else { "together" };
            format!(
                "{keyless} of the {asked} requests of rule `{name}` have no {key}, and were counted {how}"
            )
        });
        let overflows = self.gate.overflows().into_iter().map(|(rule, times)| {
            format!(
                "rule `{rule}` had no room for a new key {times} times, and counted those with others, as a gateway does: it \
                 denied more than its quota says"
            )
        });
        keyless.chain(overflows).collect()
    }

    /// Moves the clock, and has everything happen that was due before.
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
            self.next_schedule_check = Some(now.plus(SCHEDULE_INTERVAL));
        }
    }

    /// Counts the decisions of a dry run. Returns its delay, too.
    #[inline]
    fn record(&mut self, line: &LoggedRequest<'_>, now: Micros) -> (ReplayVerdict, Micros) {
        let Self { gate, dry_run, stats: tally, key_hasher: identities, keys, .. } = self;
        let (denied_by, mut is_shadowed, mut delay) = (dry_run.denied_by(), false, Micros::ZERO);
        for decision in dry_run.decisions() {
            record_rule(gate, tally, (&*identities, &keys[..]), &decision, denied_by.is_some(), line, now);
            match (decision.mode, decision.result) {
                (Mode::Enforce, RuleResult::Delayed(wait)) => delay = delay.max(wait.into()),
                (Mode::Shadow | Mode::Off, RuleResult::Denied(_)) => is_shadowed = true,
                _ => {}
            }
        }
        tally.shadow += u64::from(denied_by.is_none() && is_shadowed);
        let bin = tally.timeline.bin_at(now);
        let verdict = match denied_by {
            Some(rule) => {
                bin.denied += 1;
                tally.denied += 1;
                ReplayVerdict::Denied(rule)
            }
            None if delay == Micros::ZERO => {
                bin.admitted += 1;
                tally.admitted += 1;
                ReplayVerdict::Admitted
            }
            None => {
                bin.delayed += 1;
                tally.delayed += 1;
                tally.total_wait = tally.total_wait.plus(delay);
                ReplayVerdict::Delayed
            }
        };
        (verdict, delay)
    }

    /// Keeps what a request holds until its time is over.
    fn track_in_flight(
        &mut self,
        admission: Box<PolicyAdmission>,
        delay: Micros,
        line: &LoggedRequest<'_>,
        now: Micros,
    ) {
        let gone = now.plus(delay);
        let answered = gone.plus(line.duration().unwrap_or(Micros::ZERO));
        let request = ReplayedRequest {
            ends_at: gone,
            sequence: self.next_sequence,
            completed_at: answered,
            status: line.status(),
            admission,
        };
        self.next_sequence += 1;
        match gone > now {
            true => self.in_flight.push(Reverse(request)),
            false => self.advance_request(request),
        }
        if self.in_flight.len() > MAX_IN_FLIGHT
            && let Some(Reverse(first)) = self.in_flight.pop()
        {
            drop(first.admission.settle(&LoggedStatus(first.status)));
        }
    }

    /// A wait is over, or a request has been answered.
    fn advance_request(&mut self, mut request: ReplayedRequest) {
        request.admission.leave_queues();
        if request.completed_at > request.ends_at {
            request.ends_at = request.completed_at;
            self.in_flight.push(Reverse(request));
            return;
        }
        drop(request.admission.settle(&LoggedStatus(request.status)));
    }
}

/// Counts the decision of one rule.
#[inline]
fn record_rule(
    gate: &PolicyGate,
    tally: &mut PolicyStats,
    (identities, keys): (&KeyHasher, &[RuleKey]),
    decision: &RuleDecision<'_>,
    is_denied: bool,
    line: &LoggedRequest<'_>,
    now: Micros,
) {
    let rule = decision.rule;
    let Some(tally) = tally.rules.get_mut(rule) else { return };
    tally.requests += 1;
    let is_keyless = match (decision.key, keys.get(rule)) {
        (Some(mark), Some(key)) if !key.has_fallback => key.missing_key_id == Some(mark),
        _ => !gate.has_key(rule, line),
    };
    tally.keyless += u64::from(is_keyless);
    match decision.result {
        RuleResult::Denied(_) => {
            let hash = identities.hash(gate, decision, line);
            let key = || gate.key_at(rule, line);
            let text = || key().map_or_else(|| "(none)".to_owned(), |key| display_key(&key.to_string()));
            tally.keys.add(hash, 1, text);
            tally.episodes.record_denied(hash, now);
            let bin = tally.timeline.bin_at(now);
            match decision.mode {
                Mode::Enforce => {
                    bin.denied += 1;
                    tally.denied += 1;
                }
                Mode::Shadow | Mode::Off => {
                    bin.shadow += 1;
                    tally.shadow += 1;
                }
            }
        }
        _ if is_denied => {}
        granted => {
            if !tally.episodes.is_idle() {
                tally.episodes.record_admitted(identities.hash(gate, decision, line), now);
            }
            let bin = tally.timeline.bin_at(now);
            if let RuleResult::Delayed(delay) = granted {
                bin.delayed += 1;
                tally.delayed += 1;
                tally.longest_wait = tally.longest_wait.max(delay.into());
            } else {
                bin.admitted += 1;
                tally.admitted += 1;
            }
        }
    }
}

/// Numbers that stand for keys, the same for one key of one rule each time.
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

/// A request that holds something.
struct ReplayedRequest {
    ends_at: Micros,
    sequence: u64,
    completed_at: Micros,
    status: u16,
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

/// An answer of which only the status is known.
struct LoggedStatus(u16);

impl ResponseHead for LoggedStatus {
    fn status(&self) -> u16 {
        self.0
    }

    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }
}

/// A key as reports display it, cut after 120 characters. All requests together have an empty key.
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

/// A key as a policy says it.
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
