//! What is left, told in the headers of an answer.

use http::{HeaderMap, HeaderName, HeaderValue};
use std::sync::{Arc, OnceLock};
use tidegate_core::header::{Left, Text};
use tidegate_limiter::store::Choice;
use tidegate_rule::{Fields, Gate, Labels, QuickRuling, Verdict};

/// What an answer will tell of the quotas that its request was counted by. One pointer, because it moves with every call.
#[derive(Debug)]
pub(crate) struct Told(Option<Arc<HeaderMap>>);

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LEFT: HeaderName = HeaderName::from_static("ratelimit");

impl Told {
    pub(super) const NOTHING: Self = Self(None);

    /// What most requests need: the policy is written already, and what is left often too.
    #[inline]
    pub(super) fn of_one(gate: &Gate, quick: QuickRuling<'_>) -> Self {
        if gate.told() == Fields::None {
            return Self::NOTHING;
        }
        if gate.told() == Fields::Ietf
            && let Some(rule) = quick.rule(gate)
        {
            let (labels, quota) = (rule.labels(), quick.decision().quota());
            if labels.choice() == Choice::All
                && let Some(left) = labels.get(quota).map(|label| label.left(quick.decision()))
                && let Some(headers) = match labels.keep(Sent::nothing) {
                    Some(sent) => sent.again(&labels, quota, left),
                    // A surface of another kind was first to keep something.
                    None => of_draft(&labels, quota, left),
                }
            {
                return Self(Some(headers));
            }
        }
        Self::of(gate, &gate.verdict(&quick.into()))
    }

    #[inline]
    pub(super) fn of(gate: &Gate, verdict: &Verdict<'_>) -> Self {
        match gate.told() {
            Fields::None => Self::NOTHING,
            _ => Self::of_several(verdict),
        }
    }

    /// What the fields of a verdict say; nothing where there are none.
    #[cfg(feature = "policy")]
    pub(crate) fn of_verdict(verdict: &Verdict<'_>) -> Self {
        let told = Self::of_several(verdict);
        if told.0.as_ref().is_some_and(|told| told.is_empty()) { Self::NOTHING } else { told }
    }

    #[cold]
    fn of_several(verdict: &Verdict<'_>) -> Self {
        let mut told = HeaderMap::new();
        verdict.write_fields(|name, value| {
            if let Ok(value) = HeaderValue::from_str(value) {
                told.append(HeaderName::from_static(name), value);
            }
        });
        Self(Some(Arc::new(told)))
    }

    #[inline]
    pub(super) fn is_nothing(&self) -> bool {
        self.0.is_none()
    }

    #[inline]
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        match &self.0 {
            None => {}
            // A whole map is copied sooner than two headers are added.
            Some(told) if headers.is_empty() => headers.clone_from(told),
            Some(told) => add(told, headers),
        }
    }
}

#[inline(never)]
fn add(told: &HeaderMap, headers: &mut HeaderMap) {
    for (name, value) in told {
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
fn of_draft(labels: &Labels, quota: usize, left: Left) -> Option<Arc<HeaderMap>> {
    let mut text = Text::default();
    labels.get(quota)?.write(&mut text, left).ok()?;
    let mut headers = HeaderMap::new();
    headers.insert(POLICY, HeaderValue::from_maybe_shared(labels.policy().clone()).ok()?);
    headers.insert(LEFT, HeaderValue::from_str(text.as_str()).ok()?);
    Some(Arc::new(headers))
}

/// Headers that were sent before: most clients are far from their limit, and have as much left again and again.
struct Sent([OnceLock<(usize, Left, Arc<HeaderMap>)>; KEPT]);

const KEPT: usize = 64;

impl Sent {
    fn nothing(_: &Labels) -> Self {
        Self([const { OnceLock::new() }; KEPT])
    }

    #[inline]
    fn again(&self, labels: &Labels, quota: usize, left: Left) -> Option<Arc<HeaderMap>> {
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
