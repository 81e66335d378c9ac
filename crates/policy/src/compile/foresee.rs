//! Asking a policy about requests of a time that somebody else plays, as when a log is replayed.

use super::{
    PolicyGate, Why,
    guards::{Leave, Stopped},
};
use crate::matching::Seen;
use std::{fmt, ops::Range, time::Duration};
use tidegate_access::Standing;
use tidegate_limiter::Mark;
use tidegate_overload::Report;
use tidegate_rule::{
    Aim, HeldSlots, Judged, Judgement, Mode, Rulings, Stay, Waiting,
    request::{Head, KeyValue, Reply},
    surface::{Guest, called},
};

/// What is known of requests before they are asked about: which rules are about each, and for whom those count it.
///
/// That does not depend on what comes before them, nor on the time, so that it may be found out [ahead](PolicyGate::approach),
/// and in another thread.
#[derive(Debug, Default)]
pub struct Ahead {
    /// Of all requests, one after the other.
    found: Vec<usize>,
    aims: Vec<Aim>,
    /// Where those of each request end.
    ends: Vec<(usize, usize)>,
    /// Of the request that is approached.
    rules: Vec<usize>,
    limits: Vec<usize>,
}

impl Ahead {
    /// How many requests they are.
    #[inline]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// How many rules were found, for all of them together.
    pub fn rules(&self) -> usize {
        self.found.len()
    }

    /// Forgets them, and keeps its memory.
    pub fn clear(&mut self) {
        self.found.clear();
        self.aims.clear();
        self.ends.clear();
    }

    /// The places of all rules that are about this one of the requests, whether or not they are in force.
    #[inline]
    pub fn found(&self, at: usize) -> &[usize] {
        self.at(at).0
    }

    #[inline]
    fn at(&self, at: usize) -> (&[usize], &[Aim]) {
        let (found, aims) = match at.checked_sub(1) {
            Some(before) => self.ends.get(before).copied().unwrap_or_default(),
            None => (0, 0),
        };
        let (found_end, aims_end) = self.ends.get(at).copied().unwrap_or((found, aims));
        (&self.found[found..found_end], &self.aims[aims..aims_end])
    }
}

/// What a policy would say to a request, rule by rule. To be used again for the next request: it keeps its memory.
#[derive(Default)]
pub struct Foresight {
    limits: Vec<usize>,
    told: Vec<Judged>,
    said: Vec<RuleForetold>,
    refusal: Option<usize>,
    stay: PolicyStay,
}

/// What one rule would say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleForetold {
    /// Its place among the rules of the policy.
    pub rule: usize,
    /// Whether it would be enforced for this request.
    pub mode: Mode,
    /// What stands for the key, where that was found ahead.
    pub mark: Option<Mark>,
    /// What it would say.
    pub outcome: RuleOutcome,
}

/// What a rule would say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleOutcome {
    /// Go.
    Admitted,
    /// Go after so long.
    Delayed(Duration),
    /// No.
    Denied(Why),
}

/// What a request holds that a policy would let through, until it has been answered.
#[derive(Default)]
pub struct PolicyStay {
    rulings: Rulings,
    leaves: Vec<Leave>,
    waiting: Vec<Waiting>,
}

impl Foresight {
    /// What each rule said that was asked, in the order of the policy.
    pub fn said(&self) -> &[RuleForetold] {
        &self.said
    }

    /// The place of the rule that does not let the request through, of several the one that it would be told of; `None` if
    /// it is let through.
    pub fn refusal(&self) -> Option<usize> {
        self.refusal
    }

    /// How long the request waits before it goes: as long as for the longest.
    pub fn delay(&self) -> Duration {
        let delays = self.said.iter().filter(|said| said.mode == Mode::Enforce);
        let delays = delays.map(|said| match said.outcome {
            RuleOutcome::Delayed(delay) => delay,
            RuleOutcome::Admitted | RuleOutcome::Denied(_) => Duration::ZERO,
        });
        delays.max().unwrap_or_default()
    }

    /// What the request holds, if there is anything: to be given back with [`PolicyGate::settle_foreseen`].
    pub fn take_stay(&mut self) -> Option<PolicyStay> {
        let stay = &self.stay;
        let is_empty = !stay.rulings.holds_anything() && stay.leaves.is_empty() && stay.waiting.is_empty();
        (!is_empty).then(|| std::mem::take(&mut self.stay))
    }

