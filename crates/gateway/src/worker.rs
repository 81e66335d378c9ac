//! One thread: its listeners, its connections to both sides, its deadlines.

use crate::{
    Config, Origin, RequestFilter,
    client::{self, Client},
    log::Logbook,
    places::Places,
    traces::Tracer,
    upstream::{self, Upstream},
    watch::{TICK, Watch},
};
use bytes::BytesMut;
use http::{HeaderValue, request};
use std::{
    cell::{Cell, RefCell},
    net::IpAddr,
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use tidegate_http_server::{Listener, Scheme, tls_accept};
use tidegate_limiter::Clock;
use tidegate_policy::{
    head::{HeadLimits, HttpRequestHead},
    model::{Connections, ForwardedHeaders},
};
use tidegate_rule::request::TrustedProxies;
use tokio::{sync::watch, task, time};

/// What the connections of a thread share.
pub(crate) struct Worker {
    pub(crate) watch: Rc<Watch>,
    pub(crate) terms: Terms,
    pub(crate) upstreams: Vec<Rc<Upstream>>,
    proxies: TrustedProxies,
    pub(crate) introduce: ForwardedHeaders,
    places: Arc<Places>,
    stage: Cell<Stage>,
    clients: Cell<usize>,
    /// Connections that are not taken apart.
    pub(crate) whole: Cell<usize>,
    /// Clients that are being told that there is no place for them.
    pub(crate) refused: Cell<u32>,
    ids: RefCell<BytesMut>,
    pub(crate) log: Option<Logbook>,
    pub(crate) tracer: Option<Tracer>,
    pub(crate) clock: Clock,
}

/// Times in milliseconds, and sizes.
pub(crate) struct Terms {
    pub(crate) header: u64,
    pub(crate) body: u64,
    pub(crate) idle: u64,
    pub(crate) tunnel: u64,
    pub(crate) header_size: usize,
    pub(crate) head: HeadLimits,
    pub(crate) handshake_timeout: Duration,
    drain: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Serving,
    Retiring,
    Draining,
}

/// Whether everything goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Serve,
    /// Others serve from now on. Connections that wait for a request may bring one more, so that none is lost.
    Retire,
    /// Connections that wait for a request are closed.
    Stop,
}

impl Worker {
    pub(crate) fn new(
        config: &Config,
        upstreams: Vec<Rc<Upstream>>,
        places: Arc<Places>,
        watch: Rc<Watch>,
        (log, tracer): (Option<Logbook>, Option<Tracer>),
    ) -> Rc<Self> {
        Rc::new(Self {
            watch,
            terms: Terms::of(&config.connections),
            upstreams,
            proxies: config.trusted.clone().into(),
            introduce: config.introduce,
            places,
            stage: Cell::new(Stage::Serving),
            clients: Cell::new(0),
            whole: Cell::new(0),
            refused: Cell::new(0),
            ids: RefCell::default(),
            log,
            tracer,
            clock: Clock::system(),
        })
    }

    /// Serves until it is told to stop, and then until its connections have ended, or have had their time.
    pub(crate) async fn run<F: RequestFilter>(
        self: Rc<Self>,
        listeners: Vec<Listener>,
        filter: Arc<F>,
        mut orders: watch::Receiver<Order>,
    ) {
        let ticking = task::spawn_local(tick(self.clone()));
        let accepting: Vec<_> = listeners
            .into_iter()
            .map(|listener| task::spawn_local(self.clone().accept(listener, filter.clone())))
            .collect();
        // A sender that is gone says the same as `StopSignal`.
        let order = orders.wait_for(|order| *order != Order::Serve).await.map_or(Order::Stop, |order| *order);
        accepting.iter().for_each(task::JoinHandle::abort);
        for end in accepting {
            let _ = end.await;
        }
        if order == Order::Retire {
            self.stage.set(Stage::Retiring);
            self.watch.wake_all();
            tokio::select! {
                () = self.drained() => {}
                _ = orders.wait_for(|order| *order == Order::Stop) => {}
            }
        }
        self.stage.set(Stage::Draining);
        self.watch.wake_all();
        self.drained().await;
        ticking.abort();
    }

    /// Its connections have ended, or have had their time.
    async fn drained(&self) {
        let drained = async {
            while self.clients.get() > 0 {
                time::sleep(TICK).await;
            }
        };
        let _ = time::timeout(self.terms.drain, drained).await;
    }

    /// Has the servers of all upstreams asked whether they are well; one worker does it for all.
    pub(crate) fn check_servers(&self) {
        for (server, terms) in self.upstreams.iter().flat_map(|upstream| upstream.checks()) {
            task::spawn_local(upstream::check(server, terms));
        }
    }

    /// Whether connections that wait for a request are closed.
    pub(crate) fn is_draining(&self) -> bool {
        self.stage.get() == Stage::Draining
    }

