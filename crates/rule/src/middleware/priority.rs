//! A priority limit on requests.

use super::{
    classify::InFlightEnd,
    options::{MiddlewareOptions, option_methods},
};
use crate::request::RequestHead;
use std::{fmt, sync::Arc};
use tidegate_overload::{CallError, CallPermit, PriorityLimit, priority::PriorityRequest};

/// A concurrency limit on requests that sheds the least important first.
///
/// ```
/// use tidegate_overload::{PriorityLimit, priority::{PriorityRequest, PriorityClass}};
/// use tidegate_rule::middleware::RequestPriority;
///
/// let (user, batch) = (0, 1);
/// let limit = PriorityLimit::new([PriorityClass::new("user", "60%".parse()?), PriorityClass::new("batch", "10%".parse()?)], 100)?;
/// let priority = RequestPriority::new(limit, move |head, limit| match head.header("x-batch") {
///     Some(_) => PriorityRequest::new(batch),
///     None => PriorityRequest::new(user).user(limit.hash_user(&head.peer())),
/// });
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// A request is in flight until the body of its response has ended, by default. Clones share the limit.
#[derive(Clone)]
pub struct RequestPriority {
    limit: Arc<PriorityLimit>,
    make_request: Arc<PriorityRequestFn>,
    options: Arc<MiddlewareOptions>,
}

type PriorityRequestFn = dyn Fn(&dyn RequestHead, &PriorityLimit) -> PriorityRequest + Send + Sync;

impl RequestPriority {
    /// Creates a limit; `make_request` determines the class, the level and the user of a request.
    pub fn new(
        limit: impl Into<Arc<PriorityLimit>>,
        make_request: impl Fn(&dyn RequestHead, &PriorityLimit) -> PriorityRequest + Send + Sync + 'static,
    ) -> Self {
        let options =
            MiddlewareOptions { in_flight_end: InFlightEnd::Body, ..MiddlewareOptions::new("priority") };
        Self { limit: limit.into(), make_request: Arc::new(make_request), options: Arc::new(options) }
    }

    option_methods!(classify);

    /// Admits this request or sheds it.
    pub fn try_acquire(&self, head: &dyn RequestHead) -> Result<CallPermit<Arc<PriorityLimit>>, CallError> {
        let request = (self.make_request)(head, &self.limit);
        self.limit.try_acquire_owned(request).map_err(CallError::from)
    }
}

impl fmt::Debug for RequestPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestPriority").field(&self.limit).field(&self.options).finish()
    }
}
