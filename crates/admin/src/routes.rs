//! Which question is answered where, and what every question has to pass first.

use super::{AdminState, read::text_response};
use crate::dashboard;
use axum::{
    Router,
    extract::{Path, Request, State},
    middleware::{self, Next},
    response::Response,
    routing::{delete, get, post},
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use tidegate_http_server::{ApiError, MAX_BODY_SIZE, read_body};

type ApiResult = Result<Response, ApiError>;

pub(super) fn router(office: AdminState) -> Router {
    let ask = |answer: fn(&AdminState, &Uri) -> ApiResult| {
        get(move |State(office): State<AdminState>, uri: Uri| async move { answer(&office, &uri) })
    };
    Router::new()
        .merge(dashboard::router())
        .route("/health", get(|| async { text_response("ok\n", "text/plain; charset=utf-8") }))
        .route("/reload", post(reload))
        .route("/metrics", ask(|office, _| office.metrics()))
        .route("/api/v1/status", ask(AdminState::status))
        .route("/api/v1/live", ask(|office, _| office.live()))
        .route("/api/v1/top", ask(AdminState::top))
        .route("/api/v1/denials", ask(AdminState::denials))
        .route("/api/v1/denials/{id}", get(denial))
        .route("/api/v1/policy", ask(|office, _| office.policy()))
        .route("/api/v1/history", ask(AdminState::history))
        .route("/api/v1/token", get(check_token))
        .route("/api/v1/simulate", post(simulate))
        .route("/api/v1/reset", post(reset))
        .route("/api/v1/rules/{name}/mode", post(set_mode))
        .route("/api/v1/rollback", post(roll_back))
        .route("/api/v1/changes", get(changes))
        .route("/api/v1/bans", ask(|office, _| office.bans()).post(ban))
        .route("/api/v1/bans/{id}", delete(lift_ban))
        .fallback(|| async {
            let problem = "there is nothing here; docs/admin-api.md tells what there is";
            ApiError::new(StatusCode::NOT_FOUND, problem)
        })
        .method_not_allowed_fallback(|| async {
            let problem = "this is asked with another method; docs/admin-api.md tells which";
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, problem)
        })
        .layer(middleware::from_fn_with_state(office.clone(), check_request))
        .with_state(office)
}

/// What every question has to pass.
async fn check_request(State(office): State<AdminState>, request: Request, next: Next) -> Response {
    let mut response = match office.access.check_request(request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into(),
    };
    let headers = response.headers_mut();
    for (name, value) in [("x-content-type-options", "nosniff"), ("cache-control", "no-store")] {
        headers.entry(HeaderName::from_static(name)).or_insert(HeaderValue::from_static(value));
    }
    response
}

async fn reload(State(office): State<AdminState>, headers: HeaderMap) -> ApiResult {
    office.access.require_reader(&headers)?;
    Ok(office.reload().await)
}

async fn denial(State(office): State<AdminState>, Path(id): Path<String>) -> ApiResult {
    office.denial(&id)
}

/// Checks a token.
async fn check_token(State(office): State<AdminState>, headers: HeaderMap) -> Result<StatusCode, ApiError> {
    office.access.require_operator(&headers)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn simulate(request: Request) -> ApiResult {
    AdminState::simulate(&read_body(request.into_body(), MAX_BODY_SIZE).await?)
}

async fn reset(State(office): State<AdminState>, request: Request) -> ApiResult {
    office.reset(&operator_body(&office, request).await?).await
}

async fn ban(State(office): State<AdminState>, request: Request) -> ApiResult {
    office.ban(&operator_body(&office, request).await?)
}

async fn set_mode(State(office): State<AdminState>, Path(rule): Path<String>, request: Request) -> ApiResult {
    office.set_mode(&rule, &operator_body(&office, request).await?).await
}

async fn roll_back(State(office): State<AdminState>, request: Request) -> ApiResult {
    office.roll_back(&operator_body(&office, request).await?).await
}

async fn changes(State(office): State<AdminState>) -> ApiResult {
    office.changes().await
}

async fn lift_ban(State(office): State<AdminState>, Path(id): Path<String>, headers: HeaderMap) -> ApiResult {
    office.access.require_operator(&headers)?;
    office.lift_ban(&id)
}

/// The body of a request that changes something; an error unless an operator sent it.
async fn operator_body(office: &AdminState, request: Request) -> Result<bytes::Bytes, ApiError> {
    office.access.require_operator(request.headers())?;
    read_body(request.into_body(), MAX_BODY_SIZE).await
}
