//! `/v1/descriptors/…`: what Envoy's protocol has no words for, as JSON over HTTP.
//!
//! | path | asked with | answered with |
//! |---|---|---|
//! | `peek` | what `/json` takes | what `/json` says, with nothing counted |
//! | `reserve` | the same, and `?expires=SECONDS` | the same, with `id` and `expiresAfter` |
//! | `commit` | `{"id": …, "hitsAddend": 3}` | `{"committed": true}` |
//! | `cancel` | `{"id": …}` | `{"cancelled": true}` |
//! | `reset` | what `/json` takes | `{"reset": 1}`: of how many descriptors |
//!
//! What is wrong is told as in RFC 9457. Who does not settle a reservation in time has spent it.

use super::{MAX_MESSAGE_SIZE, convert};
use crate::{
    descriptors::{DecisionError, DescriptorService, DomainRequest, DomainVerdict, OverLimit, ReservedHits},
    reservations::{CAPACITY, DEFAULT_EXPIRY, MAX_EXPIRY, ReservationKind, Reservations},
};
use axum::{
    Router,
    extract::{Path, Request, State},
    response::Response,
    routing,
};
use http::{StatusCode, Uri, header};
use serde_json::{Map, Value, json};
use std::{sync::Arc, time::Duration};
use tidegate_http_server::{ApiCaller, ApiError, Authorization, Query, json_response, read_body};
use tidegate_limiter::Clock;

/// What is held for clients, and who may do what.
pub(crate) struct ReservationApi {
    service: Arc<DescriptorService>,
    reservations: Reservations<ReservedHits>,
    authorization: Arc<Authorization>,
}

const JSON_CONTENT_TYPE: &str = "application/json";

impl ReservationApi {
    pub(crate) fn new(service: Arc<DescriptorService>, authorization: Arc<Authorization>) -> Self {
        // What is dropped stays counted.
        let reservations = Reservations::new(Clock::system(), CAPACITY, ReservationKind::Reservation, drop);
        Self { service, reservations, authorization }
    }

    /// Closes what nobody has settled in time; to be called every second or so.
    pub(crate) fn close_expired(&self) {
        self.reservations.close_expired();
    }

    async fn handle(self: &Arc<Self>, operation: &str, request: Request) -> Result<Response, ApiError> {
        let (head, body) = request.into_parts();
        // A page in a browser may send a request here, but none from its own place without saying so.
        if head.headers.contains_key(header::ORIGIN) {
            return Err(ApiError::new(StatusCode::FORBIDDEN, "requests from web pages are not taken"));
        }
        let caller = match operation {
            "reset" => {
                self.authorization.operators.require(
                    &head.headers,
                    "this is for operators; send the token of TIDEGATE_ADMIN_TOKEN",
                    "this is for operators, and there is no token for them; set TIDEGATE_ADMIN_TOKEN",
                )?;
                ApiCaller::Operator
            }
            _ => self.authorization.authenticate(&head.headers)?,
        };
        let body = read_body(body, MAX_MESSAGE_SIZE).await?;
        match operation {
            "peek" => {
                verdict_response(self.service.peek(parse_request(&body)?).await.map_err(to_api_error)?, None)
            }
            "reserve" => self.reserve(parse_request(&body)?, parse_expires(&head.uri)?, caller).await,
            "commit" => self.settle_reservation(&body, SettleAction::Commit, &caller).await,
            "cancel" => self.settle_reservation(&body, SettleAction::Cancel, &caller).await,
            "reset" => {
                let count = self.service.reset(&parse_request(&body)?).await.map_err(to_api_error)?;
                Ok(json_response(StatusCode::OK, JSON_CONTENT_TYPE, &json!({ "reset": count })))
            }
            _ => Err(ApiError::new(
                StatusCode::NOT_FOUND,
                "there is nothing here; ask peek, reserve, commit, cancel or reset",
            )),
        }
    }

    async fn reserve(
        self: &Arc<Self>,
        request: DomainRequest,
        expires: Duration,
        caller: ApiCaller,
    ) -> Result<Response, ApiError> {
        let api = self.clone();
        // To its end, even if whoever asked hangs up meanwhile: it then expires.
        let reserve_task = tokio::spawn(async move {
            let mut slots = api.reservations.reserve_slots(1)?;
            let (verdict, hits) = api.service.reserve(request).await.map_err(to_api_error)?;
            let Some(hits) = hits else { return verdict_response(verdict, None) };
            match slots.fill(hits, expires, &caller) {
                Ok(entry) => verdict_response(verdict, Some((entry.id, expires))),
                Err(held) => {
                    held.cancel().await;
                    Err(api.reservations.capacity_error())
                }
            }
        });
        reserve_task.await.unwrap_or_else(|_| Err(shutting_down()))
    }

