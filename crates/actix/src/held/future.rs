//! A request that is being served, and what it holds meanwhile.

use super::body::HeldBody;
use actix_web::{
    Error,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse},
};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

/// What a request that was let in holds, and what becomes of it with the answer.
pub trait Admission: 'static {
    /// Here is the answer. Dropping the admission instead means that none came.
    fn settle<B: MessageBody>(
        self,
        result: Result<ServiceResponse<B>, Error>,
    ) -> Result<ServiceResponse<HeldBody<B>>, Error>;
}

pin_project! {
    /// The answer to a request that was let in, waits, or was not let in. Dropping it gives back what it holds.
    pub struct HeldFuture<F, B, A> {
        #[pin]
        state: State<F, B, A>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F, B, A> {
        Served { #[pin] inner: F, admission: Option<A> },
        Waiting { waiting: Pin<Box<dyn Future<Output = Answered<B>>>> },
        Answered { response: Option<ServiceResponse<HeldBody<B>>> },
    }
}

type Answered<B> = Result<ServiceResponse<HeldBody<B>>, Error>;

/// What was said to a request.
pub(crate) enum Said<B, A> {
    Enter(ServiceRequest, A),
    Answer(ServiceResponse<HeldBody<B>>),
}

impl<F, B, A> HeldFuture<F, B, A>
where
    F: Future<Output = Result<ServiceResponse<B>, Error>>,
    B: MessageBody + 'static,
    A: Admission,
{
    /// Does at once as was said.
    pub(crate) fn now<S>(service: &S, said: Said<B, A>) -> Self
    where
        S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error, Future = F>,
    {
        let state = match said {
            Said::Enter(request, admission) => {
                State::Served { inner: service.call(request), admission: Some(admission) }
            }
            Said::Answer(response) => State::Answered { response: Some(response) },
        };
        Self { state }
    }

    /// Waits, and then does as was said.
    pub(crate) fn later<S>(service: &Rc<S>, said: impl Future<Output = Said<B, A>> + 'static) -> Self
    where
        S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error, Future = F> + 'static,
    {
        let service = service.clone();
        let waiting = async move {
            match said.await {
                Said::Enter(request, admission) => admission.settle(service.call(request).await),
                Said::Answer(response) => Ok(response),
            }
        };
        Self { state: State::Waiting { waiting: Box::pin(waiting) } }
    }
}

impl<F, B, A> Future for HeldFuture<F, B, A>
where
    F: Future<Output = Result<ServiceResponse<B>, Error>>,
    B: MessageBody,
    A: Admission,
{
    type Output = Answered<B>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Whoever is polled again after it was done has nothing to say, and nothing to panic about.
        match self.project().state.project() {
            StateProjection::Served { inner, admission } => {
                let result = ready!(inner.poll(context));
                match admission.take() {
                    Some(admission) => Poll::Ready(admission.settle(result)),
                    None => Poll::Pending,
                }
            }
            StateProjection::Waiting { waiting } => waiting.as_mut().poll(context),
            StateProjection::Answered { response } => {
                response.take().map_or(Poll::Pending, |it| Poll::Ready(Ok(it)))
            }
        }
    }
}

impl<F, B, A> fmt::Debug for HeldFuture<F, B, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeldFuture")
    }
}
