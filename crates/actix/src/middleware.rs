//! The transform and the service that all middleware types share.

use actix_web::{
    Error,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use std::{
    fmt,
    future::{Ready, ready},
    rc::Rc,
    task::{Context, Poll},
};

/// Middleware with settings of [`tidegate_rule::middleware`]. Its aliases, such as
/// [`GuardMiddleware`](crate::GuardMiddleware), document each type.
#[derive(Clone, Debug, Default)]
pub struct Middleware<T> {
    settings: T,
}

impl<T> Middleware<T> {
    /// Creates middleware with these settings.
    pub fn new(settings: impl Into<T>) -> Self {
        Self { settings: settings.into() }
    }
}

/// The service of a [`Middleware`].
pub struct TransformService<S, T> {
    /// Shared with waiting requests.
    inner: Rc<S>,
    settings: T,
}

/// Handles a request in one type of middleware.
pub trait MiddlewareHandler: Clone + 'static {
    /// The response body.
    type Body<B: MessageBody>: MessageBody;
    /// The response future.
    type Future<S: InnerService<B>, B: MessageBody + 'static>: Future<
        Output = Result<ServiceResponse<Self::Body<B>>, Error>,
    >;

    /// Calls the service or rejects the request.
    fn call<S: InnerService<B>, B: MessageBody + 'static>(
        &self,
        inner: &Rc<S>,
        request: ServiceRequest,
    ) -> Self::Future<S, B>;
}

/// A service that middleware can wrap.
pub trait InnerService<B>:
    Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static
{
}

impl<S, B> InnerService<B> for S where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static
{
}

impl<S, B, T> Transform<S, ServiceRequest> for Middleware<T>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
    T: MiddlewareHandler,
{
    type Response = ServiceResponse<T::Body<B>>;
    type Error = Error;
    type Transform = TransformService<S, T>;
    type InitError = ();
    type Future = Ready<Result<TransformService<S, T>, ()>>;

    fn new_transform(&self, inner: S) -> Self::Future {
        ready(Ok(TransformService { inner: Rc::new(inner), settings: self.settings.clone() }))
    }
}

impl<S, B, T> Service<ServiceRequest> for TransformService<S, T>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
    T: MiddlewareHandler,
{
    type Response = ServiceResponse<T::Body<B>>;
    type Error = Error;
    type Future = T::Future<S, B>;

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        self.settings.call(&self.inner, request)
    }
}

impl<S, T: fmt::Debug> fmt::Debug for TransformService<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TransformService").field(&self.settings).finish()
    }
}
