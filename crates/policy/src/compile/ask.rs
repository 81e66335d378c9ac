//! Asking a policy about a request.
//!
//! Lists and bans come first, since they cost nothing; then breakers and adaptive limits, which give back what they gave
//! when a quota refuses; then all quotas together. Where quotas are waited for, nothing else is held meanwhile, and what
//! guards is asked again behind the wait; there it can be stood in line for, too.

use super::{
    Inner, PolicyGate,
    guards::{Leave, PolicyRule, Stopped},
    instead::Instead,
};
use crate::matching::Seen;
use std::{
    fmt,
    future::{Future, ready},
    pin::Pin,
    sync::Arc,
    task::{self, Context, Poll},
    time::Duration,
};
use tidegate_access::Standing;
use tidegate_bandwidth::Bandwidth;
use tidegate_core::{Decision, Micros, Quota};
use tidegate_overload::{Cause, Rejection, Report};
use tidegate_rule::{
    Answer, Asked, Fields, HeldSlots, KeyQueue, Limited, Mode, Rulings, Verdict, add_wait,
    request::{Head, Reply},
    surface::{Barred, Guest, called},
};

/// What a policy says to a request, now or when it has been waited for.
#[derive(Debug)]
pub enum PolicyAsked {
    /// Here it is.
    Now(Passage),
    /// There is a store to be asked, or a turn to be waited for.
    Later(Asking),
}

/// What a policy will have said. Dropping it gives back whatever it has taken so far.
pub struct Asking {
    passage: Pin<Box<dyn Future<Output = Passage> + Send>>,
}

/// Whether a request is let through.
#[derive(Debug)]
pub enum Passage {
    /// It is, and holds this until it has been answered.
    Admitted(Admission),
    /// It is not.
    Refused(Box<Refusal>),
}

/// What a request holds that was let through. Dropping it without a word gives its slots back and pays what was taken.
#[must_use = "dropping it gives back the slots of the request"]
pub struct Admission {
    gate: PolicyGate,
    rulings: Rulings,
    leaves: Vec<Leave>,
    guests: Vec<(usize, Guest)>,
    /// Rules without quotas that let it through.
    others: Vec<usize>,
    /// How long it waited for its turn.
    waited: Micros,
    /// How fast its bodies may move, where a rule says so.
    pace: Option<Box<Pace>>,
}

#[derive(Default)]
struct Pace {
    down: Vec<Bandwidth>,
    up: Vec<Bandwidth>,
}

/// What is held until the body of an answer has been sent: the slots of a request.
pub type Held = HeldSlots;

/// Why a request is not let through, and what becomes of it instead.
#[derive(Debug)]
pub struct Refusal {
    /// The rule that refused.
    pub rule: Arc<str>,
    /// Its place in the policy.
    pub place: usize,
    /// Why.
    pub why: Why,
    /// What becomes of it.
    pub instead: Instead,
    /// When it is worth trying again, if that is known.
    pub retry_after: Option<Duration>,
    /// How long it waited for its turn.
    pub waited: Micros,
    /// The numbers, and the quota that they are of; `None` where no quota came to a decision.
    pub decision: Option<(Decision, Option<Quota>)>,
}

/// What a rule said to a request that was let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// It may go.
    Admitted,
    /// It may go, and had to wait.
    Delayed,
    /// It would have been refused, were the rule enforced.
    WouldRefuse,
}

/// Why a request is not let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A quota is used up, or a turn did not come.
    Limited,
    /// It lacks what it is counted by, or has it several times.
    NoKey,
    /// It comes from where nobody is let in.
    Denied,
    /// It is banned for a time.
    Banned,
    /// What it asks for is protected: a breaker is open, or there is too much in flight.
    Guarded,
}

impl PolicyGate {
    /// Asks all rules that are about this request: at once where everything is at hand, else as a future that owns all it
    /// needs.
    pub fn ask(&self, head: &dyn Head) -> PolicyAsked {
        self.ask_seen(&self.see(head))
    }

