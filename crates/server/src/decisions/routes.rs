//! Which question is answered where, and what every question has to pass first.

use super::{
    auth::{self, ByAuthorization, Dialect, RefuseAs},
    body::Asked,
    check::{self, Touch},
    desk::Desk,
    openapi, permit,
    problem::{Problem, shortened},
    question::Question,
    reserve::{self, End},
    reset,
    tokens::TOKEN,
    told::DenyAs,
};
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    response::Response,
    routing::{any, get, post},
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use std::{sync::Arc, time::Duration};
use tidegate_core::spelling;
use tokio::time::timeout;

/// What is asked, by its path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Check,
    Peek,
    Reserve,
    Commit,
    Cancel,
    Acquire,
    Release,
    Reset,
}

/// Bytes of a body.
const LARGEST: usize = 1_000_000;
/// How long a body may take to come.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn router(desk: Arc<Desk>) -> Router {
    let asked = |call: Call| {
        post(move |State(desk): State<Arc<Desk>>, request: Request| async move {
            answer(&desk, request, call).await.unwrap_or_else(Response::from)
        })
    };
    Router::new()
        .route("/v1/check", asked(Call::Check))
        .route("/v1/peek", asked(Call::Peek))
        .route("/v1/reserve", asked(Call::Reserve))
        .route("/v1/commit", asked(Call::Commit))
        .route("/v1/cancel", asked(Call::Cancel))
        .route("/v1/acquire", asked(Call::Acquire))
        .route("/v1/release", asked(Call::Release))
        .route("/v1/reset", asked(Call::Reset))
        .route(
            "/v1/auth",
            any(|State(desk): State<Arc<Desk>>, request: Request| async move {
                judge(&desk, request).await.unwrap_or_else(Response::from)
            }),
        )
        .route("/v1/openapi.json", get(|| async { openapi::answer() }))
        .fallback(|| async {
            let problem = "there is nothing here; /v1/openapi.json tells what there is";
            Response::from(Problem::new(StatusCode::NOT_FOUND, problem))
        })
        .method_not_allowed_fallback(|| async {
            let problem = "this is asked with another method; /v1/openapi.json tells which";
            Response::from(Problem::new(StatusCode::METHOD_NOT_ALLOWED, problem))
        })
        .with_state(desk)
}

async fn answer(desk: &Desk, request: Request, call: Call) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    // A page in a browser may send a request here, but none from its own place without saying so.
    if parts.headers.contains_key(header::ORIGIN) {
        return Err(Problem::new(StatusCode::FORBIDDEN, "requests from web pages are not taken"));
    }
    permit_call(desk, &parts.headers, call)?;
    let deny = parameter(&parts.uri, "deny", &["deny"])?.map(|text| deny_status(&text)).transpose()?;
    let deny = deny.map_or(DenyAs::Usual, DenyAs::Status);
    let body = whole(body).await?;
    let members: &[&'static str] = match call {
        Call::Check | Call::Peek => &Question::MEMBERS,
        Call::Reserve | Call::Acquire => &reserve::MEMBERS,
        Call::Commit => &reserve::COMMIT,
        Call::Cancel => &reserve::CANCEL,
        Call::Release => &permit::RELEASE,
        Call::Reset => &reset::MEMBERS,
    };
    let asked = Asked::read(&body, members)?;
    match call {
        Call::Check => check::answer(desk, asked, Touch::Take, deny).await,
        Call::Peek => check::answer(desk, asked, Touch::Look, deny).await,
        Call::Reserve => reserve::answer(desk, asked, deny).await,
        Call::Commit => reserve::settle(desk, asked, End::Commit).await,
        Call::Cancel => reserve::settle(desk, asked, End::Cancel).await,
        Call::Acquire => permit::answer(desk, asked, deny).await,
        Call::Release => permit::release(desk, &asked),
        Call::Reset => reset::answer(desk, asked).await,
    }
}

fn permit_call(desk: &Desk, headers: &HeaderMap, call: Call) -> Result<(), Problem> {
    let tokens = desk.tokens();
    let caller = tokens.caller(headers)?;
    match call {
        Call::Reset => tokens.operator(caller, headers),
        _ => Ok(()),
    }
}

async fn judge(desk: &Desk, request: Request) -> Result<Response, Problem> {
    let (mut parts, _) = request.into_parts();
    desk.tokens().caller(&parts.headers)?;
    if desk.tokens().are_needed() && !parts.headers.contains_key(TOKEN) {
        parts.extensions.insert(ByAuthorization);
    }
    let known = ["deny", "proxy"];
    let refuse = match parameter(&parts.uri, "deny", &known)?.as_deref() {
        None => RefuseAs::Status(StatusCode::FORBIDDEN),
        Some("policy") => RefuseAs::Policy,
        Some(text) => match deny_status(text)? {
            status if status.is_success() => {
                return Err(Problem::bad(
                    "`deny` would let everything through; use a status from 400 to 599, or `policy`",
                ));
            }
            status => RefuseAs::Status(status),
        },
    };
    let dialect = match parameter(&parts.uri, "proxy", &known)?.as_deref() {
        None => None,
        Some("nginx") => Some(Dialect::Nginx),
        Some("forwarded") => Some(Dialect::Forwarded),
        Some(other) => {
            let problem = format!("`proxy` is `{}`; use `nginx` or `forwarded`", shortened(other));
            return Err(Problem::bad(problem));
        }
    };
    auth::answer(desk, parts, dialect, refuse).await
}

/// A parameter of the address, which may have these and no others.
fn parameter(uri: &Uri, name: &str, known: &[&'static str]) -> Result<Option<String>, Problem> {
    let mut found = None;
    for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if !known.contains(&key) {
            let fix = match spelling::meant(key, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("use one of `{}`", known.join("`, `")),
            };
            return Err(Problem::bad(format!("unknown parameter `{}`; {fix}", shortened(key))));
        }
        if key == name {
            found = Some(value.to_owned());
        }
    }
    Ok(found)
}

fn deny_status(text: &str) -> Result<StatusCode, Problem> {
    let status = text.parse().ok().filter(|status| matches!(status, 200 | 400..=599));
    status.and_then(|status: u16| StatusCode::from_u16(status).ok()).ok_or_else(|| {
        Problem::bad(format!("`deny` is `{}`; use a status, 200 or from 400 to 599", shortened(text)))
    })
}

/// All of a body, if it is not too much and does not take too long.
pub(crate) async fn whole(body: Body) -> Result<Bytes, Problem> {
    let body = timeout(PATIENCE, Limited::new(body, LARGEST).collect()).await;
    let late =
        |_| Problem::new(StatusCode::REQUEST_TIMEOUT, "the body took too long to come; send it at once");
    match body.map_err(late)? {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let problem = format!("the body is too large; send {LARGEST} bytes at most");
            Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, problem))
        }
        Err(_) => Err(Problem::bad("the body broke off; send all of it")),
    }
}
