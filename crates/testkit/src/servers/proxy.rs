//! A wire that can be spoiled while it is in use.

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
/// Two threads carry each connection, one for each direction. They look for a fault after each chunk that they have
/// read, so a fault holds for all that comes after it.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<ProxyShared>,
    acceptor: Option<JoinHandle<()>>,
    port: ReservedPort,
    url: String,
}

/// What is wrong with the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkFault {
    /// Each chunk is late by this much, in both directions.
    Delay(Duration),
    /// Connections stay open and new ones are taken, but nothing comes through.
    Stall,
    /// Every connection is reset: those that are open at once, new ones when they are made.
    Reset,
    /// Of the replies on each connection so many bytes come through; then it is closed.
    CutReplies {
        /// How many bytes, counted from now.
        after: usize,
    },
    /// New connections are refused; those that are open go on.
    Refuse,
    /// What clients send is lost; what the server sends comes through.
    DropRequests,
}

/// How many connections may wait to be taken.
const BACKLOG: i32 = 128;

/// Nothing on loopback takes as long.
const IO_TIMEOUT: Duration = Duration::from_secs(5);

/// What the threads of a proxy share.
#[derive(Debug)]
struct ProxyShared {
    /// Shut to refuse, never closed: a process that another test starts at this moment may have it open, too.
    listener: TcpListener,
    upstream: SocketAddr,
    state: Mutex<ProxyState>,
    changed: Condvar,
}

#[derive(Debug)]
struct ProxyState {
    fault: Option<NetworkFault>,
    /// Counts the changes of the fault, so that a thread knows when there was one.
    fault_generation: u64,
    accepted_count: usize,
    lost_bytes: usize,
    links: Vec<Weak<Link>>,
    is_closing: bool,
}

impl Proxy {
    /// A proxy before a server; its URL has the user and password of the server's.
    pub fn for_server(server: &RedisServer) -> Result<Self, String> {
        let mut proxy = Self::for_address(server.address())?;
        proxy.url = server.url_at(proxy.address());
        Ok(proxy)
    }

    /// A proxy before whatever listens at an address.
    pub fn for_address(upstream: SocketAddr) -> Result<Self, String> {
        let port = ReservedPort::reserve()?;
        let listener = TcpListener::bind(port.address()).map_err(|error| format!("no proxy: {error}"))?;
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

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Where clients of Redis connect.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How many connections it has taken.
    pub fn accepted_count(&self) -> usize {
        self.shared.lock().accepted_count
    }

    /// How many connections are open.
    pub fn open_connections(&self) -> usize {
        self.shared.lock().open_links()
    }

    /// How many bytes of requests were lost.
    pub fn lost_bytes(&self) -> usize {
        self.shared.lock().lost_bytes
    }

    /// Spoils the wire, in place of any fault it had. The fault is there when this returns.
    pub fn inject(&self, fault: NetworkFault) {
        self.set_fault(Some(fault));
    }

    /// Makes the wire good. What was stalled comes through now; what was lost stays lost.
    pub fn heal(&self) {
        self.set_fault(None);
    }

    fn set_fault(&self, fault: Option<NetworkFault>) {
        let mut state = self.shared.lock();
        state.fault = fault;
        state.fault_generation += 1;
        let _ = match fault {
            Some(NetworkFault::Refuse) => shutdown(&self.shared.listener, Shutdown::Both),
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

    /// Takes connections; without any to take it waits until it may listen again.
    fn accept(self: &Arc<Self>) {
        loop {
            if let Ok((client, _)) = self.listener.accept() {
                // A server that is away ends this connection, not the proxy.
                let _ = self.start_link(client);
                continue;
            }
            let is_refusing =
                |state: &mut ProxyState| state.fault == Some(NetworkFault::Refuse) && !state.is_closing;
            let waited = self.changed.wait_while(self.lock(), is_refusing);
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
