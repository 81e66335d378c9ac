//! `/v1/reserve` reserves tokens, `/v1/commit` charges the actual cost, `/v1/cancel` refunds them. `/v1/acquire` acquires
//! slots, `/v1/release` releases them.
//!
//! An expired reservation stays charged: a client that crashed may have done the work. An expired permit is released: a
//! client that crashed does no more work.

use super::{
    ApiResponse,
    body::{BodyForm, QueryBatch},
    check::{batch_response, parse_queries, reserve_all_or_none},
    query::RuleQuery,
    response::{DenyStatus, RuleResponse, to_json_list},
    state::{AppState, RuleReservation},
};
use crate::reservations::Reservations;
use http::StatusCode;
use serde_json::{Value, json};
use tidegate_http_server::{ApiCaller, ApiError, json_response};
use tidegate_limiter::CombinedReservation;
use tidegate_policy::compile::QuotaKind;

pub(super) const MEMBERS: [&str; 6] = ["rule", "key", "cost", "tier", "max-wait", "expires"];
pub(super) const COMMIT_MEMBERS: [&str; 2] = ["id", "cost"];
pub(super) const CANCEL_MEMBERS: [&str; 1] = ["id"];
pub(super) const RELEASE_MEMBERS: [&str; 1] = ["id"];

/// How a reservation is settled.
#[derive(Clone, Copy)]
pub(super) enum SettleOp {
    Commit,
    Cancel,
}

pub(super) async fn reserve(
    state: &AppState,
    batch: QueryBatch<'_>,
    deny: DenyStatus,
    caller: &ApiCaller,
) -> Result<ApiResponse, ApiError> {
    let tokens = |reservation: Option<CombinedReservation>, query: &RuleQuery<'_>| {
        let tokens = reservation.and_then(|claim| claim.into_parts().0)?;
        Some(RuleReservation { tokens, rule: query.rule().name().to_owned(), max_debt: query.max_debt() })
    };
    let unsupported = (QuotaKind::Slots, "limits concurrency; use /v1/acquire");
    reserve_batch((state, &state.reservations, caller), batch, deny, unsupported, tokens).await
}

pub(super) async fn acquire(
    state: &AppState,
    batch: QueryBatch<'_>,
    deny: DenyStatus,
    caller: &ApiCaller,
) -> Result<ApiResponse, ApiError> {
    let slots = |reservation: Option<CombinedReservation>, _: &RuleQuery<'_>| {
        let (tokens, slots) = reservation.map(CombinedReservation::into_parts).unwrap_or_default();
        // Rate quotas of the same rule stay charged.
        if let Some(tokens) = tokens {
            tokens.keep();
        }
        slots
    };
    let unsupported = (QuotaKind::Tokens, "has no `at once` quota; use /v1/reserve or /v1/check");
    reserve_batch((state, &state.permits, caller), batch, deny, unsupported, slots).await
}

/// Reserves each query and stores the part of the reservation that `take_part` selects. Rejects rules whose quotas are only
/// of the kind `unsupported`.
async fn reserve_batch<T>(
    (state, reservations, caller): (&AppState, &Reservations<T>, &ApiCaller),
    batch: QueryBatch<'_>,
    deny: DenyStatus,
    (unsupported, reason): (QuotaKind, &str),
    take_part: impl Fn(Option<CombinedReservation>, &RuleQuery<'_>) -> T,
) -> Result<ApiResponse, ApiError> {
    let active = state.active();
    let queries = parse_queries(&batch, &active.gate)?;
    let mut expiries = Vec::with_capacity(queries.len());
    for (query, members) in queries.iter().zip(&batch.items) {
        if query.quota_kind() == unsupported {
            return Err(ApiError::bad_request(format!(
                "{}rule `{}` {reason}",
                members.position,
                query.rule().name()
            )));
        }
        expiries.push(members.expires()?);
    }
    let mut slots = reservations.reserve_slots(queries.len())?;
    let groups: Vec<&[RuleQuery<'_>]> = match batch.form {
        BodyForm::AllOrNothing => vec![&queries[..]],
        BodyForm::SingleQuery | BodyForm::QueryList | BodyForm::Batch => queries.chunks(1).collect(),
    };
    let (mut responses, mut times) = (Vec::with_capacity(queries.len()), expiries.into_iter());
    for group in groups {
        let (combined, mut results) = reserve_all_or_none(state, group).await;
        active.record(&mut results, deny);
        let is_allowed = results.iter().all(RuleResponse::is_allowed);
        let reserved = results.into_iter().zip(combined).zip(group);
        for (((response, combined_reservation), query), time) in reserved.zip(times.by_ref()) {
            responses.push(match is_allowed {
                true => {
                    let entry = slots.fill(take_part(combined_reservation, query), time, caller);
                    let entry = entry.map_err(|_| reservations.capacity_error())?;
                    response.with_reservation(entry)
                }
                false => response,
            });
        }
    }
    Ok(batch_response(batch.form, responses, active.gate.gate(), deny))
}

pub(super) async fn settle(
    state: &AppState,
    batch: QueryBatch<'_>,
    op: SettleOp,
    caller: &ApiCaller,
) -> Result<ApiResponse, ApiError> {
    let mut settlements = Vec::with_capacity(batch.items.len());
    for members in &batch.items {
        let cost = match op {
            SettleOp::Commit => Some(members.cost(None)?),
            SettleOp::Cancel => None,
        };
        settlements.push((members.text("id")?, cost));
    }
    let mut results = Vec::with_capacity(settlements.len());
    for (id, cost) in settlements {
        results.push(match (state.reservations.take(id, caller), cost) {
            (Ok(Some(reserved)), Some(cost)) => {
                let settled = reserved.settlement(cost);
                state.active().record_settlement(&reserved.rule, &settled);
                // Detached: the commit completes even if the client disconnects.
                let commit = async move { reserved.tokens.commit(settled.charged).await };
                let _ = state.spawn_detached(commit).await;
                Ok(json!({ "committed": settled.charged }))
            }
            (Ok(Some(reserved)), None) => {
                let _ = state.spawn_detached(async move { reserved.tokens.cancel().await }).await;
                Ok(json!({ "cancelled": true }))
            }
            (Ok(None), Some(cost)) => Ok(json!({ "committed": cost })),
            (Ok(None), None) => Ok(json!({ "cancelled": true })),
            (Err(problem), _) => Err(problem),
        });
    }
    settled_response(batch.form, results)
}

pub(super) fn release(
    state: &AppState,
    batch: &QueryBatch<'_>,
    caller: &ApiCaller,
) -> Result<ApiResponse, ApiError> {
    let ids = batch.items.iter().map(|members| members.text("id")).collect::<Result<Vec<_>, _>>()?;
    let release = |id: &str| {
        drop(state.permits.take(id, caller)?);
        Ok(json!({ "released": true }))
    };
    settled_response(batch.form, ids.into_iter().map(release).collect())
}

/// Builds the response to `commit`, `cancel`, `release` and `reset`.
pub(super) fn settled_response(
    form: BodyForm,
    results: Vec<Result<Value, ApiError>>,
) -> Result<ApiResponse, ApiError> {
    let mut results = results.into_iter();
    let body = match form {
        BodyForm::SingleQuery => results.next().unwrap_or_else(|| Ok(json!({})))?,
        BodyForm::QueryList => Value::Array(to_json_list(results)),
        BodyForm::Batch | BodyForm::AllOrNothing => json!({ "results": to_json_list(results) }),
    };
    Ok(json_response(StatusCode::OK, "application/json", &body))
}
