//! Load shedding by priority.

use crate::{
    head::ActixRequestHead,
    middleware::{InnerService, Middleware, MiddlewareHandler},
    permit::{PermitMessageBody, PermitResponseFuture, PermittedRequest, admit_or_reject},
};
use actix_web::{body::MessageBody, dev::ServiceRequest};
use std::{rc::Rc, sync::Arc};
use tidegate_overload::{CallPermit, PriorityLimit};
use tidegate_rule::middleware::RequestPriority;

/// Limits requests in flight, and sheds the least important ones first.
///
/// ```
/// use tidegate_actix::{PriorityMiddleware, RequestPriority};
/// use tidegate_overload::{PriorityLimit, priority::{PriorityRequest, PriorityClass}};
///
/// let (user, batch) = (0, 1);
/// let classes = [PriorityClass::new("user", "60%".parse()?), PriorityClass::new("batch", "10%".parse()?)];
/// let shed = RequestPriority::new(PriorityLimit::new(classes, 100)?, move |head, limit| match head.header("x-batch") {
///     Some(_) => PriorityRequest::new(batch),
///     None => PriorityRequest::new(user).user(limit.hash_user(&head.peer())),
/// });
/// let app = move || actix_web::App::new().wrap(PriorityMiddleware::new(shed.clone()));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// By default, a request is in flight until its response body has been sent. A shed request gets 503 and `Retry-After`.
/// Create the limit outside of the factory closure; otherwise each worker has its own.
pub type PriorityMiddleware = Middleware<RequestPriority>;

impl MiddlewareHandler for RequestPriority {
    type Body<B: MessageBody> = PermitMessageBody<B>;
    type Future<S: InnerService<B>, B: MessageBody + 'static> =
        PermitResponseFuture<S::Future, B, PermittedRequest<CallPermit<Arc<PriorityLimit>>>>;

    fn call<S: InnerService<B>, B: MessageBody + 'static>(
        &self,
        inner: &Rc<S>,
        request: ServiceRequest,
    ) -> Self::Future<S, B> {
        let permit = self.try_acquire(&ActixRequestHead::new(&request));
        PermitResponseFuture::immediate(&**inner, admit_or_reject(self.options(), request, permit))
    }
}
