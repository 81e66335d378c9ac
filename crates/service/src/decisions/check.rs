//! `/v1/check` charges, `/v1/peek` only reads.

use super::{
    ApiResponse,
    body::{BodyForm, QueryBatch},
    query::{QueryOp, QueryResult, RuleQuery},
    response::{DenyStatus, RuleResponse},
    state::AppState,
};
use futures_util::future::join_all;
use http::StatusCode;
use serde::{Serialize, Serializer, ser::SerializeMap as _};
use tidegate_http_server::{ApiError, json_response};
use tidegate_limiter::{Check, CombinedReservation, reserve_all};
use tidegate_policy::compile::PolicyGate;
use tidegate_rule::{Gate, Mode};

pub(super) const MEMBERS: [&str; 5] = ["rule", "key", "cost", "tier", "max-wait"];

pub(super) async fn handle(
    state: &AppState,
    batch: QueryBatch<'_>,
    op: QueryOp,
    deny: DenyStatus,
) -> Result<ApiResponse, ApiError> {
    let active = state.active();
    let queries = parse_queries(&batch, &active.gate)?;
    let mut responses = match batch.form {
        BodyForm::AllOrNothing => Box::pin(charge_all_or_none(state, &queries)).await,
        _ if queries.iter().any(RuleQuery::can_wait) => {
            let mut responses = Vec::with_capacity(queries.len());
            for query in queries.chunks(1) {
                responses.extend(Box::pin(charge_all_or_none(state, query)).await);
            }
            responses
        }
        _ => execute_each(&queries, op).await,
    };
    if op == QueryOp::Check {
        active.record(&mut responses, deny);
    }
    Ok(batch_response(batch.form, responses, active.gate.gate(), deny))
}

/// Decides each query independently and in order, since queries for the same key depend on each other.
async fn execute_each<'a>(queries: &'a [RuleQuery<'a>], op: QueryOp) -> Vec<RuleResponse<'a>> {
    let mut pending = Vec::new();
    let mut responses: Vec<RuleResponse<'a>> = Vec::with_capacity(queries.len());
    for query in queries {
        let decision = match query.execute(op) {
            QueryResult::Decided(decision) => decision,
            QueryResult::Pending(bucket) => {
                pending.push((responses.len(), bucket));
                None
            }
        };
        responses.push(RuleResponse::new(query, decision));
    }
    if !pending.is_empty() {
        let checks = pending.iter().map(|(index, bucket)| queries[*index].execute_in_store(bucket, op));
        let decisions = Box::pin(join_all(checks)).await;
        for ((index, _), decision) in pending.iter().zip(decisions) {
            responses[*index] = RuleResponse::new(&queries[*index], Some(decision));
        }
    }
    responses
}

/// Parses the queries and looks up their rules.
pub(super) fn parse_queries<'a>(
    batch: &'a QueryBatch<'_>,
    gate: &'a PolicyGate,
) -> Result<Vec<RuleQuery<'a>>, ApiError> {
    let mut queries = Vec::with_capacity(batch.items.len());
    for members in &batch.items {
        queries.push(RuleQuery::parse(members, gate)?);
    }
    Ok(queries)
}

/// Reserves all queries or none. Queries in shadow mode follow the enforced ones, so they cannot block them. Returns one
/// reservation per query, in the order of the queries.
pub(super) async fn reserve_all_or_none<'a>(
    state: &AppState,
    queries: &'a [RuleQuery<'a>],
) -> (Vec<Option<CombinedReservation>>, Vec<RuleResponse<'a>>) {
    let enforced = reserve_in_mode(state, queries, Mode::Enforce).await;
    let mut reservations: Vec<Option<CombinedReservation>> = queries.iter().map(|_| None).collect();
    let mut responses: Vec<Option<RuleResponse<'a>>> = queries.iter().map(|_| None).collect();
    let put = |outcomes: Vec<(usize, Option<CombinedReservation>)>,
               reservations: &mut Vec<Option<CombinedReservation>>,
               responses: &mut Vec<Option<RuleResponse<'a>>>| {
        for (index, reservation) in outcomes {
            responses[index] = Some(match &reservation {
                Some(reservation) => RuleResponse::new(&queries[index], Some(*reservation.decision())),
                None => RuleResponse::skipped(&queries[index]),
            });
            reservations[index] = reservation;
        }
    };
    put(enforced, &mut reservations, &mut responses);
    if responses.iter().flatten().all(RuleResponse::is_allowed) {
        for index in 0..queries.len() {
            if queries[index].mode == Mode::Shadow {
                let shadowed = reserve_in_mode(state, &queries[index..=index], Mode::Shadow).await;
                let outcomes = shadowed.into_iter().map(|(_, reservation)| (index, reservation)).collect();
                put(outcomes, &mut reservations, &mut responses);
            }
        }
    } else {
        reservations.iter_mut().for_each(|reservation| *reservation = None);
    }
    let responses = responses.into_iter().zip(queries);
    let responses = responses
        .map(|(response, query)| response.unwrap_or_else(|| RuleResponse::new(query, None)))
        .collect();
    (reservations, responses)
}

/// Reserves all queries of this mode together; returns each reservation with the index of its query.
async fn reserve_in_mode(
    state: &AppState,
    queries: &[RuleQuery<'_>],
    mode: Mode,
) -> Vec<(usize, Option<CombinedReservation>)> {
    let in_mode = queries.iter().enumerate().filter(|(_, query)| query.mode == mode);
    let (indices, checks): (Vec<usize>, Vec<Check>) =
        in_mode.filter_map(|(index, query)| Some((index, query.to_check()?))).unzip();
    let reservations = match checks.iter().all(Check::is_in_memory) {
        true => reserve_all(checks).await,
        false => state.spawn_detached(reserve_all(checks)).await.unwrap_or_default(),
    };
    indices.into_iter().zip(reservations.into_iter().chain(std::iter::repeat_with(|| None))).collect()
}

/// Charges all queries or none.
async fn charge_all_or_none<'a>(state: &AppState, queries: &'a [RuleQuery<'a>]) -> Vec<RuleResponse<'a>> {
    let (reservations, responses) = reserve_all_or_none(state, queries).await;
    for reservation in reservations.into_iter().flatten() {
        reservation.keep();
    }
    responses
}

/// Builds the response to one query or to several.
pub(super) fn batch_response(
    form: BodyForm,
    mut responses: Vec<RuleResponse<'_>>,
    gate: &Gate,
    deny: DenyStatus,
) -> ApiResponse {
    if form == BodyForm::SingleQuery
        && let Some(only) = responses.pop()
    {
        return only.into_response(gate, deny);
    }
    json_response(StatusCode::OK, "application/json", &BatchResponse { form, responses })
}

/// The responses to several queries.
struct BatchResponse<'a> {
    form: BodyForm,
    responses: Vec<RuleResponse<'a>>,
}

impl Serialize for BatchResponse<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.form {
            BodyForm::SingleQuery | BodyForm::QueryList => self.responses.serialize(serializer),
            BodyForm::Batch | BodyForm::AllOrNothing => {
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry("allowed", &self.responses.iter().all(RuleResponse::is_allowed))?;
                map.serialize_entry("results", &self.responses)?;
                map.end()
            }
        }
    }
}
