//! What a surface says to whoever it does not let in, and how it judges the answers of those whom it does.

use super::judge::{Until, served};
use crate::{Answer, Limited, request::Reply};
use std::{borrow::Cow, fmt, sync::Arc};
use tidegate_core::Report;
use tidegate_engine::Cause;

/// What a surface says to whoever it does not let in, and how it judges the answers of those whom it does.
#[derive(Clone)]
pub struct Terms {
    /// The name by which it is called in answers.
    pub name: Cow<'static, str>,
    /// What to answer to whoever is not let in.
    pub answer: Arc<AnswerTo>,
    /// How an answer counts, or an error instead of one (`None`).
    pub classify: Arc<Classify>,
    /// Until when a call is in flight.
    pub until: Until,
}

type AnswerTo = dyn Fn(&Limited) -> Answer + Send + Sync;

/// How an answer counts, or an error instead of one (`None`).
pub type Classify = dyn Fn(Option<&dyn Reply>) -> Report + Send + Sync;

impl Terms {
    /// Answers with 503 and when to come back, judges as [`served`] does, and is done when the head of an answer is there.
    pub fn new(name: &'static str) -> Self {
        Self {
            name: name.into(),
            answer: Arc::new(overloaded),
            classify: Arc::new(served),
            until: Until::Head,
        }
    }

    /// The error of a request that was not let in, and the answer to it.
    #[cold]
    pub fn refuse(&self, cause: Cause) -> (Limited, Answer) {
        let limited = Limited::new(&*self.name, cause);
        let answer = (self.answer)(&limited);
        (limited, answer)
    }
}

impl fmt::Debug for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terms").field("name", &self.name).field("until", &self.until).finish_non_exhaustive()
    }
}

/// 503, and when to come back: in a second, where nothing better is known.
fn overloaded(limited: &Limited) -> Answer {
    let answer = Answer::from(limited).status(503);
    match answer.get("retry-after") {
        Some(_) => answer,
        None => answer.header("retry-after", "1"),
    }
}
