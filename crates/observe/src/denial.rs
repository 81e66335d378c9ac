//! Records of denied requests, which operators look up by id.

use super::{json::quota_json, key_label::KeyLabel};
use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};
use std::sync::Arc;
use tidegate_core::{Decision, Micros, Outcome, Quota, Retry, Utc};
use tidegate_policy::compile::{CredentialProblem, PolicyRejection, RejectReason};

/// The id of a denial record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenialId(pub String);

/// A denied request, with the reason.
#[derive(Debug)]
pub struct DenialRecord {
    /// The id, which the response contains too.
    pub id: DenialId,
    pub(crate) at: Micros,
    /// The rule that denied it; `None` for a ban by an operator.
    pub rule: Option<Arc<str>>,
    pub(crate) reason: DenialKind,
    /// Why it has no valid credential, if that is the reason.
    pub(crate) credential: Option<CredentialProblem>,
    /// The key of the rule.
    pub(crate) key: Option<KeyLabel>,
    pub(crate) client: Option<KeyLabel>,
    /// `None` for a check of the decision API without a request.
    pub(crate) method: Option<String>,
    pub(crate) path: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) cost: u64,
    /// The decision and its quota. A denial does not change the state, so the numbers are those before it.
    pub(crate) decision: Option<(Decision, Option<Quota>)>,
    pub(crate) retry_after: Option<Micros>,
    /// The maximum time in the queue of the rule.
    pub(crate) max_wait: Micros,
    /// The status of the response; `None` if there was none, or the gateway did not send it.
    pub(crate) status: Option<u16>,
}

/// The reason of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DenialKind {
    Limited,
    NoKey,
    Unauthenticated,
    DenyListed,
    Banned,
    Overloaded,
    QueueFull,
    StoreUnavailable,
    FeatureOff,
}

impl DenialKind {
    pub(crate) fn from_rejection(rejection: &PolicyRejection) -> Self {
        match rejection.reason {
            RejectReason::Limited => Self::Limited,
            RejectReason::QueueFull => Self::QueueFull,
            RejectReason::StoreUnavailable => Self::StoreUnavailable,
            RejectReason::NoKey => Self::NoKey,
            RejectReason::Unauthenticated => Self::Unauthenticated,
            RejectReason::DenyListed => Self::DenyListed,
            RejectReason::Banned => Self::Banned,
            RejectReason::Overloaded => Self::Overloaded,
            RejectReason::FeatureOff => Self::FeatureOff,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Limited => "limited",
            Self::NoKey => "no-key",
            Self::Unauthenticated => "unauthenticated",
            Self::DenyListed => "deny-list",
            Self::Banned => "banned",
            Self::Overloaded => "overloaded",
            Self::QueueFull => "queue-full",
            Self::StoreUnavailable => "store-unavailable",
            Self::FeatureOff => "feature-off",
        }
    }
}

impl DenialRecord {
    /// The denial in a response of `/api/v1/denials`.
    pub fn to_json(&self) -> Value {
        let (decision, quota) = match &self.decision {
            Some((decision, quota)) => (Some(decision), quota.as_ref()),
            None => (None, None),
        };
        let before = decision.filter(|decision| !decision.is_fail_closed()).map(|decision| {
            let reset = decision.reset_after();
            json!({
                "limit": decision.limit(),
                "remaining": decision.remaining(),
                "reset-after": (reset != Micros::MAX).then(|| seconds(reset)),
            })
        });
        json!({
            "id": self.id.0,
            "time": Utc::from(self.at).to_string(),
            "rule": self.rule.as_deref(),
            "reason": self.reason.name(),
            "credential": self.credential.map(CredentialProblem::reason),
            "key": self.key.as_ref().map(KeyLabel::text),
            "key-hashed": self.key.as_ref().is_some_and(KeyLabel::is_hashed),
            "client": self.client.as_ref().map(KeyLabel::text),
            "method": self.method,
            "path": self.path,
            "host": self.host,
            "cost": self.cost,
            "quota": quota.map(quota_json),
            "before": before,
            "retry-after": self.retry_after.map(seconds),
            "max-wait": (self.max_wait > Micros::ZERO).then(|| seconds(self.max_wait)),
            "retry-at": self.retry_after.map(|wait| Utc::from(self.at.saturating_add(wait)).to_string()),
            "retry": self.retry_text(),
            "degraded": decision.is_some_and(Decision::is_degraded),
            "status": self.status,
            "summary": self.describe(),
        })
    }

