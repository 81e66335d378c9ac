//! Who matters how much.

use super::{
    judge::Until,
    terms::{Terms, with_terms},
};
use crate::request::Head;
use std::{fmt, sync::Arc};
use tidegate_overload::{Cause, Pass, PriorityLimit, priority::Arrival};

/// A limit in front of requests that sheds the least important first.
///
/// ```
/// use tidegate_overload::{PriorityLimit, priority::{Arrival, Class}};
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
/// A request is in flight until the body of its answer has ended, unless told otherwise. Clones share the limit.
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

    with_terms!(judged);

    /// Lets this request in, or sheds it.
    pub fn try_pass(&self, head: &dyn Head) -> Result<Pass<Arc<PriorityLimit>>, Cause> {
        let arrival = (self.arrival)(head, &self.limit);
        self.limit.try_pass_owned(arrival).map_err(Cause::from)
    }
}

impl fmt::Debug for RequestPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestPriority").field(&self.limit).field(&self.terms).finish()
    }
}
