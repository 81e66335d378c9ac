//! The layer around a service that does nothing, beside tower_governor's.

use crate::{Result, cases::Measured, turns::compare};
use axum::{body::Body, extract::ConnectInfo};
use http::{Request, Response};
use std::{
    cell::RefCell,
    convert::Infallible,
    future::{Future, Ready, ready},
    net::SocketAddr,
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tidegate::{
    Declaration, Fields, Gate, RequestLimit, Rules,
    request::key,
    tower::LimitLayer,
};
use tower::{Layer, Service};
use tower_governor::{GovernorLayer, governor::GovernorConfigBuilder, key_extractor::PeerIpKeyExtractor};

pub(crate) const ABOUT: &str =
    "the layer around a no-op service, keyed by the peer's address, headers off, over tower_governor's time";

/// Clients that take turns.
const CLIENTS: u16 = 1_000;

pub(crate) fn measure() -> Result<Measured> {
    against_governor("layer", Fields::None)
}

/// Our layer with these fields, beside theirs without any. Requests are made before and used again, so that only the way
/// through the layer and the service is timed.
pub(crate) fn against_governor(name: &str, fields: Fields) -> Result<Measured> {
    let rule = Rules::new().rule(Declaration::of("api").quota("1000000000/s")?)?;
    let layer = LimitLayer::new(Gate::new([RequestLimit::new(rule).key(key::peer())]).fields(fields));
    let governor = GovernorConfigBuilder::default()
        .period(Duration::from_nanos(1))
        .burst_size(1_000_000)
        .key_extractor(PeerIpKeyExtractor)
        .finish()
        .ok_or("tower_governor takes no such quota")?;

    let pool = Pool::default();
    let mut ours = layer.layer(pool.clone());
    let mut theirs = GovernorLayer::new(governor).layer(pool.clone());
    Ok(compare((name, || pool.pass(&mut ours)), ("tower_governor", || pool.pass(&mut theirs))))
}

/// Requests, and a service that does nothing but put them back.
#[derive(Clone)]
struct Pool(Rc<RefCell<std::collections::VecDeque<Request<Body>>>>);

impl Default for Pool {
    fn default() -> Self {
        let request = |client: u16| {
            let [high, low] = client.to_be_bytes();
            let mut request = Request::new(Body::empty());
            request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([10, 0, high, low], 4_000))));
            request
        };
        Self(Rc::new(RefCell::new((0..CLIENTS).map(request).collect())))
    }
}

impl Service<Request<Body>> for Pool {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<std::result::Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.0.borrow_mut().push_back(request);
        ready(Ok(Response::new(Body::empty())))
    }
}

impl Pool {
    /// One request on its way.
    fn pass<S, R>(&self, service: &mut S)
    where
        S: Service<Request<Body>, Response = Response<R>, Error = Infallible>,
    {
        let Some(request) = self.0.borrow_mut().pop_front() else { return };
        let mut context = Context::from_waker(Waker::noop());
        assert!(service.poll_ready(&mut context).is_ready());
        match pin!(service.call(request)).poll(&mut context) {
            Poll::Ready(Ok(response)) => assert_eq!(response.status().as_u16(), 200),
            Poll::Ready(Err(never)) => match never {},
            Poll::Pending => panic!("nothing is waited for"),
        }
    }
}
