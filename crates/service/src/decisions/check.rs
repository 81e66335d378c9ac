//! `/v1/check` takes, `/v1/peek` looks.

use super::{
    ApiResponse,
    body::{BatchForm, QueryBatch},
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
use tidegate_rule::{HeaderStyle, Mode};

pub(super) const MEMBERS: [&str; 5] = ["rule", "key", "cost", "tier", "within"];

pub(super) async fn handle(
    state: &AppState,
    batch: QueryBatch<'_>,
    op: QueryOp,
    deny: DenyStatus,
) -> Result<ApiResponse, ApiError> {
    let active = state.active();
    let queries = parse_queries(&batch, &active.gate)?;
    let mut responses = match batch.form {
        BatchForm::AllOrNothing => Box::pin(charge_all_or_none(state, &queries)).await,
        _ if queries.iter().any(RuleQuery::can_wait) => {
            let mut responses = Vec::with_capacity(queries.len());
            for question in queries.chunks(1) {
                responses.extend(Box::pin(charge_all_or_none(state, question)).await);
            }
            responses
        }
        _ => execute_each(&queries, op).await,
    };
    if op == QueryOp::Check {
        active.record(&mut responses, deny);
    }
    Ok(batch_response(batch.form, responses, active.gate.gate().header_style(), deny))
}

/// Decides each on its own, in the order in which they were asked: those for one key follow each other.
async fn execute_each<'a>(questions: &'a [RuleQuery<'a>], op: QueryOp) -> Vec<RuleResponse<'a>> {
    let mut pending = Vec::new();
    let mut responses: Vec<RuleResponse<'a>> = Vec::with_capacity(questions.len());
    for question in questions {
        let decision = match question.execute(op) {
            QueryResult::Decided(decision) => decision,
            QueryResult::Pending(bucket) => {
                pending.push((responses.len(), bucket));
                None
            }
        };
        responses.push(RuleResponse::new(question, decision));
    }
    if !pending.is_empty() {
        let checks = pending.iter().map(|(place, bucket)| questions[*place].execute_in_store(bucket, op));
        let decisions = Box::pin(join_all(checks)).await;
        for ((place, _), decision) in pending.iter().zip(decisions) {
            responses[*place] = RuleResponse::new(&questions[*place], Some(decision));
        }
    }
    responses
}

/// What is asked of which rules.
pub(super) fn parse_queries<'a>(
    batch: &'a QueryBatch<'_>,
    gate: &'a PolicyGate,
) -> Result<Vec<RuleQuery<'a>>, ApiError> {
    let mut questions = Vec::with_capacity(batch.items.len());
    for members in &batch.items {
        questions.push(RuleQuery::parse(members, gate)?);
    }
    Ok(questions)
}

/// Decides all of them or none; those that only watch come last, and are in nobody's way. The claims are those of the
/// questions, in their order.
pub(super) async fn reserve_all_or_none<'a>(
    state: &AppState,
    questions: &'a [RuleQuery<'a>],
) -> (Vec<Option<CombinedReservation>>, Vec<RuleResponse<'a>>) {
    let enforced = reserve_in_mode(state, questions, Mode::Enforce).await;
    let mut claims: Vec<Option<CombinedReservation>> = questions.iter().map(|_| None).collect();
    let mut responses: Vec<Option<RuleResponse<'a>>> = questions.iter().map(|_| None).collect();
    let put = |outcomes: Vec<(usize, Option<CombinedReservation>)>,
               claims: &mut Vec<Option<CombinedReservation>>,
               told: &mut Vec<Option<RuleResponse<'a>>>| {
        for (place, claim) in outcomes {
            told[place] = Some(match &claim {
                Some(claim) => RuleResponse::new(&questions[place], Some(*claim.decision())),
                None => RuleResponse::skipped(&questions[place]),
            });
            claims[place] = claim;
        }
    };
    put(enforced, &mut claims, &mut responses);
    if responses.iter().flatten().all(RuleResponse::is_allowed) {
        for place in 0..questions.len() {
            if questions[place].mode == Mode::Shadow {
                let shadowed = reserve_in_mode(state, &questions[place..=place], Mode::Shadow).await;
                let watched = shadowed.into_iter().map(|(_, claim)| (place, claim)).collect();
                put(watched, &mut claims, &mut responses);
            }
        }
    } else {
        claims.iter_mut().for_each(|claim| *claim = None);
    }
    let rest = responses.into_iter().zip(questions);
    let responses =
        rest.map(|(told, question)| told.unwrap_or_else(|| RuleResponse::new(question, None))).collect();
    (claims, responses)
}

/// Asks all questions of this mode together; each with its place.
async fn reserve_in_mode(
    state: &AppState,
    queries: &[RuleQuery<'_>],
    mode: Mode,
) -> Vec<(usize, Option<CombinedReservation>)> {
    let in_mode = queries.iter().enumerate().filter(|(_, question)| question.mode == mode);
    let (indices, checks): (Vec<usize>, Vec<Check>) =
        in_mode.filter_map(|(place, question)| Some((place, question.to_check()?))).unzip();
    let claims = match checks.iter().all(Check::is_in_memory) {
        true => reserve_all(checks).await,
        false => state.spawn_detached(reserve_all(checks)).await.unwrap_or_default(),
    };
    indices.into_iter().zip(claims.into_iter().chain(std::iter::repeat_with(|| None))).collect()
}

/// Decides all of them or none, and takes it for good.
async fn charge_all_or_none<'a>(desk: &AppState, queries: &'a [RuleQuery<'a>]) -> Vec<RuleResponse<'a>> {
    let (claims, responses) = reserve_all_or_none(desk, queries).await;
    for claim in claims.into_iter().flatten() {
        claim.keep();
    }
    responses
}

/// The answer to one question, or to several.
pub(super) fn batch_response(
    form: BatchForm,
    mut told: Vec<RuleResponse<'_>>,
    fields: HeaderStyle,
    deny: DenyStatus,
) -> ApiResponse {
    if form == BatchForm::Single
        && let Some(only) = told.pop()
    {
        return only.into_response(fields, deny);
    }
    let answers = BatchResponse { form, responses: told };
    json_response(StatusCode::OK, "application/json", &answers)
}

/// Several answers.
struct BatchResponse<'a> {
    form: BatchForm,
    responses: Vec<RuleResponse<'a>>,
}

impl Serialize for BatchResponse<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.form {
            BatchForm::Single | BatchForm::List => self.responses.serialize(serializer),
            BatchForm::Batch | BatchForm::AllOrNothing => {
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry("allowed", &self.responses.iter().all(RuleResponse::is_allowed))?;
                map.serialize_entry("answers", &self.responses)?;
                map.end()
            }
        }
    }
}
