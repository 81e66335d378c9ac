//! What is left, told in the headers of an answer.

use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::{Decision, header::Text};
use tidegate_engine::store::Choice;
use tidegate_rule::{Fields, Gate, Labels, QuickRuling, Rule, Verdict};

/// What an answer will tell of the quotas that its request was counted by.
#[derive(Debug)]
pub(super) enum Told {
    Nothing,
    /// One rule, by the current draft.
    One {
        policy: HeaderValue,
        left: HeaderValue,
    },
    Several(Vec<(HeaderName, HeaderValue)>),
}

/// The policy of all quotas of a rule, ready to be sent.
fn whole_policy(labels: &Labels) -> Option<HeaderValue> {
    HeaderValue::from_maybe_shared(labels.policy().clone()).ok()
}

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LEFT: HeaderName = HeaderName::from_static("ratelimit");

impl Told {
    /// What most requests need: the policy is written already, and what is left is written in place.
    pub(super) fn of_one(gate: &Gate, quick: &QuickRuling) -> Self {
        match gate.told() {
            Fields::Ietf => match quick.rule(gate).and_then(|rule| Self::of_rule(rule, quick.decision())) {
                Some(told) => told,
                None => Self::of(gate, &gate.verdict(&(*quick).into())),
            },
            _ => Self::of(gate, &gate.verdict(&(*quick).into())),
        }
    }

    fn of_rule(rule: &Rule, decision: &Decision) -> Option<Self> {
        let labels = rule.labels();
        let place = decision.quota();
        let policy = match rule.choice() {
            Choice::All => labels.keep(whole_policy)?.clone()?,
            Choice::Tier => HeaderValue::from_maybe_shared(labels.policy_of(place)?.clone()).ok()?,
        };
        let mut left = Text::default();
        labels.get(place)?.write_left(&mut left, decision).ok()?;
        Some(Self::One { policy, left: HeaderValue::from_str(left.as_str()).ok()? })
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
        Self::Several(told)
    }

    #[inline]
    pub(super) fn write(self, headers: &mut HeaderMap) {
        match self {
            Self::Nothing => {}
            // Lists, to which another layer behind this one may have added its own.
            Self::One { policy, left } => {
                headers.append(POLICY, policy);
                headers.append(LEFT, left);
            }
            Self::Several(told) => told.into_iter().for_each(|(name, value)| {
                if name == POLICY || name == LEFT {
                    headers.append(name, value);
                } else {
                    headers.insert(name, value);
                }
            }),
        }
    }
}
