//! `/v1/descriptors/…`: operations that Envoy's protocol does not have, as JSON over HTTP.
//!
//! | path | request | response |
//! |---|---|---|
//! | `peek` | as `/json` | as `/json`, without counting |
//! | `reserve` | as `/json`, and `?expires=SECONDS` | as `/json`, with `id` and `expiresAfter` |
//! | `commit` | `{"id": …, "hitsAddend": 3}` | `{"committed": true}` |
//! | `cancel` | `{"id": …}` | `{"cancelled": true}` |
//! | `reset` | as `/json` | `{"reset": 1}`: the number of counters |
//!
//! Errors are RFC 9457 problem details. An expired reservation stays charged.

use super::{MAX_MESSAGE_SIZE, convert};
use crate::{
    descriptors::{DecisionError, DescriptorService, DomainRequest, DomainVerdict, LimitCode, ReservedHits},
    events,
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

/// The reservations of clients, and their authorization.
pub(crate) struct ReservationApi {
    service: Arc<DescriptorService>,
    reservations: Reservations<ReservedHits>,
    authorization: Arc<Authorization>,
}

const JSON_CONTENT_TYPE: &str = "application/json";

impl ReservationApi {
    pub(crate) fn new(service: Arc<DescriptorService>, authorization: Arc<Authorization>) -> Self {
        // Dropping reserved hits keeps them counted.
        let reservations = Reservations::new(Clock::system(), CAPACITY, ReservationKind::Reservation, drop);
        Self { service, reservations, authorization }
    }

    /// Closes expired reservations. Call it about once per second.
    pub(crate) fn close_expired(&self) {
        self.reservations.close_expired();
    }

    async fn handle(self: &Arc<Self>, operation: &str, request: Request) -> Result<Response, ApiError> {
        let (head, body) = request.into_parts();
        // Browsers add `Origin` to cross-origin requests. Reject them, so that a web page cannot use the API (CSRF).
        if head.headers.contains_key(header::ORIGIN) {
            return Err(ApiError::new(StatusCode::FORBIDDEN, "requests from web pages are rejected"));
        }
        if operation == "reset" {
            let operator = self.authorization.operators.require(
                &head.headers,
                "operator token required; send the token in TIDEGATE_ADMIN_TOKEN",
                "operator token required, but none is configured; set TIDEGATE_ADMIN_TOKEN",
            )?;
            let request = parse_request(&read_body(body, MAX_MESSAGE_SIZE).await?)?;
            let counters = self.service.reset(&request).await.map_err(to_api_error)?;
            events::DescriptorsReset { request: &request, counters, author: &operator.name }.emit();
            return Ok(json_response(StatusCode::OK, JSON_CONTENT_TYPE, &json!({ "reset": counters })));
        }
        let caller = self.authorization.authenticate(&head.headers)?;
        let body = read_body(body, MAX_MESSAGE_SIZE).await?;
        match operation {
            "peek" => {
                verdict_response(self.service.peek(parse_request(&body)?).await.map_err(to_api_error)?, None)
            }
            "reserve" => self.reserve(parse_request(&body)?, parse_expires(&head.uri)?, caller).await,
            "commit" => self.settle_reservation(&body, SettleAction::Commit, &caller).await,
            "cancel" => self.settle_reservation(&body, SettleAction::Cancel, &caller).await,
            _ => Err(ApiError::new(
                StatusCode::NOT_FOUND,
                "unknown operation; use peek, reserve, commit, cancel or reset",
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
        // Detached: if the client disconnects, the reservation completes and later expires.
        let reserve_task = tokio::spawn(async move {
            let mut slots = api.reservations.reserve_slots(1)?;
            let (verdict, hits) = api.service.reserve(request).await.map_err(to_api_error)?;
            let Some(hits) = hits else { return verdict_response(verdict, None) };
            match slots.fill(hits, expires, &caller) {
                Ok(entry) => verdict_response(verdict, Some((entry.id, expires))),
                Err(hits) => {
                    hits.cancel().await;
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

/// The routes under `/v1/descriptors`.
pub(crate) fn router(api: Arc<ReservationApi>) -> Router {
    let handle = |State(api): State<Arc<ReservationApi>>, Path(verb): Path<String>, request: Request| async move {
        api.handle(&verb, request).await
    };
    Router::new().route("/v1/descriptors/{verb}", routing::post(handle)).with_state(api)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SettleAction {
    Commit,
    Cancel,
}

fn parse_request(body: &[u8]) -> Result<DomainRequest, ApiError> {
    let request = tidegate_proto::json::parse_request(body)
        .map_err(|error| ApiError::bad_request(error.to_string()))?;
    convert::decode_request(request).map_err(to_api_error)
}

/// Parses `{"id": …}` and the optional number of actual hits.
fn parse_settlement(body: &[u8], action: SettleAction) -> Result<(String, Option<u64>), ApiError> {
    let example = match action {
        SettleAction::Commit => r#"{"id": "…", "hitsAddend": 1}"#,
        SettleAction::Cancel => r#"{"id": "…"}"#,
    };
    let bad = || ApiError::bad_request(format!("invalid body; send {example}"));
    let members: Map<String, Value> = serde_json::from_slice(body).map_err(|_| bad())?;
    let (mut id, mut hits) = (None, None);
    for (name, value) in members {
        match (name.as_str(), value, action) {
            ("id", Value::String(text), _) => id = Some(text),
            ("hitsAddend" | "hits_addend", Value::Number(number), SettleAction::Commit) => {
                hits = Some(number.as_u64().ok_or_else(bad)?);
            }
            // Protobuf's JSON encodes 64-bit numbers as strings.
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

/// Builds the response of `/json`, with the id of the reservation.
fn verdict_response(
    verdict: DomainVerdict,
    reservation: Option<(String, Duration)>,
) -> Result<Response, ApiError> {
    let status = match verdict.overall_code {
        LimitCode::Ok => StatusCode::OK,
        LimitCode::OverLimit => StatusCode::TOO_MANY_REQUESTS,
    };
    let json_text = tidegate_proto::json::write_response(&convert::encode_response(verdict))
        .map_err(|_| shutting_down())?;
    let mut body: Value = serde_json::from_slice(&json_text).map_err(|_| shutting_down())?;
    if let Some((id, expires)) = reservation {
        body["id"] = id.into();
        body["expiresAfter"] = format!("{}s", expires.as_secs()).into();
    }
    Ok(json_response(status, JSON_CONTENT_TYPE, &body))
}

#[allow(clippy::needless_pass_by_value, reason = "the signature of `map_err`")]
fn to_api_error(error: DecisionError) -> ApiError {
    let status = match &error {
        DecisionError::Invalid(_) => StatusCode::BAD_REQUEST,
        DecisionError::NoConfiguration | DecisionError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    ApiError::new(status, error.to_string())
}

fn shutting_down() -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the service is shutting down; try another instance")
}
