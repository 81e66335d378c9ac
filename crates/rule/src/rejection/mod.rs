//! Responses to rejected requests, independent of frameworks.

mod header_style;
mod problem;
mod template;

pub use header_style::HeaderStyle;
pub(crate) use header_style::{MAX_GROUPS, is_more_restrictive};
pub use problem::{ProblemDetails, ProblemMember};
pub(crate) use template::MAX_TEMPLATE_QUOTAS;
pub use template::{Hole, NumberForm, RejectionNumbers, RejectionTemplate, SharedRejection};

use crate::{Limited, middleware::AccessDenied};
use std::{borrow::Cow, time::Duration};
use tidegate_access::AccessDecision;
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
        Self::new(problem.status).with_problem(problem, NumberForm::Digits)
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
    pub fn invalid_credentials(wait: Duration, form: NumberForm) -> Self {
        let detail = "This address sent too many invalid credentials.";
        let problem =
            ProblemDetails { detail, ..ProblemDetails::new(TOO_MANY_REQUESTS, "Too Many Requests") };
        let seconds = header::ceil_seconds(Micros::from(wait));
        Self::from_problem(&problem).header("retry-after", form.text(Hole::RETRY_AFTER, seconds))
    }

    fn bad_request(detail: &str) -> Self {
        Self::from_problem(&ProblemDetails { detail, ..ProblemDetails::new(400, "Bad Request") })
    }

    fn forbidden(detail: &str) -> Self {
        Self::from_problem(&ProblemDetails { detail, ..ProblemDetails::new(403, "Forbidden") })
    }

    /// The response to a client without access: 403, with `Retry-After` for a ban.
    pub fn access_denied(decision: AccessDecision, form: NumberForm) -> Self {
        let detail = AccessDenied { decision }.reason();
        let response = Self::forbidden(detail);
        match decision {
            AccessDecision::Banned(wait) => {
                response.header("retry-after", form.text(Hole::RETRY_AFTER, header::ceil_seconds(wait)))
            }
            _ => response,
        }
    }

    /// The response to a rejected request, with the headers of the quota that denied it.
    pub fn from_limited(limited: &Limited, fields: HeaderStyle) -> Self {
        Self::from_limited_in(NumberForm::Digits, limited, fields)
    }

    /// The same, with this form of the numbers.
    pub fn from_limited_in(form: NumberForm, limited: &Limited, fields: HeaderStyle) -> Self {
        let label = limited.label();
        let decision = label.as_ref().zip(limited.decision());
        Self::from_decisions_in(form, limited, decision, fields, &Clock::wall())
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
        Self::from_decisions_in(NumberForm::Digits, limited, decisions, fields, wall_clock)
    }

    /// The same, with this form of the numbers.
    pub(crate) fn from_decisions_in<'a, T>(
        form: NumberForm,
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
        let mut retry_after = RetrySeconds::default();
        denied().for_each(|(_, decision)| retry_after.add(decision));
        let retry_after = retry_after.finish(limited.retry_after());

        let mut response = Self::new(response_status(limited));
        if let Some(seconds) = retry_after {
            let text = form.text(Hole::RETRY_AFTER, seconds);
            response.headers.push(("retry-after".into(), text.into()));
        }
        fields.write_in(form, decisions.clone(), wall_clock, |name, value| {
            response.headers.push((name.into(), value.to_owned().into()));
        });

        let mut violated: Vec<_> = denied().map(|(label, _)| label.name()).collect();
        if violated.is_empty() && limited.decision().is_some() {
            violated.push(limited.rule());
        }
        response.with_problem(&problem_details(limited, &violated, retry_after), form)
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

    /// Whether the body is problem details.
    pub fn is_problem(&self) -> bool {
        self.get("content-type") == Some(PROBLEM_JSON)
    }

    /// Adds the `instance` member to problem details; other responses are unchanged.
    pub fn set_instance(&mut self, instance: &str) {
        if self.is_problem() {
            problem::insert_instance(&mut self.body, instance);
        }
    }

    /// Sets problem details as the body of a response without one.
    fn with_problem(mut self, problem: &ProblemDetails<'_>, form: NumberForm) -> Self {
        self.headers.push(("content-type".into(), PROBLEM_JSON.into()));
        Self { body: problem.json_in(form), ..self }
    }
}

/// The seconds of `Retry-After`: the longest wait of all denials.
#[derive(Clone, Copy, Default)]
pub(crate) struct RetrySeconds {
    longest: Option<u64>,
    /// Whether a quota never admits the request.
    is_hopeless: bool,
}

impl RetrySeconds {
    /// Adds the decision of a quota that denies the request.
    pub(crate) fn add(&mut self, denial: &Decision) {
        self.longest = self.longest.max(header::retry_after(denial));
        self.is_hopeless |= matches!(denial.outcome(), Outcome::Deny(Retry::Never));
    }

    /// The seconds, with the wait of the cause.
    pub(crate) fn finish(self, wait: Option<Duration>) -> Option<u64> {
        let wait = wait.map(|wait| header::ceil_seconds(Micros::from(wait)));
        self.longest.max(wait).filter(|_| !self.is_hopeless)
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
