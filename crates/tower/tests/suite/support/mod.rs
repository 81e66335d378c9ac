//! Test helpers: rules with a manual clock, a service that can be blocked and inspected, and bodies that are sent frame by
//! frame. Servers are in `http_server`.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test uses a part of it")]

pub(crate) mod http_server;
pub(crate) mod log;
mod rules;

pub use rules::{
    NoReplyStore, TestRules, get, get_from, quota_remaining, test_rules, test_rules_without_store,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::Full;
use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};
use tokio::sync::{mpsc, watch};
use tower::Service;

/// The error of the test service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestServiceError;

/// A service that can be blocked, made unready and inspected. Clones share their state.
#[derive(Clone)]
pub struct TestService {
    pub calls: Arc<AtomicUsize>,
    pub in_flight: Arc<AtomicUsize>,
    pub max_in_flight: Arc<AtomicUsize>,
    unready: Arc<AtomicBool>,
    status: Arc<AtomicUsize>,
    blocked: Arc<watch::Sender<bool>>,
}

impl TestService {
    /// Creates a service that responds immediately with 200.
    pub fn new() -> Self {
        Self {
            calls: Arc::default(),
            in_flight: Arc::default(),
            max_in_flight: Arc::default(),
            unready: Arc::default(),
            status: Arc::new(AtomicUsize::new(200)),
            blocked: Arc::new(watch::Sender::new(true)),
        }
    }

    /// Sets the status of responses; 0 is an error.
    pub fn set_status(&self, status: usize) {
        self.status.store(status, Ordering::SeqCst);
    }

    /// Blocks all calls until [`release`](Self::release).
    pub fn block(&self) {
        self.blocked.send_replace(false);
    }

    pub fn release(&self) {
        self.blocked.send_replace(true);
    }

    pub fn set_unready(&self) {
        self.unready.store(true, Ordering::SeqCst);
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

struct InFlightCounter(Arc<AtomicUsize>);

impl Drop for InFlightCounter {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<B> Service<Request<B>> for TestService {
    type Response = Response<Full<Bytes>>;
    type Error = TestServiceError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, TestServiceError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), TestServiceError>> {
        match self.unready.load(Ordering::SeqCst) {
            true => Poll::Pending,
            false => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        let inner = self.clone();
        inner.calls.fetch_add(1, Ordering::SeqCst);
        let mut gate = inner.blocked.subscribe();
        Box::pin(async move {
            let inside = inner.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
            inner.max_in_flight.fetch_max(inside, Ordering::SeqCst);
            let _inside = InFlightCounter(inner.in_flight.clone());
            gate.wait_for(|open| *open).await.unwrap();
            match inner.status.load(Ordering::SeqCst) {
                0 => Err(TestServiceError),
                status => {
                    let answer = Response::builder().status(u16::try_from(status).unwrap());
                    Ok(answer.body(Full::from("hello")).unwrap())
                }
            }
        })
    }
}

/// A body whose frames the test sends.
pub struct ChannelBody(mpsc::UnboundedReceiver<Result<Frame<Bytes>, TestServiceError>>);

pub type ChannelBodySender = mpsc::UnboundedSender<Result<Frame<Bytes>, TestServiceError>>;

impl ChannelBody {
    pub fn new() -> (ChannelBodySender, Self) {
        let (pieces, body) = mpsc::unbounded_channel();
        (pieces, Self(body))
    }
}

impl Body for ChannelBody {
    type Data = Bytes;
    type Error = TestServiceError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, TestServiceError>>> {
        self.0.poll_recv(context)
    }
}

pub fn request() -> Request<()> {
    Request::builder().uri("http://host.test/path").body(()).unwrap()
}

/// Waits until a service is ready, and returns the response of the call.
pub async fn send_request<S, B>(service: &S, request: Request<B>) -> Result<S::Response, S::Error>
where
    S: Service<Request<B>> + Clone,
{
    tower::ServiceExt::oneshot(service.clone(), request).await
}

/// Waits until a service is ready, and returns the future of the call.
pub async fn start<S, B>(service: &S, request: Request<B>) -> S::Future
where
    S: Service<Request<B>, Error = TestServiceError> + Clone,
{
    let mut service = service.clone();
    tower::ServiceExt::ready(&mut service).await.unwrap().call(request)
}

/// Returns the status of a response.
pub async fn status<S, R>(service: &S) -> u16
where
    S: Service<Request<()>, Response = Response<R>, Error = TestServiceError> + Clone,
{
    send_request(service, request()).await.unwrap().status().as_u16()
}

pub fn header<'r, R>(response: &'r Response<R>, name: &str) -> Option<&'r str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}

/// Polls once, and returns whether the future is pending.
pub async fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context).is_pending())).await
}
