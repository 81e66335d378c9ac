//! Responses: a decision as JSON and as headers.

use super::{ApiResponse, query::RuleQuery};
use crate::reservations::NewReservation;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::Value;
use std::borrow::Cow;
use tidegate_core::{Decision, Micros, Outcome, Retry, header as field};
use tidegate_http_server::{ApiError, json_response};
use tidegate_observe::{DenialId, RequestRecorder, RuleOutcome};
use tidegate_policy::compile::PolicyGate;
use tidegate_rule::{Gate, HeaderStyle, Mode, ProblemDetails, ProblemMember};

/// The response to one query.
pub(super) struct RuleResponse<'a> {
    query: &'a RuleQuery<'a>,
    decision: Option<Decision>,
    /// Skipped if an all-or-nothing batch was denied before this query.
    evaluation: QueryEvaluation,
    reservation: Option<NewReservation>,
    /// The id under which the denial is recorded.
    denial_id: Option<DenialId>,
    deny_status: DenyStatus,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum QueryEvaluation {
    Evaluated,
    Skipped,
}

/// The HTTP status of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DenyStatus {
    /// 429, or 503 if the store is unavailable.
    Default,
    /// The status in `?deny=`.
    Status(StatusCode),
}

const POLICY_HEADER: HeaderName = HeaderName::from_static("ratelimit-policy");

impl<'a> RuleResponse<'a> {
    /// The response for a decision; `None` if the rule is off.
    pub(super) fn new(query: &'a RuleQuery<'a>, decision: Option<Decision>) -> Self {
        Self {
            query,
            decision,
            evaluation: QueryEvaluation::Evaluated,
            reservation: None,
            denial_id: None,
            deny_status: DenyStatus::Default,
        }
    }

    /// The response for a query that was not evaluated, since another one of the batch was denied.
    pub(super) fn skipped(query: &'a RuleQuery<'a>) -> Self {
        Self { evaluation: QueryEvaluation::Skipped, ..Self::new(query, None) }
    }

    pub(super) fn with_reservation(self, reservation: NewReservation) -> Self {
        Self { reservation: Some(reservation), ..self }
    }

    /// Whether the caller may proceed.
    pub(super) fn is_allowed(&self) -> bool {
        self.evaluation == QueryEvaluation::Evaluated && self.denial().is_none()
    }

    /// The decision, if it denies and the rule is enforced.
    fn denial(&self) -> Option<&Decision> {
        let denies = |decision: &&Decision| self.query.mode == Mode::Enforce && !decision.is_granted();
        self.decision.as_ref().filter(denies)
    }

    /// Records the denial, if there is one.
    pub(super) fn record_denial(&mut self, recorder: &RequestRecorder, gate: &PolicyGate, deny: DenyStatus) {
        let Some(decision) = self.denial().copied() else { return };
        let query = self.query;
        let status = self.status(Some(&decision), deny).as_u16();
        let quota = query.quota(decision.quota());
        self.denial_id = recorder.record_api_denial(
            (query.rule_index(), query.rule().name(), gate),
            (query.key(), query.cost()),
            (decision, quota),
            status,
        );
    }

    /// The index of the rule with its outcome, for the counters; `None` if the rule was not evaluated.
    pub(super) fn outcome_count(&self) -> Option<(usize, RuleOutcome, Option<&Decision>)> {
        let decision = self.decision.as_ref().filter(|_| self.evaluation == QueryEvaluation::Evaluated)?;
        let counted = match (self.query.mode, decision.outcome()) {
            (Mode::Off, _) => return None,
            (_, Outcome::Allow) => RuleOutcome::Admitted,
            (_, Outcome::Delay(_)) => RuleOutcome::Delayed,
            (Mode::Enforce, Outcome::Deny(_)) => RuleOutcome::Limited,
            (Mode::Shadow, Outcome::Deny(_)) => RuleOutcome::ShadowDenied,
        };
        Some((self.query.rule_index(), counted, Some(decision)))
    }

    fn serialize_decision<M: SerializeMap>(&self, decision: &Decision, map: &mut M) -> Result<(), M::Error> {
        if !decision.is_fail_closed() {
            map.serialize_entry("limit", &decision.limit())?;
            map.serialize_entry("remaining", &decision.remaining())?;
            let reset = decision.reset_after();
            if reset != Micros::MAX {
                map.serialize_entry("reset-after", &SerializedSeconds(reset))?;
            }
        }
        if let Some(quota) = self.query.rule().policy_fields().quota(decision.quota()) {
            map.serialize_entry("quota", quota)?;
        }
        match decision.outcome() {
            Outcome::Allow => {}
            Outcome::Delay(wait) => map.serialize_entry("wait", &SerializedSeconds(wait))?,
            Outcome::Deny(retry) => {
                if let Retry::After(wait) = retry {
                    map.serialize_entry("retry-after", &SerializedSeconds(wait))?;
                }
                if self.query.mode == Mode::Shadow {
                    map.serialize_entry("would-allow", &false)?;
                }
            }
        }
        match self.denial() {
            Some(denial) => self.serialize_problem(denial, map),
            None => Ok(()),
        }
    }

