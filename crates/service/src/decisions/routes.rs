//! Routes of the decision API, with the checks that precede every operation.

use super::{
    ApiResponse,
    auth::{self, AuthDenyStatus, ProxyKind, TokenInAuthorization},
    body::{BodyForm, QueryBatch},
    check,
    query::{QueryOp, RuleQuery},
    reserve::{self, SettleOp},
    reset,
    response::DenyStatus,
    state::AppState,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header, request};
use http_body::Body;
use std::error;
use tidegate_http_server::{ApiError, MAX_BODY_SIZE, Operator, Query, TOKEN_HEADER, read_body, truncate};

const OPENAPI_DOCUMENT: &str = include_str!("../../openapi.json");

/// The operation, selected by the path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ApiOperation {
    Check,
    Peek,
    Reserve,
    Commit,
    Cancel,
    Acquire,
    Release,
    Reset,
}

/// Serves one request.
pub(super) async fn serve<B>(state: &AppState, request: Request<B>) -> ApiResponse
where
    B: Body<Data = Bytes, Error: Into<Box<dyn error::Error + Send + Sync>>>,
{
    let (head, body) = request.into_parts();
    let operation = match head.uri.path() {
        "/v1/check" => ApiOperation::Check,
        "/v1/peek" => ApiOperation::Peek,
        "/v1/reserve" => ApiOperation::Reserve,
        "/v1/commit" => ApiOperation::Commit,
        "/v1/cancel" => ApiOperation::Cancel,
        "/v1/acquire" => ApiOperation::Acquire,
        "/v1/release" => ApiOperation::Release,
        "/v1/reset" => ApiOperation::Reset,
        "/v1/auth" => return Box::pin(handle_auth(state, head)).await.unwrap_or_else(ApiResponse::from),
        "/v1/openapi.json" => {
            return match head.method {
                Method::GET | Method::HEAD => openapi_response(),
                _ => method_not_allowed("GET, HEAD").into(),
            };
        }
        path if path.strip_prefix(auth::ENVOY_PATH_PREFIX).is_some_and(|rest| rest.starts_with('/')) => {
            return Box::pin(handle_envoy_auth(state, head)).await.unwrap_or_else(ApiResponse::from);
        }
        _ => {
            let problem = "no such path; see /v1/openapi.json";
            return ApiError::new(StatusCode::NOT_FOUND, problem).into();
        }
    };
    match head.method {
        Method::POST => handle_post(state, &head, body, operation).await.unwrap_or_else(ApiResponse::from),
        _ => method_not_allowed("POST").into(),
    }
}

