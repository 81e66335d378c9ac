//! What rules said to one request, and what it holds until it has been answered.

use super::{Gate, RequestLimit};
use crate::{Mode, Rule, request::Reply};
use std::{fmt, time::Duration};
use tidegate_core::{Decision, Micros, Outcome, Retry};
use tidegate_limiter::{Permit, Refused, Reservation, background};

/// What rules said to one request, and what it holds until it has been answered; [`Gate::verdict`] reads it.
///
/// Dropping it without an answer gives its slots back, and pays what was taken.
#[must_use = "dropping it gives back the slots of the request"]
#[derive(Default)]
pub struct Rulings {
    first: Option<Judged>,
    more: Vec<Judged>,
    held: Option<Box<Held>>,
    waited: Micros,
}

/// What the only rule that applies has decided by itself; there is nothing to settle and nothing to give back.
#[derive(Clone, Copy, Debug)]
pub struct QuickRuling<'a> {
    /// Where the rule is in its gate.
    pub(super) place: usize,
    pub(super) decision: &'a Decision,
}

impl QuickRuling<'_> {
    /// The numbers.
    #[inline]
    pub fn decision(&self) -> &Decision {
        self.decision
    }

    /// The rule.
    #[inline]
    pub fn rule<'g>(&self, gate: &'g Gate) -> Option<&'g Rule> {
        gate.limits().get(self.place).map(RequestLimit::rule)
    }
}

impl From<QuickRuling<'_>> for Rulings {
    fn from(quick: QuickRuling<'_>) -> Self {
        Self::one(Judged::decided(quick.place, Mode::Enforce, *quick.decision))
    }
}

/// What [`Gate::ask_quickly`] found out.
#[derive(Debug)]
pub enum Quick<T> {
    /// The request is let through, and this will be told of it.
    Admitted(T),
    /// It is not.
    Refused(Box<Rulings>),
    /// There is more to be asked; nothing was taken.
    Undecided,
}

impl<T> Quick<T> {
    #[cold]
    pub(super) fn refused(place: usize, decision: Decision) -> Self {
        Self::Refused(Box::new(Rulings::one(Judged::decided(place, Mode::Enforce, decision))))
    }
}

/// What one rule said.
#[derive(Clone, Copy, Debug)]
pub struct Judged {
    /// Where the rule is in its gate.
    pub place: usize,
    /// Whether it was enforced.
    pub mode: Mode,
    /// What it said.
    pub judgement: Judgement,
}

/// What a rule said.
#[derive(Clone, Copy, Debug)]
pub enum Judgement {
    /// This.
    Decided(Decision),
    /// There was no room to wait in, or its turn in line did not come.
    Refused(Refused),
    /// What names its bucket is not there, and the rule wants it to be.
    NoKey,
}

/// What a request holds until it has been answered.
#[derive(Default)]
pub(super) struct Held {
    /// Tokens that are settled with the answer, each with the place of its rule.
    pub(super) tokens: Vec<(usize, Reservation)>,
    pub(super) slots: Vec<Permit>,
}

impl Judged {
    /// Whether the request is not let through because of it.
    #[inline]
    pub fn refuses(&self) -> bool {
        self.mode == Mode::Enforce && self.is_denied()
    }

    /// Whether the request is denied, were the rule enforced.
    #[inline]
    pub fn is_denied(&self) -> bool {
        match &self.judgement {
            Judgement::Decided(decision) => !decision.is_granted(),
            Judgement::Refused(_) | Judgement::NoKey => true,
        }
    }

    /// How long the request waits for it.
    pub fn delay(&self) -> Duration {
        match &self.judgement {
            Judgement::Decided(decision) => match decision.outcome() {
                Outcome::Delay(wait) => wait.to_duration(),
                _ => Duration::ZERO,
            },
            Judgement::Refused(_) | Judgement::NoKey => Duration::ZERO,
        }
    }

