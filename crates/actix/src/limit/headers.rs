//! The rate limit headers of a response.

use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::header::SmallString;
use tidegate_rule::{Gate, HeaderStyle, Mode, Verdict};

/// The rate limit headers of a response.
#[derive(Debug)]
pub(super) enum RateLimitHeaders {
    None,
    /// The headers of one rule, in the format of the current IETF draft.
    SingleRule {
        policy: HeaderValue,
        remaining: HeaderValue,
    },
    MultipleRules(Vec<(HeaderName, HeaderValue)>),
}

const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

impl RateLimitHeaders {
    pub(super) fn from_verdict(gate: &Gate, verdict: &Verdict) -> Self {
        match gate.header_style() {
            HeaderStyle::None => Self::None,
            HeaderStyle::Ietf => Self::from_single_decision(gate, verdict)
                .unwrap_or_else(|| Self::from_all_decisions(gate, verdict)),
            _ => Self::from_all_decisions(gate, verdict),
        }
    }

    /// Returns the headers of a single decision, which is the common case: the policy header is already encoded.
    fn from_single_decision(gate: &Gate, verdict: &Verdict) -> Option<Self> {
        let only = verdict.single().filter(|only| only.mode == Mode::Enforce)?;
        let (decision, labels) = (only.decision()?, only.rule(gate)?.policy_fields());
        let policy = match labels.selected(decision.quota()) {
            None => labels.policy(),
            Some(quota) => labels.policy_at(quota)?,
        };
        let mut remaining = SmallString::default();
        labels.get(decision.quota())?.write_remaining(&mut remaining, decision).ok()?;
        Some(Self::SingleRule {
            policy: HeaderValue::from_maybe_shared(policy.clone()).ok()?,
            remaining: HeaderValue::from_str(remaining.as_str()).ok()?,
        })
    }

    #[cold]
    fn from_all_decisions(gate: &Gate, verdict: &Verdict) -> Self {
        let mut fields = Vec::new();
        verdict.write_headers(gate, |name, value| {
            if let Ok(value) = HeaderValue::from_str(value) {
                fields.push((HeaderName::from_static(name), value));
            }
        });
        Self::MultipleRules(fields)
    }

    pub(super) fn write(self, headers: &mut HeaderMap) {
        match self {
            Self::None => {}
            // These are lists; an inner gate may have added its own items.
            Self::SingleRule { policy, remaining } => {
                headers.append(RATELIMIT_POLICY, policy);
                headers.append(RATELIMIT, remaining);
            }
            Self::MultipleRules(fields) => fields.into_iter().for_each(|(name, value)| {
                if name == RATELIMIT_POLICY || name == RATELIMIT {
                    headers.append(name, value);
                } else {
                    headers.insert(name, value);
                }
            }),
        }
    }
}
