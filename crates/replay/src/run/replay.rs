//! One policy and its clock.

use super::{Failure, tally::Tally};
use crate::log::{Line, Lines};
use foldhash::quality::FixedState;
use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    hash::BuildHasher as _,
    path::Path,
    time::Duration,
};
use tidegate_core::Micros;
use tidegate_limiter::{Clock, ClockHand, Mark};
use tidegate_policy::{
    Policy,
    compile::{Ahead, Compiler, Foresight, PolicyGate, PolicyStay, RuleForetold, RuleOutcome},
    model::{Key, Part, Stores},
};
use tidegate_rule::{
    HeldSlots, Mode, Rules,
    request::{Missing, Reply},
};

/// One policy and its clock, which shows the time of the log. Counts are kept in memory, whatever the policy says of stores.
pub struct Replay {
    gate: PolicyGate,
    hand: ClockHand,
    now: Micros,
    ahead: Ahead,
    foresight: Foresight,
    tally: Tally,
    identities: Identities,
    /// Requests that hold something, by when that ends.
    stays: BinaryHeap<Reverse<Staying>>,
    order: u64,
    /// When schedules are followed next; never where there are none.
    follow: Option<Micros>,
    /// For each rule what it counts by.
    keys: Vec<RuleKey>,
}

/// What a rule counts by.
struct RuleKey {
    /// As a policy says it.
    text: String,
    /// What stands for those that have no such thing, where they are counted together.
    of_all: Option<Mark>,
    /// Whether those are counted by their addresses.
    has_fallback: bool,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It went at once.
    Admitted,
    /// It went after a wait.
    Delayed,
    /// It did not go because of the rule at this place.
    Denied(usize),
}

/// How many requests can hold something at once; beyond that, the first of them ends early.
const MOST_STAYS: usize = 1 << 20;
/// How often schedules are followed.
const MOMENT: Micros = Micros::from_secs(1);

impl Replay {
    /// A policy from this moment on. Names of files in it start from `base`; its tables take so many bytes at most.
    pub fn new(policy: &Policy, base: &Path, start: Micros, memory: u64) -> Result<Self, Failure> {
        let mut policy = Policy { stores: Stores::default(), ..policy.clone() };
        policy.rules.iter_mut().for_each(|rule| rule.store = None);
        let (clock, hand) = Clock::manual();
        // Before anything is made: what is counted is counted from when it was made.
        hand.set(start);
        let compiler = Compiler::new(Rules::new()).base(base).clock(clock).memory(memory);
        let gate = compiler.compile(&policy, None)?;
        let keys = policy.rules.iter().enumerate().map(|(place, rule)| {
            let mark = if rule.key == Key::All { None } else { gate.mark_of_all(place) };
            let is_address = matches!(rule.key, Key::All | Key::Part(Part::Ip { .. }));
            let has_fallback = rule.missing == Missing::Address && !is_address;
            RuleKey { text: said(&rule.key, policy.user.as_ref()), of_all: mark, has_fallback }
        });
        let keys = keys.collect();
        Ok(Self {
            follow: gate.has_schedules().then_some(start),
            gate,
            hand,
            now: start,
            ahead: Ahead::default(),
            foresight: Foresight::default(),
            tally: Tally::new(policy.rules.iter().map(|rule| rule.name.clone()), start),
            identities: Identities::default(),
            stays: BinaryHeap::new(),
            order: 0,
            keys,
        })
    }

    /// The header that names the user of a policy, where it is one.
    pub fn user_header(policy: &Policy) -> Option<String> {
        match policy.user.as_ref()? {
            Key::Part(Part::Header(name)) => Some(name.clone()),
            _ => None,
        }
    }

    /// Whether there was no room for a key, so that it was counted with others.
    pub fn has_overflowed(&self) -> bool {
        self.gate.has_overflowed()
    }

    /// Whether it matters how long requests take.
    pub fn counts_in_flight(&self) -> bool {
        self.gate.counts_in_flight()
    }

    /// What became of all requests so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// For whom a request is counted by the rule at this place, as it is shown; and a number that stands for it.
    pub fn key_of(&self, rule: usize, line: &Line<'_>) -> (u64, String) {
        match self.gate.key_at(rule, line) {
            Some(key) => (self.identities.0.hash_one(&key), shown(&key.to_string())),
            None => (0, "(none)".to_owned()),
        }
    }