    /// Of several who refuse a request, the one that it is told of: for which it has to wait longest.
    pub fn gravest<T: Copy>(refusals: impl Iterator<Item = T>, of: impl Fn(&T) -> &Self) -> Option<T> {
        refusals.reduce(|worst, other| if of(&other).weight() > of(&worst).weight() { other } else { worst })
    }

    /// How long the request has to wait for it: for ever weighs most.
    fn weight(&self) -> (u8, Micros) {
        let Judgement::Decided(decision) = &self.judgement else { return (3, Micros::ZERO) };
        match decision.outcome() {
            Outcome::Deny(Retry::Never) => (2, Micros::ZERO),
            Outcome::Deny(Retry::WhenReleased) => (1, Micros::ZERO),
            Outcome::Deny(Retry::After(wait)) => (0, wait),
            Outcome::Allow | Outcome::Delay(_) => (0, Micros::ZERO),
        }
    }
}

impl Rulings {
    /// No rule applies.
    pub(super) fn none() -> Self {
        Self::default()
    }

    #[inline]
    pub(super) fn one(one: Judged) -> Self {
        Self { first: Some(one), ..Self::default() }
    }

    pub(super) fn of(rulings: Vec<Judged>, held: Held) -> Self {
        let mut rulings = rulings.into_iter();
        let is_empty = held.tokens.is_empty() && held.slots.is_empty();
        let held = if is_empty { None } else { Some(Box::new(held)) };
        Self { first: rulings.next(), more: rulings.collect(), held, waited: Micros::ZERO }
    }

    /// The request waited this long for its turn.
    pub(super) fn after(self, waited: Micros) -> Self {
        Self { waited, ..self }
    }

    /// How long the request waited for its turn. What a store takes to answer is no wait.
    pub fn waited(&self) -> Micros {
        self.waited
    }

    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Judged> {
        self.first.iter().chain(&self.more)
    }

    /// Whether it holds anything that is settled or given back with the answer.
    #[inline]
    pub fn holds_anything(&self) -> bool {
        self.held.is_some()
    }

    /// Settles what was taken with the answer: gives back what it need not pay, or charges what is missing. What is
    /// returned holds the slots of the request; drop it when the body has been sent.
    #[inline]
    pub fn settle(mut self, gate: &Gate, reply: &dyn Reply) -> HeldSlots {
        match self.held.take() {
            None => HeldSlots::default(),
            Some(held) => held.settle(gate, reply),
        }
    }
}

impl Held {
    fn settle(mut self, gate: &Gate, reply: &dyn Reply) -> HeldSlots {
        background::enter(|| {
            for (place, tokens) in self.tokens.drain(..) {
                match gate.limits().get(place) {
                    Some(limit) => {
                        let due = limit.payment().due(tokens.cost(), reply);
                        tokens.commit(due);
                    }
                    None => {
                        tokens.keep();
                    }
                }
            }
        });
        HeldSlots { slots: std::mem::take(&mut self.slots) }
    }
}

/// No answer came: what was taken is paid.
impl Drop for Held {
    fn drop(&mut self) {
        for (_, tokens) in self.tokens.drain(..) {
            tokens.keep();
        }
        drop(HeldSlots { slots: std::mem::take(&mut self.slots) });
    }
}

/// The slots of a request, until it is dropped.
#[must_use = "dropping it gives the slots back"]
#[derive(Default)]
pub struct HeldSlots {
    slots: Vec<Permit>,
}

impl HeldSlots {
    /// Whether there is nothing to give back.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

/// A slot in a store is given back on a runtime: on ours where there is none.
impl Drop for HeldSlots {
    #[inline]
    fn drop(&mut self) {
        if !self.slots.is_empty() {
            background::enter(|| self.slots.clear());
        }
    }
}

impl fmt::Debug for HeldSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeldSlots({})", self.slots.len())
    }
}

impl fmt::Debug for Rulings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
