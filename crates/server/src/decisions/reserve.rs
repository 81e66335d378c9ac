//! `/v1/reserve` holds tokens, `/v1/commit` settles what they were worth, `/v1/cancel` gives them back.
//!
//! Who does neither in time has spent them: a program that crashed may have done what it reserved for.

use super::{
    Response,
    body::{Asked, Form, Members},
    check::{answered, questions, together},
    desk::Desk,
    ledger::{Absent, Ledger},
    problem::Problem,
    question::Question,
    tokens::Caller,
    told::{DenyAs, Told, json_response, list},
};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use tidegate_engine::Claim;
use tidegate_policy::compile::Holds;

pub(super) const MEMBERS: [&str; 6] = ["rule", "key", "cost", "tier", "within", "expires"];
pub(super) const COMMIT: [&str; 2] = ["id", "cost"];
pub(super) const CANCEL: [&str; 1] = ["id"];

/// What becomes of a reservation.
#[derive(Clone, Copy)]
pub(super) enum End {
    Commit,
    Cancel,
}

pub(super) async fn answer(
    desk: &Desk,
    asked: Asked<'_>,
    deny: DenyAs,
    caller: &Caller,
) -> Result<Response, Problem> {
    let tokens = |claim: Option<Claim>| claim.and_then(|claim| claim.into_parts().0);
    let fit = |question: &Question<'_>, members: &Members<'_>| match question.holds() {
        Holds::Slots => Err(Problem::bad(format!(
            "{}rule `{}` counts what is held at once; ask /v1/acquire",
            members.place,
            question.rule().name()
        ))),
        Holds::Tokens | Holds::Both => Ok(()),
    };
    held((desk, &desk.reservations, caller), asked, deny, fit, tokens).await
}

/// Takes what is asked for, and holds a part of it in a ledger.
pub(super) async fn held<T>(
    (desk, ledger, caller): (&Desk, &Ledger<T>, &Caller),
    asked: Asked<'_>,
    deny: DenyAs,
    fit: impl Fn(&Question<'_>, &Members<'_>) -> Result<(), Problem>,
    part: impl Fn(Option<Claim>) -> T,
) -> Result<Response, Problem> {
    let now = desk.now();
    let questions = questions(&asked, &now.gate)?;
    let mut times = Vec::with_capacity(questions.len());
    for (question, members) in questions.iter().zip(&asked.members) {
        fit(question, members)?;
        times.push(members.expires()?);
    }
    let full = || full(ledger.most());
    let mut room = ledger.room(questions.len()).ok_or_else(full)?;
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
                    let entry = room.put(part(claim), time, caller).map_err(|_| full())?;
                    answer.holding(entry)
                }
                false => answer,
            });
        }
    }
    Ok(answered(asked.form, told, now.gate.gate().told(), deny))
}

pub(super) async fn settle(
    desk: &Desk,
    asked: Asked<'_>,
    end: End,
    caller: &Caller,
) -> Result<Response, Problem> {
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
        let taken = desk.reservations.take(id, caller);
        let taken = taken.map_err(|absent| gone(absent, "reservation", "was charged"));
        answers.push(match (taken, cost) {
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

/// The answer to those who give back.
pub(super) fn settled(form: Form, answers: Vec<Result<Value, Problem>>) -> Result<Response, Problem> {
    let mut answers = answers.into_iter();
    let body = match form {
        Form::One => answers.next().unwrap_or_else(|| Ok(json!({})))?,
        Form::List => Value::Array(list(answers)),
        Form::Asks | Form::Together => json!({ "answers": list(answers) }),
    };
    Ok(json_response(StatusCode::OK, "application/json", &body))
}

pub(crate) fn gone(absent: Absent, what: &str, fate: &str) -> Problem {
    match absent {
        Absent::Expired => {
            let problem = format!("this {what} has expired, and {fate}; ask for longer with `expires`");
            Problem::new(StatusCode::GONE, problem)
        }
        Absent::Unknown => {
            let problem =
                format!("there is no such {what} of yours; it was settled already, or never made here");
            Problem::new(StatusCode::NOT_FOUND, problem)
        }
    }
}

fn full(most: usize) -> Problem {
    let problem = format!(
        "there is no room beside what is held already, {most} at most; settle some, or let them expire sooner"
    );
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, problem)
        .with(header::RETRY_AFTER, HeaderValue::from_static("1"))
}
