//! The evaluation of limits for one request.
//!
//! ```text
//!   find the key ──▶ build a check of each limit ──▶ decide all of them jointly ──▶ limits in shadow mode ──▶ settle
//! ```
//!
//! There is one order of steps. A [`Run`] says what happens where a step would have to wait.

use super::{
    Gate, RequestLimit,
    claims::{Claims, reserve_in_memory},
    limit::{by_address, holds_slots},
    prefetch::PreparedCheck,
    queue::KeyQueue,
    verdict::{LimitDecision, LimitOutcome, Verdict},
};
use crate::{
    Mode, RuleKey,
    request::{Address, Head, KeyValue, Missing},
};
use std::{fmt, future::Future, pin::Pin, time::Duration};
use tidegate_core::Decision;
use tidegate_limiter::{Bucket, Check, Limiter, Waiter, background, store::QuotaSelection};

/// The result of an evaluation, or a future of it that owns all it needs.
pub enum Evaluation<T> {
    /// Everything was decided at once.
    Ready(T),
    /// A store has to be asked, or a turn waited for. Dropping it gives back what it has reserved.
    Pending(Pending<T>),
}

/// The future of an [`Evaluation`].
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<T> Evaluation<T> {
    /// The result, if it is known at once.
    pub fn ready(self) -> Option<T> {
        match self {
            Self::Ready(result) => Some(result),
            Self::Pending(_) => None,
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Evaluation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(result) => f.debug_tuple("Ready").field(result).finish(),
            Self::Pending(_) => f.write_str("Pending"),
        }
    }
}

/// Which limits of a gate are checked.
#[derive(Clone, Copy, Debug)]
pub enum Limits<'a> {
    /// Those whose methods, routes and conditions match the request.
    Matching,
    /// Those at these indexes in [`Gate::limits`], for a caller whose index has found them.
    At(&'a [usize]),
}

/// How an evaluation treats waits and stores.
#[derive(Clone, Copy, Debug)]
pub enum Run<'a> {
    /// Waits for turns and asks stores, in a future.
    Live,
    /// Cannot wait. A limit that is declared to wait decides at once; limits in a store deny, as with an unavailable store that
    /// is closed.
    Immediate,
    /// Waits for nothing: a delay is reported, and its place in a queue is held until [`Verdict::leave_queues`]; a full queue or
    /// a slot in use denies. The caller sets the clock, and no other thread may check these limits meanwhile. The checks are those
    /// of [`Gate::prepare`] for the same limits, or none.
    DryRun(&'a [PreparedCheck]),
}

/// Evaluates limits into `verdict`; `Some` if it has to be waited for.
#[inline]
pub(super) fn evaluate(
    gate: &Gate,
    head: &dyn Head,
    limits: Limits<'_>,
    run: Run<'_>,
    verdict: &mut Verdict,
) -> Option<Pending<Verdict>> {
    match (run, limits) {
        (Run::DryRun(prepared), Limits::At(limits)) if prepared.len() == limits.len() => {
            verdict.clear();
            if gate.decide_prepared(prepared, verdict).is_some() {
                return None;
            }
        }
        (Run::DryRun(_), _) => {}
        (Run::Live | Run::Immediate, _) => {
            if let Some(decision) = decide_plain(gate, head, limits) {
                verdict.clear();
                verdict.push(decision);
                return None;
            }
        }
    }
    evaluate_jointly(gate, head, limits, run, verdict)
}

/// Evaluates the limits that match. A verdict of one decision is made where it is used, since most requests return one.
#[inline]
pub(super) fn check(gate: &Gate, head: &dyn Head) -> Evaluation<Verdict> {
    match decide_plain(gate, head, Limits::Matching) {
        Some(decision) => Evaluation::Ready(Verdict::from(decision)),
        None => check_jointly(gate, head),
    }
}

#[inline(never)]
fn check_jointly(gate: &Gate, head: &dyn Head) -> Evaluation<Verdict> {
    let mut verdict = Verdict::default();
    match evaluate_jointly(gate, head, Limits::Matching, Run::Live, &mut verdict) {
        None => Evaluation::Ready(verdict),
        Some(pending) => Evaluation::Pending(pending),
    }
}

