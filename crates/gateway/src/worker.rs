//! A worker thread: its listeners, client and upstream connections, and deadlines.

use crate::{
    Config, ConnectionInfo, RequestFilter,
    client::{self, ConnectionTask, OpenConnection},
    connection_limit::ConnectionLimiter,
    deadline::{Deadlines, TICK},
    head_pool::HeadPool,
    log::AccessLog,
    traces::Tracer,
    upstream::{self, Upstream},
};
use std::{
    cell::{Cell, RefCell},
    net::IpAddr,
    rc::Rc,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tidegate_http_server::{Listener, Scheme};
use tidegate_limiter::Clock;
use tidegate_policy::{
    head::{HeadLimits, HttpRequestHead, ParsedRequest},
    model::{Connections, ForwardedHeaders},
};
use tidegate_rule::request::TrustedProxies;
use tokio::{sync::watch, task, time};

/// The state that the connections of a thread share.
pub(crate) struct Worker {
    pub(crate) deadlines: Rc<Deadlines>,
    pub(crate) settings: WorkerSettings,
    pub(crate) upstreams: Vec<Rc<Upstream>>,
    proxies: TrustedProxies,
    pub(crate) forwarded_headers: ForwardedHeaders,
    connection_limiter: Arc<ConnectionLimiter>,
    state: Cell<WorkerState>,
    connections: Cell<usize>,
    /// Connections with buffers.
    pub(crate) active_connections: Cell<usize>,
    /// 503 responses to connections beyond the limit, in progress.
    pub(crate) pending_rejections: Cell<u32>,
    /// Heads whose memory is reused.
    pub(crate) heads: HeadPool,
    /// The `Date` field of responses, with its line end; updated with each tick.
    pub(crate) date: RefCell<String>,
    pub(crate) log: Option<AccessLog>,
    pub(crate) tracer: Option<Tracer>,
    pub(crate) clock: Clock,
}

/// The connection settings; times are in milliseconds.
pub(crate) struct WorkerSettings {
    pub(crate) header_timeout: u64,
    pub(crate) body_timeout: u64,
    /// In bytes per second.
    pub(crate) min_body_rate: Option<u64>,
    pub(crate) idle_timeout: u64,
    pub(crate) tunnel_timeout: u64,
    pub(crate) max_header_size: usize,
    pub(crate) head_limits: HeadLimits,
    pub(crate) max_parsed_body_size: u64,
    pub(crate) handshake_timeout: Duration,
    drain_timeout: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WorkerState {
    Serving,
    Draining,
    Stopping,
}

/// A command to all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerCommand {
    Serve,
    /// New workers accept connections. Idle connections may send one more request, so that none is lost.
    Drain,
    /// Close idle connections.
    Stop,
}

impl Worker {
    pub(crate) fn new(
        config: &Config,
        upstreams: Vec<Rc<Upstream>>,
        connection_limiter: Arc<ConnectionLimiter>,
        deadlines: Rc<Deadlines>,
        (log, tracer): (Option<AccessLog>, Option<Tracer>),
    ) -> Rc<Self> {
        Rc::new(Self {
            deadlines,
            settings: WorkerSettings::new(&config.connections),
            upstreams,
            proxies: config.trusted_proxies.clone().into(),
            forwarded_headers: config.forwarded_headers,
            connection_limiter,
            state: Cell::new(WorkerState::Serving),
            connections: Cell::new(0),
            active_connections: Cell::new(0),
            pending_rejections: Cell::new(0),
            heads: HeadPool::default(),
            date: RefCell::new(date_field(&Clock::system())),
            log,
            tracer,
            clock: Clock::system(),
        })
    }

    /// Serves until it is stopped, and then drains its connections.
    pub(crate) async fn run(
        self: Rc<Self>,
        listeners: Vec<Listener>,
        filter: Arc<dyn RequestFilter>,
        mut commands: watch::Receiver<WorkerCommand>,
    ) {
        let ticking = task::spawn_local(tick(self.clone()));
        let accepting: Vec<_> = listeners
            .into_iter()
            .map(|listener| task::spawn_local(self.clone().accept(listener, filter.clone())))
            .collect();
        // A dropped sender means the same as `Stop`.
        let command = commands
            .wait_for(|command| *command != WorkerCommand::Serve)
            .await
            .map_or(WorkerCommand::Stop, |command| *command);
        accepting.iter().for_each(task::JoinHandle::abort);
        for end in accepting {
            let _ = end.await;
        }
        if command == WorkerCommand::Drain {
            self.state.set(WorkerState::Draining);
            self.deadlines.wake_all();
            tokio::select! {
                () = self.wait_drained() => {}
                _ = commands.wait_for(|command| *command == WorkerCommand::Stop) => {}
            }
        }
        self.state.set(WorkerState::Stopping);
        self.deadlines.wake_all();
        self.wait_drained().await;
        ticking.abort();
    }

    /// Waits until all connections have ended, or the drain timeout expires.
    async fn wait_drained(&self) {
        let drained = async {
            while self.connections.get() > 0 {
                time::sleep(TICK).await;
            }
        };
        let _ = time::timeout(self.settings.drain_timeout, drained).await;
    }

    /// Starts the health checks of all upstream servers; only one worker does this.
    pub(crate) fn check_servers(&self) {
        for (server, check) in self.upstreams.iter().flat_map(|upstream| upstream.health_checks()) {
            task::spawn_local(upstream::run_health_checks(server, check));
        }
    }

    /// Whether idle connections are closed.
    pub(crate) fn is_stopping(&self) -> bool {
        self.state.get() == WorkerState::Stopping
    }

    /// Whether every response is the last one of its connection.
    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.state.get() != WorkerState::Serving
    }

    /// Counts a new connection.
    pub(crate) fn connection_opened(&self) {
        self.connections.set(self.connections.get() + 1);
    }

    /// Counts the end of a connection.
    pub(crate) fn connection_closed(&self) {
        self.connections.set(self.connections.get() - 1);
    }

    /// Whether this address is a trusted proxy.
    pub(crate) fn is_trusted(&self, address: IpAddr) -> bool {
        self.proxies.is_trusted(address.to_canonical())
    }

    /// The origin of a request of this connection. The client address is resolved from the peer and trusted proxies.
    pub(crate) fn resolve_client(
        &self,
        request: &ParsedRequest,
        connection: &ConnectionInfo,
    ) -> ConnectionInfo {
        let unresolved = HttpRequestHead::new(request, connection.peer.ip());
        let client = self.proxies.client_address(&unresolved).unwrap_or(connection.client);
        ConnectionInfo { client, ..connection.clone() }
    }

    async fn accept(self: Rc<Self>, listener: Listener, filter: Arc<dyn RequestFilter>) {
        loop {
            let (stream, peer) = listener.accept().await;
            let Ok(permit) = self.connection_limiter.acquire(peer.ip()) else {
                if listener.scheme() == Scheme::Http {
                    client::reject(&self, &filter, stream);
                }
                continue;
            };
            let client = peer.ip().to_canonical();
            let connection = ConnectionInfo {
                peer,
                client,
                scheme: listener.scheme(),
                listener: listener.name(),
                client_certificate: None,
            };
            let open = OpenConnection::new(self.clone(), connection, filter.clone(), permit);
            task::spawn_local(ConnectionTask::new(stream, listener.certificate(), open));
        }
    }
}

impl WorkerSettings {
    fn new(connections: &Connections) -> Self {
        Self {
            header_timeout: as_millis(connections.header_timeout),
            body_timeout: as_millis(connections.body_timeout),
            min_body_rate: connections.min_body_rate,
            idle_timeout: as_millis(connections.idle_timeout),
            tunnel_timeout: as_millis(connections.tunnel_timeout),
            max_header_size: usize::try_from(connections.header_size).unwrap_or(usize::MAX),
            head_limits: connections.into(),
            max_parsed_body_size: connections.parsed_body_size,
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
        worker.date.replace(date_field(&worker.clock));
        worker.upstreams.iter().for_each(|upstream| upstream.close_idle());
    }
}

/// The `Date` field.
fn date_field(clock: &Clock) -> String {
    let now = SystemTime::UNIX_EPOCH + Duration::from_micros(clock.now().get());
    format!("date: {}\r\n", httpdate::fmt_http_date(now))
}

/// Deadlines with the coarse system clock, which is cheap to read.
pub(crate) fn system_deadlines() -> Rc<Deadlines> {
    Deadlines::new(deadline_clock())
}

/// The clock of the deadlines of all workers.
pub(crate) fn deadline_clock() -> Clock {
    Clock::coarse()
}
