//! A limit in front of services that the important lose last.

use super::service::Prioritised;
use tidegate_rule::surface::RequestPriority;
use tower_layer::Layer;

/// Sheds load in front of a service, the least important first.
///
/// ```
/// use tidegate_overload::priority::{Arrival, Class};
/// use tidegate_overload::PriorityLimit;
/// use tidegate_tower::{PriorityLayer, RequestPriority};
///
/// let (user, batch) = (0, 1);
/// let limit = PriorityLimit::new([Class::new("user", "60%".parse()?), Class::new("batch", "10%".parse()?)], 100)?;
/// let layer = PriorityLayer::new(RequestPriority::new(limit, move |head, limit| match head.header("x-batch") {
///     Some(_) => Arrival::of(batch),
///     None => Arrival::of(user).user(limit.user(&head.peer())),
/// }));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// A request is in flight until the body of its answer has ended, unless told otherwise. Whoever is shed is answered with
/// 503 and `Retry-After`, in gRPC with `UNAVAILABLE`. All services that are made from one layer share the limit.
#[derive(Clone, Debug)]
pub struct PriorityLayer {
    priority: RequestPriority,
}

impl PriorityLayer {
    /// A layer with this limit.
    pub fn new(priority: RequestPriority) -> Self {
        Self { priority }
    }
}

impl<S> Layer<S> for PriorityLayer {
    type Service = Prioritised<S>;

    fn layer(&self, inner: S) -> Prioritised<S> {
        Prioritised::new(inner, self.priority.clone())
    }
}
