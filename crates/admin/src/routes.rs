//! Which question is answered where, and what every question has to pass first.

use super::{Office, read::text};
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

type Answer = Result<Response, ApiError>;

pub(super) fn router(office: Office) -> Router {
    let ask = |answer: fn(&Office, &Uri) -> Answer| {
        get(move |State(office): State<Office>, uri: Uri| async move { answer(&office, &uri) })
    };
    Router::new()
        .merge(dashboard::router())
        .route("/health", get(|| async { text("ok\n", "text/plain; charset=utf-8") }))
        .route("/reload", post(reload))
        .route("/metrics", ask(|office, _| office.metrics()))
        .route("/api/v1/status", ask(Office::status))
        .route("/api/v1/live", ask(|office, _| office.live()))
        .route("/api/v1/top", ask(Office::top))
        .route("/api/v1/denials", ask(Office::denials))
        .route("/api/v1/denials/{id}", get(denial))
        .route("/api/v1/policy", ask(|office, _| office.policy()))
        .route("/api/v1/history", ask(Office::history))
        .route("/api/v1/token", get(token))
        .route("/api/v1/simulate", post(simulate))
        .route("/api/v1/reset", post(reset))
        .route("/api/v1/rules/{name}/mode", post(mode))
        .route("/api/v1/rollback", post(roll_back))
        .route("/api/v1/changes", get(changes))
        .route("/api/v1/bans", ask(|office, _| office.bans()).post(ban))
        .route("/api/v1/bans/{id}", delete(lift))
        .fallback(|| async {
            let problem = "there is nothing here; docs/admin-api.md tells what there is";
            ApiError::new(StatusCode::NOT_FOUND, problem)
        })
        .method_not_allowed_fallback(|| async {
            let problem = "this is asked with another method; docs/admin-api.md tells which";
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, problem)
        })
        .layer(middleware::from_fn_with_state(office.clone(), admit))
        .with_state(office)
}

/// What every question has to pass.
async fn admit(State(office): State<Office>, request: Request, next: Next) -> Response {
    let mut response = match office.access.admit(request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into(),
    };
    let headers = response.headers_mut();
    for (name, value) in [("x-content-type-options", "nosniff"), ("cache-control", "no-store")] {
        headers.entry(HeaderName::from_static(name)).or_insert(HeaderValue::from_static(value));
    }
    response
}

async fn reload(State(office): State<Office>, headers: HeaderMap) -> Answer {
    office.access.reader(&headers)?;
    Ok(office.reload().await)
}

async fn denial(State(office): State<Office>, Path(id): Path<String>) -> Answer {
    office.denial(&id)
}

/// Checks a token.
async fn token(State(office): State<Office>, headers: HeaderMap) -> Result<StatusCode, ApiError> {
    office.access.operator(&headers)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn simulate(request: Request) -> Answer {
    Office::simulate(&read_body(request.into_body(), MAX_BODY_SIZE).await?)
}

async fn reset(State(office): State<Office>, request: Request) -> Answer {
    office.reset(&operator_body(&office, request).await?).await
}

async fn ban(State(office): State<Office>, request: Request) -> Answer {
    office.ban(&operator_body(&office, request).await?)
}

async fn mode(State(office): State<Office>, Path(rule): Path<String>, request: Request) -> Answer {
    office.mode(&rule, &operator_body(&office, request).await?).await
}

async fn roll_back(State(office): State<Office>, request: Request) -> Answer {
    office.roll_back(&operator_body(&office, request).await?).await
}

async fn changes(State(office): State<Office>) -> Answer {
    office.changes().await
}

async fn lift(State(office): State<Office>, Path(id): Path<String>, headers: HeaderMap) -> Answer {
    office.access.operator(&headers)?;
    office.lift(&id)
}

/// The body of a request that changes something; an error unless an operator sent it.
async fn operator_body(office: &Office, request: Request) -> Result<bytes::Bytes, ApiError> {
    office.access.operator(request.headers())?;
    read_body(request.into_body(), MAX_BODY_SIZE).await
}
