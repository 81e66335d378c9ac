//! The layer around a service that does nothing, beside tower_governor's.

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
    Declaration, Gate, RequestLimit, Rules,
    rule::{Fields, request::key},
    tower::LimitLayer,
};
use tidegate_bench::{Result, suite::Measured, turns::compare};
use tower::{Layer, Service};
use tower_governor::{GovernorLayer, governor::GovernorConfigBuilder, key_extractor::PeerIpKeyExtractor};

pub(crate) const ABOUT: &str =
    "the layer around a no-op service, keyed by the peer's address, headers off, over tower_governor's time";

/// Clients that take turns.
const CLIENTS: u16 = 100;

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
    let (mut ours, mut theirs) =
        (layer.layer(pool.clone()), GovernorLayer::new(governor).layer(pool.clone()));
    let mut measured =
        compare((name, || pool.pass(&mut ours)), ("tower_governor", || pool.pass(&mut theirs)));
    let (mut one, mut other) = (pool.clone(), pool.clone());
    let bare = compare(("the bare service", || pool.pass(&mut one)), ("", || pool.pass(&mut other))).figures;
    measured.figures = format!("{}, {}", measured.figures, bare.split(',').next().unwrap_or_default());
    Ok(measured)
}

/// Requests, and a service that does nothing but put them back.
#[derive(Clone)]
struct Pool(Rc<RefCell<Requests>>);

struct Requests {
    waiting: Vec<Option<Request<()>>>,
    next: usize,
}

impl Default for Pool {
    fn default() -> Self {
        let request = |client: u16| {
            let [high, low] = client.to_be_bytes();
            let mut request = Request::new(());
            request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([10, 0, high, low], 4_000))));
            Some(request)
        };
        Self(Rc::new(RefCell::new(Requests { waiting: (0..CLIENTS).map(request).collect(), next: 0 })))
    }
}

impl Service<Request<()>> for Pool {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<std::result::Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let mut requests = self.0.borrow_mut();
        let place = requests.next;
        requests.waiting[place] = Some(request);
        requests.next = (place + 1) % usize::from(CLIENTS);
        ready(Ok(Response::new(Body::empty())))
    }
}

impl Pool {
    /// One request on its way.
    fn pass<S, R>(&self, service: &mut S)
    where
        S: Service<Request<()>, Response = Response<R>, Error = Infallible>,
    {
        let request = {
            let mut requests = self.0.borrow_mut();
            let place = requests.next;
            requests.waiting[place].take()
        };
        let Some(request) = request else { return };
        let mut context = Context::from_waker(Waker::noop());
        assert!(service.poll_ready(&mut context).is_ready());
        match pin!(service.call(request)).poll(&mut context) {
            Poll::Ready(Ok(response)) => assert_eq!(response.status().as_u16(), 200),
            Poll::Ready(Err(never)) => match never {},
            Poll::Pending => panic!("nothing is waited for"),
        }
    }
}
