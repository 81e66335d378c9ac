//! A limit in front of services that the important lose last.

use super::service::PriorityService;
use crate::held::HeldBody;
use actix_web::{
    Error,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use std::future::{Ready, ready};
use tidegate_rule::surface::RequestPriority;

/// Sheds load in front of a service, the least important first.
///
/// ```
/// use tidegate_actix::{PriorityMiddleware, RequestPriority};
/// use tidegate_overload::priority::{Arrival, Class};
/// use tidegate_overload::PriorityLimit;
///
/// let (user, batch) = (0, 1);
/// let classes = [Class::new("user", "60%".parse()?), Class::new("batch", "10%".parse()?)];
/// let shed = RequestPriority::new(PriorityLimit::new(classes, 100)?, move |head, limit| match head.header("x-batch") {
///     Some(_) => Arrival::of(batch),
///     None => Arrival::of(user).user(limit.user(&head.peer())),
/// });
/// let app = move || actix_web::App::new().wrap(PriorityMiddleware::new(shed.clone()));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// A request is in flight until the body of its answer has been sent, unless told otherwise. Whoever is shed is answered with
/// 503 and `Retry-After`. Make the limit outside of the closure that makes applications, or each worker has its own.
#[derive(Clone, Debug)]
pub struct PriorityMiddleware {
    priority: RequestPriority,
}

impl PriorityMiddleware {
    /// A middleware with this limit.
    pub fn new(priority: RequestPriority) -> Self {
        Self { priority }
    }
}

impl<S, B> Transform<S, ServiceRequest> for PriorityMiddleware
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<HeldBody<B>>;
    type Error = Error;
    type Transform = PriorityService<S>;
    type InitError = ();
    type Future = Ready<Result<PriorityService<S>, ()>>;

    fn new_transform(&self, inner: S) -> Self::Future {
        ready(Ok(PriorityService::new(inner, self.priority.clone())))
    }
}
