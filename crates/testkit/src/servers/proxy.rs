//! A TCP proxy that injects network faults.

mod link;

use super::{RedisServer, port::ReservedPort};
use link::{Direction, Link};
use rustix::net::{Shutdown, listen, shutdown};
use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    thread::{self, JoinHandle},
    time::Duration,
};

/// A TCP proxy on loopback.
///
/// ```text
///   client ──requests──▶ proxy ──requests──▶ server
///          ◀──replies───       ◀──replies───
/// ```
///
/// Each connection has two threads, one per direction. They check for a fault after each read, so a fault applies to all
/// data read after it.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<ProxyShared>,
    acceptor: Option<JoinHandle<()>>,
    port: ReservedPort,
    url: String,
}

/// A fault of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkFault {
    /// Delays each chunk, in both directions.
    Delay(Duration),
    /// Accepts connections and keeps them open, but forwards nothing.
    Stall,
    /// Resets open connections at once, and new ones after they are accepted.
    Reset,
    /// Closes each connection after this number of reply bytes.
    CutReplies {
        /// The number of bytes, counted from the injection.
        after: usize,
    },
    /// Refuses new connections; open ones work.
    RejectConnections,
    /// Discards requests; replies are forwarded.
    DropRequests,
}

/// The listen backlog.
const BACKLOG: i32 = 128;

/// Longer than any operation on loopback.
const IO_TIMEOUT: Duration = Duration::from_secs(5);

/// The state that the threads of a proxy share.
#[derive(Debug)]
struct ProxyShared {
    /// Shut down to refuse connections, never closed: a child process of another test may have inherited it.
    listener: TcpListener,
    upstream: SocketAddr,
    state: Mutex<ProxyState>,
    changed: Condvar,
}

#[derive(Debug)]
struct ProxyState {
    fault: Option<NetworkFault>,
    /// Incremented with each change of the fault, so that threads detect it.
    fault_generation: u64,
    accepted_count: usize,
    lost_bytes: usize,
    links: Vec<Weak<Link>>,
    is_closing: bool,
}

impl Proxy {
    /// Creates a proxy to a server; its URL has the user and password of the server.
    pub fn for_server(server: &RedisServer) -> Result<Self, String> {
        let mut proxy = Self::for_address(server.address())?;
        proxy.url = server.url_at(proxy.address());
        Ok(proxy)
    }

    /// Creates a proxy to an address.
    pub fn for_address(upstream: SocketAddr) -> Result<Self, String> {
        let port = ReservedPort::reserve()?;
        let listener =
            TcpListener::bind(port.address()).map_err(|error| format!("cannot start the proxy: {error}"))?;
        let state = ProxyState {
            fault: None,
            fault_generation: 0,
            accepted_count: 0,
            lost_bytes: 0,
            links: Vec::new(),
            is_closing: false,
        };
        let shared =
            Arc::new(ProxyShared { listener, upstream, state: Mutex::new(state), changed: Condvar::new() });
        let own = Arc::clone(&shared);
        let acceptor = thread::spawn(move || own.accept());
        Ok(Self { shared, acceptor: Some(acceptor), url: format!("redis://{}", port.address()), port })
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The URL for Redis clients.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The number of accepted connections.
    pub fn accepted_count(&self) -> usize {
        self.shared.lock().accepted_count
    }

    /// The number of open connections.
    pub fn open_connections(&self) -> usize {
        self.shared.lock().open_links()
    }

    /// The number of discarded request bytes.
    pub fn lost_bytes(&self) -> usize {
        self.shared.lock().lost_bytes
    }

    /// Injects a fault, which replaces the previous one. It is in effect when this returns.
    pub fn inject(&self, fault: NetworkFault) {
        self.set_fault(Some(fault));
    }

    /// Removes the fault. Stalled data is forwarded; discarded data stays lost.
    pub fn heal(&self) {
        self.set_fault(None);
    }

    fn set_fault(&self, fault: Option<NetworkFault>) {
        let mut state = self.shared.lock();
        state.fault = fault;
        state.fault_generation += 1;
        let _ = match fault {
            Some(NetworkFault::RejectConnections) => shutdown(&self.shared.listener, Shutdown::Both),
            _ => listen(&self.shared.listener, BACKLOG),
        };
        self.shared.changed.notify_all();

        if fault == Some(NetworkFault::Reset) {
            state.links.iter().filter_map(Weak::upgrade).for_each(|link| link.reset());
            let _ = self.shared.changed.wait_timeout_while(state, IO_TIMEOUT, |state| state.open_links() > 0);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closing = true;
        let _ = shutdown(&self.shared.listener, Shutdown::Both);
        state.links.iter().filter_map(Weak::upgrade).for_each(|link| link.close());
        drop(state);
        self.shared.changed.notify_all();
        let _ = self.acceptor.take().map(JoinHandle::join);
    }
}

impl ProxyShared {
    fn lock(&self) -> MutexGuard<'_, ProxyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts connections; while the proxy refuses them, waits for the end of the fault.
    fn accept(self: &Arc<Self>) {
        loop {
            if let Ok((client, _)) = self.listener.accept() {
                // If the server is down, only this connection ends.
                let _ = self.start_link(client);
                continue;
            }
            let is_rejecting = |state: &mut ProxyState| {
                state.fault == Some(NetworkFault::RejectConnections) && !state.is_closing
            };
            let waited = self.changed.wait_while(self.lock(), is_rejecting);
            if waited.unwrap_or_else(PoisonError::into_inner).is_closing {
                return;
            }
        }
    }

    fn start_link(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect_timeout(&self.upstream, IO_TIMEOUT);
        let mut state = self.lock();
        state.accepted_count += 1;
        let link = Arc::new(Link::new(client, server?)?);
        if state.fault == Some(NetworkFault::Reset) {
            link.reset();
            return Ok(());
        }
        state.links.retain(|link| link.strong_count() > 0);
        state.links.push(Arc::downgrade(&link));
        for direction in [Direction::Requests, Direction::Replies] {
            let (shared, link) = (Arc::clone(self), Arc::clone(&link));
            thread::spawn(move || link.forward(&shared, direction));
        }
        Ok(())
    }
}

impl ProxyState {
    fn open_links(&self) -> usize {
        self.links.iter().filter(|link| link.strong_count() > 0).count()
    }
}