/// The fast path: the only limit decides by itself. `None` if there are others, or more has to be known; nothing is charged
/// then.
#[inline]
fn decide_plain(gate: &Gate, head: &dyn Head, limits: Limits<'_>) -> Option<LimitDecision> {
    if let Some(bits) = gate.inner.peer_bits
        && matches!(limits, Limits::Matching | Limits::At([0]))
        && let Some(decision) = head.peer().and_then(|peer| check_peer(gate, Address::of_prefix(peer, bits)))
    {
        return Some(LimitDecision::enforced(0, decision));
    }
    decide_by_head(gate, head, limits).map(|(limit, decision)| LimitDecision::enforced(limit, decision))
}

/// The decision of a gate that reads only the address of the peer.
#[inline]
pub(super) fn check_peer(gate: &Gate, peer: Address) -> Option<Decision> {
    Some(gate.limits().first()?.rule().at_hand()?.check_cost(&peer, 1))
}

#[inline(never)]
fn decide_by_head(gate: &Gate, head: &dyn Head, limits: Limits<'_>) -> Option<(usize, Decision)> {
    let all = gate.limits();
    let index = match limits {
        Limits::Matching => {
            let applies = |limit: &RequestLimit| limit.applies_to(head);
            let first = all.iter().position(applies)?;
            if all[first + 1..].iter().any(applies) {
                return None;
            }
            first
        }
        Limits::At([only]) => *only,
        Limits::At(_) => return None,
    };
    let limit = all.get(index)?;
    let limiter = limit.rule().at_hand().filter(|_| limit.is_plain())?;
    let (cost, tier) = (limit.cost_of(head), limit.tier_of(head));
    // The most common key is hashed as what it is: the same hash as that of the value that `find_key` makes of it.
    let decision = match limit.key_of().0.peer_bits().zip(head.peer()) {
        Some((bits, peer)) => check_key(limiter, &Address::of_prefix(peer, bits), cost, tier),
        None => {
            let KeyLookup::Found(key) = find_key(limit, head) else { return None };
            check_key(limiter, &key, cost, tier)
        }
    };
    Some((index, decision))
}

#[inline]
fn check_key<K: RuleKey>(limiter: &Limiter, key: &K, cost: u64, tier: usize) -> Decision {
    match tier {
        0 => limiter.check_cost(key, cost),
        _ => {
            let bucket = limiter.blocking().key(key);
            bucket.tier(tier).unwrap_or(bucket).check(cost)
        }
    }
}

/// The key of a request, or what happens without it.
pub(super) enum KeyLookup<'a> {
    Found(KeyValue<'a>),
    /// The limit does not apply.
    Skipped,
    /// The limit denies the request.
    Denied,
}

#[inline]
pub(super) fn find_key<'a>(limit: &RequestLimit, head: &'a dyn Head) -> KeyLookup<'a> {
    let (key, missing) = limit.key_of();
    if key.has_duplicates(head) {
        return KeyLookup::Denied;
    }
    match (key.find(head), missing) {
        (Some(key), _) => KeyLookup::Found(key),
        (None, Missing::Address) => KeyLookup::Found(by_address(head)),
        (None, Missing::Share) => KeyLookup::Found(KeyValue::All),
        (None, Missing::Skip) => KeyLookup::Skipped,
        (None, Missing::Refuse) => KeyLookup::Denied,
    }
}

/// What is checked of one limit.
pub(super) struct LimitCheck {
    pub(super) limit: usize,
    pub(super) mode: Mode,
    pub(super) check: Check,
    /// A slot that is waited for in line, with the tokens beside it.
    pub(super) line: Option<(Bucket, Waiter)>,
    /// The queue in which it waits, if it may.
    pub(super) queue: Option<KeyQueue>,
}