    /// Whether every answer is the last one of its connection.
    #[inline]
    pub(crate) fn is_ending(&self) -> bool {
        self.stage.get() != Stage::Serving
    }

    /// A connection came.
    pub(crate) fn joined(&self) {
        self.clients.set(self.clients.get() + 1);
    }

    /// A connection has ended.
    pub(crate) fn left(&self) {
        self.clients.set(self.clients.get() - 1);
    }

    /// Whether the word of this address counts.
    pub(crate) fn trusts(&self, address: IpAddr) -> bool {
        self.proxies.is_trusted(address.to_canonical())
    }

    /// Where a request of this connection comes from: its client is resolved from the peer and trusted proxies.
    pub(crate) fn origin_of(&self, head: &request::Parts, connection: &Origin) -> Origin {
        let unresolved = HttpRequestHead::new(head, connection.peer.ip());
        let client = self.proxies.client_address(&unresolved).unwrap_or(connection.client);
        Origin { client, ..connection.clone() }
    }

    /// A name for a request, which no other has. It is no secret.
    pub(crate) fn new_id(&self) -> HeaderValue {
        // Cut from one piece, so that each costs no allocation.
        let mut ids = self.ids.borrow_mut();
        if ids.capacity() < ID {
            *ids = BytesMut::with_capacity(ID * 128);
        }
        let mut text = [0; ID];
        for part in text.chunks_exact_mut(8) {
            part.copy_from_slice(&eight_digits(fastrand::u32(..)));
        }
        ids.extend_from_slice(&text);
        let id = ids.split().freeze();
        HeaderValue::from_maybe_shared(id).unwrap_or(HeaderValue::from_static("-"))
    }

    async fn accept<F: RequestFilter>(self: Rc<Self>, listener: Listener, filter: Arc<F>) {
        loop {
            let (stream, peer) = listener.accept().await;
            let Ok(place) = self.places.take(peer.ip()) else {
                if listener.scheme() == Scheme::Http {
                    client::refuse(&self, &filter, stream);
                }
                continue;
            };
            let client = peer.ip().to_canonical();
            let origin = Origin { peer, client, scheme: listener.scheme(), listener: listener.name() };
            let client = Client::new(self.clone(), origin, place);
            let (certificate, filter) = (listener.certificate(), filter.clone());
            task::spawn_local(async move {
                let handshake = tls_accept(stream, certificate, client.worker.terms.handshake_timeout);
                if let Some(stream) = Box::pin(handshake).await {
                    client::serve(stream, client, filter).await;
                }
            });
        }
    }
}

/// Signs of a name of a request.
const ID: usize = 32;

/// A number in hexadecimal digits, all of them at once: a byte of the result is made of each half of a byte.
fn eight_digits(number: u32) -> [u8; 8] {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let spread = |bits: u64, by: u32, mask: u64| (bits | bits << by) & mask;
    let pairs = spread(u64::from(number), 16, 0x0000_ffff_0000_ffff);
    let bytes = spread(pairs, 8, 0x00ff_00ff_00ff_00ff);
    let halves = spread(bytes, 4, 0x0f0f_0f0f_0f0f_0f0f);
    // 1 where a digit is a letter: 10 and 6 is 16.
    let letters = (halves + EACH * 6) >> 4 & EACH;
    let past_nine = u64::from(b'a' - b'0' - 10);
    (halves + EACH * u64::from(b'0') + letters * past_nine).to_be_bytes()
}

impl Terms {
    fn of(connections: &Connections) -> Self {
        Self {
            header: milliseconds(connections.header_timeout),
            body: milliseconds(connections.body_timeout),
            idle: milliseconds(connections.idle_timeout),
            tunnel: milliseconds(connections.tunnel_timeout),
            header_size: usize::try_from(connections.header_size).unwrap_or(usize::MAX),
            head: connections.into(),
            handshake_timeout: connections.header_timeout,
            drain: connections.drain_timeout,
        }
    }
}

pub(crate) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

async fn tick(worker: Rc<Worker>) {
    let mut ticks = time::interval(TICK);
    ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        worker.watch.look();
        worker.upstreams.iter().for_each(|upstream| upstream.sweep());
    }
}

/// Deadlines by the clock of the machine, which is coarse and cheap.
pub(crate) fn watch_of_machine() -> Rc<Watch> {
    Watch::new(clock_of_deadlines())
}

/// The clock by which all workers tell whether something is late.
pub(crate) fn clock_of_deadlines() -> Clock {
    Clock::coarse()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_the_number() {
        for number in [0, 1, 9, 0xa, 0xf, 0x10, 0x0123_4567, 0x89ab_cdef, 0x9f9f_a0a0, u32::MAX] {
            assert_eq!(eight_digits(number).as_slice(), format!("{number:08x}").as_bytes());
        }
    }
}
