//! Asking all rules that apply to a request.

use super::{
    Gate, RequestLimit,
    limit::{by_address, holds_slots},
    queue::{KeyQueue, Waiting},
    rulings::{Held, Judged, Judgement, Rulings},
    taken::{Taken, reserve_in_memory},
};
use crate::{
    Mode, RuleKey,
    request::{Address, Head, KeyValue, Missing},
};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tidegate_core::{Decision, Micros};
use tidegate_limiter::{Bucket, Check, Limiter, Waiter, background, reserve_all, store::Choice};

/// What rules say to a request, now or when they have been waited for.
#[derive(Debug)]
pub enum Asked {
    /// Here it is.
    Now(Rulings),
    /// There is a store to be asked, or a turn to be waited for.
    Later(Asking),
}

/// What rules will have said to a request. Dropping it gives back whatever it has taken so far.
pub struct Asking {
    rulings: Pin<Box<dyn Future<Output = Rulings> + Send>>,
}

impl Future for Asking {
    type Output = Rulings;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Rulings> {
        Poll::Ready(ready!(self.rulings.as_mut().poll(context)))
    }
}

impl fmt::Debug for Asking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Asking")
    }
}

/// Where a rule is in its gate.
pub(super) type Place = usize;

#[inline]
pub(super) fn ask(gate: &Gate, head: &dyn Head) -> Asked {
    match ask_at_hand(gate, head) {
        Some((place, decision)) => Asked::Now(Rulings::one(Judged::decided(place, Mode::Enforce, decision))),
        None => ask_several(gate, head),
    }
}

/// The quick way: one rule that decides by itself. `None` if there are others, or there is more to be known; nothing is
/// taken then.
#[inline]
pub(super) fn ask_at_hand(gate: &Gate, head: &dyn Head) -> Option<(Place, Decision)> {
    let limits = gate.limits();
    let applies = |limit: &RequestLimit| limit.applies_to(head);
    let place = limits.iter().position(applies)?;
    if limits[place + 1..].iter().any(applies) {
        return None;
    }
    decide_at_hand(&limits[place], head).map(|decision| (place, decision))
}

/// Asks without waiting for a turn or for a store.
pub(super) fn ask_now(gate: &Gate, head: &dyn Head) -> Rulings {
    if let Some((place, decision)) = ask_at_hand(gate, head) {
        return Rulings::one(Judged::decided(place, Mode::Enforce, decision));
    }
    let limits = gate.limits();
    let places = (0..limits.len()).filter(|place| limits[*place].applies_to(head));
    let (enforced, mut shadowed) = match questions(gate, head, places, Duration::ZERO) {
        Ok(questions) => questions,
        Err(without_key) => return without_key,
    };
    let checks: Vec<_> = enforced.iter().map(|question| question.check.clone()).collect();
    let Some(claims) = reserve_in_memory(&checks) else { return Rulings::closed(&places_of(&enforced)) };
    let mut taken = Taken::default();
    taken.put(&enforced, claims);
    shadowed.retain(|question| question.check.is_in_memory());
    taken.look_on(&shadowed);
    taken.settle(gate)
}

/// Asks the limits at these places, whoever found out that they are the ones that apply.
pub(super) fn ask_those(gate: &Gate, head: &dyn Head, places: &[Place]) -> Asked {
    if let [place] = *places
        && let Some(decision) = gate.limits().get(place).and_then(|only| decide_at_hand(only, head))
    {
        return Asked::Now(Rulings::one(Judged::decided(place, Mode::Enforce, decision)));
    }
    ask_each(gate, head, places.iter().copied())
}

#[inline]
pub(super) fn decide_at_hand(limit: &RequestLimit, head: &dyn Head) -> Option<Decision> {
    let limiter = limit.rule().at_hand().filter(|_| limit.is_plain())?;
    let (cost, tier) = (limit.cost_of(head), limit.tier_of(head));
    // The most usual key of all is hashed as what it is: the same hash as that of the value that `find` makes of it.
    let decision = match limit.key_of().0.peer_bits().zip(head.peer()) {
        Some((bits, peer)) => check(limiter, &Address::of_prefix(peer, bits), cost, tier),
        None => {
            let Found::Key(key) = find(limit, head) else { return None };
            check(limiter, &key, cost, tier)
        }
    };
    Some(decision)
}

