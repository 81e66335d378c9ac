//! Which question is answered where, and what every question has to pass first.

use super::{
    Response,
    auth::{self, ByAuthorization, Dialect, RefuseAs},
    body::{Asked, Form},
    check,
    desk::Desk,
    question::{Question, Touch},
    reserve::{self, End},
    reset,
    told::DenyAs,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header, request};
use http_body::Body;
use std::error;
use tidegate_http_server::{ApiError, Caller, MAX_BODY_SIZE, Query, TOKEN_HEADER, read_body, shortened};

const OPENAPI: &str = include_str!("../../../../docs/openapi.json");

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

/// Answers a request.
pub(super) async fn serve<B>(desk: &Desk, request: Request<B>) -> Response
where
    B: Body<Data = Bytes, Error: Into<Box<dyn error::Error + Send + Sync>>>,
{
    let (head, body) = request.into_parts();
    let call = match head.uri.path() {
        "/v1/check" => Call::Check,
        "/v1/peek" => Call::Peek,
        "/v1/reserve" => Call::Reserve,
        "/v1/commit" => Call::Commit,
        "/v1/cancel" => Call::Cancel,
        "/v1/acquire" => Call::Acquire,
        "/v1/release" => Call::Release,
        "/v1/reset" => Call::Reset,
        "/v1/auth" => return Box::pin(judge(desk, head)).await.unwrap_or_else(Response::from),
        "/v1/openapi.json" => {
            return match head.method {
                Method::GET | Method::HEAD => openapi(),
                _ => another_method("GET, HEAD").into(),
            };
        }
        path if path.strip_prefix(auth::ENVOY).is_some_and(|rest| rest.starts_with('/')) => {
            return Box::pin(judge_for_envoy(desk, head)).await.unwrap_or_else(Response::from);
        }
        _ => {
            let problem = "there is nothing here; /v1/openapi.json tells what there is";
            return ApiError::new(StatusCode::NOT_FOUND, problem).into();
        }
    };
    match head.method {
        Method::POST => answer(desk, &head, body, call).await.unwrap_or_else(Response::from),
        _ => another_method("POST").into(),
    }
}