    /// The same of a request that was [looked at](Self::see), for whoever looks at it for its route, too.
    pub fn ask_seen(&self, seen: &Seen<'_>) -> PolicyAsked {
        let (inner, head) = (&*self.inner, seen.head());
        let mut found = Vec::new();
        inner.index.find(seen, &mut found);
        let mut asking =
            Question { head, places: Vec::new(), admission: Admission::new(self), guarded: Vec::new() };
        for place in found {
            if let Err(refusal) = asking.knock(inner, place) {
                return PolicyAsked::Now(Passage::Refused(refusal));
            }
        }
        let line = match asking.pass(inner) {
            Ok(line) => line,
            Err(refusal) => return PolicyAsked::Now(Passage::Refused(refusal)),
        };
        match (inner.gate.ask_those(head, &asking.places), line) {
            (Asked::Now(rulings), Line::None) => {
                let Question { admission, .. } = asking;
                PolicyAsked::Now(admission.conclude(rulings, head.header("accept")))
            }
            (Asked::Now(rulings), Line::Stand) => PolicyAsked::Later(asking.wait(ready(rulings))),
            (Asked::Later(rulings), _) => PolicyAsked::Later(asking.wait(rulings)),
        }
    }
}

/// Whether a guard has to be waited for.
enum Line {
    None,
    Stand,
}

/// A request that is being asked about.
struct Question<'h> {
    head: &'h dyn Head,
    /// Limits that are to be asked.
    places: Vec<usize>,
    /// Rules with guards, each with the class of the request and where it waits.
    guarded: Vec<(usize, usize, Option<KeyQueue>)>,
    admission: Admission,
}

impl Question<'_> {
    /// Asks the lists of one rule, and notes what else is to be asked of it.
    fn knock(&mut self, inner: &Inner, place: usize) -> Result<(), Box<Refusal>> {
        let Some(rule) = inner.rules.get(place) else { return Ok(()) };
        if rule.refuses_duplicates(self.head) {
            return Err(Refusal::duplicate((place, rule), self.head.header("accept")));
        }
        if rule.has_only_quotas() {
            self.places.extend(rule.limit);
            return Ok(());
        }
        let mode = rule.mode(self.head);
        if mode == Mode::Off {
            return Ok(());
        }
        match rule.door.as_ref().map(|door| door.knock(self.head)) {
            Some(Err(barred)) if mode == Mode::Enforce => {
                return Err(Refusal::barred((place, rule), *barred, self.head.header("accept")));
            }
            // Past all other limits of this rule.
            Some(Ok(guest)) if guest.standing() == Standing::Allowed => return Ok(()),
            Some(Ok(guest)) => self.admission.guests.push((place, guest)),
            Some(Err(_)) | None => {}
        }
        match rule.limit {
            Some(limit) => self.places.push(limit),
            None => self.admission.others.push(place),
        }
        if mode == Mode::Enforce {
            if rule.has_guards() {
                self.guarded.push((place, rule.class_of(self.head), rule.queue_of(self.head)));
            }
            let (down, up) = rule.bandwidth(self.head);
            if down.is_some() || up.is_some() {
                let pace = self.admission.pace.get_or_insert_default();
                pace.down.extend(down);
                pace.up.extend(up);
            }
        }
        Ok(())
    }

    fn pass(&mut self, inner: &Inner) -> Result<Line, Box<Refusal>> {
        for (place, class, _) in &self.guarded {
            let Some(rule) = inner.rules.get(*place) else { continue };
            match rule.pass(*class, &mut self.admission.leaves) {
                Ok(()) => {}
                Err(Stopped::Full) => return Ok(Line::Stand),
                Err(stopped) => {
                    return Err(Refusal::guarded((*place, rule), stopped, self.head.header("accept")));
                }
            }
        }
        Ok(Line::None)
    }

    /// What guards is given back while quotas are waited for: a wait is no work. Its own line comes last.
    fn wait(self, rulings: impl Future<Output = Rulings> + Send + 'static) -> Asking {
        let Self { head, guarded, mut admission, .. } = self;
        let accept = head.header("accept").map(<[u8]>::to_vec);
        admission.leaves.clear();
        let passage = async move {
            let rulings = rulings.await;
            let gate = admission.gate.clone();
            if !gate.inner.gate.verdict(&rulings).is_admitted() {
                return admission.conclude(rulings, accept.as_deref());
            }
            for (place, class, queue) in guarded {
                let Some(rule) = gate.inner.rules.get(place) else { continue };
                let Admission { leaves, waited, .. } = &mut admission;
                let passing = rule.pass_in_line(class, queue.as_ref(), leaves);
                if let Err(stopped) = add_wait(waited, passing).await {
                    let refusal = Refusal::guarded((place, rule), stopped, accept.as_deref());
                    let waited = rulings.waited().plus(*waited);
                    return Passage::Refused(Box::new(Refusal { waited, ..*refusal }));
                }
            }
            admission.conclude(rulings, accept.as_deref())
        };
        Asking { passage: Box::pin(passage) }
    }
}