    /// The policy, for whoever finds out ahead what it has to know of requests.
    pub fn gate(&self) -> &PolicyGate {
        &self.gate
    }

    /// Asks the policy about requests that follow each other; none is before those that it was asked about before. `known` is
    /// what was found out ahead, and where they are in it. `verdicts` is emptied first, and gets what becomes of each.
    pub fn ask(&mut self, lines: Lines<'_>, known: Option<(&Ahead, usize)>, verdicts: &mut Vec<Verdict>) {
        let (mut own, mut foresight) = (std::mem::take(&mut self.ahead), std::mem::take(&mut self.foresight));
        let (ahead, first) = known.unwrap_or_else(|| {
            own.clear();
            lines.iter().for_each(|(line, _)| self.gate.approach(&self.gate.see(&line), &mut own));
            (&own, 0)
        });
        self.gate.fetch(ahead, first..first + lines.len());
        verdicts.clear();
        for (at, (line, now)) in lines.iter().enumerate() {
            self.advance(now);
            self.gate.foresee(&line, (ahead, first + at), &mut foresight);
            verdicts.push(self.note(&foresight, &line, now));
            if let Some(stay) = foresight.take_stay() {
                self.keep(stay, foresight.delay(), &line, now);
            }
        }
        (self.ahead, self.foresight) = (own, foresight);
    }

    /// Ends all that still holds something, and says what became of it all; or that a rule never found what it counts by.
    pub fn finish(mut self) -> Result<Tally, Failure> {
        self.stays.clear();
        let lost = self.tally.rules.iter().position(|rule| rule.asked > 0 && rule.keyless == rule.asked);
        match lost {
            None => Ok(self.tally),
            Some(place) => Err(Failure::NoKey {
                rule: self.tally.rules[place].name.clone(),
                key: self.keys.get(place).map(|key| key.text.clone()).unwrap_or_default(),
            }),
        }
    }

    /// What has to be told of what it counted: requests without a key, and keys without room.
    pub fn notes(&self) -> Vec<String> {
        let rules = self.tally.rules.iter().zip(&self.keys).filter(|(rule, _)| rule.keyless > 0);
        let keyless = rules.map(|(rule, RuleKey { text: key, has_fallback, .. })| {
            let (name, keyless, asked) = (&rule.name, rule.keyless, rule.asked);
            let how = if *has_fallback { "by their addresses" } else { "together" };
            format!(
                "{keyless} of the {asked} requests of rule `{name}` have no {key}, and were counted {how}"
            )
        });
        let crowded = self.gate.crowded().into_iter().map(|(rule, times)| {
            format!(
                "rule `{rule}` had no room for a new key {times} times, and counted those with others, as a gateway does: it \
                 denied more than its quota says"
            )
        });
        keyless.chain(crowded).collect()
    }

    /// Moves the clock, and has everything happen that was due before.
    #[inline]
    fn advance(&mut self, now: Micros) {
        if now <= self.now && self.stays.is_empty() && self.follow.is_none() {
            return;
        }
        while self.stays.peek().is_some_and(|Reverse(stay)| stay.until <= now) {
            let Some(Reverse(stay)) = self.stays.pop() else { break };
            self.hand.set(stay.until);
            self.end(stay);
        }
        if now > self.now {
            self.hand.set(now);
            self.now = now;
        }
        if self.follow.is_some_and(|next| next <= now) {
            self.gate.follow_time();
            self.follow = Some(now.plus(MOMENT));
        }
    }

    /// Counts what was said.
    #[inline]
    fn note(&mut self, foresight: &Foresight, line: &Line<'_>, now: Micros) -> Verdict {
        let refusal = foresight.refusal();
        for said in foresight.said() {
            self.note_rule(*said, refusal.is_some(), line, now);
        }
        let delay = Micros::from(foresight.delay());
        let is_shadowed = |said: &RuleForetold| {
            said.mode != Mode::Enforce && matches!(said.outcome, RuleOutcome::Denied(_))
        };
        self.tally.shadow += u64::from(refusal.is_none() && foresight.said().iter().any(is_shadowed));
        let bin = self.tally.all.at(now);
        match refusal {
            Some(rule) => {
                bin.denied += 1;
                self.tally.denied += 1;
                Verdict::Denied(rule)
            }
            None if delay == Micros::ZERO => {
                bin.admitted += 1;
                self.tally.admitted += 1;
                Verdict::Admitted
            }
            None => {
                bin.delayed += 1;
                self.tally.delayed += 1;
                self.tally.waited = self.tally.waited.plus(delay);
                Verdict::Delayed
            }
        }
    }

