//! `/v1/reserve` holds tokens, `/v1/commit` settles what they were worth, `/v1/cancel` gives them back.
//!
//! Who does neither in time has spent them: a program that crashed may have done what it reserved for.

use super::{
    body::{Asked, Form, Members},
    check::{answered, questions, together},
    desk::{Desk, MOST_HELD},
    ledger::{Absent, Entry},
    problem::Problem,
    question::Question,
    told::{DenyAs, Told, json_response, list, seconds},
};
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use std::time::Duration;
use tidegate_engine::Claim;
use tidegate_policy::compile::Holds;

pub(super) const MEMBERS: [&str; 5] = ["rule", "key", "cost", "tier", "expires"];
pub(super) const COMMIT: [&str; 2] = ["id", "cost"];
pub(super) const CANCEL: [&str; 1] = ["id"];

/// What becomes of a reservation.
#[derive(Clone, Copy)]
pub(super) enum End {
    Commit,
    Cancel,
}

pub(super) async fn answer(desk: &Desk, asked: Asked, deny: DenyAs) -> Result<Response, Problem> {
    let hold = |claim: Option<Claim>, time| {
        let tokens = claim.and_then(|claim| claim.into_parts().0);
        desk.reservations.put(tokens, time).map_err(drop)
    };
    let fit = |question: &Question, members: &Members| match question.holds {
        Holds::Slots => Err(Problem::bad(format!(
            "{}rule `{}` counts what is held at once; ask /v1/acquire",
            members.place,
            question.rule.name()
        ))),
        Holds::Tokens | Holds::Both => Ok(()),
    };
    held(desk, asked, deny, fit, hold).await
}

/// Takes what is asked for, and holds it.
pub(super) async fn held(
    desk: &Desk,
    asked: Asked,
    deny: DenyAs,
    fit: impl Fn(&Question, &Members) -> Result<(), Problem>,
    hold: impl Fn(Option<Claim>, Duration) -> Result<Entry, ()>,
) -> Result<Response, Problem> {
    let (questions, fields) = questions(&asked, &desk.now().gate)?;
    let mut times = Vec::with_capacity(questions.len());
    for (question, members) in questions.iter().zip(&asked.members) {
        fit(question, members)?;
        times.push(members.expires()?);
    }
    let groups: Vec<&[Question]> = match asked.form {
        Form::Together => vec![&questions[..]],
        Form::One | Form::List | Form::Asks => questions.chunks(1).collect(),
    };
    let (mut told, mut times) = (Vec::with_capacity(questions.len()), times.into_iter());
    for group in groups {
        let (claims, answers) = together(desk, group).await;
        desk.count(&answers);
        let is_allowed = answers.iter().all(Told::is_allowed);
        for ((answer, claim), time) in answers.into_iter().zip(claims).zip(times.by_ref()) {
            told.push(match is_allowed {
                true => {
                    let entry = hold(claim, time).map_err(|()| full())?;
                    answer.with("id", entry.id).with("expires-after", seconds(entry.expires))
                }
                false => answer,
            });
        }
    }
    Ok(answered(asked.form, &told, fields, deny))
}

pub(super) async fn settle(desk: &Desk, asked: Asked, end: End) -> Result<Response, Problem> {
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
        let taken = desk.reservations.take(id).map_err(|absent| gone(absent, "reservation", "was charged"));
        answers.push(match (taken, cost) {
            (Ok(Some(reserved)), Some(cost)) => {
                // To its end, even if whoever asked hangs up meanwhile.
                let _ = desk.lasting(reserved.commit(cost)).await;
                Ok(json!({ "committed": cost }))
            }
            (Ok(Some(reserved)), None) => {
                let _ = desk.lasting(reserved.cancel()).await;
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

pub(super) fn gone(absent: Absent, what: &str, fate: &str) -> Problem {
    match absent {
        Absent::Expired => {
            let problem = format!("this {what} has expired, and {fate}; ask for longer with `expires`");
            Problem::new(StatusCode::GONE, problem)
        }
        Absent::Unknown => {
            let problem = format!("there is no such {what}; it was settled already, or never made here");
            Problem::new(StatusCode::NOT_FOUND, problem)
        }
    }
}

fn full() -> Problem {
    let problem = format!("{MOST_HELD} are held already; settle some, or let them expire sooner");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, problem)
        .with(header::RETRY_AFTER, HeaderValue::from_static("1"))
}
