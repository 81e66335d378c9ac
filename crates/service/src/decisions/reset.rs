//! `/v1/reset` forgets what was counted for a key. Only operators may.

use super::{Response, body::Asked, desk::Desk, question::addressed, reserve::settled};
use http::StatusCode;
use serde_json::json;
use tidegate_http_server::ApiError;

/// The members of a question.
pub const MEMBERS: [&str; 2] = ["rule", "key"];

/// Resets the keys that are asked for.
pub async fn answer(desk: &Desk, asked: Asked<'_>) -> Result<Response, ApiError> {
    let mut places = Vec::with_capacity(asked.members.len());
    let now = desk.now();
    for members in &asked.members {
        let (named, key) = addressed(members, &now.gate)?;
        places.push((named.rule().limiter(), key));
    }
    let mut answers = Vec::with_capacity(places.len());
    for (limiter, key) in places {
        let reset = match &limiter {
            None => Ok(()),
            Some(limiter) => limiter.key(&key).reset().await,
        };
        answers.push(match reset {
            Ok(()) => Ok(json!({ "reset": true })),
            Err(_) => {
                let problem = "the store that counts is away; try again later";
                Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, problem))
            }
        });
    }
    settled(asked.form, answers)
}
