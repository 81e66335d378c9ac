//! The rate limit headers of a response.

use http::{HeaderMap, HeaderName, HeaderValue};
use std::sync::{Arc, OnceLock};
use tidegate_core::{
    Decision,
    header::{Remaining, SmallString},
};
use tidegate_rule::{Gate, HeaderStyle, LimitDecision, Mode, PolicyFields, Verdict};

/// The rate limit headers of a response. One pointer, because it is moved with every call.
#[derive(Debug)]
pub(crate) struct RateLimitHeaders(Option<Arc<HeaderMap>>);

const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

impl RateLimitHeaders {
    pub(super) const EMPTY: Self = Self(None);

    #[inline]
    pub(crate) fn from_verdict(gate: &Gate, verdict: &Verdict) -> Self {
        let one = verdict.single().and_then(enforced_decision);
        let one = one.and_then(|(limit, decision)| Self::from_decision(gate, limit, decision));
        one.unwrap_or_else(|| Self::from_all_decisions(gate, verdict))
    }

    /// Returns the headers of a single decision, which is the common case: they are often cached. `None` if there are more
    /// headers to write.
    #[inline]
    pub(super) fn from_decision(gate: &Gate, limit: usize, decision: &Decision) -> Option<Self> {
        match gate.header_style() {
            HeaderStyle::None => Some(Self::EMPTY),
            HeaderStyle::Ietf => Self::from_ietf_decision(gate, limit, decision),
            _ => None,
        }
    }

    #[inline(never)]
    fn from_ietf_decision(gate: &Gate, limit: usize, decision: &Decision) -> Option<Self> {
        let (labels, quota) = (gate.limits().get(limit)?.rule().policy_fields(), decision.quota());
        if decision.is_fail_closed() || labels.selected(quota).is_some() {
            return None;
        }
        let left = labels.get(quota)?.remaining(decision);
        let headers = match labels.get_or_cache(HeaderCache::empty) {
            Some(sent) => sent.get_or_encode(&labels, quota, left),
            // Another integration uses the cache of this rule.
            None => encode_ietf_headers(&labels, quota, left),
        };
        headers.map(|headers| Self(Some(headers)))
    }

    #[cold]
    fn from_all_decisions(gate: &Gate, verdict: &Verdict) -> Self {
        if gate.header_style() == HeaderStyle::None {
            return Self::EMPTY;
        }
        let mut headers = HeaderMap::new();
        verdict.write_headers(gate, |name, value| {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.append(HeaderName::from_static(name), value);
            }
        });
        Self((!headers.is_empty()).then(|| Arc::new(headers)))
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    #[inline]
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        match &self.0 {
            None => {}
            // Cloning a whole map is faster than adding two headers.
            Some(fields) if headers.is_empty() => headers.clone_from(fields),
            Some(fields) => merge_headers(fields, headers),
        }
    }
}

/// Returns an enforced limit and its decision.
#[inline]
pub(super) fn enforced_decision(one: &LimitDecision) -> Option<(usize, &Decision)> {
    one.decision().filter(|_| one.mode == Mode::Enforce).map(|decision| (one.limit, decision))
}

#[inline(never)]
fn merge_headers(fields: &HeaderMap, headers: &mut HeaderMap) {
    for (name, value) in fields {
        // These are lists; an inner layer may have added its own items.
        if *name == RATELIMIT_POLICY || *name == RATELIMIT {
            headers.append(name, value.clone());
        } else {
            headers.insert(name, value.clone());
        }
    }
}

/// Encodes the two headers of the current IETF draft.
#[inline(never)]
fn encode_ietf_headers(labels: &PolicyFields, quota: usize, left: Remaining) -> Option<Arc<HeaderMap>> {
    let mut text = SmallString::default();
    labels.get(quota)?.write_item(&mut text, left).ok()?;
    let mut headers = HeaderMap::new();
    headers.insert(RATELIMIT_POLICY, HeaderValue::from_maybe_shared(labels.policy().clone()).ok()?);
    headers.insert(RATELIMIT, HeaderValue::from_str(text.as_str()).ok()?);
    Some(Arc::new(headers))
}

/// A cache of encoded headers: most clients are far from their limit and have the same remaining quota repeatedly.
struct HeaderCache([OnceLock<(usize, Remaining, Arc<HeaderMap>)>; CACHED_HEADERS]);

const CACHED_HEADERS: usize = 64;

impl HeaderCache {
    fn empty(_: &PolicyFields) -> Self {
        Self([const { OnceLock::new() }; CACHED_HEADERS])
    }

    #[inline]
    fn get_or_encode(&self, labels: &PolicyFields, quota: usize, left: Remaining) -> Option<Arc<HeaderMap>> {
        let slot = self.0.get(left.remaining as usize % CACHED_HEADERS)?;
        if let Some((its, same, headers)) = slot.get()
            && *its == quota
            && *same == left
        {
            return Some(headers.clone());
        }
        let headers = encode_ietf_headers(labels, quota, left)?;
        slot.get_or_init(|| (quota, left, headers.clone()));
        Some(headers)
    }
}
