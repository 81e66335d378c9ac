//! Who matters how much.

use super::service::PriorityService;
use crate::held::HeldBody;
use actix_web::{
    Error,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use std::{
    borrow::Cow,
    fmt,
    future::{Ready, ready},
    sync::Arc,
};
use tidegate_core::{Report, triage::Arrival};
use tidegate_engine::PriorityLimit;
use tidegate_rule::{
    Answer, Limited,
    request::{Head, Reply},
    surface::{Terms, Until},
};

/// Sheds load in front of a service, the least important first.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_actix::PriorityMiddleware;
/// use tidegate_core::triage::{Arrival, Class};
/// use tidegate_engine::PriorityLimit;
///
/// let (user, batch) = (0, 1);
/// let classes = [Class::new("user", "60%".parse()?), Class::new("batch", "10%".parse()?)];
/// let limit = Arc::new(PriorityLimit::new(classes, 100)?);
/// let app = move || {
///     let shed = PriorityMiddleware::new(limit.clone(), move |head, limit| match head.header("x-batch") {
///         Some(_) => Arrival::of(batch),
///         None => Arrival::of(user).user(limit.user(&head.peer())),
///     });
///     actix_web::App::new().wrap(shed)
/// };
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// A request is in flight until the body of its answer has been sent, unless told otherwise. Whoever is shed is answered with
/// 503 and `Retry-After`. Make the limit outside of the closure that makes applications, or each worker has its own.
#[derive(Clone)]
pub struct PriorityMiddleware {
    limit: Arc<PriorityLimit>,
    arrival: Arc<ArrivalOf>,
    terms: Terms,
}

pub(super) type ArrivalOf = dyn Fn(&dyn Head, &PriorityLimit) -> Arrival + Send + Sync;

impl PriorityMiddleware {
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

    /// How an answer counts where a controller sets the number of slots; as [`crate::served`] says unless told otherwise.
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
        let (limit, arrival, terms) =
            (self.limit.clone(), self.arrival.clone(), Arc::new(self.terms.clone()));
        ready(Ok(PriorityService::new(inner, limit, arrival, terms)))
    }
}

impl fmt::Debug for PriorityMiddleware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PriorityMiddleware").field(&self.limit).field(&self.terms).finish()
    }
}
