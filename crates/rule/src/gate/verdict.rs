//! The rulings of one request, folded.

use super::{
    Gate, RequestLimit, Rulings,
    rulings::{Judged, Judgement},
};
use crate::{Answer, Labels, Limited, Mode};
use std::{sync::Arc, time::Duration};
use tidegate_core::{Decision, Outcome, Quota, Retry, header::Label};
use tidegate_limiter::store::Choice;
use tidegate_overload::Cause;

/// The rulings of one request, folded: whether it is let through, else who refused it, and all the numbers.
#[derive(Clone, Copy, Debug)]
pub struct Verdict<'a> {
    gate: &'a Gate,
    rulings: &'a Rulings,
}

/// What one rule said.
#[derive(Clone, Copy, Debug)]
pub struct Ruling<'a> {
    limit: &'a RequestLimit,
    one: &'a Judged,
}

impl<'a> Verdict<'a> {
    #[inline]
    pub(super) fn new(gate: &'a Gate, rulings: &'a Rulings) -> Self {
        Self { gate, rulings }
    }

    /// Whether the request is let through.
    #[inline]
    pub fn is_admitted(&self) -> bool {
        !self.rulings.iter().any(Judged::refuses)
    }

    /// What each rule said that was asked, in the order of the gate; those in shadow mode too.
    #[inline]
    pub fn rulings(&self) -> impl Iterator<Item = Ruling<'a>> + use<'a> {
        let limits = self.gate.limits();
        self.rulings.iter().filter_map(|one| limits.get(one.place).map(|limit| Ruling { limit, one }))
    }

    /// Who refused it: of several, the one for which it has to wait longest. `None` if it is let through.
    pub fn refusal(&self) -> Option<Ruling<'a>> {
        Judged::gravest(self.refusals(), |ruling| ruling.one)
    }

    /// All who refused it.
    pub fn refusals(&self) -> impl Iterator<Item = Ruling<'a>> + use<'a> {
        self.rulings().filter(|ruling| ruling.one.refuses())
    }

    /// The error of who refused it. `None` if it is let through, or if it lacks what a rule wants to count it by, which is
    /// no limit.
    pub fn limited(&self) -> Option<Limited> {
        self.refusal()?.limited()
    }

    /// When it is worth trying again, if that is known: the longest of all that have to be waited for. `None` where one of
    /// the rules will never let it through.
    pub fn retry_after(&self) -> Option<Duration> {
        if self.refusals().any(|ruling| ruling.is_hopeless()) {
            return None;
        }
        self.refusals().filter_map(|ruling| ruling.cause()?.retry_after()).max()
    }

    /// What is answered to a request that is refused, unless the gate says otherwise: 429 and what there is to tell, 503 if
    /// its store is away or its turn in line did not come, or 400 if it lacks what it is counted by.
    pub fn answer(&self) -> Answer {
        match self.limited() {
            Some(limited) => {
                let told = self.told();
                let told = told.iter().filter_map(Told::pair);
                Answer::of_verdict(&limited, told, self.gate.told())
            }
            None => Answer::missing_key(),
        }
    }

    /// Writes the header fields that tell what is left: calls `each` with a name in lower case and a value. They are of all
    /// rules that were enforced; clients are not told of those in shadow mode.
    pub fn write_fields(&self, mut each: impl FnMut(&'static str, &str)) {
        let (fields, told) = (self.gate.told(), self.told());
        fields.write_policies(told.iter().flat_map(Told::policies), &mut each);
        fields.write_left(told.iter().filter_map(Told::pair), each);
    }

    fn told(&self) -> Vec<Told<'a>> {
        let enforced = self.rulings().filter(|ruling| ruling.mode() == Mode::Enforce);
        let told = enforced.map(|ruling| Told {
            labels: ruling.rule().labels().clone(),
            choice: ruling.rule().choice(),
            decision: ruling.decision(),
        });
        told.collect()
    }
}

/// What a client is told of one rule.
struct Told<'a> {
    labels: Arc<Labels>,
    choice: Choice,
    decision: Option<&'a Decision>,
}

impl Told<'_> {
    /// All quotas that apply.
    fn policies(&self) -> impl Iterator<Item = &Label> {
        let chosen = match (self.choice, self.decision) {
            (Choice::Tier, Some(decision)) => Some(decision.quota()),
            _ => None,
        };
        let is_meant = move |place: usize| chosen.is_none_or(|chosen| chosen == place);
        self.labels.iter().enumerate().filter(move |(place, _)| is_meant(*place)).map(|(_, label)| label)
    }

    /// The quota that bound, and what is left of it. Without its store nobody knows what that is.
    fn pair(&self) -> Option<(&Label, &Decision)> {
        let decision = self.decision.filter(|decision| !decision.is_closed())?;
        self.labels.get(decision.quota()).map(|label| (label, decision))
    }
}

impl<'a> Ruling<'a> {
    /// The rule.
    pub fn rule(&self) -> &'a crate::Rule {
        self.limit.rule()
    }

    /// Its name.
    pub fn name(&self) -> &'a str {
        self.limit.rule().name()
    }

    /// Its place among the rules of the gate.
    pub fn place(&self) -> usize {
        self.one.place
    }

    /// Whether it was enforced when it was asked.
    pub fn mode(&self) -> Mode {
        self.one.mode
    }

    /// The numbers; `None` if it did not come to a decision.
    #[inline]
    pub fn decision(&self) -> Option<&'a Decision> {
        match &self.one.judgement {
            Judgement::Decided(decision) => Some(decision),
            Judgement::Refused(_) | Judgement::NoKey => None,
        }
    }

    /// The quota that the numbers are of: the one that denied, or else the one with the least left.
    pub fn quota(&self) -> Option<Quota> {
        let decision = self.decision()?;
        self.rule().quotas().get(decision.quota()).copied()
    }

    /// Whether the request lacks what names its bucket, and is refused for that.
    pub fn lacks_key(&self) -> bool {
        matches!(self.one.judgement, Judgement::NoKey)
    }

    fn limited(&self) -> Option<Limited> {
        match &self.one.judgement {
            Judgement::Decided(decision) => Some(self.rule().limited(decision)),
            Judgement::Refused(refused) => {
                let limited = Limited::new(self.name(), Cause::from(*refused));
                Some(limited.with_message(self.rule().message()))
            }
            Judgement::NoKey => None,
        }
    }

    fn cause(&self) -> Option<Cause> {
        match &self.one.judgement {
            Judgement::Decided(decision) => Some(Cause::of_denial(*decision)),
            Judgement::Refused(refused) => Some(Cause::from(*refused)),
            Judgement::NoKey => None,
        }
    }

    /// Whether time does not help.
    fn is_hopeless(&self) -> bool {
        matches!(self.decision().map(Decision::outcome), Some(Outcome::Deny(Retry::Never)))
    }
}
