//! The evaluation of limits for one request.
//!
//! ```text
//!   find the key ──▶ build a check of each limit ──▶ decide all of them jointly ──▶ limits in shadow mode ──▶ settle
//! ```
//!
//! There is one order of steps. A [`RunMode`] determines what happens when a step must wait.

use super::{
    Gate, RequestLimit,
    limit::address_key,
    prefetch::PreparedCheck,
    queue::KeyQueue,
    reservations::{RequestClaims, reserve_in_memory},
    verdict::{LimitDecision, LimitOutcome, Verdict},
};
use crate::{
    Mode, RuleKey,
    request::{AddressKey, KeyValue, MissingKey, RequestHead},
};
use std::{fmt, future::Future, pin::Pin, time::Duration};
use tidegate_core::{Decision, Quota};
use tidegate_limiter::{Bucket, Check, Limiter, Waiter, background, store::QuotaSelection};

/// The result of an evaluation, or a future of it that owns everything it needs.
pub enum Evaluation<T> {
    /// Everything was decided at once.
    Ready(T),
    /// A store must be queried, or the request must wait. Dropping it releases its reservations.
    Pending(PendingEvaluation<T>),
}

/// The future of an [`Evaluation`].
pub type PendingEvaluation<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<T> Evaluation<T> {
    /// The result, if it is known at once.
    pub fn into_ready(self) -> Option<T> {
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
pub enum LimitSelection<'a> {
    /// Those whose methods, routes and conditions match the request.
    Matching,
    /// Those at these indexes in [`Gate::limits`], for a caller that has looked them up.
    Indexes(&'a [usize]),
}

/// How an evaluation treats waits and stores.
#[derive(Clone, Copy, Debug)]
pub enum RunMode<'a> {
    /// Waits and queries stores, in a future.
    Live,
    /// Cannot wait. A limit that is declared to wait decides at once; limits in a store deny, as with an
    /// unavailable store that fails closed.
    Immediate,
    /// Does not wait: a delay is reported, and its queue entry stays until [`Verdict::leave_queues`]; a
    /// full queue or a slot in use denies. The caller sets the clock, and no other thread may check these
    /// limits meanwhile. The checks are those of [`Gate::prepare`] for the same limits, or empty.
    DryRun(&'a [PreparedCheck]),
}

/// Evaluates limits into `verdict`; `Some` if it has to wait.
#[inline]
pub(super) fn evaluate(
    gate: &Gate,
    head: &dyn RequestHead,
    limits: LimitSelection<'_>,
    run: RunMode<'_>,
    verdict: &mut Verdict,
) -> Option<PendingEvaluation<Verdict>> {
    match (run, limits) {
        (RunMode::DryRun(prepared), LimitSelection::Indexes(limits)) if prepared.len() == limits.len() => {
            verdict.clear();
            if gate.decide_prepared(prepared, verdict).is_some() {
                return None;
            }
        }
        (RunMode::DryRun(_), _) => {}
        (RunMode::Live | RunMode::Immediate, _) => {
            if let Some(decision) = decide_fast(gate, head, limits) {
                verdict.clear();
                verdict.push(decision);
                return None;
            }
        }
    }
    evaluate_all(gate, head, limits, run, verdict)
}

/// Evaluates the limits that match. A verdict of one decision, the most common result, is built in place.
#[inline]
pub(super) fn check(gate: &Gate, head: &dyn RequestHead) -> Evaluation<Verdict> {
    match decide_fast(gate, head, LimitSelection::Matching) {
        Some(decision) => Evaluation::Ready(Verdict::from(decision)),
        None => check_all(gate, head),
    }
}

#[inline(never)]
fn check_all(gate: &Gate, head: &dyn RequestHead) -> Evaluation<Verdict> {
    let mut verdict = Verdict::default();
    match evaluate_all(gate, head, LimitSelection::Matching, RunMode::Live, &mut verdict) {
        None => Evaluation::Ready(verdict),
        Some(pending) => Evaluation::Pending(pending),
    }
}

/// The fast path: a single limit decides. `None` if there are several, or its decision is not final; then nothing is
/// charged.
#[inline]
fn decide_fast(gate: &Gate, head: &dyn RequestHead, limits: LimitSelection<'_>) -> Option<LimitDecision> {
    if let Some(prefix_len) = gate.inner.peer_prefix_len
        && matches!(limits, LimitSelection::Matching | LimitSelection::Indexes([0]))
        && let Some(peer) = head.peer()
        && let Some(limiter) = gate.peer_limiter()
    {
        let decision = limiter.check_cost(&AddressKey::with_prefix(peer, prefix_len), 1);
        return Some(LimitDecision::enforced(0, decision));
    }
    decide_single(gate, head, limits).map(|(limit, decision)| LimitDecision::enforced(limit, decision))
}

#[inline(never)]
fn decide_single(
    gate: &Gate,
    head: &dyn RequestHead,
    limits: LimitSelection<'_>,
) -> Option<(usize, Decision)> {
    let all = gate.limits();
    let index = match limits {
        LimitSelection::Matching => {
            let applies = |limit: &RequestLimit| limit.matches(head);
            let first = all.iter().position(applies)?;
            if all[first + 1..].iter().any(applies) {
                return None;
            }
            first
        }
        LimitSelection::Indexes([only]) => *only,
        LimitSelection::Indexes(_) => return None,
    };
    let limit = all.get(index)?;
    let limiter = limit.rule().fast_limiter().filter(|_| limit.is_plain())?;
    let (cost, tier) = (limit.compute_cost(head), limit.select_tier(head));
    // The most common key is hashed directly, with the same hash as the value of `find_key`.
    let decision = match limit.key_source().0.peer_prefix_len().zip(head.peer()) {
        Some((prefix_len, peer)) => {
            check_key(limiter, &AddressKey::with_prefix(peer, prefix_len), cost, tier)
        }
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
    Rejected,
}

#[inline]
pub(super) fn find_key<'a>(limit: &RequestLimit, head: &'a dyn RequestHead) -> KeyLookup<'a> {
    let (key, missing) = limit.key_source();
    if key.has_duplicates(head) {
        return KeyLookup::Rejected;
    }
    match (key.find(head), missing) {
        (Some(key), _) => KeyLookup::Found(key),
        (None, MissingKey::Ip) => KeyLookup::Found(address_key(head)),
        (None, MissingKey::Shared) => KeyLookup::Found(KeyValue::All),
        (None, MissingKey::Skip) => KeyLookup::Skipped,
        (None, MissingKey::Reject) => KeyLookup::Rejected,
    }
}

/// The check of one limit.
pub(super) struct LimitCheck {
    pub(super) limit: usize,
    pub(super) mode: Mode,
    pub(super) check: Check,
    /// A wait in the queue of the limiter, for slots and tokens.
    pub(super) slot_wait: Option<(Bucket, Waiter)>,
    /// The queue in which it may wait.
    pub(super) queue: Option<KeyQueue>,
}

impl LimitCheck {
    /// Whether its decision is final: nothing to wait for, and nothing to settle later.
    fn is_final(&self, gate: &Gate) -> bool {
        let limit = gate.limits().get(self.limit);
        self.slot_wait.is_none()
            && limit.is_some_and(|limit| limit.is_plain() && limit.rule().wait().is_zero())
    }
}

#[inline(never)]
fn evaluate_all(
    gate: &Gate,
    head: &dyn RequestHead,
    limits: LimitSelection<'_>,
    run: RunMode<'_>,
    verdict: &mut Verdict,
) -> Option<PendingEvaluation<Verdict>> {
    let checks = match limits {
        LimitSelection::Matching => {
            let all = gate.limits();
            build_checks(gate, head, (0..all.len()).filter(|limit| all[*limit].matches(head)), run)
        }
        LimitSelection::Indexes(limits) => build_checks(gate, head, limits.iter().copied(), run),
    };
    let (enforced, shadow) = match checks {
        Ok(checks) => checks,
        Err(missing_key) => {
            *verdict = missing_key;
            return None;
        }
    };
    let is_live = matches!(run, RunMode::Live);
    let is_single = is_live && shadow.is_empty() && enforced.len() == 1;
    if let Some(only) = enforced.first().filter(|check| is_single && check.is_final(gate))
        && !only.check.is_in_memory()
    {
        let (limit, check) = (only.limit, only.check.clone());
        let verdict_of = move |decision| Verdict::from(LimitDecision::enforced(limit, decision));
        match check.spend_prefetched() {
            Some(decision) => {
                *verdict = verdict_of(decision);
                return None;
            }
            None => return Some(box_pending(vec![limit], async move { verdict_of(check.decide().await) })),
        }
    }
    let must_queue = enforced.iter().any(|check| check.slot_wait.is_some());
    let is_deferred = is_live && (must_queue || !shadow.iter().all(|check| check.check.is_in_memory()));
    let reserved = if is_deferred { None } else { reserve_in_memory(&enforced) };
    let mut claims = RequestClaims::default();
    match reserved {
        Some(reserved) => claims.add(&enforced, reserved),
        None if is_live => {
            let (gate, limits) = (gate.clone(), limit_indexes(&enforced));
            return Some(box_pending(limits, async move {
                claims.reserve(enforced, shadow).await;
                claims.into_verdict(&gate)
            }));
        }
        None => {
            *verdict = Verdict::store_unavailable(limit_indexes(&enforced));
            return None;
        }
    }
    claims.enter_queues(&enforced);
    if is_live && !claims.is_ready() {
        let (gate, limits) = (gate.clone(), limit_indexes(&enforced));
        return Some(box_pending(limits, async move {
            claims.wait_ready().await;
            claims.add_shadow(&shadow);
            claims.into_verdict(&gate)
        }));
    }
    claims.add_shadow(&shadow);
    *verdict = claims.into_verdict(gate);
    None
}

/// The checks of limits that are enforced, and of those in shadow mode; or the verdict if a required key is missing.
fn build_checks(
    gate: &Gate,
    head: &dyn RequestHead,
    limits: impl Iterator<Item = usize>,
    run: RunMode<'_>,
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
            KeyLookup::Rejected if mode == Mode::Enforce => {
                return Err(Verdict::from(LimitDecision::new(index, mode, LimitOutcome::MissingKey)));
            }
            KeyLookup::Rejected | KeyLookup::Skipped => continue,
        };
        let mode = limit.effective_mode(mode, &key);
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
    head: &dyn RequestHead,
    run: RunMode<'_>,
) -> LimitCheck {
    let (cost, tier) = (limit.compute_cost(head), limit.select_tier(head));
    let max_wait = match run {
        RunMode::Live | RunMode::DryRun(_) => limit.rule().wait(),
        RunMode::Immediate => Duration::ZERO,
    };
    // A limit in shadow mode delays no request, but reserves as if it waited: otherwise its counts would differ from those
    // of an enforced limit.
    let check = limiter.prepare(key).cost(cost).tier(tier).max_wait(max_wait);
    let may_wait = mode == Mode::Enforce && !max_wait.is_zero();
    // Wait queues do not support tiers: a tier of slots is decided at once. A rate is queued only to order it by priority:
    // otherwise it reserves, and the wait is known on arrival.
    let is_queued = limit.rule().selection() == QuotaSelection::All
        && (limit.has_priority() || limiter.quotas().iter().any(Quota::is_concurrency));
    let waits_in_queue = matches!(run, RunMode::Live) && may_wait && cost > 0 && is_queued;
    let queue = limit.wait_queue().filter(|_| may_wait).map(|queue| queue.for_key(key));
    let slot_wait = waits_in_queue.then(|| {
        (limiter.key(key), Waiter::new(cost).deadline(max_wait).priority(limit.compute_priority(head)))
    });
    LimitCheck { limit: index, mode, check, slot_wait, queue }
}

/// Runs on the current runtime, or else on our own: stores and waits need a timer.
fn box_pending(
    limits: Vec<usize>,
    verdict: impl Future<Output = Verdict> + Send + 'static,
) -> PendingEvaluation<Verdict> {
    let evaluating = background::run_in_runtime(verdict);
    let verdict = async move { evaluating.await.unwrap_or_else(|| Verdict::store_unavailable(limits)) };
    Box::pin(verdict)
}

fn limit_indexes(checks: &[LimitCheck]) -> Vec<usize> {
    checks.iter().map(|check| check.limit).collect()
}
