//! One thread: its listeners, its connections to both sides, its deadlines.

use crate::{
    Config, Origin, RequestFilter,
    client::{self, ClientConnection},
    connection_limit::ConnectionLimiter,
    deadline::{Deadlines, TICK},
    log::AccessLog,
    traces::Tracer,
    upstream::{self, Upstream},
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
    pub(crate) deadlines: Rc<Deadlines>,
    pub(crate) settings: WorkerSettings,
    pub(crate) upstreams: Vec<Rc<Upstream>>,
    proxies: TrustedProxies,
    pub(crate) forwarded_headers: ForwardedHeaders,
    connection_limiter: Arc<ConnectionLimiter>,
    state: Cell<WorkerState>,
    connections: Cell<usize>,
    /// Connections that are not taken apart.
    pub(crate) active_connections: Cell<usize>,
    /// Clients that are being told that there is no place for them.
    pub(crate) rejections: Cell<u32>,
    random_ids: RefCell<BytesMut>,
    pub(crate) log: Option<AccessLog>,
    pub(crate) tracer: Option<Tracer>,
    pub(crate) clock: Clock,
}

/// Times in milliseconds, and sizes.
pub(crate) struct WorkerSettings {
    pub(crate) header_timeout: u64,
    pub(crate) body_timeout: u64,
    pub(crate) idle_timeout: u64,
    pub(crate) tunnel_timeout: u64,
    pub(crate) max_header_size: usize,
    pub(crate) head_limits: HeadLimits,
    pub(crate) handshake_timeout: Duration,
    drain_timeout: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WorkerState {
    Serving,
    Retiring,
    Draining,
}

/// Whether everything goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerCommand {
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
        places: Arc<ConnectionLimiter>,
        watch: Rc<Deadlines>,
        (log, tracer): (Option<AccessLog>, Option<Tracer>),
    ) -> Rc<Self> {
        Rc::new(Self {
            deadlines: watch,
            settings: WorkerSettings::new(&config.connections),
            upstreams,
            proxies: config.trusted_proxies.clone().into(),
            forwarded_headers: config.forwarded_headers,
            connection_limiter: places,
            state: Cell::new(WorkerState::Serving),
            connections: Cell::new(0),
            active_connections: Cell::new(0),
            rejections: Cell::new(0),
            random_ids: RefCell::default(),
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
        mut orders: watch::Receiver<WorkerCommand>,
    ) {
        let ticking = task::spawn_local(tick(self.clone()));
        let accepting: Vec<_> = listeners
            .into_iter()
            .map(|listener| task::spawn_local(self.clone().accept(listener, filter.clone())))
            .collect();
        // A sender that is gone says the same as `StopSignal`.
        let order = orders
            .wait_for(|order| *order != WorkerCommand::Serve)
            .await
            .map_or(WorkerCommand::Stop, |order| *order);
        accepting.iter().for_each(task::JoinHandle::abort);
        for end in accepting {
            let _ = end.await;
        }
        if order == WorkerCommand::Retire {
            self.state.set(WorkerState::Retiring);
            self.deadlines.wake_all();
            tokio::select! {
                () = self.wait_drained() => {}
                _ = orders.wait_for(|order| *order == WorkerCommand::Stop) => {}
            }
        }
        self.state.set(WorkerState::Draining);
        self.deadlines.wake_all();
        self.wait_drained().await;
        ticking.abort();
    }

    /// Its connections have ended, or have had their time.
    async fn wait_drained(&self) {
        let drained = async {
            while self.connections.get() > 0 {
                time::sleep(TICK).await;
            }
        };
        let _ = time::timeout(self.settings.drain_timeout, drained).await;
    }

    /// Has the servers of all upstreams asked whether they are well; one worker does it for all.
    pub(crate) fn check_servers(&self) {
        for (server, terms) in self.upstreams.iter().flat_map(|upstream| upstream.health_checks()) {
            task::spawn_local(upstream::run_health_checks(server, terms));
        }
    }

    /// Whether connections that wait for a request are closed.
    pub(crate) fn is_draining(&self) -> bool {
        self.state.get() == WorkerState::Draining
    }

    /// Whether every answer is the last one of its connection.
    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.state.get() != WorkerState::Serving
    }

    /// A connection came.
    pub(crate) fn connection_opened(&self) {
        self.connections.set(self.connections.get() + 1);
    }

    /// A connection has ended.
    pub(crate) fn connection_closed(&self) {
        self.connections.set(self.connections.get() - 1);
    }

    /// Whether the word of this address counts.
    pub(crate) fn is_trusted(&self, address: IpAddr) -> bool {
        self.proxies.is_trusted(address.to_canonical())
    }

    /// Where a request of this connection comes from: its client is resolved from the peer and trusted proxies.
    pub(crate) fn resolve_origin(&self, head: &request::Parts, connection: &Origin) -> Origin {
        let unresolved = HttpRequestHead::new(head, connection.peer.ip());
        let client = self.proxies.client_address(&unresolved).unwrap_or(connection.client);
        Origin { client, ..connection.clone() }
    }

    /// A name for a request, which no other has. It is no secret.
    pub(crate) fn new_id(&self) -> HeaderValue {
        // Cut from one piece, so that each costs no allocation.
        let mut ids = self.random_ids.borrow_mut();
        if ids.capacity() < ID_LENGTH {
            *ids = BytesMut::with_capacity(ID_LENGTH * 128);
        }
        let mut text = [0; ID_LENGTH];
        for part in text.chunks_exact_mut(8) {
            part.copy_from_slice(&hex_digits(fastrand::u32(..)));
        }
        ids.extend_from_slice(&text);
        let id = ids.split().freeze();
        HeaderValue::from_maybe_shared(id).unwrap_or(HeaderValue::from_static("-"))
    }

    async fn accept<F: RequestFilter>(self: Rc<Self>, listener: Listener, filter: Arc<F>) {
        loop {
            let (stream, peer) = listener.accept().await;
            let Ok(place) = self.connection_limiter.acquire(peer.ip()) else {
                if listener.scheme() == Scheme::Http {
                    client::reject(&self, &filter, stream);
                }
                continue;
            };
            let client = peer.ip().to_canonical();
            let origin = Origin { peer, client, scheme: listener.scheme(), listener: listener.name() };
            let client = ClientConnection::new(self.clone(), origin, place);
            let (certificate, filter) = (listener.certificate(), filter.clone());
            task::spawn_local(async move {
                let handshake = tls_accept(stream, certificate, client.worker.settings.handshake_timeout);
                if let Some(stream) = Box::pin(handshake).await {
                    client::serve(stream, client, filter).await;
                }
            });
        }
    }
}

