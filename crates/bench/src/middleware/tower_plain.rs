//! The layer around a no-op service, compared with tower_governor.

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
    Gate, RequestLimit, RuleConfig, Rules,
    rule::{HeaderStyle, request::key},
    tower::LimitLayer,
};
use tidegate_bench::{BenchResult, interleaved::compare, suite::Measurement};
use tower::{Layer, Service};
use tower_governor::{GovernorLayer, governor::GovernorConfigBuilder, key_extractor::PeerIpKeyExtractor};

pub(crate) const ABOUT: &str =
    "the layer around a no-op service, keyed by the peer's address, headers off, over tower_governor's time";

/// The number of alternating clients.
const CLIENTS: u16 = 100;

pub(crate) fn measure() -> BenchResult<Measurement> {
    compare_with_governor("layer", HeaderStyle::None)
}

/// Compares our layer with tower_governor's, both with or both without headers. Requests are created before and reused, so that only
/// the layer and the service are timed.
pub(crate) fn compare_with_governor(name: &str, fields: HeaderStyle) -> BenchResult<Measurement> {
    let rule = Rules::new().declare(RuleConfig::new("api").quota("1000000000/s")?)?;
    let layer =
        LimitLayer::new(Gate::new([RequestLimit::new(rule).key(key::peer())]).with_header_style(fields));
    let mut governor = GovernorConfigBuilder::default().key_extractor(PeerIpKeyExtractor);
    governor.period(Duration::from_nanos(1)).burst_size(1_000_000);
    let pool = RequestPool::default();
    let invalid = "tower_governor rejects the quota";
    match fields {
        HeaderStyle::None => {
            let theirs = GovernorLayer::new(governor.finish().ok_or(invalid)?);
            Ok(compare_services(&pool, (name, layer.layer(pool.clone())), theirs.layer(pool.clone())))
        }
        _ => {
            let theirs = GovernorLayer::new(governor.use_headers().finish().ok_or(invalid)?);
            Ok(compare_services(&pool, (name, layer.layer(pool.clone())), theirs.layer(pool.clone())))
        }
    }
}

fn compare_services<O, T, R, Q>(pool: &RequestPool, (name, mut ours): (&str, O), mut theirs: T) -> Measurement
where
    O: Service<Request<()>, Response = Response<R>, Error = Infallible>,
    T: Service<Request<()>, Response = Response<Q>, Error = Infallible>,
{
    let mut measured =
        compare((name, || pool.send_next(&mut ours)), ("tower_governor", || pool.send_next(&mut theirs)));
    let (mut one, mut other) = (pool.clone(), pool.clone());
    let bare =
        compare(("the bare service", || pool.send_next(&mut one)), ("", || pool.send_next(&mut other)))
            .figures;
    measured.figures = format!("{}, {}", measured.figures, bare.split(',').next().unwrap_or_default());
    measured
}

/// A pool of requests, and a service that only returns them to the pool.
#[derive(Clone)]
struct RequestPool(Rc<RefCell<PooledRequests>>);

struct PooledRequests {
    requests: Vec<Option<Request<()>>>,
    next: usize,
}

impl Default for RequestPool {
    fn default() -> Self {
        let request = |client: u16| {
            let [high, low] = client.to_be_bytes();
            let mut request = Request::new(());
            request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([10, 0, high, low], 4_000))));
            Some(request)
        };
        Self(Rc::new(RefCell::new(PooledRequests { requests: (0..CLIENTS).map(request).collect(), next: 0 })))
    }
}

impl Service<Request<()>> for RequestPool {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<std::result::Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let mut requests = self.0.borrow_mut();
        let index = requests.next;
        requests.requests[index] = Some(request);
        requests.next = (index + 1) % usize::from(CLIENTS);
        ready(Ok(Response::new(Body::empty())))
    }
}

impl RequestPool {
    /// Sends the next request through a service.
    fn send_next<S, R>(&self, service: &mut S)
    where
        S: Service<Request<()>, Response = Response<R>, Error = Infallible>,
    {
        let request = {
            let mut requests = self.0.borrow_mut();
            let index = requests.next;
            requests.requests[index].take()
        };
        let Some(request) = request else { return };
        let mut context = Context::from_waker(Waker::noop());
        assert!(service.poll_ready(&mut context).is_ready());
        match pin!(service.call(request)).poll(&mut context) {
            Poll::Ready(Ok(response)) => assert_eq!(response.status().as_u16(), 200),
            Poll::Ready(Err(never)) => match never {},
            Poll::Pending => panic!("unexpected pending future"),
        }
    }
}
