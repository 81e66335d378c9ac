//! What is left, told in the headers of an answer.

use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::header::Text;
use tidegate_limiter::store::Choice;
use tidegate_rule::{Fields, Gate, Mode, Verdict};

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

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LEFT: HeaderName = HeaderName::from_static("ratelimit");

impl Told {
    pub(super) fn of(gate: &Gate, verdict: &Verdict<'_>) -> Self {
        match gate.told() {
            Fields::None => Self::Nothing,
            Fields::Ietf => Self::of_one(verdict).unwrap_or_else(|| Self::of_several(verdict)),
            _ => Self::of_several(verdict),
        }
    }

    /// What most requests need: the policy is written already, and what is left is written in place.
    fn of_one(verdict: &Verdict<'_>) -> Option<Self> {
        let mut rulings = verdict.rulings();
        let (Some(only), None) = (rulings.next(), rulings.next()) else { return None };
        let decision = only.decision().filter(|_| only.mode() == Mode::Enforce)?;
        let labels = only.rule().labels();
        let policy = match only.rule().choice() {
            Choice::All => labels.policy(),
            Choice::Tier => labels.policy_of(decision.quota())?,
        };
        let mut left = Text::default();
        labels.get(decision.quota())?.write_left(&mut left, decision).ok()?;
        Some(Self::One {
            policy: HeaderValue::from_maybe_shared(policy.clone()).ok()?,
            left: HeaderValue::from_str(left.as_str()).ok()?,
        })
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

    pub(super) fn write(self, headers: &mut HeaderMap) {
        match self {
            Self::Nothing => {}
            // Lists, to which a gate further inside may have added its own.
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
