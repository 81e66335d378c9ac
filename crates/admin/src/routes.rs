//! The routes of the admin API, and the check of every request.

use super::{
    AdminState,
    read::{ok_json, text_response},
};
use crate::dashboard;
use axum::{
    Router,
    extract::{Path, Request, State},
    middleware::{self, Next},
    response::Response,
    routing::{delete, get, post},
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use serde_json::json;
use tidegate_http_server::{ApiError, MAX_BODY_SIZE, Operator, read_body};
use tidegate_policy::model::OperatorRole;

type ApiResult = Result<Response, ApiError>;

pub(super) fn router(state: AdminState) -> Router {
    let query_route = |handler: fn(&AdminState, &Uri) -> ApiResult| {
        get(move |State(state): State<AdminState>, uri: Uri| async move { handler(&state, &uri) })
    };
    Router::new()
        .merge(dashboard::router())
        .route("/health", get(|| async { text_response("ok\n", "text/plain; charset=utf-8") }))
        .route("/reload", post(reload))
        .route("/metrics", query_route(|state, _| state.metrics()))
        .route("/api/v1/status", query_route(AdminState::status))
        .route("/api/v1/live", query_route(|state, _| state.live()))
        .route("/api/v1/series", query_route(AdminState::series))
        .route("/api/v1/top", query_route(AdminState::top))
        .route("/api/v1/denials", query_route(AdminState::denials))
        .route("/api/v1/denials/{id}", get(denial))
        .route("/api/v1/policy", query_route(|state, _| state.policy()))
        .route("/api/v1/history", query_route(AdminState::history))
        .route("/api/v1/token", get(check_token))
        .route("/api/v1/simulate", post(simulate))
        .route("/api/v1/reset", post(reset))
        .route("/api/v1/rules/{name}/mode", post(set_mode))
        .route("/api/v1/rules/{name}/settings", get(values).post(set_value))
        .route("/api/v1/rules/{name}/preview", post(preview))
        .route("/api/v1/features", query_route(|state, _| state.features()))
        .route("/api/v1/features/{name}", post(set_feature))
        .route("/api/v1/rollback", post(roll_back))
        .route("/api/v1/changes", get(changes))
        .route("/api/v1/bans", query_route(|state, _| state.bans()).post(ban))
        .route("/api/v1/bans/{id}", delete(lift_ban))
        .route("/api/v1/overrides", query_route(AdminState::overrides).put(set_override))
        .route("/api/v1/overrides/changes", get(override_changes))
        .route("/api/v1/overrides/{id}", delete(remove_override))
        .fallback(|| async {
            let problem = "not found; docs/admin-api.md lists the endpoints";
            ApiError::new(StatusCode::NOT_FOUND, problem)
        })
        .method_not_allowed_fallback(|| async {
            let problem = "method not allowed; docs/admin-api.md lists the methods";
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, problem)
        })
        .layer(middleware::from_fn_with_state(state.clone(), check_request))
        .with_state(state)
}

/// Checks host, origin and token of every request, and adds security headers to the response.
async fn check_request(State(state): State<AdminState>, request: Request, next: Next) -> Response {
    let mut response = match state.access.check_request(request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into(),
    };
    let headers = response.headers_mut();
    for (name, value) in [("x-content-type-options", "nosniff"), ("cache-control", "no-store")] {
        headers.entry(HeaderName::from_static(name)).or_insert(HeaderValue::from_static(value));
    }
    response
}

async fn reload(State(state): State<AdminState>, headers: HeaderMap) -> ApiResult {
    let operator = state.access.require_reload(&headers)?;
    Ok(state.reload(&operator).await)
}

async fn denial(State(state): State<AdminState>, Path(id): Path<String>) -> ApiResult {
    state.denial(&id)
}

/// Responds with the name and the role of the token.
async fn check_token(State(state): State<AdminState>, headers: HeaderMap) -> ApiResult {
    let operator = state.access.require(OperatorRole::Read, &headers)?;
    Ok(ok_json(&json!({ "name": &*operator.name, "role": operator.role.name() })))
}

async fn simulate(request: Request) -> ApiResult {
    AdminState::simulate(&read_body(request.into_body(), MAX_BODY_SIZE).await?)
}

async fn reset(State(state): State<AdminState>, request: Request) -> ApiResult {
    let (operator, body) = operator_body(&state, OperatorRole::Operate, request).await?;
    state.reset(&operator, &body).await
}

async fn ban(State(state): State<AdminState>, request: Request) -> ApiResult {
    let (operator, body) = operator_body(&state, OperatorRole::Operate, request).await?;
    state.ban(&operator, &body)
}

async fn set_mode(State(state): State<AdminState>, Path(rule): Path<String>, request: Request) -> ApiResult {
    let (operator, body) = operator_body(&state, OperatorRole::Operate, request).await?;
    state.set_mode(&rule, &operator, &body).await
}

async fn set_value(State(state): State<AdminState>, Path(rule): Path<String>, request: Request) -> ApiResult {
    let (operator, body) = operator_body(&state, OperatorRole::Admin, request).await?;
    state.set_value(&rule, &operator, &body).await
}

async fn preview(State(state): State<AdminState>, Path(rule): Path<String>, request: Request) -> ApiResult {
    state.preview(&rule, &read_body(request.into_body(), MAX_BODY_SIZE).await?).await
}

async fn values(State(state): State<AdminState>, Path(rule): Path<String>) -> ApiResult {
    state.values(rule).await
}

async fn set_feature(
    State(state): State<AdminState>,
    Path(name): Path<String>,
    request: Request,
) -> ApiResult {
    let (operator, body) = operator_body(&state, OperatorRole::Operate, request).await?;
    state.set_feature(&name, &operator, &body).await
}

async fn roll_back(State(state): State<AdminState>, request: Request) -> ApiResult {
    let (operator, body) = operator_body(&state, OperatorRole::Operate, request).await?;
    state.roll_back(&operator, &body).await
}

async fn changes(State(state): State<AdminState>) -> ApiResult {
    state.changes().await
}

async fn lift_ban(State(state): State<AdminState>, Path(id): Path<String>, headers: HeaderMap) -> ApiResult {
    let operator = state.access.require(OperatorRole::Operate, &headers)?;
    state.lift_ban(&operator, &id)
}

async fn set_override(State(state): State<AdminState>, request: Request) -> ApiResult {
    let (operator, body) = operator_body(&state, OperatorRole::Operate, request).await?;
    state.set_override(&operator, &body).await
}

async fn remove_override(
    State(state): State<AdminState>,
    Path(id): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> ApiResult {
    let operator = state.access.require(OperatorRole::Operate, &headers)?;
    state.remove_override(&operator, &id, &uri).await
}

async fn override_changes(State(state): State<AdminState>) -> ApiResult {
    state.override_changes().await
}

/// Reads the body of a request that changes something, with its sender; returns an error unless the sender has this role.
async fn operator_body(
    state: &AdminState,
    role: OperatorRole,
    request: Request,
) -> Result<(Operator, bytes::Bytes), ApiError> {
    let operator = state.access.require(role, request.headers())?;
    Ok((operator, read_body(request.into_body(), MAX_BODY_SIZE).await?))
}
