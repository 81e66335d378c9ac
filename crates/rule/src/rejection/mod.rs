//! Responses to rejected requests, independent of frameworks.

mod header_style;
mod problem;

pub use header_style::HeaderStyle;
pub use problem::{ProblemDetails, ProblemMember};

use crate::Limited;
use std::{borrow::Cow, time::Duration};
use tidegate_core::{
    Decision, Micros, Outcome, Retry,
    header::{self, PolicyField},
};
use tidegate_limiter::Clock;
use tidegate_overload::CallError;

/// The response to a rejected request: a status, headers and a body, for a framework integration to convert.
///
/// The default is 429 with `Retry-After`, the headers of the [`HeaderStyle`], and problem details as in RFC
/// 9457. Rejections that the client did not cause (an open breaker, a full queue, a disabled feature, a store
/// that is unavailable and fails closed) are 503, and a call that exceeded its time limit is 504. In gRPC they are
/// `RESOURCE_EXHAUSTED`, `UNAVAILABLE` and `DEADLINE_EXCEEDED`.
///
/// ```
/// use tidegate_rule::{RejectionResponse, RuleConfig, Rules};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let login = Rules::new().declare(RuleConfig::new("login").quota("1/min")?.message("Too many attempts."))?;
/// login.admit("alice", 1).await?;
/// let limited = login.admit("alice", 1).await.unwrap_err();
///
/// let response = RejectionResponse::from(&limited);
/// assert_eq!(response.status, 429);
/// assert_eq!(response.get("retry-after"), Some("60"));
/// assert_eq!(response.get("ratelimit-policy"), Some(r#""login";q=1;w=60"#));
/// assert_eq!(response.get("ratelimit"), Some(r#""login";r=0;t=60"#));
/// assert!(response.body.contains(r#""detail":"Too many attempts.""#));
///
/// let plain = RejectionResponse::from(&limited).status(503).text("Try again later.");
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

/// The status if the client exceeded a limit.
const TOO_MANY_REQUESTS: u16 = 429;
/// The status if the server is overloaded or unavailable.
const SERVICE_UNAVAILABLE: u16 = 503;
/// The status if a call took longer than its time limit.
const GATEWAY_TIMEOUT: u16 = 504;

const PROBLEM_JSON: &str = "application/problem+json";