    fn serialize_problem<M: SerializeMap>(&self, denial: &Decision, map: &mut M) -> Result<(), M::Error> {
        let instance = self.denial_id.as_ref().map(DenialId::uri);
        let problem = ProblemDetails {
            instance: instance.as_deref(),
            status: self.problem_status(denial).as_u16(),
            detail: &self.detail(denial),
            violated_policies: &[self.query.rule().name()],
            ..match denial.is_fail_closed() {
                true => ProblemDetails::reduced_capacity(),
                false => ProblemDetails::quota_exceeded(),
            }
        };
        for (name, member) in problem.members() {
            match member {
                ProblemMember::Literal(text) | ProblemMember::Text(text) => {
                    map.serialize_entry(name, text)?;
                }
                ProblemMember::Number(number) => map.serialize_entry(name, &number)?,
                ProblemMember::List(texts) => map.serialize_entry(name, texts)?,
            }
        }
        Ok(())
    }

    /// The status in the problem document. A successful `?deny=` status applies only to the response head.
    fn problem_status(&self, denial: &Decision) -> StatusCode {
        match self.deny_status {
            DenyStatus::Status(status) if !status.is_success() => status,
            _ if denial.is_fail_closed() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// The status of the response to a single query.
    fn status(&self, denial: Option<&Decision>, deny: DenyStatus) -> StatusCode {
        match (denial, deny) {
            (None, _) => StatusCode::OK,
            (Some(_), DenyStatus::Status(status)) => status,
            (Some(denial), DenyStatus::Default) => self.problem_status(denial),
        }
    }

    /// Whether the quota that denied never refills.
    fn is_total(&self, denial: &Decision) -> bool {
        self.query.quota(denial.quota()).is_some_and(|quota| quota.is_total())
    }

    fn detail(&self, denial: &Decision) -> Cow<'static, str> {
        if let Some(message) = self.query.rule().message() {
            return message.to_string().into();
        }
        match denial.outcome() {
            _ if denial.is_fail_closed() => "The store is unavailable.".into(),
            Outcome::Deny(Retry::Never) if self.is_total(denial) => {
                "The cost exceeds what is left of the total.".into()
            }
            Outcome::Deny(Retry::Never) => "The cost exceeds the burst of the quota.".into(),
            Outcome::Deny(Retry::WhenReleased) => {
                "The concurrency limit is reached; release a permit first.".into()
            }
            _ => "The quota is exceeded.".into(),
        }
    }

    /// Converts it into the response to a single query.
    pub(super) fn into_response(mut self, gate: &Gate, deny: DenyStatus) -> ApiResponse {
        self.deny_status = deny;
        let status = self.status(self.denial(), deny);
        let kind = match status.is_success() {
            true => "application/json",
            false => "application/problem+json",
        };
        let mut response = json_response(status, kind, &self);
        self.write_headers(gate, response.headers_mut());
        response
    }

    fn write_headers(&self, gate: &Gate, headers: &mut HeaderMap) {
        let Some(decision) = &self.decision else { return };
        if let Some(id) = &self.denial_id {
            id.write_header(headers);
        }
        if let Some(after) = self.denial().and_then(field::retry_after) {
            headers.insert(header::RETRY_AFTER, after.into());
        }
        let labels = self.query.rule().policy_fields();
        let label = labels.get(decision.quota()).filter(|_| !decision.is_fail_closed());
        if let (Some(label), Mode::Enforce) = (label, self.query.mode) {
            // The policy header is formatted once per rule; sharing it avoids a copy.
            if let (HeaderStyle::Ietf, Some(policy)) =
                (gate.header_style(), labels.policy_at(decision.quota()))
                && let Ok(policy) = HeaderValue::from_maybe_shared(policy.clone())
            {
                headers.insert(POLICY_HEADER, policy);
            }
            gate.header_style().write_remaining([(label, decision)], gate.wall_clock(), |name, value| {
                if let Ok(value) = HeaderValue::from_str(value) {
                    headers.insert(HeaderName::from_static(name), value);
                }
            });
        }
    }
}

impl Serialize for RuleResponse<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("allowed", &self.is_allowed())?;
        let mode = match self.query.mode {
            Mode::Enforce => "enforce",
            Mode::Shadow => "shadow",
            Mode::Off => "off",
        };
        map.serialize_entry("mode", mode)?;
        map.serialize_entry("degraded", &self.decision.is_some_and(|it| it.is_degraded()))?;
        if self.evaluation == QueryEvaluation::Skipped {
            map.serialize_entry("evaluated", &false)?;
        }
        if let Some(decision) = &self.decision {
            self.serialize_decision(decision, &mut map)?;
        }
        if let Some(reservation) = &self.reservation {
            map.serialize_entry("id", &reservation.id)?;
            map.serialize_entry("expires-after", &SerializedSeconds(reservation.expires_after))?;
        }
        map.end()
    }
}

/// Seconds with microsecond precision; whole seconds without a decimal point.
struct SerializedSeconds(Micros);

impl Serialize for SerializedSeconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const SECOND: u64 = 1_000_000;
        let Self(time) = *self;
        match time.get() % SECOND {
            0 => serializer.serialize_u64(time.get() / SECOND),
            _ => serializer.serialize_f64(Micros::to_duration(time).as_secs_f64()),
        }
    }
}

/// Converts results to JSON; an error becomes a problem document in its place.
pub(super) fn to_json_list(results: impl Iterator<Item = Result<Value, ApiError>>) -> Vec<Value> {
    results.map(|result| result.unwrap_or_else(|problem| problem.to_json())).collect()
}
