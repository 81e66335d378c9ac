//! Load shedding by priority.

use crate::{
    head::TowerRequestHead,
    middleware::{MiddlewareLayer, MiddlewareService},
    permit::{PermitBody, PermitFuture, ResponseProtocol, reject},
};
use http::{Request, Response};
use http_body::Body;
use std::{
    sync::Arc,
    task::{Context, Poll},
};
use tidegate_overload::{CallPermit, PriorityLimit};
use tidegate_rule::middleware::RequestPriority;
use tower_service::Service;

/// Limits requests in flight, and sheds the least important ones first.
///
/// ```
/// use tidegate_overload::{PriorityLimit, priority::{PriorityRequest, PriorityClass}};
/// use tidegate_tower::{PriorityLayer, RequestPriority};
///
/// let (user, batch) = (0, 1);
/// let limit = PriorityLimit::new([PriorityClass::new("user", "60%".parse()?), PriorityClass::new("batch", "10%".parse()?)], 100)?;
/// let layer = PriorityLayer::new(RequestPriority::new(limit, move |head, limit| match head.header("x-batch") {
///     Some(_) => PriorityRequest::new(batch),
///     None => PriorityRequest::new(user).user(limit.hash_user(&head.peer())),
/// }));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// By default, a request is in flight until its response body has ended. A shed request gets 503 and `Retry-After`, in gRPC
/// `UNAVAILABLE`. All services of one layer share the limit.
pub type PriorityLayer = MiddlewareLayer<RequestPriority>;

impl<S, B, R> Service<Request<B>> for MiddlewareService<S, RequestPriority>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body,
{
    type Response = Response<PermitBody<R>>;
    type Error = S::Error;
    type Future = PermitFuture<S::Future, CallPermit<Arc<PriorityLimit>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let options = self.settings.options();
        match self.settings.try_acquire(&TowerRequestHead::new(&request)) {
            Ok(permit) => PermitFuture::forward(self.inner.call(request), permit, options.clone()),
            Err(cause) => PermitFuture::respond(reject(options, ResponseProtocol::detect(&request), cause)),
        }
    }
}
