//! Why a request was denied, for whoever asks later.

use super::{json::quota_json, key_label::KeyLabel};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use std::sync::Arc;
use tidegate_core::{Decision, Micros, Outcome, Quota, Retry, Utc};
use tidegate_policy::compile::{DenyReason, PolicyRefusal};

/// The id of a denial that was kept, by which operators find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenialId(pub String);

/// The header that names a denial.
const DENIAL_HEADER: HeaderName = HeaderName::from_static("tidegate-denial");

/// A denial, with all that tells why.
#[derive(Debug)]
pub struct DenialRecord {
    /// Its id, which the response has.
    pub id: DenialId,
    pub(crate) at: Micros,
    /// `None` where an operator has banned it.
    pub rule: Option<Arc<str>>,
    pub(crate) reason: DenialReason,
    /// What it was counted by.
    pub(crate) key: Option<KeyLabel>,
    pub(crate) client: Option<KeyLabel>,
    /// `None` where a program has asked, without a request.
    pub(crate) method: Option<String>,
    pub(crate) path: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) cost: u64,
    /// The numbers, and the quota that they are of. A denial changes nothing, so they are those before it.
    pub(crate) decision: Option<(Decision, Option<Quota>)>,
    pub(crate) retry_after: Option<Micros>,
    /// How long the rule lets a request wait for its turn.
    pub(crate) max_wait: Micros,
    /// What was answered; `None` where nothing was, or somebody else did.
    pub(crate) status: Option<u16>,
}

/// Why a request is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DenialReason {
    Limited,
    NoKey,
    Listed,
    Banned,
    Guarded,
    Full,
    StoreUnavailable,
}

impl DenialReason {
    pub(crate) fn from_refusal(refusal: &PolicyRefusal) -> Self {
        match (refusal.reason, &refusal.decision) {
            (DenyReason::Limited, None) => Self::Full,
            (DenyReason::Limited, Some((decision, _))) if decision.is_fail_closed() => Self::StoreUnavailable,
            (DenyReason::Limited, Some(_)) => Self::Limited,
            (DenyReason::NoKey, _) => Self::NoKey,
            (DenyReason::Denied, _) => Self::Listed,
            (DenyReason::Banned, _) => Self::Banned,
            (DenyReason::Guarded, _) => Self::Guarded,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Limited => "limited",
            Self::NoKey => "no-key",
            Self::Listed => "listed",
            Self::Banned => "banned",
            Self::Guarded => "guarded",
            Self::Full => "full",
            Self::StoreUnavailable => "store-away",
        }
    }
}

impl DenialRecord {
    /// What `/api/v1/denials` says of it.
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
            "why": self.reason.name(),
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
            "passes-at": self.retry_after.map(|wait| Utc::from(self.at.plus(wait)).to_string()),
            "passes": self.retry_text(),
            "degraded": decision.is_some_and(Decision::is_degraded),
            "status": self.status,
            "told": self.describe(),
        })
    }

    /// When it would pass, in words.
    fn retry_text(&self) -> String {
        let after = self.retry_after.map(|wait| format!("{:.1} s", seconds(wait)));
        match (self.reason, self.decision.as_ref().map(|(decision, _)| decision.outcome())) {
            (DenialReason::Limited, Some(Outcome::Deny(Retry::Never))) => {
                "never: it costs more than the quota grants at once".to_owned()
            }
            (DenialReason::Limited, Some(Outcome::Deny(Retry::WhenReleased))) => {
                "when another of the same key has ended".to_owned()
            }
            (DenialReason::Limited, _) => match after {
                Some(after) => format!("{after} later, if nothing else of this key comes before"),
                None => "later".to_owned(),
            },
            (DenialReason::NoKey, _) => "when it carries what the rule counts by".to_owned(),
            (DenialReason::Listed, _) => "when a list lets it in".to_owned(),
            (DenialReason::Banned, _) => match after {
                Some(after) => format!("when the ban ends, {after} later"),
                None => "when the ban ends".to_owned(),
            },
            (DenialReason::Guarded, _) => match after {
                Some(after) => format!("when the breaker tries again, {after} later"),
                None => "when less is in flight".to_owned(),
            },
            (DenialReason::Full, _) => "when fewer wait".to_owned(),
            (DenialReason::StoreUnavailable, _) => "when the store is back".to_owned(),
        }
    }

    /// All of it, in a sentence or two.
    fn describe(&self) -> String {
        let key = match &self.key {
            Some(key) => format!("the key {}", key.text()),
            None => "it".to_owned(),
        };
        let why = match (self.reason, &self.decision) {
            (DenialReason::Limited, Some((decision, Some(quota))))
                if self.max_wait > Micros::ZERO && decision.outcome() != Outcome::Deny(Retry::Never) =>
            {
                let most = seconds(self.max_wait);
                format!(
                    "{key} would have had to wait for {quota} longer than the {most} s that the rule allows"
                )
            }
            (DenialReason::Limited, Some((decision, quota))) => {
                let quota = quota.map_or_else(|| "its quota".to_owned(), |quota| quota.to_string());
                let (left, of) = (decision.remaining(), decision.limit());
                let cost =
                    if self.cost == 1 { String::new() } else { format!(", and it costs {}", self.cost) };
                format!("{key} had used up {quota}: {left} of {of} were left{cost}")
            }
            (DenialReason::Limited, None) => format!("{key} had used up its quota"),
            (DenialReason::NoKey, _) => "it lacked what it is counted by".to_owned(),
            (DenialReason::Listed, _) => "it came from where nobody is let in".to_owned(),
            (DenialReason::Banned, _) => format!("{key} was banned for a time"),
            (DenialReason::Guarded, _) => "a breaker was open, or too much was in flight".to_owned(),
            (DenialReason::Full, _) => "the line was full, or its turn did not come in time".to_owned(),
            (DenialReason::StoreUnavailable, _) => {
                "its store was away, and the rule lets nobody pass without it".to_owned()
            }
        };
        let by = match &self.rule {
            Some(rule) => format!("By rule `{rule}`"),
            None => "By an operator".to_owned(),
        };
        format!("{by}: {why}. It passes {}.", self.retry_text())
    }
}

/// Letters that nobody takes for another.
const ID_ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

impl DenialId {
    /// A new one: the first half grows with time, the second is random.
    pub(super) fn new(at: Micros) -> Self {
        let (mut id, millis) = ([b'0'; 16], at.get() / 1_000);
        let letter = |bits: u64| ID_ALPHABET[(bits & 31) as usize];
        for (place, sign) in id[..9].iter_mut().enumerate() {
            *sign = letter(millis >> (5 * (8 - place)));
        }
        let random = fastrand::u64(..);
        for (place, sign) in id[9..].iter_mut().enumerate() {
            *sign = letter(random >> (5 * place));
        }
        Self(id.iter().map(|sign| char::from(*sign)).collect())
    }

    /// The `instance` of problem details that identifies the denial.
    pub fn uri(&self) -> String {
        format!("urn:tidegate:denial:{}", self.0)
    }

    /// Names the denial to whoever was denied.
    pub fn write_header(&self, headers: &mut HeaderMap) {
        if let Ok(id) = HeaderValue::from_str(&self.0) {
            headers.insert(DENIAL_HEADER, id);
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
        let mut each = ids.clone();
        each.sort();
        each.dedup();
        assert_eq!(each.len(), ids.len());
        assert!(ids.iter().all(|id| id.len() == 16 && id.bytes().all(|sign| ID_ALPHABET.contains(&sign))));
    }
}