fn openapi() -> Response {
    let mut response = Response::new(OPENAPI.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn another_method(allowed: &'static str) -> ApiError {
    let problem = "this is asked with another method; /v1/openapi.json tells which";
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, problem)
        .with(header::ALLOW, HeaderValue::from_static(allowed))
}

async fn answer<B>(desk: &Desk, head: &request::Parts, body: B, call: Call) -> Result<Response, ApiError>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn error::Error + Send + Sync>>>,
{
    // All of it, whatever the answer: some clients do not hear one that comes while they speak.
    let body = read_body(body, MAX_BODY_SIZE).await;
    // A page in a browser may send a request here, but none from its own place without saying so.
    if head.headers.contains_key(header::ORIGIN) {
        return Err(ApiError::new(StatusCode::FORBIDDEN, "requests from web pages are not taken"));
    }
    let caller = permit_call(desk, &head.headers, call)?;
    let known: &[&'static str] = match call {
        Call::Check | Call::Peek | Call::Reserve | Call::Acquire => &["deny"],
        Call::Commit | Call::Cancel | Call::Release | Call::Reset => &[],
    };
    let deny = Query::parse(&head.uri, known)?.text("deny").map(deny_status).transpose()?;
    let deny = deny.map_or(DenyAs::Usual, DenyAs::Status);
    let body = body?;
    let members: &[&'static str] = match call {
        Call::Check => &check::MEMBERS,
        Call::Peek => &Question::MEMBERS,
        Call::Reserve | Call::Acquire => &reserve::MEMBERS,
        Call::Commit => &reserve::COMMIT,
        Call::Cancel => &reserve::CANCEL,
        Call::Release => &reserve::RELEASE,
        Call::Reset => &reset::MEMBERS,
    };
    let asked = Asked::read(&body, members)?;
    let charges = matches!(call, Call::Check | Call::Reserve | Call::Acquire);
    if asked.form == Form::Together && !charges {
        return Err(ApiError::bad("nothing is charged here; leave `all-or-nothing` out"));
    }
    // What is rare is boxed: all that an answer may need is moved for each request.
    match call {
        Call::Check => check::answer(desk, asked, Touch::Take, deny).await,
        Call::Peek => check::answer(desk, asked, Touch::Look, deny).await,
        Call::Reserve => Box::pin(reserve::reserve(desk, asked, deny, &caller)).await,
        Call::Commit => Box::pin(reserve::settle(desk, asked, End::Commit, &caller)).await,
        Call::Cancel => Box::pin(reserve::settle(desk, asked, End::Cancel, &caller)).await,
        Call::Acquire => Box::pin(reserve::acquire(desk, asked, deny, &caller)).await,
        Call::Release => reserve::release(desk, &asked, &caller),
        Call::Reset => Box::pin(reset::answer(desk, asked)).await,
    }
}

fn permit_call(desk: &Desk, headers: &HeaderMap, call: Call) -> Result<Caller, ApiError> {
    let authorization = desk.authorization();
    let caller = authorization.caller(headers)?;
    if call == Call::Reset {
        authorization.operators.require(
            headers,
            "this is for operators; send the token that the policy declares under `admin`",
            "this is for operators, and the policy has no token for them; declare one, as in \
             `admin: { token: $ADMIN_TOKEN }`",
        )?;
    }
    Ok(caller)
}

/// The query is that of the request, so there are no parameters: Envoy passes on whatever status a refusal has.
async fn judge_for_envoy(desk: &Desk, mut parts: request::Parts) -> Result<Response, ApiError> {
    admit_proxy(desk, &mut parts)?;
    auth::answer(desk, parts, Some(Dialect::Envoy), RefuseAs::Policy).await
}

fn admit_proxy(desk: &Desk, parts: &mut request::Parts) -> Result<(), ApiError> {
    let authorization = desk.authorization();
    authorization.caller(&parts.headers)?;
    if authorization.requires_token() && !parts.headers.contains_key(TOKEN_HEADER) {
        parts.extensions.insert(ByAuthorization);
    }
    Ok(())
}

async fn judge(desk: &Desk, mut parts: request::Parts) -> Result<Response, ApiError> {
    if parts.method == Method::TRACE {
        let allowed = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
        let problem =
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "nobody's request is traced here; ask with GET");
        return Err(problem.with(header::ALLOW, allowed));
    }
    admit_proxy(desk, &mut parts)?;
    let query = Query::parse(&parts.uri, &["deny", "proxy"])?;
    let refuse = match query.text("deny") {
        None => RefuseAs::Status(StatusCode::FORBIDDEN),
        Some("policy") => RefuseAs::Policy,
        Some(text) => match deny_status(text)? {
            status if status.is_success() => {
                return Err(ApiError::bad(
                    "`deny` would let everything through; use a status from 400 to 599, or `policy`",
                ));
            }
            status => RefuseAs::Status(status),
        },
    };
    let dialect = match query.text("proxy") {
        None => None,
        Some("nginx") => Some(Dialect::Nginx),
        Some("forwarded") => Some(Dialect::Forwarded),
        Some(other) => {
            let problem = format!("`proxy` is `{}`; use `nginx` or `forwarded`", shortened(other));
            return Err(ApiError::bad(problem));
        }
    };
    auth::answer(desk, parts, dialect, refuse).await
}

fn deny_status(text: &str) -> Result<StatusCode, ApiError> {
    let status = text.parse().ok().filter(|status| matches!(status, 200 | 400..=599));
    status.and_then(|status: u16| StatusCode::from_u16(status).ok()).ok_or_else(|| {
        ApiError::bad(format!("`deny` is `{}`; use a status, 200 or from 400 to 599", shortened(text)))
    })
}
