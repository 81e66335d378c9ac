//! Keys that are resolved before their limits are checked, so that a replay prefetches memory.

use super::{
    Gate, RequestLimit,
    evaluate::{KeyLookup, find_key},
    verdict::{LimitDecision, LimitOutcome, Verdict},
};
use crate::{
    Mode,
    request::{KeyValue, RequestHead},
};
use tidegate_core::Quota;
use tidegate_limiter::{KeyId, KeyIdBucket, Limiter};

/// A check of one plain limit whose key was resolved in advance; see [`Gate::prepare`].
#[derive(Clone, Copy, Debug)]
pub struct PreparedCheck {
    limit: usize,
    key: KeyId,
    cost: u64,
    tier: usize,
}

impl Gate {
    /// Resolves the keys of a request for the limits at these indexes, and adds them to `prepared`; adds
    /// nothing if one of them is more than a plain limit in memory.
    pub fn prepare(&self, head: &dyn RequestHead, limits: &[usize], prepared: &mut Vec<PreparedCheck>) {
        let before = prepared.len();
        for limit in limits {
            match self.prepare_one(*limit, head) {
                Some(check) => prepared.push(check),
                None => return prepared.truncate(before),
            }
        }
    }

    #[inline]
    fn prepare_one(&self, index: usize, head: &dyn RequestHead) -> Option<PreparedCheck> {
        let (limit, limiter) = self.plain_limit(index)?;
        let KeyLookup::Found(key) = find_key(limit, head) else { return None };
        let key = limiter.key_id(&key)?;
        Some(PreparedCheck {
            limit: index,
            key,
            cost: limit.compute_cost(head),
            tier: limit.select_tier(head),
        })
    }

    /// Loads the counters of these keys into the CPU cache. Calls for several requests in a row load them in
    /// parallel.
    #[inline]
    pub fn prefetch(&self, prepared: &[PreparedCheck]) {
        prepared.iter().filter_map(|check| self.bucket(check)).for_each(|bucket| bucket.prefetch());
    }

    /// Identifies the key of a request in the limit at this index, if it counts in memory.
    pub fn key_id_at(&self, limit: usize, head: &dyn RequestHead) -> Option<KeyId> {
        let limit = self.limits().get(limit)?;
        let KeyLookup::Found(key) = find_key(limit, head) else { return None };
        limit.rule().limiter()?.key_id(&key)
    }

    /// Identifies the key of all requests together in the limit at this index, if it counts in memory.
    pub fn global_key_id(&self, limit: usize) -> Option<KeyId> {
        self.limits().get(limit)?.rule().limiter()?.key_id(&KeyValue::All)
    }

    /// Whether one of its rules counts requests in flight, so that their duration matters.
    pub fn has_concurrency_limit(&self) -> bool {
        self.limits().iter().any(|limit| limit.rule().quotas().iter().any(Quota::is_concurrency))
    }

    /// Decides checks of plain limits without locks; no other thread may check them meanwhile. Peeks at all
    /// but the last, which is charged if none of the others denies; then charges the others. `None` if a
    /// limit is no longer plain; then nothing is charged.
    #[inline]
    pub(super) fn decide_prepared(&self, prepared: &[PreparedCheck], verdict: &mut Verdict) -> Option<()> {
        let Some((last, others)) = prepared.split_last() else { return Some(()) };
        let decided = |check: &PreparedCheck, decision| LimitDecision {
            key: Some(check.key),
            ..LimitDecision::new(check.limit, Mode::Enforce, LimitOutcome::Decided(decision))
        };
        let mut is_denied = false;
        for check in others {
            let decision = self.bucket(check)?.peek(check.cost);
            is_denied |= !decision.is_granted();
            verdict.push(decided(check, decision));
        }
        let bucket = self.bucket(last)?;
        let decision = if is_denied { bucket.peek(last.cost) } else { bucket.check(last.cost) };
        is_denied |= !decision.is_granted();
        verdict.push(decided(last, decision));
        if !is_denied {
            for (check, decision) in others.iter().zip(verdict.decisions_mut()) {
                decision.outcome = LimitOutcome::Decided(self.bucket(check)?.check(check.cost));
            }
        }
        Some(())
    }

    /// A limit whose in-memory decision is final.
    #[inline]
    fn plain_limit(&self, index: usize) -> Option<(&RequestLimit, &Limiter)> {
        let limit = self.limits().get(index)?;
        let limiter = limit.rule().fast_limiter().filter(|_| limit.is_plain())?;
        Some((limit, limiter))
    }

    #[inline]
    fn bucket(&self, check: &PreparedCheck) -> Option<KeyIdBucket<'_>> {
        self.plain_limit(check.limit)?.1.bucket_by_id(check.key, check.tier)
    }
}
