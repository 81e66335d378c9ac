//! Who matters how much.

use super::{judge::Until, terms::Terms};
use crate::{
    Answer, Limited,
    request::{Head, Reply},
};
use std::{borrow::Cow, fmt, sync::Arc};
use tidegate_core::{Report, triage::Arrival};
use tidegate_engine::{Cause, Pass, PriorityLimit};

/// A limit in front of requests that sheds the least important first.
///
/// ```
/// use tidegate_core::triage::{Arrival, Class};
/// use tidegate_engine::PriorityLimit;
/// use tidegate_rule::surface::RequestPriority;
///
/// let (user, batch) = (0, 1);
/// let limit = PriorityLimit::new([Class::new("user", "60%".parse()?), Class::new("batch", "10%".parse()?)], 100)?;
/// let priority = RequestPriority::new(limit, move |head, limit| match head.header("x-batch") {
///     Some(_) => Arrival::of(batch),
///     None => Arrival::of(user).user(limit.user(&head.peer())),
/// });
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// Clones share the limit.
#[derive(Clone)]
pub struct RequestPriority {
    limit: Arc<PriorityLimit>,
    arrival: Arc<ArrivalOf>,
    terms: Arc<Terms>,
}

type ArrivalOf = dyn Fn(&dyn Head, &PriorityLimit) -> Arrival + Send + Sync;

impl RequestPriority {
    /// A limit, and how a request arrives at it: its class, its level and its user.
    pub fn new(
        limit: impl Into<Arc<PriorityLimit>>,
        arrival: impl Fn(&dyn Head, &PriorityLimit) -> Arrival + Send + Sync + 'static,
    ) -> Self {
        let terms = Terms { until: Until::Body, ..Terms::new("priority") };
        Self { limit: limit.into(), arrival: Arc::new(arrival), terms: Arc::new(terms) }
    }

    /// The name by which it is called in answers.
    #[must_use]
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.terms_mut().name = name.into();
        self
    }

    /// How an answer counts where a controller sets the number of slots, or an error instead of one (`None`) where the wire
    /// has that; as [`served`](super::served) says unless told otherwise.
    #[must_use]
    pub fn classify(
        mut self,
        classify: impl Fn(Option<&dyn Reply>) -> Report + Send + Sync + 'static,
    ) -> Self {
        self.terms_mut().classify = Arc::new(classify);
        self
    }

    /// Until when a request is in flight; until the body of its answer has ended unless told otherwise.
    #[must_use]
    pub fn until(mut self, until: Until) -> Self {
        self.terms_mut().until = until;
        self
    }

    /// What to answer to whoever is shed; 503 and when to come back unless told otherwise.
    #[must_use]
    pub fn answer(mut self, answer: impl Fn(&Limited) -> Answer + Send + Sync + 'static) -> Self {
        self.terms_mut().answer = Arc::new(answer);
        self
    }

    /// Lets this request in, or sheds it.
    pub fn try_pass(&self, head: &dyn Head) -> Result<Pass<Arc<PriorityLimit>>, Cause> {
        let arrival = (self.arrival)(head, &self.limit);
        self.limit.try_pass_owned(arrival).map_err(Cause::from)
    }

    /// What it says to whoever is shed, and how it judges.
    pub fn terms(&self) -> &Arc<Terms> {
        &self.terms
    }

    fn terms_mut(&mut self) -> &mut Terms {
        Arc::make_mut(&mut self.terms)
    }
}

impl fmt::Debug for RequestPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestPriority").field(&self.limit).field(&self.terms).finish()
    }
}
