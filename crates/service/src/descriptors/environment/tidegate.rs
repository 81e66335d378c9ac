//! Settings that envoyproxy/ratelimit does not have: `TIDEGATE_*`.

use super::{EnvironmentError, variables::Variables};
use crate::descriptors::{CountingMode, HeaderNames, ResponseBodyMode, ResponseHeaderMode};
use std::{fmt, time::Duration};
use tidegate_limiter::FailureMode;
use tidegate_policy::model::Tls;

/// Settings that envoyproxy/ratelimit does not have.
#[derive(Clone, Debug, PartialEq)]
pub struct TidegateSettings {
    /// `TIDEGATE_COUNTING`
    pub counting: CountingChoice,
    /// `TIDEGATE_OUTAGE`: `closed`, `open`, or `local` with the number of processes that share a limit, as in `local 3`.
    pub outage: FailureMode,
    /// `TIDEGATE_DEADLINE`: the deadline of a decision; replaces `REDIS_TIMEOUT`.
    pub deadline: Option<Duration>,
    /// `TIDEGATE_LEASE`: how long the process may keep prefetched tokens; without it, tokens are not prefetched.
    pub lease: Option<Duration>,
    /// `TIDEGATE_HEADERS`: the response headers, instead of those of envoyproxy/ratelimit.
    pub headers: Option<ResponseHeaderMode>,
    /// `TIDEGATE_BODY`: the body of a denial.
    pub body: ResponseBodyMode,
    /// `TIDEGATE_ADMIN_TOKEN`: the token of operators.
    pub admin_token: Option<ApiToken>,
    /// `TIDEGATE_TOKENS`: the tokens of clients, separated by spaces; without them, every client may send requests.
    pub tokens: Vec<ApiToken>,
    /// `TIDEGATE_HTTP_TLS_CERT`, `TIDEGATE_HTTP_TLS_KEY` and `TIDEGATE_HTTP_TLS_CLIENT_CACERT`: TLS of the HTTP listeners
    /// (not of gRPC).
    pub http_tls: Option<Tls>,
}

/// How hits are counted, and the format of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountingChoice {
    /// `envoy`: counts as envoyproxy/ratelimit does, with Tidegate keys.
    Reference,
    /// `atomic`: counts all descriptors of a request, or none.
    Atomic,
    /// `shared`: counts as envoyproxy/ratelimit does, with its keys, so both share their counters.
    Shared,
}

impl CountingChoice {
    /// The counting mode.
    pub fn mode(self) -> CountingMode {
        match self {
            Self::Reference | Self::Shared => CountingMode::Reference,
            Self::Atomic => CountingMode::Atomic,
        }
    }
}

/// A token of the API. `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiToken(pub(crate) String);

pub(super) fn settings(variables: &Variables) -> Result<TidegateSettings, EnvironmentError> {
    Ok(TidegateSettings {
        counting: match variables.choice("TIDEGATE_COUNTING", &["envoy", "atomic", "shared"])? {
            "atomic" => CountingChoice::Atomic,
            "shared" => CountingChoice::Shared,
            _ => CountingChoice::Reference,
        },
        outage: parse_outage(variables)?,
        deadline: parse_deadline(variables)?,
        lease: parse_lease(variables)?,
        headers: match variables.choice("TIDEGATE_HEADERS", &["envoy", "ratelimit", "x-ratelimit", "ietf"])? {
            "ratelimit" => Some(ResponseHeaderMode::Custom(HeaderNames::rate_limit())),
            "x-ratelimit" => Some(ResponseHeaderMode::Custom(HeaderNames::x_rate_limit())),
            "ietf" => Some(ResponseHeaderMode::Ietf),
            _ => None,
        },
        body: match variables.choice("TIDEGATE_BODY", &["none", "problem"])? {
            "problem" => ResponseBodyMode::Problem,
            _ => ResponseBodyMode::None,
        },
        admin_token: variables.text("TIDEGATE_ADMIN_TOKEN").map(ApiToken),
        tokens: parse_tokens(variables)?,
        http_tls: parse_http_tls(variables)?,
    })
}

fn parse_tokens(variables: &Variables) -> Result<Vec<ApiToken>, EnvironmentError> {
    const NAME: &str = "TIDEGATE_TOKENS";
    let Some(text) = variables.get(NAME) else { return Ok(Vec::new()) };
    let tokens: Vec<_> = text.split_whitespace().map(|token| ApiToken(token.to_owned())).collect();
    // Blank tokens must not disable authentication.
    if tokens.is_empty() {
        Err(variables.secret_error(NAME, "one token, or several separated by spaces"))
    } else {
        Ok(tokens)
    }
}

fn parse_http_tls(variables: &Variables) -> Result<Option<Tls>, EnvironmentError> {
    const NAMES: [&str; 3] =
        ["TIDEGATE_HTTP_TLS_CERT", "TIDEGATE_HTTP_TLS_KEY", "TIDEGATE_HTTP_TLS_CLIENT_CACERT"];
    let [certificate, key, client_ca] = NAMES.map(|name| variables.path(name));
    match (certificate, key, client_ca) {
        (None, None, None) => Ok(None),
        (Some(certificate), Some(key), client_ca) => Ok(Some(Tls { certificate, key, client_ca })),
        (None, ..) => {
            Err(variables.error(NAMES[0], "the path of a certificate, which the other TLS variables require"))
        }
        (_, None, _) => Err(variables.error(NAMES[1], "the path of the key of TIDEGATE_HTTP_TLS_CERT")),
    }
}

fn parse_outage(variables: &Variables) -> Result<FailureMode, EnvironmentError> {
    const NAME: &str = "TIDEGATE_OUTAGE";
    let error = || variables.error(NAME, "closed, open, or local and a number of processes, such as local 3");
    let mut args = variables.get(NAME).unwrap_or("closed").split_whitespace();
    let outage = match (args.next(), args.next()) {
        (Some("closed"), None) => FailureMode::Closed,
        (Some("open"), None) => FailureMode::Open,
        (Some("local"), None) => FailureMode::Local { nodes: 1 },
        (Some("local"), Some(nodes)) => match nodes.parse() {
            Ok(nodes @ 1..) => FailureMode::Local { nodes },
            _ => return Err(error()),
        },
        _ => return Err(error()),
    };
    if args.next().is_some() { Err(error()) } else { Ok(outage) }
}

fn parse_deadline(variables: &Variables) -> Result<Option<Duration>, EnvironmentError> {
    const NAME: &str = "TIDEGATE_DEADLINE";
    let time = variables.duration(NAME, Duration::ZERO)?;
    match time {
        Duration::ZERO => Ok(None),
        time if (Duration::from_millis(1)..=Duration::from_secs(60)).contains(&time) => Ok(Some(time)),
        _ => Err(variables.error(NAME, "a duration from 1ms to 60s, such as 100ms")),
    }
}

fn parse_lease(variables: &Variables) -> Result<Option<Duration>, EnvironmentError> {
    const NAME: &str = "TIDEGATE_LEASE";
    let time = variables.duration(NAME, Duration::ZERO)?;
    match time {
        Duration::ZERO => Ok(None),
        time if (Duration::from_millis(2)..=Duration::from_secs(60)).contains(&time) => Ok(Some(time)),
        _ => Err(variables.error(NAME, "a duration from 2ms to 1m, such as 200ms")),
    }
}

impl fmt::Debug for ApiToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiToken(…)")
    }
}
