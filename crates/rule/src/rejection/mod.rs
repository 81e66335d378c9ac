//! What to answer instead, in words that every wire can translate.

mod header_style;
mod problem;

pub use header_style::HeaderStyle;
pub use problem::{ProblemDetails, ProblemMember};

use crate::Limited;
use std::borrow::Cow;
use tidegate_core::{
    Decision, Micros, Outcome, Retry,
    header::{self, PolicyField},
};
use tidegate_overload::CallError;

/// An answer to a request that was not let through: a status, headers and a body, for a surface to translate.
///
/// The one that is given unless told otherwise is 429 with `Retry-After`, the fields that [`HeaderStyle`] chooses, and a
/// problem as in RFC 9457. What is refused to protect a server (an open breaker, a full line, a feature that is off), or
/// because a store is away and its rules are closed without it, is 503, since it is not for the client to mend. In gRPC the
/// one is `RESOURCE_EXHAUSTED`, the other `SERVICE_UNAVAILABLE`.
///
/// ```
/// use tidegate_rule::{RejectionResponse, RuleConfig, Rules};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let login = Rules::new().declare(RuleConfig::new("login").quota("1/min")?.message("Too many attempts."))?;
/// login.admit("alice", 1).await?;
/// let limited = login.admit("alice", 1).await.unwrap_err();
///
/// let answer = RejectionResponse::from(&limited);
/// assert_eq!(answer.status, 429);
/// assert_eq!(answer.get("retry-after"), Some("60"));
/// assert_eq!(answer.get("ratelimit-policy"), Some(r#""login";q=1;w=60"#));
/// assert_eq!(answer.get("ratelimit"), Some(r#""login";r=0;t=60"#));
/// assert!(answer.body.contains(r#""detail":"Too many attempts.""#));
///
/// let plain = RejectionResponse::from(&limited).status(503).text("Come back later.");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectionResponse {
    /// The status, such as 429.
    pub status: u16,
    /// Headers, by names in lower case.
    pub headers: Vec<(Cow<'static, str>, Cow<'static, str>)>,
    /// The body.
    pub body: String,
}

/// The status of an answer to whoever did too much.
const TOO_MANY_REQUESTS: u16 = 429;
/// The status of an answer when it is the server that cannot.
const SERVICE_UNAVAILABLE: u16 = 503;

const PROBLEM_JSON: &str = "application/problem+json";

