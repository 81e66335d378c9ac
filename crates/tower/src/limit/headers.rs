//! The header fields of what is left.

use http::{HeaderMap, HeaderName, HeaderValue};
use std::sync::{Arc, OnceLock};
use tidegate_core::{
    Decision,
    header::{Remaining, SmallString},
};
use tidegate_limiter::store::QuotaSelection;
use tidegate_rule::{Fields, Gate, Labels, LimitDecision, Mode, Verdict};

/// The header fields of a response that describe what is left. One pointer, because it moves with every call.
#[derive(Debug)]
pub(crate) struct RateLimitHeaders(Option<Arc<HeaderMap>>);

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LEFT: HeaderName = HeaderName::from_static("ratelimit");

impl RateLimitHeaders {
    pub(super) const NONE: Self = Self(None);

    #[inline]
    pub(crate) fn of(gate: &Gate, verdict: &Verdict) -> Self {
        let one = verdict.only().and_then(enforced);
        let one = one.and_then(|(limit, decision)| Self::of_one(gate, limit, decision));
        one.unwrap_or_else(|| Self::of_several(gate, verdict))
    }

    /// Those of the decision of this limit, which most requests need: the policy is written already, and what is left often too. `None` if
    /// there is more to write.
    #[inline]
    pub(super) fn of_one(gate: &Gate, limit: usize, decision: &Decision) -> Option<Self> {
        match gate.told() {
            Fields::None => return Some(Self::NONE),
            Fields::Ietf => {}
            _ => return None,
        }
        let (labels, quota) = (gate.limits().get(limit)?.rule().labels(), decision.quota());
        if decision.is_fail_closed() || labels.choice() != QuotaSelection::All {
            return None;
        }
        let left = labels.get(quota)?.remaining(decision);
        let headers = match labels.keep(Sent::nothing) {
            Some(sent) => sent.again(&labels, quota, left),
            // A surface of another kind was first to keep something.
            None => of_draft(&labels, quota, left),
        };
        headers.map(|headers| Self(Some(headers)))
    }

    #[cold]
    fn of_several(gate: &Gate, verdict: &Verdict) -> Self {
        if gate.told() == Fields::None {
            return Self::NONE;
        }
        let mut headers = HeaderMap::new();
        verdict.write_fields(gate, |name, value| {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.append(HeaderName::from_static(name), value);
            }
        });
        Self((!headers.is_empty()).then(|| Arc::new(headers)))
    }

    #[inline]
    pub(super) fn is_none(&self) -> bool {
        self.0.is_none()
    }

    #[inline]
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        match &self.0 {
            None => {}
            // A whole map is copied sooner than two headers are added.
            Some(fields) if headers.is_empty() => headers.clone_from(fields),
            Some(fields) => add(fields, headers),
        }
    }
}

/// A limit that is enforced, and what its quotas decided.
#[inline]
pub(super) fn enforced(one: &LimitDecision) -> Option<(usize, &Decision)> {
    one.decision().filter(|_| one.mode == Mode::Enforce).map(|decision| (one.limit, decision))
}

#[inline(never)]
fn add(fields: &HeaderMap, headers: &mut HeaderMap) {
    for (name, value) in fields {
        // Lists, to which another layer behind this one may have added its own.
        if *name == POLICY || *name == LEFT {
            headers.append(name, value.clone());
        } else {
            headers.insert(name, value.clone());
        }
    }
}

/// The two headers of the current draft.
#[inline(never)]
fn of_draft(labels: &Labels, quota: usize, left: Remaining) -> Option<Arc<HeaderMap>> {
    let mut text = SmallString::default();
    labels.get(quota)?.write_item(&mut text, left).ok()?;
    let mut headers = HeaderMap::new();
    headers.insert(POLICY, HeaderValue::from_maybe_shared(labels.policy().clone()).ok()?);
    headers.insert(LEFT, HeaderValue::from_str(text.as_str()).ok()?);
    Some(Arc::new(headers))
}

/// Headers that were sent before: most clients are far from their limit, and have as much left again and again.
struct Sent([OnceLock<(usize, Remaining, Arc<HeaderMap>)>; KEPT]);

const KEPT: usize = 64;

impl Sent {
    fn nothing(_: &Labels) -> Self {
        Self([const { OnceLock::new() }; KEPT])
    }

    #[inline]
    fn again(&self, labels: &Labels, quota: usize, left: Remaining) -> Option<Arc<HeaderMap>> {
        let kept = self.0.get(left.remaining as usize % KEPT)?;
        if let Some((its, same, headers)) = kept.get()
            && *its == quota
            && *same == left
        {
            return Some(headers.clone());
        }
        let headers = of_draft(labels, quota, left)?;
        kept.get_or_init(|| (quota, left, headers.clone()));
        Some(headers)
    }
}
