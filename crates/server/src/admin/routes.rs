//! Which question is answered where, and what every question has to pass first.

use super::{Office, read::text};
use crate::{
    api_error::ApiError,
    dashboard,
    read_body::{MAX_BODY_SIZE, read_body},
};
use axum::{
    Router,
    extract::{Path, Request, State},
    middleware::{self, Next},
    response::Response,
    routing::{delete, get, post},
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};

/// A question that is answered at once.
type Answer = Result<Response, ApiError>;

pub(super) fn router(office: Office) -> Router {
    let ask = |answer: fn(&Office, &Uri) -> Answer| {
        get(move |State(office): State<Office>, uri: Uri| async move { told(answer(&office, &uri)) })
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
            told(Err(ApiError::new(StatusCode::NOT_FOUND, problem)))
        })
        .method_not_allowed_fallback(|| async {
            let problem = "this is asked with another method; docs/admin-api.md tells which";
            told(Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, problem)))
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

async fn reload(State(office): State<Office>, headers: HeaderMap) -> Response {
    match office.access.reader(&headers) {
        Ok(()) => office.reload().await,
        Err(problem) => problem.into(),
    }
}

async fn denial(State(office): State<Office>, Path(id): Path<String>) -> Response {
    told(office.denial(&id))
}

/// Whether a token is right.
async fn token(State(office): State<Office>, headers: HeaderMap) -> Response {
    told(office.access.operator(&headers).map(|()| {
        let mut response = Response::default();
        *response.status_mut() = StatusCode::NO_CONTENT;
        response
    }))
}

async fn simulate(request: Request) -> Response {
    told(read_body(request.into_body(), MAX_BODY_SIZE).await.and_then(|body| Office::simulate(&body)))
}

async fn reset(State(office): State<Office>, request: Request) -> Response {
    told(match changing(&office, request).await {
        Ok(body) => office.reset(&body).await,
        Err(problem) => Err(problem),
    })
}

async fn ban(State(office): State<Office>, request: Request) -> Response {
    told(changing(&office, request).await.and_then(|body| office.ban(&body)))
}

async fn mode(State(office): State<Office>, Path(rule): Path<String>, request: Request) -> Response {
    told(match changing(&office, request).await {
        Ok(body) => office.mode(&rule, &body).await,
        Err(problem) => Err(problem),
    })
}

async fn roll_back(State(office): State<Office>, request: Request) -> Response {
    told(match changing(&office, request).await {
        Ok(body) => office.roll_back(&body).await,
        Err(problem) => Err(problem),
    })
}

async fn changes(State(office): State<Office>) -> Response {
    told(office.changes().await)
}

async fn lift(State(office): State<Office>, Path(id): Path<String>, headers: HeaderMap) -> Response {
    told(office.access.operator(&headers).and_then(|()| office.lift(&id)))
}

/// The body of a request that changes something, from one who may.
async fn changing(office: &Office, request: Request) -> Result<bytes::Bytes, ApiError> {
    office.access.operator(request.headers())?;
    read_body(request.into_body(), MAX_BODY_SIZE).await
}

fn told(answer: Answer) -> Response {
    answer.unwrap_or_else(Response::from)
}