impl RejectionResponse {
    /// An answer without headers and body.
    pub fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: String::new() }
    }

    /// An answer that sends the client elsewhere, with 303, so that whatever was asked, a page is fetched there.
    pub fn redirect(location: impl Into<String>) -> Self {
        Self::new(303).header("location", location)
    }

    /// An answer that contains a problem, with the problem's status.
    pub fn from_problem(problem: &ProblemDetails<'_>) -> Self {
        Self::new(problem.status).with_problem(problem)
    }

    /// The answer to a request that lacks what it is counted by: 400.
    pub fn missing_key() -> Self {
        Self::bad_request("The request lacks what its limit is counted by.")
    }

    /// The answer to a request with several values where a rule takes one: 400.
    pub fn duplicate_key() -> Self {
        Self::bad_request(
            "The request has several values of a header, a cookie or a parameter that is counted by.",
        )
    }

    fn bad_request(detail: &str) -> Self {
        Self::from_problem(&ProblemDetails { detail, ..ProblemDetails::new(400, "Bad Request") })
    }

    /// The answer to somebody who is not let in at all: 403.
    pub(crate) fn forbidden(detail: &str) -> Self {
        Self::from_problem(&ProblemDetails { detail, ..ProblemDetails::new(403, "Forbidden") })
    }

    /// The answer to a refused request, with these fields of the quota that refused.
    pub fn from_limited(limited: &Limited, fields: HeaderStyle) -> Self {
        let label = limited.label();
        let decision = label.as_ref().zip(limited.decision());
        Self::from_decisions(limited, decision, fields)
    }

    /// The answer to a refused request that was asked about by several quotas, with these fields of all of them. The
    /// longest wait among them is told; none, where one of them will never grant it.
    pub fn from_decisions<'a, T>(limited: &Limited, decisions: T, fields: HeaderStyle) -> Self
    where
        T: IntoIterator<Item = (&'a PolicyField, &'a Decision), IntoIter: Clone>,
    {
        let decisions = decisions.into_iter();
        let denied = || decisions.clone().filter(|(_, decision)| !decision.is_granted());
        let retry_after = limited.retry_after().map(|wait| header::ceil_seconds(Micros::from(wait)));
        let is_hopeless =
            denied().any(|(_, decision)| matches!(decision.outcome(), Outcome::Deny(Retry::Never)));
        let retry_after = denied()
            .filter_map(|(_, decision)| header::retry_after(decision))
            .chain(retry_after)
            .max()
            .filter(|_| !is_hopeless);

        let mut answer = Self::new(response_status(limited));
        if let Some(seconds) = retry_after {
            answer.headers.push(("retry-after".into(), seconds.to_string().into()));
        }
        fields.write(decisions.clone(), |name, value| {
            answer.headers.push((name.into(), value.to_owned().into()));
        });

        let mut violated: Vec<_> = denied().map(|(label, _)| label.name()).collect();
        if violated.is_empty() && limited.decision().is_some() {
            violated.push(limited.rule());
        }
        answer.with_problem(&problem_details(limited, &violated, retry_after))
    }

    /// The same with another status. What is no status of an answer is sent as 429.
    #[must_use]
    pub fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// The same with this header, in place of others of its name. Signs that could end a header are left out of its value;
    /// a name that is none leaves the answer as it is.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        let Ok(name) = crate::request::parse_name(name, "header") else { return self };
        let mut value = value.into();
        value.retain(|sign| !sign.is_control() || sign == '\t');
        self.headers.retain(|(known, _)| *known != name);
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The same with this text as its body.
    #[must_use]
    pub fn text(self, body: impl Into<String>) -> Self {
        Self { body: body.into(), ..self.header("content-type", "text/plain; charset=utf-8") }
    }

    /// The same with this body, which is JSON already.
    #[must_use]
    pub fn json(self, body: impl Into<String>) -> Self {
        Self { body: body.into(), ..self.header("content-type", "application/json") }
    }

    /// The first value of a header, by its name in lower case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// The status, where it is one that an answer may have.
    pub fn final_status(&self) -> u16 {
        match self.status {
            200..=599 => self.status,
            _ => TOO_MANY_REQUESTS,
        }
    }

    /// Adds the `instance` member to an answer that contains a problem; other answers stay as they are.
    pub fn set_instance(&mut self, instance: &str) {
        if self.get("content-type") == Some(PROBLEM_JSON) {
            problem::insert_instance(&mut self.body, instance);
        }
    }

    /// Of an answer that has no body yet.
    fn with_problem(mut self, problem: &ProblemDetails<'_>) -> Self {
        self.headers.push(("content-type".into(), PROBLEM_JSON.into()));
        Self { body: problem.to_json(), ..self }
    }
}

/// The answer with the fields of the current draft.
impl From<&Limited> for RejectionResponse {
    fn from(limited: &Limited) -> Self {
        Self::from_limited(limited, HeaderStyle::default())
    }
}

/// The answer with the fields of the current draft.
impl From<Limited> for RejectionResponse {
    fn from(limited: Limited) -> Self {
        Self::from(&limited)
    }
}

/// What a client can mend is 429, and what it cannot is 503.
fn response_status(limited: &Limited) -> u16 {
    match limited.cause() {
        CallError::Limited(_) => TOO_MANY_REQUESTS,
        _ => SERVICE_UNAVAILABLE,
    }
}

fn problem_details<'a>(
    limited: &'a Limited,
    violated_policies: &'a [&'a str],
    retry_after: Option<u64>,
) -> ProblemDetails<'a> {
    let (problem, otherwise) = match response_status(limited) {
        TOO_MANY_REQUESTS => (ProblemDetails::quota_exceeded(), "The quota is used up."),
        // How a server protects itself is not for clients to know.
        _ => (ProblemDetails::reduced_capacity(), "The server cannot take this request now."),
    };
    ProblemDetails {
        detail: limited.message().unwrap_or(otherwise),
        violated_policies,
        retry_after,
        ..problem
    }
}
