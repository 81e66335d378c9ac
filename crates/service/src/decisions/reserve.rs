//! `/v1/reserve` holds tokens, `/v1/commit` settles what they were worth, `/v1/cancel` gives them back. `/v1/acquire` takes
//! slots, `/v1/release` gives them back.
//!
//! Tokens that are not settled in time are spent: a program that crashed may have done what it reserved for. Slots that are
//! not released in time are free again: a program that crashed is not at work any more.

use super::{
    Response,
    body::{Asked, Form},
    check::{answered, questions, together},
    desk::Desk,
    question::Question,
    told::{DenyAs, Told, list},
};
use crate::reservations::Reservations;
use http::StatusCode;
use serde_json::{Value, json};
use tidegate_http_server::{ApiError, Caller, json_response};
use tidegate_limiter::CombinedReservation;
use tidegate_policy::compile::QuotaKind;

pub(super) const MEMBERS: [&str; 6] = ["rule", "key", "cost", "tier", "within", "expires"];
pub(super) const COMMIT: [&str; 2] = ["id", "cost"];
pub(super) const CANCEL: [&str; 1] = ["id"];
pub(super) const RELEASE: [&str; 1] = ["id"];

/// What becomes of a reservation.
#[derive(Clone, Copy)]
pub(super) enum End {
    Commit,
    Cancel,
}

pub(super) async fn reserve(
    desk: &Desk,
    asked: Asked<'_>,
    deny: DenyAs,
    caller: &Caller,
) -> Result<Response, ApiError> {
    let tokens = |claim: Option<CombinedReservation>| claim.and_then(|claim| claim.into_parts().0);
    let unfit = (QuotaKind::Slots, "counts what is held at once; ask /v1/acquire");
    held((desk, &desk.reservations, caller), asked, deny, unfit, tokens).await
}

pub(super) async fn acquire(
    desk: &Desk,
    asked: Asked<'_>,
    deny: DenyAs,
    caller: &Caller,
) -> Result<Response, ApiError> {
    let slots = |claim: Option<CombinedReservation>| {
        let (tokens, slots) = claim.map(CombinedReservation::into_parts).unwrap_or_default();
        // What is counted beside the slots was used.
        if let Some(tokens) = tokens {
            tokens.keep();
        }
        slots
    };
    let unfit = (QuotaKind::Tokens, "has no number `at once`; ask /v1/reserve or /v1/check");
    held((desk, &desk.permits, caller), asked, deny, unfit, slots).await
}

/// Takes what is asked for, and holds a part of it. Rules that hold only what is unfit are refused.
async fn held<T>(
    (desk, reservations, caller): (&Desk, &Reservations<T>, &Caller),
    asked: Asked<'_>,
    deny: DenyAs,
    (unfit, why): (QuotaKind, &str),
    part: impl Fn(Option<CombinedReservation>) -> T,
) -> Result<Response, ApiError> {
    let now = desk.now();
    let questions = questions(&asked, &now.gate)?;
    let mut times = Vec::with_capacity(questions.len());
    for (question, members) in questions.iter().zip(&asked.members) {
        if question.holds() == unfit {
            return Err(ApiError::bad(format!("{}rule `{}` {why}", members.place, question.rule().name())));
        }
        times.push(members.expires()?);
    }
    let mut slots = reservations.slots(questions.len())?;
    let groups: Vec<&[Question<'_>]> = match asked.form {
        Form::Together => vec![&questions[..]],
        Form::One | Form::List | Form::Asks => questions.chunks(1).collect(),
    };
    let (mut told, mut times) = (Vec::with_capacity(questions.len()), times.into_iter());
    for group in groups {
        let (claims, mut answers) = together(desk, group).await;
        now.count(&mut answers, deny);
        let is_allowed = answers.iter().all(Told::is_allowed);
        for ((answer, claim), time) in answers.into_iter().zip(claims).zip(times.by_ref()) {
            told.push(match is_allowed {
                true => {
                    let entry = slots.fill(part(claim), time, caller);
                    let entry = entry.map_err(|_| reservations.full())?;
                    answer.holding(entry)
                }
                false => answer,
            });
        }
    }
    Ok(answered(asked.form, told, now.gate.gate().header_style(), deny))
}

pub(super) async fn settle(
    desk: &Desk,
    asked: Asked<'_>,
    end: End,
    caller: &Caller,
) -> Result<Response, ApiError> {
    let mut ends = Vec::with_capacity(asked.members.len());
    for members in &asked.members {
        let cost = match end {
            End::Commit => Some(members.cost(None)?),
            End::Cancel => None,
        };
        ends.push((members.text("id")?, cost));
    }
    let mut answers = Vec::with_capacity(ends.len());
    for (id, cost) in ends {
        answers.push(match (desk.reservations.take(id, caller), cost) {
            (Ok(Some(reserved)), Some(cost)) => {
                // To its end, even if whoever asked hangs up meanwhile.
                let _ = desk.lasting(async move { reserved.commit(cost).await }).await;
                Ok(json!({ "committed": cost }))
            }
            (Ok(Some(reserved)), None) => {
                let _ = desk.lasting(async move { reserved.cancel().await }).await;
                Ok(json!({ "cancelled": true }))
            }
            (Ok(None), Some(cost)) => Ok(json!({ "committed": cost })),
            (Ok(None), None) => Ok(json!({ "cancelled": true })),
            (Err(problem), _) => Err(problem),
        });
    }
    settled(asked.form, answers)
}

pub(super) fn release(desk: &Desk, asked: &Asked<'_>, caller: &Caller) -> Result<Response, ApiError> {
    let ids = asked.members.iter().map(|members| members.text("id")).collect::<Result<Vec<_>, _>>()?;
    let release = |id: &str| {
        drop(desk.permits.take(id, caller)?);
        Ok(json!({ "released": true }))
    };
    settled(asked.form, ids.into_iter().map(release).collect())
}

/// The answer to those who give back.
pub(super) fn settled(form: Form, answers: Vec<Result<Value, ApiError>>) -> Result<Response, ApiError> {
    let mut answers = answers.into_iter();
    let body = match form {
        Form::One => answers.next().unwrap_or_else(|| Ok(json!({})))?,
        Form::List => Value::Array(list(answers)),
        Form::Asks | Form::Together => json!({ "answers": list(answers) }),
    };
    Ok(json_response(StatusCode::OK, "application/json", &body))
}
