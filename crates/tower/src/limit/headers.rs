//! What is left, told in the headers of an answer.

use http::{HeaderMap, HeaderName, HeaderValue};
use std::{
    mem,
    sync::{Arc, OnceLock},
};
use tidegate_core::header::{Left, Text};
use tidegate_engine::store::Choice;
use tidegate_rule::{Fields, Gate, Labels, QuickRuling, Verdict};

/// What an answer will tell of the quotas that its request was counted by. Small, because it moves with every call.
#[derive(Debug)]
pub(super) enum Told {
    Nothing,
    /// One rule, by the current draft.
    One(Arc<Pair>),
    Several(Box<[(HeaderName, HeaderValue)]>),
}

/// The two headers of the current draft, ready to be sent.
#[derive(Debug)]
pub(super) struct Pair {
    policy: HeaderValue,
    left: HeaderValue,
}

impl Pair {
    #[inline(never)]
    fn write(labels: &Labels, quota: usize, left: Left) -> Option<Arc<Self>> {
        let policy = HeaderValue::from_maybe_shared(labels.policy().clone()).ok()?;
        let mut text = Text::default();
        labels.get(quota)?.write(&mut text, left).ok()?;
        Some(Arc::new(Self { policy, left: HeaderValue::from_str(text.as_str()).ok()? }))
    }
}

/// Headers that were sent before: most clients are far from their limit, and have as much left again and again.
struct Sent([OnceLock<(usize, Left, Arc<Pair>)>; KEPT]);

const KEPT: usize = 64;

impl Sent {
    fn nothing(_: &Labels) -> Self {
        Self([const { OnceLock::new() }; KEPT])
    }

    #[inline]
    fn again(&self, labels: &Labels, quota: usize, left: Left) -> Option<Arc<Pair>> {
        let kept = self.0.get(left.remaining as usize % KEPT)?;
        if let Some((its, same, pair)) = kept.get()
            && *its == quota
            && *same == left
        {
            return Some(pair.clone());
        }
        let pair = Pair::write(labels, quota, left)?;
        kept.get_or_init(|| (quota, left, pair.clone()));
        Some(pair)
    }
}

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LEFT: HeaderName = HeaderName::from_static("ratelimit");

impl Told {
    /// What most requests need: the policy is written already, and what is left often too.
    #[inline]
    pub(super) fn of_one(gate: &Gate, quick: &QuickRuling) -> Self {
        if gate.told() == Fields::Ietf
            && let Some(rule) = quick.rule(gate)
            && rule.choice() == Choice::All
        {
            let (labels, quota) = (rule.labels(), quick.decision().quota());
            if let Some(left) = labels.get(quota).map(|label| label.left(quick.decision()))
                && let Some(pair) = match labels.keep(Sent::nothing) {
                    Some(sent) => sent.again(&labels, quota, left),
                    // A surface of another kind was first to keep something.
                    None => Pair::write(&labels, quota, left),
                }
            {
                return Self::One(pair);
            }
        }
        Self::of(gate, &gate.verdict(&(*quick).into()))
    }

    #[inline]
    pub(super) fn of(gate: &Gate, verdict: &Verdict<'_>) -> Self {
        match gate.told() {
            Fields::None => Self::Nothing,
            _ => Self::of_several(verdict),
        }
    }

    #[cold]
    fn of_several(verdict: &Verdict<'_>) -> Self {
        let mut told = Vec::new();
        verdict.write_fields(|name, value| {
            if let Ok(value) = HeaderValue::from_str(value) {
                told.push((HeaderName::from_static(name), value));
            }
        });
        Self::Several(told.into())
    }

    #[inline]
    pub(super) fn write(&mut self, headers: &mut HeaderMap) {
        match self {
            Self::Nothing => {}
            // Lists, to which another layer behind this one may have added its own.
            Self::One(pair) => {
                headers.append(POLICY, pair.policy.clone());
                headers.append(LEFT, pair.left.clone());
            }
            Self::Several(told) => mem::take(told).into_iter().for_each(|(name, value)| {
                if name == POLICY || name == LEFT {
                    headers.append(name, value);
                } else {
                    headers.insert(name, value);
                }
            }),
        }
    }
}