#[inline]
fn check<K: RuleKey>(limiter: &Limiter, key: &K, cost: u64, tier: usize) -> Decision {
    match tier {
        0 => limiter.check_cost(key, cost),
        _ => {
            let bucket = limiter.blocking().key(key);
            bucket.tier(tier).unwrap_or(bucket).check(cost)
        }
    }
}

/// What names the bucket, or what becomes of a request that has no such thing.
pub(super) enum Found<'a> {
    Key(KeyValue<'a>),
    Nothing,
    Refused,
}

#[inline]
pub(super) fn find<'a>(limit: &RequestLimit, head: &'a dyn Head) -> Found<'a> {
    let (key, missing) = limit.key_of();
    if key.has_duplicates(head) {
        return Found::Refused;
    }
    match (key.find(head), missing) {
        (Some(key), _) => Found::Key(key),
        (None, Missing::Address) => Found::Key(by_address(head)),
        (None, Missing::Share) => Found::Key(KeyValue::All),
        (None, Missing::Skip) => Found::Nothing,
        (None, Missing::Refuse) => Found::Refused,
    }
}

/// What is to be asked of one rule.
pub(super) struct Question {
    pub(super) place: Place,
    pub(super) mode: Mode,
    pub(super) check: Check,
    pub(super) line: Option<InLine>,
    /// Where it waits, if it may.
    pub(super) queue: Option<KeyQueue>,
}

/// A slot that is worth waiting for, with the tokens beside it.
pub(super) struct InLine {
    pub(super) bucket: Bucket,
    pub(super) waiter: Waiter,
}

#[inline(never)]
pub(super) fn ask_several(gate: &Gate, head: &dyn Head) -> Asked {
    let limits = gate.limits();
    ask_each(gate, head, (0..limits.len()).filter(|place| limits[*place].applies_to(head)))
}

fn ask_each(gate: &Gate, head: &dyn Head, places: impl Iterator<Item = Place>) -> Asked {
    match questions(gate, head, places, Duration::MAX) {
        Ok((enforced, shadowed)) if enforced.is_empty() && shadowed.is_empty() => Asked::Now(Rulings::none()),
        Ok((enforced, shadowed)) => now_or_later(gate, enforced, shadowed),
        Err(without_key) => Asked::Now(without_key),
    }
}

/// The same for whoever plays the time: what is granted after a delay is granted, and `waiting` are the places that it takes
/// until then. Nothing is decided where there is a store to be asked.
pub(super) fn ask_without_waiting(
    gate: &Gate,
    head: &dyn Head,
    places: impl Iterator<Item = Place>,
    waiting: &mut Vec<Waiting>,
) -> Rulings {
    let (enforced, shadowed) = match questions(gate, head, places, Duration::MAX) {
        Ok(questions) => questions,
        Err(without_key) => return without_key,
    };
    let checks: Vec<_> = enforced.iter().map(|question| question.check.clone()).collect();
    let mut taken = Taken::default();
    if let Some(claims) = reserve_in_memory(&checks) {
        taken.put(&enforced, claims);
    }
    taken.queue(&enforced);
    taken.look_on(&shadowed);
    waiting.extend(taken.take_waiting());
    taken.settle(gate)
}

/// What is to be asked: of rules that are enforced, and of those that are not; or that a key is missing that must be there.
fn questions(
    gate: &Gate,
    head: &dyn Head,
    places: impl Iterator<Item = Place>,
    max_wait: Duration,
) -> Result<(Vec<Question>, Vec<Question>), Rulings> {
    let (mut enforced, mut shadowed) = (Vec::new(), Vec::new());
    for place in places {
        let Some(limit) = gate.limits().get(place) else { continue };
        let (mode, Some(limiter)) = (limit.rule().mode(), limit.rule().limiter()) else { continue };
        if mode == Mode::Off {
            continue;
        }
        let key = match find(limit, head) {
            Found::Key(key) => key,
            Found::Refused if mode == Mode::Enforce => return Err(Rulings::one(Judged::without_key(place))),
            Found::Refused | Found::Nothing => continue,
        };
        let mode = limit.mode_for(mode, &key);
        let patience = limit.rule().wait().min(max_wait);
        let question = question(place, limit, mode, &limiter, &key, head, patience);
        if mode == Mode::Enforce { enforced.push(question) } else { shadowed.push(question) }
    }
    Ok((enforced, shadowed))
}

