//! Who matters how much.

use super::service::Prioritised;
use std::{borrow::Cow, fmt, sync::Arc};
use tidegate_core::{Report, triage::Arrival};
use tidegate_engine::PriorityLimit;
use tidegate_rule::{
    Answer, Limited,
    request::{Head, Reply},
    surface::{Terms, Until},
};
use tower_layer::Layer;

/// Sheds load in front of a service, the least important first.
///
/// ```
/// use tidegate_core::triage::{Arrival, Class};
/// use tidegate_engine::PriorityLimit;
/// use tidegate_tower::PriorityLayer;
///
/// let (user, batch) = (0, 1);
/// let limit = PriorityLimit::new([Class::new("user", "60%".parse()?), Class::new("batch", "10%".parse()?)], 100)?;
/// let layer = PriorityLayer::new(limit, move |head, limit| match head.header("x-batch") {
///     Some(_) => Arrival::of(batch),
///     None => Arrival::of(user).user(limit.user(&head.peer())),
/// });
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// A request is in flight until the body of its answer has ended, unless told otherwise. Whoever is shed is answered with
/// 503 and `Retry-After`, in gRPC with `UNAVAILABLE`. All services that are made from one layer share the limit.
#[derive(Clone)]
pub struct PriorityLayer {
    pub(super) limit: Arc<PriorityLimit>,
    pub(super) arrival: Arc<ArrivalOf>,
    terms: Terms,
}

pub(super) type ArrivalOf = dyn Fn(&dyn Head, &PriorityLimit) -> Arrival + Send + Sync;

impl PriorityLayer {
    /// A limit, and how a request arrives at it: its class, its level and its user.
    pub fn new(
        limit: impl Into<Arc<PriorityLimit>>,
        arrival: impl Fn(&dyn Head, &PriorityLimit) -> Arrival + Send + Sync + 'static,
    ) -> Self {
        let terms = Terms { until: Until::Body, ..Terms::new("priority") };
        Self { limit: limit.into(), arrival: Arc::new(arrival), terms }
    }

    /// The name by which it is called in answers.
    #[must_use]
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.terms.name = name.into();
        self
    }

    /// How an answer counts where a controller sets the number of slots, or an error instead of one (`None`); as
    /// [`crate::served`] says unless told otherwise.
    #[must_use]
    pub fn classify(
        mut self,
        classify: impl Fn(Option<&dyn Reply>) -> Report + Send + Sync + 'static,
    ) -> Self {
        self.terms.classify = Arc::new(classify);
        self
    }

    /// Until when a request is in flight; until the body of its answer has ended unless told otherwise.
    #[must_use]
    pub fn until(mut self, until: Until) -> Self {
        self.terms.until = until;
        self
    }

    /// What to answer to whoever is shed.
    #[must_use]
    pub fn answer(mut self, answer: impl Fn(&Limited) -> Answer + Send + Sync + 'static) -> Self {
        self.terms.answer = Arc::new(answer);
        self
    }
}

impl<S> Layer<S> for PriorityLayer {
    type Service = Prioritised<S>;

    fn layer(&self, inner: S) -> Prioritised<S> {
        Prioritised::new(inner, self.limit.clone(), self.arrival.clone(), Arc::new(self.terms.clone()))
    }
}

impl fmt::Debug for PriorityLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PriorityLayer").field(&self.terms).finish()
    }
}
