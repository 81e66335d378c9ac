//! `/v1/check` takes, `/v1/peek` looks.

use super::{
    body::{Asked, Form},
    desk::Desk,
    problem::Problem,
    question::Question,
    told::{DenyAs, Told, json_response},
};
use axum::response::Response;
use futures_util::future::join_all;
use http::StatusCode;
use serde_json::{Value, json};
use tidegate_core::Decision;
use tidegate_engine::{Claim, OwnedAsk, reserve_all};
use tidegate_policy::compile::PolicyGate;
use tidegate_rule::{Fields, Mode};

/// Whether anything is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Touch {
    Take,
    Look,
}

pub(super) async fn answer(
    desk: &Desk,
    asked: Asked,
    touch: Touch,
    deny: DenyAs,
) -> Result<Response, Problem> {
    let (questions, fields) = questions(&asked, &desk.now().gate)?;
    if asked.form == Form::Together {
        if touch == Touch::Look {
            return Err(Problem::bad("looking charges nothing; leave `all-or-nothing` out"));
        }
        let (claims, told) = together(desk, &questions).await;
        claims.into_iter().flatten().for_each(keep);
        desk.count(&told);
        return Ok(answered(asked.form, &told, fields, deny));
    }
    let told: Vec<Told> = match &questions[..] {
        // In the order in which they were asked: those for one key follow each other.
        [only] => vec![Told::new(only, touched(only, touch).await)],
        all => {
            let decisions = join_all(all.iter().map(|question| touched(question, touch))).await;
            all.iter().zip(decisions).map(|(question, decision)| Told::new(question, decision)).collect()
        }
    };
    if touch == Touch::Take {
        desk.count(&told);
    }
    Ok(answered(asked.form, &told, fields, deny))
}

async fn touched(question: &Question, touch: Touch) -> Option<Decision> {
    match touch {
        Touch::Take => question.check().await,
        Touch::Look => question.peek().await,
    }
}

/// What is asked of which rules, and how clients are told.
pub(super) fn questions(asked: &Asked, gate: &PolicyGate) -> Result<(Vec<Question>, Fields), Problem> {
    let questions = asked.members.iter().map(|members| Question::of(members, gate));
    Ok((questions.collect::<Result<_, _>>()?, gate.gate().told()))
}

/// Decides all of them or none; those that only watch come last, and are in nobody's way. The claims are those of the
/// questions, in their order.
pub(super) async fn together(desk: &Desk, questions: &[Question]) -> (Vec<Option<Claim>>, Vec<Told>) {
    let enforced = decide(desk, questions, Mode::Enforce).await;
    let mut claims: Vec<Option<Claim>> = questions.iter().map(|_| None).collect();
    let mut told: Vec<Option<Told>> = questions.iter().map(|_| None).collect();
    let put = |outcomes: Vec<(usize, Option<Claim>)>,
               claims: &mut Vec<Option<Claim>>,
               told: &mut Vec<Option<Told>>| {
        for (place, claim) in outcomes {
            told[place] = Some(match &claim {
                Some(claim) => Told::new(&questions[place], Some(*claim.decision())),
                None => Told::passed_over(&questions[place]),
            });
            claims[place] = claim;
        }
    };
    put(enforced, &mut claims, &mut told);
    if told.iter().flatten().all(Told::is_allowed) {
        for place in 0..questions.len() {
            if questions[place].mode == Mode::Shadow {
                let watched = decide(desk, &questions[place..=place], Mode::Shadow).await;
                let watched = watched.into_iter().map(|(_, claim)| (place, claim)).collect();
                put(watched, &mut claims, &mut told);
            }
        }
    } else {
        claims.iter_mut().for_each(|claim| *claim = None);
    }
    let rest = told.into_iter().zip(questions);
    let told = rest.map(|(told, question)| told.unwrap_or_else(|| Told::new(question, None))).collect();
    (claims, told)
}

/// Asks all questions of this mode together; each with its place.
async fn decide(desk: &Desk, questions: &[Question], mode: Mode) -> Vec<(usize, Option<Claim>)> {
    let meant = questions.iter().enumerate().filter(|(_, question)| question.mode == mode);
    let (places, asks): (Vec<usize>, Vec<OwnedAsk>) =
        meant.filter_map(|(place, question)| Some((place, question.ask()?))).unzip();
    let claims = match asks.iter().all(OwnedAsk::is_in_memory) {
        true => reserve_all(asks).await,
        false => desk.lasting(reserve_all(asks)).await.unwrap_or_default(),
    };
    places.into_iter().zip(claims.into_iter().chain(std::iter::repeat_with(|| None))).collect()
}

fn keep(claim: Claim) {
    let (tokens, _slots) = claim.into_parts();
    if let Some(tokens) = tokens {
        tokens.keep();
    }
}

/// The answer to one question, or to several.
pub(super) fn answered(form: Form, told: &[Told], fields: Fields, deny: DenyAs) -> Response {
    let list = || told.iter().map(Told::json).collect::<Vec<Value>>();
    let body = match (form, told) {
        (Form::One, [only]) => return only.response(fields, deny),
        (Form::One | Form::List, _) => Value::Array(list()),
        (Form::Asks | Form::Together, _) => {
            json!({ "allowed": told.iter().all(Told::is_allowed), "answers": list() })
        }
    };
    json_response(StatusCode::OK, "application/json", &body)
}
