//! `/v1/reserve` holds tokens, `/v1/commit` settles what they were worth, `/v1/cancel` gives them back. `/v1/acquire` takes
//! slots, `/v1/release` gives them back.
//!
//! Tokens that are not settled in time are spent: a program that crashed may have done what it reserved for. Slots that are
//! not released in time are free again: a program that crashed is not at work any more.

use super::{
    ApiResponse,
    body::{BatchForm, QueryBatch},
    check::{batch_response, parse_queries, reserve_all_or_none},
    query::RuleQuery,
    response::{DenyStatus, RuleResponse, to_json_list},
    state::AppState,
};
use crate::reservations::Reservations;
use http::StatusCode;
use serde_json::{Value, json};
use tidegate_http_server::{ApiCaller, ApiError, json_response};
use tidegate_limiter::CombinedReservation;
use tidegate_policy::compile::QuotaKind;

pub(super) const MEMBERS: [&str; 6] = ["rule", "key", "cost", "tier", "within", "expires"];
pub(super) const COMMIT_MEMBERS: [&str; 2] = ["id", "cost"];
pub(super) const CANCEL_MEMBERS: [&str; 1] = ["id"];
pub(super) const RELEASE_MEMBERS: [&str; 1] = ["id"];

/// What becomes of a reservation.
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
    let tokens = |claim: Option<CombinedReservation>| claim.and_then(|claim| claim.into_parts().0);
    let unsupported = (QuotaKind::Slots, "counts what is held at once; ask /v1/acquire");
    reserve_batch((state, &state.reservations, caller), batch, deny, unsupported, tokens).await
}

pub(super) async fn acquire(
    state: &AppState,
    batch: QueryBatch<'_>,
    deny: DenyStatus,
    caller: &ApiCaller,
) -> Result<ApiResponse, ApiError> {
    let slots = |claim: Option<CombinedReservation>| {
        let (tokens, slots) = claim.map(CombinedReservation::into_parts).unwrap_or_default();
        // What is counted beside the slots was used.
        if let Some(tokens) = tokens {
            tokens.keep();
        }
        slots
    };
    let unsupported = (QuotaKind::Tokens, "has no number `at once`; ask /v1/reserve or /v1/check");
    reserve_batch((state, &state.permits, caller), batch, deny, unsupported, slots).await
}

/// Takes what is asked for, and holds a part of it. Rules that hold only what is unfit are refused.
async fn reserve_batch<T>(
    (state, reservations, caller): (&AppState, &Reservations<T>, &ApiCaller),
    batch: QueryBatch<'_>,
    deny: DenyStatus,
    (unsupported, reason): (QuotaKind, &str),
    take_part: impl Fn(Option<CombinedReservation>) -> T,
) -> Result<ApiResponse, ApiError> {
    let active = state.active();
    let queries = parse_queries(&batch, &active.gate)?;
    let mut expiries = Vec::with_capacity(queries.len());
    for (question, members) in queries.iter().zip(&batch.items) {
        if question.quota_kind() == unsupported {
            return Err(ApiError::bad_request(format!(
                "{}rule `{}` {reason}",
                members.position,
                question.rule().name()
            )));
        }
        expiries.push(members.expires()?);
    }
    let mut slots = reservations.reserve_slots(queries.len())?;
    let groups: Vec<&[RuleQuery<'_>]> = match batch.form {
        BatchForm::AllOrNothing => vec![&queries[..]],
        BatchForm::Single | BatchForm::List | BatchForm::Batch => queries.chunks(1).collect(),
    };
    let (mut responses, mut times) = (Vec::with_capacity(queries.len()), expiries.into_iter());
    for group in groups {
        let (claims, mut answers) = reserve_all_or_none(state, group).await;
        active.record(&mut answers, deny);
        let is_allowed = answers.iter().all(RuleResponse::is_allowed);
        for ((answer, claim), time) in answers.into_iter().zip(claims).zip(times.by_ref()) {
            responses.push(match is_allowed {
                true => {
                    let entry = slots.fill(take_part(claim), time, caller);
                    let entry = entry.map_err(|_| reservations.capacity_error())?;
                    answer.with_reservation(entry)
                }
                false => answer,
            });
        }
    }
    Ok(batch_response(batch.form, responses, active.gate.gate().header_style(), deny))
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
    let mut answers = Vec::with_capacity(settlements.len());
    for (id, cost) in settlements {
        answers.push(match (state.reservations.take(id, caller), cost) {
            (Ok(Some(reserved)), Some(cost)) => {
                // To its end, even if whoever asked hangs up meanwhile.
                let _ = state.spawn_detached(async move { reserved.commit(cost).await }).await;
                Ok(json!({ "committed": cost }))
            }
            (Ok(Some(reserved)), None) => {
                let _ = state.spawn_detached(async move { reserved.cancel().await }).await;
                Ok(json!({ "cancelled": true }))
            }
            (Ok(None), Some(cost)) => Ok(json!({ "committed": cost })),
            (Ok(None), None) => Ok(json!({ "cancelled": true })),
            (Err(problem), _) => Err(problem),
        });
    }
    settled_response(batch.form, answers)
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

/// The answer to those who give back.
pub(super) fn settled_response(
    form: BatchForm,
    answers: Vec<Result<Value, ApiError>>,
) -> Result<ApiResponse, ApiError> {
    let mut answers = answers.into_iter();
    let body = match form {
        BatchForm::Single => answers.next().unwrap_or_else(|| Ok(json!({})))?,
        BatchForm::List => Value::Array(to_json_list(answers)),
        BatchForm::Batch | BatchForm::AllOrNothing => json!({ "answers": to_json_list(answers) }),
    };
    Ok(json_response(StatusCode::OK, "application/json", &body))
}
