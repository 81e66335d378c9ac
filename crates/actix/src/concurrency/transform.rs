//! How many at once, and who may wait.

use super::service::ConcurrencyService;
use crate::held::HeldBody;
use actix_web::{
    Error,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use std::{
    borrow::Cow,
    future::{Ready, ready},
    sync::Arc,
    time::Duration,
};
use tidegate_engine::{Priority, Slots};
use tidegate_rule::{
    Answer, Limited,
    request::Head,
    surface::{Line, Terms, Until},
};

/// Lets no more requests into a service at once than there are slots. Each holds its slot until the body of its answer has
/// been sent, or it was given up.
///
/// ```
/// use std::time::Duration;
/// use tidegate_actix::ConcurrencyMiddleware;
/// use tidegate_engine::Slots;
///
/// let slots = Slots::builder().waiting_places(200).build(64)?;
/// let app = move || {
///     let at_once = ConcurrencyMiddleware::new(slots.clone()).wait(Duration::from_millis(500));
///     actix_web::App::new().wrap(at_once)
/// };
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// For so many at once of each client, use a rule with a quota such as `3 at once`.
///
/// Whoever finds no slot is answered with 503 and `Retry-After`. Make the slots outside of the closure that makes applications,
/// or each worker has its own.
#[derive(Clone, Debug)]
pub struct ConcurrencyMiddleware {
    slots: Slots,
    line: Line,
    terms: Terms,
}

impl ConcurrencyMiddleware {
    /// As many as there are slots. Nobody waits unless told otherwise.
    pub fn new(slots: Slots) -> Self {
        let terms = Terms { until: Until::Body, ..Terms::new("concurrency") };
        Self { slots, line: Line::default(), terms }
    }

    /// How long a request may wait in line for a slot. The line has as many places as the slots say.
    #[must_use]
    pub fn wait(mut self, longest: Duration) -> Self {
        self.line.patience = longest;
        self
    }

    /// Who of those in line goes first; whoever came first unless told otherwise.
    #[must_use]
    pub fn priority(mut self, priority: impl Fn(&dyn Head) -> Priority + Send + Sync + 'static) -> Self {
        self.line.priority = Some(Arc::new(priority));
        self
    }

    /// The name by which it is called in answers.
    #[must_use]
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.terms.name = name.into();
        self
    }

    /// Until when a slot is held; until the body of the answer has ended unless told otherwise.
    #[must_use]
    pub fn until(mut self, until: Until) -> Self {
        self.terms.until = until;
        self
    }

    /// What to answer to whoever is not let in.
    #[must_use]
    pub fn answer(mut self, answer: impl Fn(&Limited) -> Answer + Send + Sync + 'static) -> Self {
        self.terms.answer = Arc::new(answer);
        self
    }
}

impl<S, B> Transform<S, ServiceRequest> for ConcurrencyMiddleware
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<HeldBody<B>>;
    type Error = Error;
    type Transform = ConcurrencyService<S>;
    type InitError = ();
    type Future = Ready<Result<ConcurrencyService<S>, ()>>;

    fn new_transform(&self, inner: S) -> Self::Future {
        let (slots, line, terms) = (self.slots.clone(), self.line.clone(), Arc::new(self.terms.clone()));
        ready(Ok(ConcurrencyService::new(inner, slots, line, terms)))
    }
}
