//! `/v1/acquire` takes slots, `/v1/release` gives them back.
//!
//! Who does not give them back in time has lost them: a program that crashed is not at work any more.

use super::{
    Response,
    body::{Asked, Members},
    desk::Desk,
    question::Question,
    reserve::{held, settled},
    told::DenyAs,
};
use crate::{api_error::ApiError, authorization::Caller};
use serde_json::json;
use tidegate_limiter::Claim;
use tidegate_policy::compile::Holds;

pub(super) const RELEASE: [&str; 1] = ["id"];

pub(super) async fn answer(
    desk: &Desk,
    asked: Asked<'_>,
    deny: DenyAs,
    caller: &Caller,
) -> Result<Response, ApiError> {
    let slots = |claim: Option<Claim>| {
        let (tokens, slots) = claim.map(Claim::into_parts).unwrap_or_default();
        // What is counted beside the slots was used.
        if let Some(tokens) = tokens {
            tokens.keep();
        }
        slots
    };
    let fit = |question: &Question<'_>, members: &Members<'_>| match question.holds() {
        Holds::Tokens => Err(ApiError::bad(format!(
            "{}rule `{}` has no number `at once`; ask /v1/reserve or /v1/check",
            members.place,
            question.rule().name()
        ))),
        Holds::Slots | Holds::Both => Ok(()),
    };
    held((desk, &desk.permits, caller), asked, deny, fit, slots).await
}

pub(super) fn release(desk: &Desk, asked: &Asked<'_>, caller: &Caller) -> Result<Response, ApiError> {
    let ids = asked.members.iter().map(|members| members.text("id")).collect::<Result<Vec<_>, _>>()?;
    let release = |id: &str| {
        drop(desk.permits.take(id, caller)?);
        Ok(json!({ "released": true }))
    };
    settled(asked.form, ids.into_iter().map(release).collect())
}