fn openapi_response() -> ApiResponse {
    let mut response = ApiResponse::new(OPENAPI_DOCUMENT.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn method_not_allowed(allowed: &'static str) -> ApiError {
    let problem = "method not allowed; see /v1/openapi.json";
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, problem)
        .with_header(header::ALLOW, HeaderValue::from_static(allowed))
}

async fn handle_post<B>(
    state: &AppState,
    head: &request::Parts,
    body: B,
    operation: ApiOperation,
) -> Result<ApiResponse, ApiError>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn error::Error + Send + Sync>>>,
{
    // Read the whole body before any error response: some clients do not read a response while they still send.
    let body = read_body(body, MAX_BODY_SIZE).await;
    // Browsers add `Origin` to cross-origin requests. Reject them, so that a web page cannot use the API (CSRF).
    if head.headers.contains_key(header::ORIGIN) {
        return Err(ApiError::new(StatusCode::FORBIDDEN, "requests from web pages are rejected"));
    }
    let caller = state.authorization().authenticate(&head.headers)?;
    let operator = match operation {
        ApiOperation::Reset => Some(require_operator(state, &head.headers)?),
        _ => None,
    };
    let known: &[&'static str] = match operation {
        ApiOperation::Check | ApiOperation::Peek | ApiOperation::Reserve | ApiOperation::Acquire => &["deny"],
        ApiOperation::Commit | ApiOperation::Cancel | ApiOperation::Release | ApiOperation::Reset => &[],
    };
    let deny = Query::parse(&head.uri, known)?.text("deny").map(parse_deny_status).transpose()?;
    let deny = deny.map_or(DenyStatus::Default, DenyStatus::Status);
    let body = body?;
    let members: &[&'static str] = match operation {
        ApiOperation::Check => &check::MEMBERS,
        ApiOperation::Peek => &RuleQuery::MEMBERS,
        ApiOperation::Reserve | ApiOperation::Acquire => &reserve::MEMBERS,
        ApiOperation::Commit => &reserve::COMMIT_MEMBERS,
        ApiOperation::Cancel => &reserve::CANCEL_MEMBERS,
        ApiOperation::Release => &reserve::RELEASE_MEMBERS,
        ApiOperation::Reset => &reset::MEMBERS,
    };
    let batch = QueryBatch::parse(&body, members)?;
    let is_charging =
        matches!(operation, ApiOperation::Check | ApiOperation::Reserve | ApiOperation::Acquire);
    if batch.form == BodyForm::AllOrNothing && !is_charging {
        return Err(ApiError::bad_request(
            "`all-or-nothing` is invalid here, since nothing is charged; remove it",
        ));
    }
    // Rare operations are boxed: their state would enlarge the future that is moved for each request.
    match operation {
        ApiOperation::Check => check::handle(state, batch, QueryOp::Check, deny).await,
        ApiOperation::Peek => check::handle(state, batch, QueryOp::Peek, deny).await,
        ApiOperation::Reserve => Box::pin(reserve::reserve(state, batch, deny, &caller)).await,
        ApiOperation::Commit => Box::pin(reserve::settle(state, batch, SettleOp::Commit, &caller)).await,
        ApiOperation::Cancel => Box::pin(reserve::settle(state, batch, SettleOp::Cancel, &caller)).await,
        ApiOperation::Acquire => Box::pin(reserve::acquire(state, batch, deny, &caller)).await,
        ApiOperation::Release => reserve::release(state, &batch, &caller),
        ApiOperation::Reset => {
            let operator = operator.unwrap_or_else(Operator::shared);
            Box::pin(reset::handle(state, batch, &operator)).await
        }
    }
}

fn require_operator(state: &AppState, headers: &HeaderMap) -> Result<Operator, ApiError> {
    state.authorization().operators.require(
        headers,
        "operator token required; send the token that the policy declares under `admin`",
        "operator token required, but the policy declares none; add one, as in \
         `admin: { token: $ADMIN_TOKEN }`",
    )
}

/// Takes no parameters, since the query string is that of the original request. Envoy passes on any status of a denial.
async fn handle_envoy_auth(state: &AppState, mut parts: request::Parts) -> Result<ApiResponse, ApiError> {
    authorize_proxy(state, &mut parts)?;
    auth::handle(state, parts, Some(ProxyKind::Envoy), AuthDenyStatus::Policy).await
}

fn authorize_proxy(state: &AppState, parts: &mut request::Parts) -> Result<(), ApiError> {
    let authorization = state.authorization();
    authorization.authenticate(&parts.headers)?;
    if authorization.requires_token() && !parts.headers.contains_key(TOKEN_HEADER) {
        parts.extensions.insert(TokenInAuthorization);
    }
    Ok(())
}

async fn handle_auth(state: &AppState, mut parts: request::Parts) -> Result<ApiResponse, ApiError> {
    if parts.method == Method::TRACE {
        let allowed = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
        let problem = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "TRACE is not allowed; use GET");
        return Err(problem.with_header(header::ALLOW, allowed));
    }
    authorize_proxy(state, &mut parts)?;
    let query = Query::parse(&parts.uri, &["deny", "proxy"])?;
    let deny = match query.text("deny") {
        None => AuthDenyStatus::Status(StatusCode::FORBIDDEN),
        Some("policy") => AuthDenyStatus::Policy,
        Some(text) => match parse_deny_status(text)? {
            status if status.is_success() => {
                return Err(ApiError::bad_request(
                    "`deny=200` would allow every request; use a status from 400 to 599, or `policy`",
                ));
            }
            status => AuthDenyStatus::Status(status),
        },
    };
    let proxy_kind = match query.text("proxy") {
        None => None,
        Some("nginx") => Some(ProxyKind::Nginx),
        Some("forwarded") => Some(ProxyKind::Forwarded),
        Some(other) => {
            let problem = format!("invalid `proxy`: `{}`; use `nginx` or `forwarded`", truncate(other));
            return Err(ApiError::bad_request(problem));
        }
    };
    auth::handle(state, parts, proxy_kind, deny).await
}

fn parse_deny_status(text: &str) -> Result<StatusCode, ApiError> {
    let status = text.parse().ok().filter(|status| matches!(status, 200 | 400..=599));
    status.and_then(|status: u16| StatusCode::from_u16(status).ok()).ok_or_else(|| {
        ApiError::bad_request(format!(
            "invalid `deny`: `{}`; use 200 or a status from 400 to 599",
            truncate(text)
        ))
    })
}