    #[inline]
    fn note_rule(&mut self, said: RuleForetold, is_refused: bool, line: &Line<'_>, now: Micros) {
        let RuleForetold { rule, mode, outcome, .. } = said;
        let gate = &self.gate;
        let Some(tally) = self.tally.rules.get_mut(rule) else { return };
        tally.asked += 1;
        let is_keyless = match (said.mark, self.keys.get(rule)) {
            (Some(mark), Some(key)) if !key.has_fallback => key.of_all == Some(mark),
            _ => !gate.has_key(rule, line),
        };
        tally.keyless += u64::from(is_keyless);
        match outcome {
            RuleOutcome::Denied(_) => {
                let hash = self.identities.of(gate, said, line);
                let key = || gate.key_at(rule, line);
                let text = || key().map_or_else(|| "(none)".to_owned(), |key| shown(&key.to_string()));
                tally.keys.add(hash, 1, text);
                tally.episodes.denied(hash, now);
                let bin = tally.timeline.at(now);
                match mode {
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
            _ if is_refused => {}
            granted => {
                if !tally.episodes.is_quiet() {
                    tally.episodes.admitted(self.identities.of(gate, said, line), now);
                }
                let bin = tally.timeline.at(now);
                if let RuleOutcome::Delayed(delay) = granted {
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

    /// Keeps what a request holds until its time is over.
    fn keep(&mut self, stay: PolicyStay, delay: Duration, line: &Line<'_>, now: Micros) {
        let gone = now.plus(delay.into());
        let answered = gone.plus(line.took().unwrap_or(Micros::ZERO));
        let staying = Staying { until: gone, order: self.order, answered, status: line.status(), stay };
        self.order += 1;
        match gone > now {
            true => self.stays.push(Reverse(staying)),
            false => self.end(staying),
        }
        if self.stays.len() > MOST_STAYS
            && let Some(Reverse(first)) = self.stays.pop()
        {
            drop(self.gate.settle_foreseen(first.stay, &Status(first.status)));
        }
    }

    /// A wait is over, or a request has been answered.
    fn end(&mut self, mut staying: Staying) {
        staying.stay.leave_queues();
        if staying.answered > staying.until {
            staying.until = staying.answered;
            self.stays.push(Reverse(staying));
            return;
        }
        let slots: HeldSlots = self.gate.settle_foreseen(staying.stay, &Status(staying.status));
        drop(slots);
    }
}

/// Numbers that stand for keys, the same for one key of one rule each time.
#[derive(Default)]
struct Identities(FixedState);

impl Identities {
    #[inline]
    fn of(&self, gate: &PolicyGate, said: RuleForetold, line: &Line<'_>) -> u64 {
        match said.mark.or_else(|| gate.mark_at(said.rule, line)) {
            Some(mark) => mark.get(),
            None => gate.key_at(said.rule, line).map_or(0, |key| self.0.hash_one(&key)),
        }
    }
}

/// A request that holds something.
struct Staying {
    until: Micros,
    order: u64,
    answered: Micros,
    status: u16,
    stay: PolicyStay,
}

impl Staying {
    fn rank(&self) -> (Micros, u64) {
        (self.until, self.order)
    }
}

impl PartialEq for Staying {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Staying {}

impl PartialOrd for Staying {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Staying {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// An answer of which only the status is known.
struct Status(u16);

impl Reply for Status {
    fn status(&self) -> u16 {
        self.0
    }

    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }
}

/// A key as reports display it, cut after 120 characters. All requests together have an empty key.
fn shown(key: &str) -> String {
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
fn said(key: &Key, user: Option<&Key>) -> String {
    match key {
        Key::All => "all".to_owned(),
        Key::Part(Part::User) => match user {
            Some(user) => format!("user, by {}", said(user, None)),
            None => "user".to_owned(),
        },
        Key::Part(part) => part.to_string(),
        Key::Every(parts) => parts.iter().map(|part| said(part, user)).collect::<Vec<_>>().join(" and "),
        Key::First(parts) => parts.iter().map(|part| said(part, user)).collect::<Vec<_>>().join(" or "),
    }
}

impl std::fmt::Debug for Replay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay").field("now", &self.now).finish_non_exhaustive()
    }
}
