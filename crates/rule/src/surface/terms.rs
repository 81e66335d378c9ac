//! What a surface says to whoever it does not let in, and how it judges the answers of those whom it does.

use super::judge::{Until, served};
use crate::{Answer, Limited, request::Reply};
use std::{borrow::Cow, fmt, sync::Arc};
use tidegate_overload::{Cause, Report};

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

/// The part of a surface that is its [`Terms`], said once for all of them: the name it goes by, until when a call is in
/// flight, what is answered. `judged` adds how answers count, where that is asked for.
macro_rules! with_terms {
    (judged) => {
        /// How an answer counts, or an error instead of one (`None`) where the wire has that; as
        /// [`served`](crate::surface::served) says unless told otherwise.
        #[must_use]
        pub fn classify(
            mut self,
            classify: impl Fn(Option<&dyn $crate::request::Reply>) -> tidegate_overload::Report
            + Send
            + Sync
            + 'static,
        ) -> Self {
            self.terms_mut().classify = ::std::sync::Arc::new(classify);
            self
        }

        $crate::surface::terms::with_terms!();
    };
    () => {
        /// The name by which it is called in answers.
        #[must_use]
        pub fn named(mut self, name: impl Into<::std::borrow::Cow<'static, str>>) -> Self {
            self.terms_mut().name = name.into();
            self
        }

        /// Until when a call is in flight.
        #[must_use]
        pub fn until(mut self, until: $crate::surface::Until) -> Self {
            self.terms_mut().until = until;
            self
        }

        /// What to answer to whoever is not let in; 503 and when to come back unless told otherwise.
        #[must_use]
        pub fn answer(
            mut self,
            answer: impl Fn(&$crate::Limited) -> $crate::Answer + Send + Sync + 'static,
        ) -> Self {
            self.terms_mut().answer = ::std::sync::Arc::new(answer);
            self
        }

        /// What it says to whoever is not let in, and how it judges.
        pub fn terms(&self) -> &::std::sync::Arc<$crate::surface::Terms> {
            &self.terms
        }

        fn terms_mut(&mut self) -> &mut $crate::surface::Terms {
            ::std::sync::Arc::make_mut(&mut self.terms)
        }
    };
}
pub(super) use with_terms;

/// 503, and when to come back: in a second, where nothing better is known.
fn overloaded(limited: &Limited) -> Answer {
    let answer = Answer::from(limited).status(503);
    match answer.get("retry-after") {
        Some(_) => answer,
        None => answer.header("retry-after", "1"),
    }
}
