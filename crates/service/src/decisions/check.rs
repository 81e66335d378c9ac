//! `/v1/check` takes, `/v1/peek` looks.

use super::{
    Response,
    body::{Asked, Form},
    desk::Desk,
    question::{Question, Touch, Touched},
    told::{DenyAs, Told},
};
use futures_util::future::join_all;
use http::StatusCode;
use serde::{Serialize, Serializer, ser::SerializeMap as _};
use tidegate_http_server::{ApiError, json_response};
use tidegate_limiter::{Check, CombinedReservation, reserve_all};
use tidegate_policy::compile::PolicyGate;
use tidegate_rule::{HeaderStyle, Mode};

pub(super) const MEMBERS: [&str; 5] = ["rule", "key", "cost", "tier", "within"];

pub(super) async fn answer(
    desk: &Desk,
    asked: Asked<'_>,
    touch: Touch,
    deny: DenyAs,
) -> Result<Response, ApiError> {
    let now = desk.now();
    let questions = questions(&asked, &now.gate)?;
    let mut told = match asked.form {
        Form::Together => Box::pin(kept_together(desk, &questions)).await,
        _ if questions.iter().any(Question::is_patient) => {
            let mut told = Vec::with_capacity(questions.len());
            for question in questions.chunks(1) {
                told.extend(Box::pin(kept_together(desk, question)).await);
            }
            told
        }
        _ => each(&questions, touch).await,
    };
    if touch == Touch::Take {
        now.count(&mut told, deny);
    }
    Ok(answered(asked.form, told, now.gate.gate().header_style(), deny))
}

/// Decides each on its own, in the order in which they were asked: those for one key follow each other.
async fn each<'a>(questions: &'a [Question<'a>], touch: Touch) -> Vec<Told<'a>> {
    let mut later = Vec::new();
    let mut told: Vec<Told<'a>> = Vec::with_capacity(questions.len());
    for question in questions {
        let decision = match question.touch(touch) {
            Touched::Now(decision) => decision,
            Touched::Later(bucket) => {
                later.push((told.len(), bucket));
                None
            }
        };
        told.push(Told::new(question, decision));
    }
    if !later.is_empty() {
        let asking = later.iter().map(|(place, bucket)| questions[*place].touch_store(bucket, touch));
        let decisions = Box::pin(join_all(asking)).await;
        for ((place, _), decision) in later.iter().zip(decisions) {
            told[*place] = Told::new(&questions[*place], Some(decision));
        }
    }
    told
}

/// What is asked of which rules.
pub(super) fn questions<'a>(
    asked: &'a Asked<'_>,
    gate: &'a PolicyGate,
) -> Result<Vec<Question<'a>>, ApiError> {
    let mut questions = Vec::with_capacity(asked.members.len());
    for members in &asked.members {
        questions.push(Question::of(members, gate)?);
    }
    Ok(questions)
}

/// Decides all of them or none; those that only watch come last, and are in nobody's way. The claims are those of the
/// questions, in their order.
pub(super) async fn together<'a>(
    desk: &Desk,
    questions: &'a [Question<'a>],
) -> (Vec<Option<CombinedReservation>>, Vec<Told<'a>>) {
    let enforced = decide(desk, questions, Mode::Enforce).await;
    let mut claims: Vec<Option<CombinedReservation>> = questions.iter().map(|_| None).collect();
    let mut told: Vec<Option<Told<'a>>> = questions.iter().map(|_| None).collect();
    let put = |outcomes: Vec<(usize, Option<CombinedReservation>)>,
               claims: &mut Vec<Option<CombinedReservation>>,
               told: &mut Vec<Option<Told<'a>>>| {
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
async fn decide(
    desk: &Desk,
    questions: &[Question<'_>],
    mode: Mode,
) -> Vec<(usize, Option<CombinedReservation>)> {
    let meant = questions.iter().enumerate().filter(|(_, question)| question.mode == mode);
    let (places, asks): (Vec<usize>, Vec<Check>) =
        meant.filter_map(|(place, question)| Some((place, question.ask()?))).unzip();
    let claims = match asks.iter().all(Check::is_in_memory) {
        true => reserve_all(asks).await,
        false => desk.lasting(reserve_all(asks)).await.unwrap_or_default(),
    };
    places.into_iter().zip(claims.into_iter().chain(std::iter::repeat_with(|| None))).collect()
}

/// Decides all of them or none, and takes it for good.
async fn kept_together<'a>(desk: &Desk, questions: &'a [Question<'a>]) -> Vec<Told<'a>> {
    let (claims, told) = together(desk, questions).await;
    for claim in claims.into_iter().flatten() {
        claim.keep();
    }
    told
}

/// The answer to one question, or to several.
pub(super) fn answered(form: Form, mut told: Vec<Told<'_>>, fields: HeaderStyle, deny: DenyAs) -> Response {
    if form == Form::One
        && let Some(only) = told.pop()
    {
        return only.response(fields, deny);
    }
    let answers = Answers { form, told };
    json_response(StatusCode::OK, "application/json", &answers)
}

/// Several answers.
struct Answers<'a> {
    form: Form,
    told: Vec<Told<'a>>,
}

impl Serialize for Answers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.form {
            Form::One | Form::List => self.told.serialize(serializer),
            Form::Asks | Form::Together => {
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry("allowed", &self.told.iter().all(Told::is_allowed))?;
                map.serialize_entry("answers", &self.told)?;
                map.end()
            }
        }
    }
}