/// Signs of a name of a request.
const ID_LENGTH: usize = 32;

/// A number in hexadecimal digits, all of them at once: a byte of the result is made of each half of a byte.
fn hex_digits(number: u32) -> [u8; 8] {
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

impl WorkerSettings {
    fn new(connections: &Connections) -> Self {
        Self {
            header_timeout: as_millis(connections.header_timeout),
            body_timeout: as_millis(connections.body_timeout),
            idle_timeout: as_millis(connections.idle_timeout),
            tunnel_timeout: as_millis(connections.tunnel_timeout),
            max_header_size: usize::try_from(connections.header_size).unwrap_or(usize::MAX),
            head_limits: connections.into(),
            handshake_timeout: connections.header_timeout,
            drain_timeout: connections.drain_timeout,
        }
    }
}

pub(crate) fn as_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

async fn tick(worker: Rc<Worker>) {
    let mut ticks = time::interval(TICK);
    ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        worker.deadlines.wake_expired();
        worker.upstreams.iter().for_each(|upstream| upstream.close_idle());
    }
}

/// Deadlines by the clock of the machine, which is coarse and cheap.
pub(crate) fn system_deadlines() -> Rc<Deadlines> {
    Deadlines::new(deadline_clock())
}

/// The clock by which all workers tell whether something is late.
pub(crate) fn deadline_clock() -> Clock {
    Clock::coarse()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_digits_match_the_number() {
        for number in [0, 1, 9, 0xa, 0xf, 0x10, 0x0123_4567, 0x89ab_cdef, 0x9f9f_a0a0, u32::MAX] {
            assert_eq!(hex_digits(number).as_slice(), format!("{number:08x}").as_bytes());
        }
    }
}