    async fn settle_reservation(
        &self,
        body: &[u8],
        settle: SettleAction,
        caller: &ApiCaller,
    ) -> Result<Response, ApiError> {
        let (id, hits) = parse_settlement(body, settle)?;
        let reserved = self.reservations.take(&id, caller)?;
        let settle_task = tokio::spawn(async move {
            match (settle, hits) {
                (SettleAction::Commit, Some(hits)) => reserved.commit(hits).await,
                (SettleAction::Commit, None) => drop(reserved),
                (SettleAction::Cancel, _) => reserved.cancel().await,
            }
        });
        settle_task.await.map_err(|_| shutting_down())?;
        let response_body = match settle {
            SettleAction::Commit => json!({ "committed": true }),
            SettleAction::Cancel => json!({ "cancelled": true }),
        };
        Ok(json_response(StatusCode::OK, JSON_CONTENT_TYPE, &response_body))
    }
}

/// Answers under `/v1/descriptors`.
pub(crate) fn router(api: Arc<ReservationApi>) -> Router {
    let handle = |State(desk): State<Arc<ReservationApi>>, Path(verb): Path<String>, request: Request| async move {
        desk.handle(&verb, request).await
    };
    Router::new().route("/v1/descriptors/{verb}", routing::post(handle)).with_state(api)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SettleAction {
    Commit,
    Cancel,
}

fn parse_request(body: &[u8]) -> Result<DomainRequest, ApiError> {
    let request =
        tidegate_proto::json::from_slice(body).map_err(|error| ApiError::bad_request(error.to_string()))?;
    convert::decode_request(request).map_err(to_api_error)
}

/// `{"id": …}`, and what it cost in the end if that is said.
fn parse_settlement(body: &[u8], action: SettleAction) -> Result<(String, Option<u64>), ApiError> {
    let example = match action {
        SettleAction::Commit => r#"{"id": "…", "hitsAddend": 1}"#,
        SettleAction::Cancel => r#"{"id": "…"}"#,
    };
    let bad = || ApiError::bad_request(format!("this is not what is taken here; send {example}"));
    let members: Map<String, Value> = serde_json::from_slice(body).map_err(|_| bad())?;
    let (mut id, mut hits) = (None, None);
    for (name, value) in members {
        match (name.as_str(), value, action) {
            ("id", Value::String(text), _) => id = Some(text),
            ("hitsAddend" | "hits_addend", Value::Number(number), SettleAction::Commit) => {
                hits = Some(number.as_u64().ok_or_else(bad)?);
            }
            // Protobuf writes large numbers as texts.
            ("hitsAddend" | "hits_addend", Value::String(text), SettleAction::Commit) => {
                hits = Some(text.parse().map_err(|_| bad())?);
            }
            _ => return Err(bad()),
        }
    }
    Ok((id.ok_or_else(bad)?, hits))
}

fn parse_expires(uri: &Uri) -> Result<Duration, ApiError> {
    let (max, default) = (MAX_EXPIRY.as_secs(), DEFAULT_EXPIRY.as_secs());
    Query::parse(uri, &["expires"])?.number("expires", 1..=max, default).map(Duration::from_secs)
}

/// What `/json` would say, and what it is held as.
fn verdict_response(
    verdict: DomainVerdict,
    reservation: Option<(String, Duration)>,
) -> Result<Response, ApiError> {
    let status = match verdict.overall {
        OverLimit::No => StatusCode::OK,
        OverLimit::Yes => StatusCode::TOO_MANY_REQUESTS,
    };
    let json_text =
        tidegate_proto::json::to_vec(&convert::encode_response(verdict)).map_err(|_| shutting_down())?;
    let mut body: Value = serde_json::from_slice(&json_text).map_err(|_| shutting_down())?;
    if let Some((id, expires)) = reservation {
        body["id"] = id.into();
        body["expiresAfter"] = format!("{}s", expires.as_secs()).into();
    }
    Ok(json_response(status, JSON_CONTENT_TYPE, &body))
}

#[allow(clippy::needless_pass_by_value, reason = "this is how errors are mapped")]
fn to_api_error(error: DecisionError) -> ApiError {
    let status = match &error {
        DecisionError::Invalid(_) => StatusCode::BAD_REQUEST,
        DecisionError::NoConfiguration | DecisionError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    ApiError::new(status, error.to_string())
}

fn shutting_down() -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "this service is about to end; ask another")
}