#[inline(never)]
fn evaluate_jointly(
    gate: &Gate,
    head: &dyn Head,
    limits: Limits<'_>,
    run: Run<'_>,
    verdict: &mut Verdict,
) -> Option<Pending<Verdict>> {
    let checks = match limits {
        Limits::Matching => {
            let all = gate.limits();
            build_checks(gate, head, (0..all.len()).filter(|limit| all[*limit].applies_to(head)), run)
        }
        Limits::At(limits) => build_checks(gate, head, limits.iter().copied(), run),
    };
    let (enforced, shadow) = match checks {
        Ok(checks) => checks,
        Err(missing_key) => {
            *verdict = missing_key;
            return None;
        }
    };
    let is_live = matches!(run, Run::Live);
    let has_line = enforced.iter().any(|check| check.line.is_some());
    let is_later = is_live && (has_line || !shadow.iter().all(|check| check.check.is_in_memory()));
    let reserved = if is_later { None } else { reserve_in_memory(&enforced) };
    let mut claims = Claims::default();
    match reserved {
        Some(reserved) => claims.add(&enforced, reserved),
        None if is_live => {
            let (ours, limits) = (gate.clone(), limits_of(&enforced));
            return Some(pending(limits, async move {
                claims.reserve(enforced, shadow).await;
                claims.settle(&ours)
            }));
        }
        None => {
            *verdict = Verdict::closed(limits_of(&enforced));
            return None;
        }
    }
    claims.enter_queues(&enforced);
    if is_live && !claims.is_ready() {
        let (ours, limits) = (gate.clone(), limits_of(&enforced));
        return Some(pending(limits, async move {
            claims.ready().await;
            claims.add_shadow(&shadow);
            claims.settle(&ours)
        }));
    }
    claims.add_shadow(&shadow);
    *verdict = claims.settle(gate);
    None
}

/// The checks of limits that are enforced, and of those in shadow mode; or the verdict if a required key is missing.
fn build_checks(
    gate: &Gate,
    head: &dyn Head,
    limits: impl Iterator<Item = usize>,
    run: Run<'_>,
) -> Result<(Vec<LimitCheck>, Vec<LimitCheck>), Verdict> {
    let (mut enforced, mut shadow) = (Vec::new(), Vec::new());
    for index in limits {
        let Some(limit) = gate.limits().get(index) else { continue };
        let (mode, Some(limiter)) = (limit.rule().mode(), limit.rule().limiter()) else { continue };
        if mode == Mode::Off {
            continue;
        }
        let key = match find_key(limit, head) {
            KeyLookup::Found(key) => key,
            KeyLookup::Denied if mode == Mode::Enforce => {
                return Err(Verdict::from(LimitDecision::new(index, mode, LimitOutcome::MissingKey)));
            }
            KeyLookup::Denied | KeyLookup::Skipped => continue,
        };
        let mode = limit.mode_for(mode, &key);
        let check = build_check((index, limit), mode, &limiter, &key, head, run);
        if mode == Mode::Enforce { enforced.push(check) } else { shadow.push(check) }
    }
    Ok((enforced, shadow))
}

fn build_check(
    (index, limit): (usize, &RequestLimit),
    mode: Mode,
    limiter: &Limiter,
    key: &KeyValue<'_>,
    head: &dyn Head,
    run: Run<'_>,
) -> LimitCheck {
    let (cost, tier) = (limit.cost_of(head), limit.tier_of(head));
    let max_wait = match run {
        Run::Live | Run::DryRun(_) => limit.rule().wait(),
        Run::Immediate => Duration::ZERO,
    };
    // A limit in shadow mode delays nobody, but takes the turn that would have been waited for: otherwise it would count other
    // requests as denied than it would deny.
    let check = limiter.prepare(key).cost(cost).tier(tier).max_wait(max_wait);
    let may_wait = mode == Mode::Enforce && !max_wait.is_zero();
    // Lines know no tiers: a tier of slots is decided at once.
    let has_line = limit.rule().choice() == QuotaSelection::All && limiter.quotas().iter().any(holds_slots);
    let is_line = matches!(run, Run::Live) && may_wait && cost > 0 && has_line;
    let queue = limit.line().filter(|_| may_wait).map(|queue| queue.of_key(key));
    let line = is_line
        .then(|| (limiter.key(key), Waiter::new(cost).deadline(max_wait).priority(limit.priority_of(head))));
    LimitCheck { limit: index, mode, check, line, queue }
}

/// On this runtime or else on our own: stores and waits need a timer.
fn pending(limits: Vec<usize>, verdict: impl Future<Output = Verdict> + Send + 'static) -> Pending<Verdict> {
    let evaluating = background::run_in_runtime(verdict);
    let verdict = async move { evaluating.await.unwrap_or_else(|| Verdict::closed(limits)) };
    Box::pin(verdict)
}

fn limits_of(checks: &[LimitCheck]) -> Vec<usize> {
    checks.iter().map(|check| check.limit).collect()
}
