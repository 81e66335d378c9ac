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

use super::{MOST_MESSAGE, translate};
use crate::{
    descriptors::{DescriptorFault, DescriptorService, DomainAsk, DomainVerdict, HeldHits, OverLimit},
    reservations::{CAPACITY, DEFAULT_EXPIRY, EntryKind, MAX_EXPIRY, Reservations},
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
use tidegate_http_server::{ApiError, Authorization, Caller, Query, json_response, read_body};
use tidegate_limiter::Clock;

/// What is held for clients, and who may do what.
pub(crate) struct SettleDesk {
    service: Arc<DescriptorService>,
    held: Reservations<HeldHits>,
    authorization: Arc<Authorization>,
}

const JSON: &str = "application/json";

impl SettleDesk {
    pub(crate) fn new(service: Arc<DescriptorService>, authorization: Arc<Authorization>) -> Self {
        // What is dropped stays counted.
        let held = Reservations::new(Clock::system(), CAPACITY, EntryKind::Reservation, drop);
        Self { service, held, authorization }
    }

    /// Closes what nobody has settled in time; to be called every second or so.
    pub(crate) fn follow_time(&self) {
        self.held.close_expired();
    }

    async fn answer(self: &Arc<Self>, verb: &str, request: Request) -> Result<Response, ApiError> {
        let (head, body) = request.into_parts();
        // A page in a browser may send a request here, but none from its own place without saying so.
        if head.headers.contains_key(header::ORIGIN) {
            return Err(ApiError::new(StatusCode::FORBIDDEN, "requests from web pages are not taken"));
        }
        let caller = match verb {
            "reset" => {
                self.authorization.operators.require(
                    &head.headers,
                    "this is for operators; send the token of TIDEGATE_ADMIN_TOKEN",
                    "this is for operators, and there is no token for them; set TIDEGATE_ADMIN_TOKEN",
                )?;
                Caller::Operator
            }
            _ => self.authorization.caller(&head.headers)?,
        };
        let body = read_body(body, MOST_MESSAGE).await?;
        match verb {
            "peek" => said(self.service.peek(asked(&body)?).await.map_err(problem)?, None),
            "reserve" => self.reserve(asked(&body)?, expires(&head.uri)?, caller).await,
            "commit" => self.settle(&body, Settle::Commit, &caller).await,
            "cancel" => self.settle(&body, Settle::Cancel, &caller).await,
            "reset" => {
                let count = self.service.reset(&asked(&body)?).await.map_err(problem)?;
                Ok(json_response(StatusCode::OK, JSON, &json!({ "reset": count })))
            }
            _ => Err(ApiError::new(
                StatusCode::NOT_FOUND,
                "there is nothing here; ask peek, reserve, commit, cancel or reset",
            )),
        }
    }

    async fn reserve(
        self: &Arc<Self>,
        ask: DomainAsk,
        expires: Duration,
        caller: Caller,
    ) -> Result<Response, ApiError> {
        let desk = self.clone();
        // To its end, even if whoever asked hangs up meanwhile: it then expires.
        let reserving = tokio::spawn(async move {
            let mut slots = desk.held.slots(1)?;
            let (verdict, held) = desk.service.reserve(ask).await.map_err(problem)?;
            let Some(held) = held else { return said(verdict, None) };
            match slots.fill(held, expires, &caller) {
                Ok(entry) => said(verdict, Some((entry.id, expires))),
                Err(held) => {
                    held.cancel().await;
                    Err(desk.held.full())
                }
            }
        });
        reserving.await.unwrap_or_else(|_| Err(ended()))
    }

    async fn settle(&self, body: &[u8], settle: Settle, caller: &Caller) -> Result<Response, ApiError> {
        let (id, hits) = settlement(body, settle)?;
        let held = self.held.take(&id, caller)?;
        let settling = tokio::spawn(async move {
            match (settle, hits) {
                (Settle::Commit, Some(hits)) => held.commit(hits).await,
                (Settle::Commit, None) => drop(held),
                (Settle::Cancel, _) => held.cancel().await,
            }
        });
        settling.await.map_err(|_| ended())?;
        let told = match settle {
            Settle::Commit => json!({ "committed": true }),
            Settle::Cancel => json!({ "cancelled": true }),
        };
        Ok(json_response(StatusCode::OK, JSON, &told))
    }
}

/// Answers under `/v1/descriptors`.
pub(crate) fn router(desk: Arc<SettleDesk>) -> Router {
    let answer = |State(desk): State<Arc<SettleDesk>>, Path(verb): Path<String>, request: Request| async move {
        desk.answer(&verb, request).await
    };
    Router::new().route("/v1/descriptors/{verb}", routing::post(answer)).with_state(desk)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Settle {
    Commit,
    Cancel,
}

fn asked(body: &[u8]) -> Result<DomainAsk, ApiError> {
    let request = tidegate_proto::json::from_slice(body).map_err(|error| ApiError::bad(error.to_string()))?;
    translate::asked(request).map_err(problem)
}

/// `{"id": …}`, and what it cost in the end if that is said.
fn settlement(body: &[u8], settle: Settle) -> Result<(String, Option<u64>), ApiError> {
    let form = match settle {
        Settle::Commit => r#"{"id": "…", "hitsAddend": 1}"#,
        Settle::Cancel => r#"{"id": "…"}"#,
    };
    let bad = || ApiError::bad(format!("this is not what is taken here; send {form}"));
    let members: Map<String, Value> = serde_json::from_slice(body).map_err(|_| bad())?;
    let (mut id, mut hits) = (None, None);
    for (name, value) in members {
        match (name.as_str(), value, settle) {
            ("id", Value::String(text), _) => id = Some(text),
            ("hitsAddend" | "hits_addend", Value::Number(number), Settle::Commit) => {
                hits = Some(number.as_u64().ok_or_else(bad)?);
            }
            // Protobuf writes large numbers as texts.
            ("hitsAddend" | "hits_addend", Value::String(text), Settle::Commit) => {
                hits = Some(text.parse().map_err(|_| bad())?);
            }
            _ => return Err(bad()),
        }
    }
    Ok((id.ok_or_else(bad)?, hits))
}

fn expires(uri: &Uri) -> Result<Duration, ApiError> {
    let (max, default) = (MAX_EXPIRY.as_secs(), DEFAULT_EXPIRY.as_secs());
    Query::parse(uri, &["expires"])?.number("expires", 1..=max, default).map(Duration::from_secs)
}

/// What `/json` would say, and what it is held as.
fn said(verdict: DomainVerdict, held: Option<(String, Duration)>) -> Result<Response, ApiError> {
    let status = match verdict.overall {
        OverLimit::No => StatusCode::OK,
        OverLimit::Yes => StatusCode::TOO_MANY_REQUESTS,
    };
    let written = tidegate_proto::json::to_vec(&translate::said(verdict)).map_err(|_| ended())?;
    let mut body: Value = serde_json::from_slice(&written).map_err(|_| ended())?;
    if let Some((id, expires)) = held {
        body["id"] = id.into();
        body["expiresAfter"] = format!("{}s", expires.as_secs()).into();
    }
    Ok(json_response(status, JSON, &body))
}

#[allow(clippy::needless_pass_by_value, reason = "this is how errors are mapped")]
fn problem(fault: DescriptorFault) -> ApiError {
    let status = match &fault {
        DescriptorFault::Invalid(_) => StatusCode::BAD_REQUEST,
        DescriptorFault::NoConfiguration | DescriptorFault::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    ApiError::new(status, fault.to_string())
}

fn ended() -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "this service is about to end; ask another")
}