fn question(
    place: Place,
    limit: &RequestLimit,
    mode: Mode,
    limiter: &Limiter,
    key: &KeyValue<'_>,
    head: &dyn Head,
    patience: Duration,
) -> Question {
    let (cost, tier) = (limit.cost_of(head), limit.tier_of(head));
    // What is not enforced makes nobody wait, but takes the turn that would have been waited for: else it would count others
    // as refused than it would refuse.
    let check = limiter.ask(key).cost(cost).tier(tier).within(patience);
    // Lines know no tiers: one who has a tier of slots is answered at once.
    let has_line = limit.rule().choice() == Choice::All && limiter.quotas().iter().any(holds_slots);
    let is_line = mode == Mode::Enforce && !patience.is_zero() && cost > 0 && has_line;
    let is_waiting = mode == Mode::Enforce && !patience.is_zero();
    let queue = limit.line().filter(|_| is_waiting).map(|queue| queue.of_key(key));
    let line = is_line.then(|| InLine {
        bucket: limiter.key(key),
        waiter: Waiter::new(cost).deadline(patience).priority(limit.priority_of(head)),
    });
    Question { place, mode, check, line, queue }
}

/// Everything that is in memory and grants without a wait is decided on the spot.
fn now_or_later(gate: &Gate, enforced: Vec<Question>, shadowed: Vec<Question>) -> Asked {
    let lines = enforced.iter().any(|question| question.line.is_some());
    let is_shadowed_here = shadowed.iter().all(|question| question.check.is_in_memory());
    if lines || !is_shadowed_here {
        return later(gate, enforced, shadowed);
    }
    let checks: Vec<_> = enforced.iter().map(|question| question.check.clone()).collect();
    let Some(claims) = reserve_in_memory(&checks) else { return later(gate, enforced, shadowed) };
    let mut taken = Taken::default();
    taken.put(&enforced, claims);
    taken.queue(&enforced);
    if taken.is_ready() {
        taken.look_on(&shadowed);
        return Asked::Now(taken.settle(gate));
    }
    let (ours, places) = (gate.clone(), places_of(&enforced));
    waited_for(places, async move {
        taken.ready().await;
        taken.look_on(&shadowed);
        taken.settle(&ours)
    })
}

fn later(gate: &Gate, enforced: Vec<Question>, shadowed: Vec<Question>) -> Asked {
    let (ours, places) = (gate.clone(), places_of(&enforced));
    waited_for(places, async move {
        let mut taken = Taken::default();
        let (lines, rest): (Vec<_>, Vec<_>) =
            enforced.into_iter().partition(|question| question.line.is_some());
        for question in lines {
            taken.stand_in_line(question).await;
        }
        if !taken.is_refused() {
            let checks = rest.iter().map(|question| question.check.clone()).collect();
            taken.put(&rest, reserve_all(checks).await);
            taken.queue(&rest);
            taken.ready().await;
        }
        if !taken.is_refused() {
            for question in shadowed {
                let claims = reserve_all(vec![question.check.clone()]).await;
                taken.put(&[question], claims);
            }
        }
        taken.settle(&ours)
    })
}

/// On this runtime or else on our own: stores and waits need a timer.
fn waited_for(places: Vec<Place>, rulings: impl Future<Output = Rulings> + Send + 'static) -> Asked {
    let asking = background::within_runtime(rulings);
    let rulings = async move { asking.await.unwrap_or_else(|| Rulings::closed(&places)) };
    Asked::Later(Asking { rulings: Box::pin(rulings) })
}

fn places_of(questions: &[Question]) -> Vec<Place> {
    questions.iter().map(|question| question.place).collect()
}

impl Rulings {
    /// Where there is no runtime to ask a store on.
    fn closed(places: &[Place]) -> Self {
        let decision = Decision::closed(0, Micros::from_secs(1));
        let closed = places.iter().map(|place| Judged::decided(*place, Mode::Enforce, decision));
        Self::of(closed.collect(), Held::default())
    }
}

impl Judged {
    pub(super) fn decided(place: Place, mode: Mode, decision: Decision) -> Self {
        Self { place, mode, judgement: Judgement::Decided(decision) }
    }

    fn without_key(place: Place) -> Self {
        Self { place, mode: Mode::Enforce, judgement: Judgement::NoKey }
    }
}