    fn deny(&mut self, rule: usize, why: Why) {
        self.refusal = Some(rule);
        self.said.push(RuleForetold {
            rule,
            mode: Mode::Enforce,
            mark: None,
            outcome: RuleOutcome::Denied(why),
        });
    }
}

impl RuleForetold {
    /// Whether the request is not let through because of it.
    pub fn refuses(&self) -> bool {
        self.mode == Mode::Enforce && matches!(self.outcome, RuleOutcome::Denied(_))
    }
}

impl PolicyGate {
    /// Finds the rules that are about this request, and for whom they count it, and adds that to what is known ahead;
    /// [`foresee`](Self::foresee) then asks them.
    pub fn approach(&self, seen: &Seen<'_>, ahead: &mut Ahead) {
        let inner = &*self.inner;
        let Ahead { found, aims, ends, rules, limits } = ahead;
        rules.clear();
        limits.clear();
        inner.index.find(seen, rules);
        found.extend_from_slice(rules);
        let mut rules = rules.iter().filter_map(|place| inner.rules.get(*place));
        let is_plain = rules.all(|rule| {
            limits.extend(rule.limit);
            rule.has_only_quotas()
        });
        if is_plain {
            inner.gate.aim(seen.head(), limits, aims);
        }
        ends.push((found.len(), aims.len()));
    }

    /// Has fetched from memory what is known of those for whom these requests are counted. Whoever knows ahead which
    /// requests come waits for all of it together.
    pub fn fetch(&self, ahead: &Ahead, requests: Range<usize>) {
        requests.for_each(|at| self.inner.gate.fetch(ahead.at(at).1));
    }

    /// Asks all rules that are about this request, one of those that were [approached](Self::approach), at the time that their clock
    /// shows. Nothing is waited for, no answer is made, and nobody else may ask this gate meanwhile.
    ///
    /// What waiting would be is told as a delay. There is one difference from [`ask_seen`](Self::ask_seen): who would stand in
    /// line for a slot is refused, since nobody knows yet when one will be free.
    pub fn foresee(&self, head: &dyn Head, ahead: (&Ahead, usize), foresight: &mut Foresight) {
        let inner = &*self.inner;
        let (found, aims) = ahead.0.at(ahead.1);
        foresight.said.clear();
        foresight.refusal = None;
        foresight.limits.clear();
        let mut guests = Vec::new();
        for place in found.iter().copied() {
            let Some(rule) = inner.rules.get(place) else { continue };
            if rule.has_only_quotas() {
                foresight.limits.extend(rule.limit);
            } else if self.foresee_guarded(head, place, foresight, &mut guests).is_err() {
                foresight.stay = PolicyStay::default();
                return;
            }
        }
        let Foresight { limits, told, .. } = foresight;
        let Stay { rulings, waiting } = inner.gate.foresee(head, limits, aims, told);
        for (at, told) in foresight.told.iter().enumerate() {
            let Some(rule) = inner.owners.get(told.place) else { continue };
            let mark = aims.get(at).and_then(|aim| aim.mark_at(told.place));
            foresight.said.push(RuleForetold { rule: *rule, mode: told.mode, mark, outcome: outcome(told) });
        }
        let refusals = foresight.told.iter().filter(|told| told.refuses());
        let refusal = Judged::gravest(refusals, |told| told).and_then(|told| inner.owners.get(told.place));
        foresight.refusal = refusal.copied();
        if foresight.refusal.is_some() {
            for (place, guest) in guests {
                if foresight.said.iter().any(|said| said.rule == place && said.refuses()) {
                    Guest::answered(guest, Report::Failure);
                }
            }
            foresight.stay = PolicyStay::default();
            return;
        }
        (foresight.stay.rulings, foresight.stay.waiting) = (rulings, waiting);
    }