impl Passage {
    /// How long the request waited for its turn.
    pub fn waited(&self) -> Micros {
        match self {
            Self::Admitted(admission) => admission.waited,
            Self::Refused(refusal) => refusal.waited,
        }
    }
}

impl Admission {
    fn new(gate: &PolicyGate) -> Self {
        Self {
            gate: gate.clone(),
            rulings: Rulings::default(),
            leaves: Vec::new(),
            guests: Vec::new(),
            others: Vec::new(),
            waited: Micros::ZERO,
            pace: None,
        }
    }

    /// What the rulings of all quotas mean for it.
    fn conclude(mut self, rulings: Rulings, accept: Option<&[u8]>) -> Passage {
        let gate = self.gate.clone();
        self.waited = self.waited.plus(rulings.waited());
        let verdict = gate.inner.gate.verdict(&rulings);
        let Some(refusal) = verdict.refusal() else {
            self.rulings = rulings;
            return Passage::Admitted(self);
        };
        let (rules, owners) = (&gate.inner.rules, &gate.inner.owners);
        // Every rule that refused counts it against its guest.
        let refused =
            |place: &usize| verdict.refusals().any(|ruling| owners.get(ruling.place()) == Some(place));
        let denied = self.guests.drain(..).filter(|(place, _)| refused(place));
        denied.for_each(|(_, guest)| guest.answered(Report::Failure));
        let owner = owners.get(refusal.place()).copied().unwrap_or(usize::MAX);
        let rule = rules.get(owner);
        let usual = gate.inner.gate.answer_to(&verdict);
        Passage::Refused(Box::new(Refusal {
            rule: refusal.rule().shared_name(),
            place: owner,
            why: if refusal.lacks_key() { Why::NoKey } else { Why::Limited },
            instead: match rule {
                Some(rule) => Instead::of(&rule.source.on_limit, usual, accept),
                None => Instead::Answer(usual),
            },
            retry_after: verdict.retry_after(),
            waited: self.waited,
            decision: refusal.decision().map(|decision| (*decision, refusal.quota())),
        }))
    }

    /// What each rule said that was asked, by its place in the policy; with the numbers, where it has quotas.
    #[inline]
    pub fn said(&self) -> impl Iterator<Item = (usize, Said, Option<&Decision>)> {
        let owners = &self.gate.inner.owners;
        let asked = self.verdict().rulings().filter_map(|ruling| {
            let decision = ruling.decision();
            let said = match decision {
                Some(decision) if decision.is_allowed() => Said::Admitted,
                Some(decision) if decision.is_granted() => Said::Delayed,
                _ => Said::WouldRefuse,
            };
            owners.get(ruling.place()).map(|place| (*place, said, decision))
        });
        asked.chain(self.others.iter().map(|place| (*place, Said::Admitted, None)))
    }

