//! A limit on requests in flight, each until the body of its response has been sent.

use crate::{
    head::ActixRequestHead,
    middleware::{InnerService, Middleware, MiddlewareHandler},
    permit::{PermitMessageBody, PermitResponseFuture, PermittedRequest, admit_or_reject},
};
use actix_web::{body::MessageBody, dev::ServiceRequest};
use std::rc::Rc;
use tidegate_limiter::SemaphorePermit;
use tidegate_rule::middleware::{PermitAcquisition, RequestConcurrency};

/// Limits requests in flight. Each request holds its slot until its response body has been sent or is dropped.
///
/// ```
/// use std::time::Duration;
/// use tidegate_actix::{ConcurrencyMiddleware, RequestConcurrency};
/// use tidegate_limiter::Semaphore;
///
/// let slots = Semaphore::builder().max_waiters(200).build(64)?;
/// let at_once = RequestConcurrency::new(slots).wait(Duration::from_millis(500));
/// let app = move || actix_web::App::new().wrap(ConcurrencyMiddleware::new(at_once.clone()));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// For a limit per client, use a rule with a quota such as `3 at once`.
///
/// A request without a slot gets 503 and `Retry-After`. Create the semaphore outside of the factory closure; otherwise each
/// worker has its own.
pub type ConcurrencyMiddleware = Middleware<RequestConcurrency>;

impl MiddlewareHandler for RequestConcurrency {
    type Body<B: MessageBody> = PermitMessageBody<B>;
    type Future<S: InnerService<B>, B: MessageBody + 'static> =
        PermitResponseFuture<S::Future, B, PermittedRequest<SemaphorePermit>>;

    fn call<S: InnerService<B>, B: MessageBody + 'static>(
        &self,
        inner: &Rc<S>,
        request: ServiceRequest,
    ) -> Self::Future<S, B> {
        let (acquisition, options) = (self.acquire(&ActixRequestHead::new(&request)), self.options());
        match acquisition {
            PermitAcquisition::Ready(result) => {
                PermitResponseFuture::immediate(&**inner, admit_or_reject(options, request, result))
            }
            PermitAcquisition::Waiting(waiter) => {
                let options = options.clone();
                PermitResponseFuture::deferred(inner, async move {
                    admit_or_reject(&options, request, waiter.wait().await)
                })
            }
        }
    }
}