    /// Lists, bans and guards of one rule. `Err` if they do not let the request through.
    fn foresee_guarded(
        &self,
        head: &dyn Head,
        place: usize,
        foresight: &mut Foresight,
        guests: &mut Vec<(usize, Guest)>,
    ) -> Result<(), ()> {
        let Some(rule) = self.inner.rules.get(place) else { return Ok(()) };
        let mode = rule.mode(head);
        if mode == Mode::Off {
            return Ok(());
        }
        match rule.door.as_ref().map(|door| door.knock(head)) {
            Some(Err(barred)) => {
                let why = if barred.retry_after.is_some() { Why::Banned } else { Why::Denied };
                if mode == Mode::Enforce {
                    foresight.deny(place, why);
                    return Err(());
                }
                let outcome = RuleOutcome::Denied(why);
                foresight.said.push(RuleForetold { rule: place, mode, mark: None, outcome });
            }
            // Past all other limits of this rule.
            Some(Ok(guest)) if guest.standing() == Standing::Allowed => return Ok(()),
            Some(Ok(guest)) => guests.push((place, guest)),
            None => {}
        }
        foresight.limits.extend(rule.limit);
        if mode == Mode::Enforce && rule.has_guards() {
            match rule.pass(rule.class_of(head), &mut foresight.stay.leaves) {
                Ok(()) => {}
                Err(Stopped::Full | Stopped::Rejected(_) | Stopped::Refused(_)) => {
                    foresight.deny(place, Why::Guarded);
                    return Err(());
                }
            }
        }
        if rule.limit.is_none() && !foresight.said.iter().any(|said| said.rule == place) {
            let outcome = RuleOutcome::Admitted;
            foresight.said.push(RuleForetold { rule: place, mode, mark: None, outcome });
        }
        Ok(())
    }

    /// A request that was let through has been answered: tells its guards, and settles what was taken. What is returned holds
    /// its slots.
    pub fn settle_foreseen(&self, stay: PolicyStay, reply: &dyn Reply) -> HeldSlots {
        let report = called(Some(reply));
        stay.leaves.into_iter().for_each(|leave| leave.report(report));
        stay.rulings.settle(&self.inner.gate, reply)
    }

    /// For whom the rule at this place counts a request, or whom its lists are about; `None` if it has no such key.
    pub fn key_at<'a>(&self, rule: usize, head: &'a dyn Head) -> Option<KeyValue<'a>> {
        let rule = self.inner.rules.get(rule)?;
        match &rule.door {
            Some(door) if rule.limit.is_none() => door.who(head),
            _ => rule.key_of(head),
        }
    }

    /// What stands for whom the rule at this place counts a request for; `None` where it counts nothing in memory.
    pub fn mark_at(&self, rule: usize, head: &dyn Head) -> Option<Mark> {
        self.inner.gate.mark_at(self.inner.rules.get(rule)?.limit?, head)
    }

    /// What stands for all together in the rule at this place, where it counts in memory.
    pub fn mark_of_all(&self, rule: usize) -> Option<Mark> {
        self.inner.gate.mark_of_all(self.inner.rules.get(rule)?.limit?)
    }

    /// Whether the request has what the rule at this place counts by, and is not only counted with all others that lack it.
    pub fn has_key(&self, rule: usize, head: &dyn Head) -> bool {
        self.inner.rules.get(rule).is_some_and(|rule| rule.key.find(head).is_some())
    }

    /// Whether the table of a rule had no room for a key, so that it was counted with others.
    pub fn has_overflowed(&self) -> bool {
        !self.crowded().is_empty()
    }

    /// The rules whose tables had no room for a key, and how often.
    pub fn crowded(&self) -> Vec<(String, u64)> {
        let crowded = self.views().filter_map(|rule| {
            let size = rule.limiter()?.size()?;
            (size.overflowed > 0).then(|| (rule.name().to_owned(), size.overflowed))
        });
        crowded.collect()
    }

    /// Whether it matters to one of its rules how long requests take.
    pub fn counts_in_flight(&self) -> bool {
        self.inner.gate.counts_in_flight() || self.inner.rules.iter().any(|rule| rule.adaptive.is_some())
    }
}

impl PolicyStay {
    /// The wait is over: gives the places in queues to others.
    pub fn leave_queues(&mut self) {
        self.waiting.clear();
    }
}

fn outcome(told: &Judged) -> RuleOutcome {
    match told.judgement {
        Judgement::NoKey => RuleOutcome::Denied(Why::NoKey),
        _ if told.is_denied() => RuleOutcome::Denied(Why::Limited),
        Judgement::Decided(decision) if decision.is_allowed() => RuleOutcome::Admitted,
        _ => RuleOutcome::Delayed(told.delay()),
    }
}

impl fmt::Debug for Foresight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.said).finish()
    }
}

impl fmt::Debug for PolicyStay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyStay").field("rulings", &self.rulings).finish_non_exhaustive()
    }
}
