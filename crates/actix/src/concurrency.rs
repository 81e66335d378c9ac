//! A limit on requests in flight, each until the body of its response has been sent.

use crate::{
    head::RequestHead,
    held::{Entered, HeldBody, HeldFuture, say},
    middleware::{Handle, Inner, Middleware},
};
use actix_web::{body::MessageBody, dev::ServiceRequest};
use std::rc::Rc;
use tidegate_limiter::SemaphorePermit;
use tidegate_rule::surface::{RequestSlots, Turn};

/// Lets no more requests into a service at once than there are slots. Each holds its slot until the body of its answer has
/// been sent, or it was given up.
///
/// ```
/// use std::time::Duration;
/// use tidegate_actix::{ConcurrencyMiddleware, RequestSlots};
/// use tidegate_limiter::Slots;
///
/// let slots = Slots::builder().max_waiters(200).build(64)?;
/// let at_once = RequestSlots::new(slots).wait(Duration::from_millis(500));
/// let app = move || actix_web::App::new().wrap(ConcurrencyMiddleware::new(at_once.clone()));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// For a limit per client, use a rule with a quota such as `3 at once`.
///
/// A request that finds no slot gets 503 and `Retry-After`. Make the slots outside of the closure that makes applications,
/// or each worker has its own.
pub type ConcurrencyMiddleware = Middleware<RequestSlots>;

impl Handle for RequestSlots {
    type Body<B: MessageBody> = HeldBody<B>;
    type Future<S: Inner<B>, B: MessageBody + 'static> = HeldFuture<S::Future, B, Entered<SemaphorePermit>>;

    fn call<S: Inner<B>, B: MessageBody + 'static>(
        &self,
        inner: &Rc<S>,
        request: ServiceRequest,
    ) -> Self::Future<S, B> {
        let (turn, terms) = (self.turn(&RequestHead::of(&request)), self.terms());
        match turn {
            Turn::Now(slot) => HeldFuture::now(&**inner, say(terms, request, slot)),
            Turn::Later(line) => {
                let terms = terms.clone();
                HeldFuture::later(inner, async move { say(&terms, request, line.slot().await) })
            }
        }
    }
}