    /// What its quotas said, and what to tell of them.
    pub fn verdict(&self) -> Verdict<'_> {
        self.gate.inner.gate.verdict(&self.rulings)
    }

    /// How its client is told what is left.
    #[inline]
    pub fn fields(&self) -> Fields {
        self.gate.inner.gate.told()
    }

    /// The byte rates of what it is sent: all of them hold.
    pub fn down(&self) -> &[Bandwidth] {
        self.pace.as_deref().map_or(&[], |pace| &pace.down)
    }

    /// The byte rates of what it sends: all of them hold.
    pub fn up(&self) -> &[Bandwidth] {
        self.pace.as_deref().map_or(&[], |pace| &pace.up)
    }

    /// Whether anything is settled or given back with the answer.
    pub fn holds_anything(&self) -> bool {
        self.rulings.holds_anything() || !self.leaves.is_empty()
    }

    /// It was answered: tells its guards, and settles what was taken. What is returned holds its slots; drop it when the body
    /// has been sent.
    pub fn settle(mut self, reply: &dyn Reply) -> Held {
        let report = called(Some(reply));
        self.leaves.drain(..).for_each(|leave| leave.report(report));
        let rulings = std::mem::take(&mut self.rulings);
        rulings.settle(&self.gate.inner.gate, reply)
    }

    /// There was no answer: its guards hear of a failure, and what was taken is paid.
    pub fn fail(mut self) {
        self.leaves.drain(..).for_each(|leave| leave.report(Report::Failure));
    }
}

impl Refusal {
    /// It has several values where the rule takes one.
    #[cold]
    fn duplicate((place, rule): (usize, &PolicyRule), accept: Option<&[u8]>) -> Box<Self> {
        Box::new(Self {
            rule: rule.name().into(),
            place,
            why: Why::NoKey,
            instead: Instead::of(&rule.source.on_limit, Answer::duplicate_key(), accept),
            retry_after: None,
            decision: None,
            waited: Micros::ZERO,
        })
    }

    fn barred((place, rule): (usize, &PolicyRule), barred: Barred, accept: Option<&[u8]>) -> Box<Self> {
        let why = if barred.retry_after.is_some() { Why::Banned } else { Why::Denied };
        Box::new(Self {
            rule: rule.name().into(),
            place,
            why,
            instead: Instead::of(&rule.source.on_limit, barred.answer, accept),
            retry_after: barred.retry_after,
            waited: Micros::ZERO,
            decision: None,
        })
    }

    fn guarded((place, rule): (usize, &PolicyRule), stopped: Stopped, accept: Option<&[u8]>) -> Box<Self> {
        let message = rule.source.message.as_deref().map(Into::into);
        let cause = match stopped {
            Stopped::Rejected(rejection) => Cause::Rejected(rejection),
            Stopped::Refused(refused) => Cause::Refused(refused),
            Stopped::Full => Cause::Rejected(Rejection::Full),
        };
        let limited = Limited::new(rule.name(), cause).with_message(message);
        let usual = Answer::from(&limited);
        let usual = match usual.get("retry-after") {
            Some(_) => usual,
            None => usual.header("retry-after", "1"),
        };
        Box::new(Self {
            rule: rule.name().into(),
            place,
            why: Why::Guarded,
            instead: Instead::of(&rule.source.on_limit, usual, accept),
            retry_after: limited.retry_after(),
            waited: Micros::ZERO,
            decision: None,
        })
    }
}

impl Future for Asking {
    type Output = Passage;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Passage> {
        Poll::Ready(task::ready!(self.passage.as_mut().poll(context)))
    }
}

impl fmt::Debug for Asking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Asking")
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").field("rulings", &self.rulings).finish_non_exhaustive()
    }
}
