//! What is answered: the numbers of a decision, as JSON and as headers.

use super::{problem::Problem, question::Question};
use crate::observe::Counted;
use axum::{body::Body, response::Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use tidegate_core::{Decision, Micros, Outcome, Retry, header as field};
use tidegate_rule::{Fields, Mode, Rule};

/// What is answered to one question.
pub(super) struct Told {
    rule: Rule,
    mode: Mode,
    decision: Option<Decision>,
    /// Whether it was asked at all: where all are charged or none, it may not have come to that.
    turn: Turn,
    /// What else there is to tell.
    more: Map<String, Value>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Asked,
    Passed,
}

/// Which status a denial has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DenyAs {
    /// 429, or 503 where a store is away.
    Usual,
    /// This.
    Status(StatusCode),
}

const EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

impl Told {
    /// This was decided; nothing, where there was nothing to be asked.
    pub(super) fn new(question: &Question, decision: Option<Decision>) -> Self {
        let (rule, mode) = (question.rule.clone(), question.mode);
        Self { rule, mode, decision, turn: Turn::Asked, more: Map::new() }
    }

    /// Another was denied before it was asked.
    pub(super) fn passed_over(question: &Question) -> Self {
        Self { turn: Turn::Passed, ..Self::new(question, None) }
    }

    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    /// Whether whoever asked may go on.
    pub(super) fn is_allowed(&self) -> bool {
        self.turn == Turn::Asked && self.denial().is_none()
    }

    /// The decision that denies it, if one does that is enforced.
    fn denial(&self) -> Option<&Decision> {
        let denies = |decision: &&Decision| self.mode == Mode::Enforce && !decision.is_granted();
        self.decision.as_ref().filter(denies)
    }

    /// The rule that was asked, and what it said; nothing, where it was not asked.
    pub(super) fn counted(&self) -> Option<(&str, Counted, Option<&Decision>)> {
        let decision = self.decision.as_ref().filter(|_| self.turn == Turn::Asked)?;
        let counted = match (self.mode, decision.outcome()) {
            (Mode::Off, _) => return None,
            (_, Outcome::Allow) => Counted::Admitted,
            (_, Outcome::Delay(_)) => Counted::Delayed,
            (Mode::Enforce, Outcome::Deny(_)) => Counted::Limited,
            (Mode::Shadow, Outcome::Deny(_)) => Counted::ShadowDenied,
        };
        Some((self.rule.name(), counted, Some(decision)))
    }

    /// It as JSON.
    pub(super) fn json(&self) -> Value {
        let mut map = Map::new();
        map.insert("allowed".to_owned(), self.is_allowed().into());
        let mode = match self.mode {
            Mode::Enforce => "enforce",
            Mode::Shadow => "shadow",
            Mode::Off => "off",
        };
        map.insert("mode".to_owned(), mode.into());
        map.insert("degraded".to_owned(), self.decision.is_some_and(|it| it.is_degraded()).into());
        if self.turn == Turn::Passed {
            map.insert("asked".to_owned(), false.into());
        }
        if let Some(decision) = &self.decision {
            self.numbers(decision, &mut map);
        }
        map.extend(self.more.clone());
        Value::Object(map)
    }

    fn numbers(&self, decision: &Decision, map: &mut Map<String, Value>) {
        let mut add = |name: &str, value: Value| map.insert(name.to_owned(), value);
        if !decision.is_closed() {
            add("limit", decision.limit().into());
            add("remaining", decision.remaining().into());
            let reset = decision.reset_after();
            if reset != Micros::MAX {
                add("reset-after", seconds(reset));
            }
        }
        if let Some(quota) = self.rule.quotas().get(decision.quota()) {
            add("quota", quota.to_string().into());
        }
        match decision.outcome() {
            Outcome::Allow => {}
            Outcome::Delay(wait) => drop(add("wait", seconds(wait))),
            Outcome::Deny(retry) => {
                if let Retry::After(wait) = retry {
                    add("retry-after", seconds(wait));
                }
                if self.mode == Mode::Shadow {
                    add("would-allow", false.into());
                }
            }
        }
        if let Some(denial) = self.denial() {
            let (status, kind, title) = match denial.is_closed() {
                true => (503, REDUCED, "Temporarily reduced capacity"),
                false => (429, EXCEEDED, "Quota exceeded"),
            };
            add("type", kind.into());
            add("title", title.into());
            add("status", status.into());
            add("detail", self.detail(denial).into());
            add("violated-policies", json!([self.rule.name()]));
        }
    }

    fn detail(&self, denial: &Decision) -> Cow<'static, str> {
        if let Some(message) = self.rule.message() {
            return message.to_string().into();
        }
        match denial.outcome() {
            _ if denial.is_closed() => "The store that counts is away.".into(),
            Outcome::Deny(Retry::Never) => "The cost is more than the quota ever grants at once.".into(),
            Outcome::Deny(Retry::WhenReleased) => "All slots are held; one has to be released first.".into(),
            _ => "The quota is used up.".into(),
        }
    }

    /// It as the answer to a single question.
    pub(super) fn response(&self, fields: Fields, deny: DenyAs) -> Response {
        let mut body = self.json();
        let status = match (self.denial(), deny) {
            (None, _) => StatusCode::OK,
            (Some(denial), DenyAs::Usual) if denial.is_closed() => StatusCode::SERVICE_UNAVAILABLE,
            (Some(_), DenyAs::Usual) => StatusCode::TOO_MANY_REQUESTS,
            (Some(_), DenyAs::Status(status)) => status,
        };
        let kind = match status.is_success() {
            true => "application/json",
            false => "application/problem+json",
        };
        if !status.is_success() {
            body["status"] = status.as_u16().into();
        }
        let mut response = json_response(status, kind, &body);
        self.write_headers(fields, response.headers_mut());
        response
    }

    fn write_headers(&self, fields: Fields, headers: &mut HeaderMap) {
        let Some(decision) = &self.decision else { return };
        if let Some(after) = self.denial().and_then(field::retry_after) {
            headers.insert(header::RETRY_AFTER, after.into());
        }
        let labels = self.rule.labels().clone();
        let label = labels.get(decision.quota()).filter(|_| !decision.is_closed());
        if let (Some(label), Mode::Enforce) = (label, self.mode) {
            fields.write([(label, decision)], |name, value| {
                if let Ok(value) = HeaderValue::from_str(value) {
                    headers.insert(HeaderName::from_static(name), value);
                }
            });
        }
    }
}

/// Several answers, or what is wrong with some of them.
pub(super) fn list(answers: impl Iterator<Item = Result<Value, Problem>>) -> Vec<Value> {
    answers.map(|answer| answer.unwrap_or_else(|problem| problem.json())).collect()
}

pub(crate) fn json_response(status: StatusCode, kind: &'static str, body: &Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Seconds, exact to the microsecond; whole ones without a point.
pub(super) fn seconds(time: Micros) -> Value {
    const SECOND: u64 = 1_000_000;
    match time.get() % SECOND {
        0 => (time.get() / SECOND).into(),
        _ => Micros::to_duration(time).as_secs_f64().into(),
    }
}