    /// When a retry succeeds, as the end of a sentence.
    fn retry_text(&self) -> String {
        let after = self.retry_after.map(|wait| format!("{:.1} s", seconds(wait)));
        let is_total = |quota: &Quota| quota.is_total() && self.cost <= quota.limit();
        match (self.reason, self.decision.as_ref().map(|(decision, _)| decision.outcome())) {
            (DenialKind::Limited, Some(Outcome::Deny(Retry::Never)))
                if self.decision.as_ref().is_some_and(|(_, quota)| quota.as_ref().is_some_and(is_total)) =>
            {
                "never: a total does not refill; reset the key to start again".to_owned()
            }
            (DenialKind::Limited, Some(Outcome::Deny(Retry::Never))) => {
                "never: the cost exceeds the limit of the quota".to_owned()
            }
            (DenialKind::Limited, Some(Outcome::Deny(Retry::WhenReleased))) => {
                "when another request of this key ends".to_owned()
            }
            (DenialKind::Limited, _) => match after {
                Some(after) => format!("after {after} if this key sends nothing else first"),
                None => "later".to_owned(),
            },
            (DenialKind::NoKey, _) => "when the request has the key of the rule".to_owned(),
            (DenialKind::Unauthenticated, _) => match after {
                Some(after) => format!("after {after}, when its address may send another new credential"),
                None => "when the request has a valid credential".to_owned(),
            },
            (DenialKind::DenyListed, _) => "when a list allows the client".to_owned(),
            (DenialKind::Banned, _) => match after {
                Some(after) => format!("after {after}, when the ban ends"),
                None => "when the ban ends".to_owned(),
            },
            (DenialKind::Overloaded, _) => match after {
                Some(after) => format!("after {after}, when the circuit breaker allows a probe"),
                None => "when fewer requests are in flight, or the load of the machine is lower".to_owned(),
            },
            (DenialKind::QueueFull, _) => "when the queue is shorter".to_owned(),
            (DenialKind::StoreUnavailable, _) => "when the store is available".to_owned(),
            (DenialKind::FeatureOff, _) => "when the feature is on".to_owned(),
        }
    }

    /// The denial in two sentences.
    fn describe(&self) -> String {
        let key = match &self.key {
            Some(key) => format!("key {}", key.text()),
            None => "the request".to_owned(),
        };
        let cause = match (self.reason, &self.decision) {
            (DenialKind::Limited, Some((decision, Some(quota))))
                if self.max_wait > Micros::ZERO && decision.outcome() != Outcome::Deny(Retry::Never) =>
            {
                let max_wait = seconds(self.max_wait);
                format!("{key} would wait for {quota} longer than the {max_wait} s that the rule allows")
            }
            (DenialKind::Limited, Some((decision, quota))) => {
                let quota = quota.map_or_else(|| "its quota".to_owned(), |quota| quota.to_string());
                let (remaining, limit) = (decision.remaining(), decision.limit());
                let cost =
                    if self.cost == 1 { String::new() } else { format!(", the cost is {}", self.cost) };
                format!("{key} exceeds {quota}: {remaining} of {limit} left{cost}")
            }
            (DenialKind::Limited, None) => format!("{key} exceeds its quota"),
            (DenialKind::NoKey, _) => "the request has no key".to_owned(),
            (DenialKind::Unauthenticated, _) => {
                let problem = self.credential.unwrap_or(CredentialProblem::Missing);
                format!("the request has {problem}")
            }
            (DenialKind::DenyListed, _) => "a list denies the client".to_owned(),
            (DenialKind::Banned, _) => format!("{key} is banned"),
            (DenialKind::Overloaded, _) => {
                "circuit breaker open, concurrency limit reached, or load too high".to_owned()
            }
            (DenialKind::QueueFull, _) => "queue full, or queue timeout".to_owned(),
            (DenialKind::StoreUnavailable, _) => "store unavailable, and the rule fails closed".to_owned(),
            (DenialKind::FeatureOff, _) => "the feature that the request uses is off".to_owned(),
        };
        let by = match &self.rule {
            Some(rule) => format!("rule `{rule}`"),
            None => "an operator".to_owned(),
        };
        let retry = self.retry_text();
        match retry.strip_prefix("never: ") {
            Some(reason) => format!("Denied by {by}: {cause}. A retry never succeeds: {reason}."),
            None => format!("Denied by {by}: {cause}. A retry succeeds {retry}."),
        }
    }
}

/// Crockford's Base32: letters that are not easily confused.
const ID_ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

impl DenialId {
    /// Creates an id: the first half increases with time, the second is random.
    pub(super) fn new(at: Micros) -> Self {
        let (mut id, millis) = ([b'0'; 16], at.get() / 1_000);
        let digit = |bits: u64| ID_ALPHABET[(bits & 31) as usize];
        for (index, byte) in id[..9].iter_mut().enumerate() {
            *byte = digit(millis >> (5 * (8 - index)));
        }
        let random = fastrand::u64(..);
        for (index, byte) in id[9..].iter_mut().enumerate() {
            *byte = digit(random >> (5 * index));
        }
        Self(id.iter().map(|byte| char::from(*byte)).collect())
    }

    /// The `instance` of problem details that identifies the denial.
    pub fn uri(&self) -> String {
        format!("urn:tidegate:denial:{}", self.0)
    }

    /// The response header with the id of a denial.
    pub const HEADER: &'static str = "tidegate-denial";

    /// Adds the header with the id to a response.
    pub fn write_header(&self, headers: &mut HeaderMap) {
        if let Ok(id) = HeaderValue::from_str(&self.0) {
            headers.insert(Self::HEADER, id);
        }
    }
}

pub(super) fn seconds(time: Micros) -> f64 {
    time.get() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denial_ids_are_unique_and_ordered_by_time() {
        let ids: Vec<_> =
            (0..1_000).map(|at| DenialId::new(Micros::from_millis(1_700_000_000_000 + at / 2)).0).collect();
        assert!(ids.windows(3).all(|ids| ids[0][..9] <= ids[1][..9] && ids[0][..9] < ids[2][..9]));
        let mut unique = ids.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), ids.len());
        assert!(ids.iter().all(|id| id.len() == 16 && id.bytes().all(|byte| ID_ALPHABET.contains(&byte))));
    }
}