impl RejectionResponse {
    /// Creates a response without headers and body.
    pub fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: String::new() }
    }

    /// Redirects the client with 303, so that the target is fetched with GET.
    pub fn redirect(location: impl Into<String>) -> Self {
        Self::new(303).header("location", location)
    }

    /// Creates a response from problem details, with their status.
    pub fn from_problem(problem: &ProblemDetails<'_>) -> Self {
        Self::new(problem.status).with_problem(problem)
    }

    /// The response to a request without its key: 400.
    pub fn missing_key() -> Self {
        Self::bad_request("The request does not contain the key of a limit.")
    }

    /// The response to a request with several values of its key: 400.
    pub fn duplicate_key() -> Self {
        Self::bad_request(
            "The request repeats a header, cookie or query parameter that is the key of a limit.",
        )
    }

    /// The response to a request without a valid credential: 401, with this value of `WWW-Authenticate`.
    pub fn unauthorized(challenge: &'static str) -> Self {
        let detail = "The request has no valid credential.";
        Self::from_problem(&ProblemDetails { detail, ..ProblemDetails::new(401, "Unauthorized") })
            .header("www-authenticate", challenge)
    }

    /// The response to a request without a client certificate: 403, because no challenge asks for one.
    pub fn no_client_certificate() -> Self {
        Self::forbidden("The connection has no client certificate.")
    }

    /// The response to a request from an address that sent too many invalid credentials: 429.
    pub fn invalid_credentials(wait: Duration) -> Self {
        let detail = "This address sent too many invalid credentials.";
        let problem =
            ProblemDetails { detail, ..ProblemDetails::new(TOO_MANY_REQUESTS, "Too Many Requests") };
        let seconds = header::ceil_seconds(Micros::from(wait)).max(1);
        Self::from_problem(&problem).header("retry-after", seconds.to_string())
    }

    fn bad_request(detail: &str) -> Self {
        Self::from_problem(&ProblemDetails { detail, ..ProblemDetails::new(400, "Bad Request") })
    }

    /// The response to a client without access: 403.
    pub(crate) fn forbidden(detail: &str) -> Self {
        Self::from_problem(&ProblemDetails { detail, ..ProblemDetails::new(403, "Forbidden") })
    }

    /// The response to a rejected request, with the headers of the quota that denied it.
    pub fn from_limited(limited: &Limited, fields: HeaderStyle) -> Self {
        let label = limited.label();
        let decision = label.as_ref().zip(limited.decision());
        Self::from_decisions(limited, decision, fields, &Clock::wall())
    }

    /// The response to a rejected request that several quotas checked, with the headers of all of them.
    /// `Retry-After` is the longest wait; absent if one of them will never admit the request. The clock provides the time of
    /// headers with a date.
    pub fn from_decisions<'a, T>(
        limited: &Limited,
        decisions: T,
        fields: HeaderStyle,
        wall_clock: &Clock,
    ) -> Self
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

        let mut response = Self::new(response_status(limited));
        if let Some(seconds) = retry_after {
            response.headers.push(("retry-after".into(), seconds.to_string().into()));
        }
        fields.write(decisions.clone(), wall_clock, |name, value| {
            response.headers.push((name.into(), value.to_owned().into()));
        });

        let mut violated: Vec<_> = denied().map(|(label, _)| label.name()).collect();
        if violated.is_empty() && limited.decision().is_some() {
            violated.push(limited.rule());
        }
        response.with_problem(&problem_details(limited, &violated, retry_after))
    }

    /// Sets the status. An invalid status is sent as 429.
    #[must_use]
    pub fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// Sets a header, replacing others of the same name. Control characters are removed from the value; an
    /// invalid name is ignored.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        let Ok(name) = crate::request::parse_name(name, "header") else { return self };
        let mut value = value.into();
        value.retain(|c| !c.is_control() || c == '\t');
        self.headers.retain(|(existing, _)| *existing != name);
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets a text body.
    #[must_use]
    pub fn text(self, body: impl Into<String>) -> Self {
        Self { body: body.into(), ..self.header("content-type", "text/plain; charset=utf-8") }
    }

    /// Sets a JSON body.
    #[must_use]
    pub fn json(self, body: impl Into<String>) -> Self {
        Self { body: body.into(), ..self.header("content-type", "application/json") }
    }

    /// The first value of a header, by its name in lower case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(existing, _)| existing == name).map(|(_, value)| &**value)
    }

    /// The status, or 429 if it is invalid.
    pub fn final_status(&self) -> u16 {
        match self.status {
            200..=599 => self.status,
            _ => TOO_MANY_REQUESTS,
        }
    }

    /// Adds the `instance` member to problem details; other responses are unchanged.
    pub fn set_instance(&mut self, instance: &str) {
        if self.get("content-type") == Some(PROBLEM_JSON) {
            problem::insert_instance(&mut self.body, instance);
        }
    }

    /// Sets problem details as the body of a response without one.
    fn with_problem(mut self, problem: &ProblemDetails<'_>) -> Self {
        self.headers.push(("content-type".into(), PROBLEM_JSON.into()));
        Self { body: problem.to_json(), ..self }
    }
}

/// The response with the headers of the current draft.
impl From<&Limited> for RejectionResponse {
    fn from(limited: &Limited) -> Self {
        Self::from_limited(limited, HeaderStyle::default())
    }
}

/// The response with the headers of the current draft.
impl From<Limited> for RejectionResponse {
    fn from(limited: Limited) -> Self {
        Self::from(&limited)
    }
}

/// 429 for limits that the client exceeded, 504 for a time limit, 503 for everything else.
fn response_status(limited: &Limited) -> u16 {
    match limited.cause() {
        CallError::Limited(_) => TOO_MANY_REQUESTS,
        CallError::TimeLimitExceeded(_) => GATEWAY_TIMEOUT,
        _ => SERVICE_UNAVAILABLE,
    }
}

fn problem_details<'a>(
    limited: &'a Limited,
    violated_policies: &'a [&'a str],
    retry_after: Option<u64>,
) -> ProblemDetails<'a> {
    let (problem, default_detail) = match response_status(limited) {
        TOO_MANY_REQUESTS => (ProblemDetails::quota_exceeded(), "The quota is used up."),
        GATEWAY_TIMEOUT => {
            (ProblemDetails::new(GATEWAY_TIMEOUT, "Gateway Timeout"), "The call took too long.")
        }
        // Details about the protection of the server are not disclosed to clients.
        _ => (ProblemDetails::reduced_capacity(), "The server cannot take this request now."),
    };
    ProblemDetails {
        detail: limited.message().unwrap_or(default_detail),
        violated_policies,
        retry_after,
        ..problem
    }
}
