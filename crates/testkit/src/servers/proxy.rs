//! A wire that can be spoiled while it is in use.

mod link;

use super::{RedisServer, port::Port};
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
    wire: Arc<Wire>,
    acceptor: Option<JoinHandle<()>>,
    port: Port,
    url: String,
}

/// What is wrong with the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
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
    LoseRequests,
}

/// How many connections may wait to be taken.
const QUEUE: i32 = 128;

/// Nothing on loopback takes as long.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the threads of a proxy share.
#[derive(Debug)]
struct Wire {
    /// Shut to refuse, never closed: a process that another test starts at this moment may have it open, too.
    listener: TcpListener,
    upstream: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    fault: Option<Fault>,
    /// Counts the changes of the fault, so that a thread knows when there was one.
    turn: u64,
    accepted: usize,
    lost: usize,
    links: Vec<Weak<Link>>,
    is_leaving: bool,
}

impl Proxy {
    /// A proxy before a server; its URL has the user and password of the server's.
    pub fn before(server: &RedisServer) -> Result<Self, String> {
        let mut proxy = Self::to(server.address())?;
        proxy.url = server.url_at(proxy.address());
        Ok(proxy)
    }

    /// A proxy before whatever listens at an address.
    pub fn to(upstream: SocketAddr) -> Result<Self, String> {
        let port = Port::any()?;
        let listener = TcpListener::bind(port.address()).map_err(|error| format!("no proxy: {error}"))?;
        let state =
            State { fault: None, turn: 0, accepted: 0, lost: 0, links: Vec::new(), is_leaving: false };
        let wire = Arc::new(Wire { listener, upstream, state: Mutex::new(state), changed: Condvar::new() });
        let own = Arc::clone(&wire);
        let acceptor = thread::spawn(move || own.accept());
        Ok(Self { wire, acceptor: Some(acceptor), url: format!("redis://{}", port.address()), port })
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
    pub fn accepted(&self) -> usize {
        self.wire.lock().accepted
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        self.wire.lock().open()
    }

    /// How many bytes of requests were lost.
    pub fn lost(&self) -> usize {
        self.wire.lock().lost
    }

    /// Spoils the wire, in place of any fault it had. The fault is there when this returns.
    pub fn inject(&self, fault: Fault) {
        self.turn(Some(fault));
    }

    /// Makes the wire good. What was stalled comes through now; what was lost stays lost.
    pub fn heal(&self) {
        self.turn(None);
    }

    fn turn(&self, fault: Option<Fault>) {
        let mut state = self.wire.lock();
        state.fault = fault;
        state.turn += 1;
        let _ = match fault {
            Some(Fault::Refuse) => shutdown(&self.wire.listener, Shutdown::Both),
            _ => listen(&self.wire.listener, QUEUE),
        };
        self.wire.changed.notify_all();

        if fault == Some(Fault::Reset) {
            state.links.iter().filter_map(Weak::upgrade).for_each(|link| link.reset());
            let _ = self.wire.changed.wait_timeout_while(state, PATIENCE, |state| state.open() > 0);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = self.wire.lock();
        state.is_leaving = true;
        let _ = shutdown(&self.wire.listener, Shutdown::Both);
        state.links.iter().filter_map(Weak::upgrade).for_each(|link| link.close());
        drop(state);
        self.wire.changed.notify_all();
        let _ = self.acceptor.take().map(JoinHandle::join);
    }
}

impl Wire {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes connections; without any to take it waits until it may listen again.
    fn accept(self: &Arc<Self>) {
        loop {
            if let Ok((client, _)) = self.listener.accept() {
                // A server that is away ends this connection, not the proxy.
                let _ = self.take(client);
                continue;
            }
            let is_refusing = |state: &mut State| state.fault == Some(Fault::Refuse) && !state.is_leaving;
            let waited = self.changed.wait_while(self.lock(), is_refusing);
            if waited.unwrap_or_else(PoisonError::into_inner).is_leaving {
                return;
            }
        }
    }

    fn take(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect_timeout(&self.upstream, PATIENCE);
        let mut state = self.lock();
        state.accepted += 1;
        let link = Arc::new(Link::new(client, server?)?);
        if state.fault == Some(Fault::Reset) {
            link.reset();
            return Ok(());
        }
        state.links.retain(|link| link.strong_count() > 0);
        state.links.push(Arc::downgrade(&link));
        for direction in [Direction::Requests, Direction::Replies] {
            let (wire, link) = (Arc::clone(self), Arc::clone(&link));
            thread::spawn(move || link.carry(&wire, direction));
        }
        Ok(())
    }
}

impl State {
    fn open(&self) -> usize {
        self.links.iter().filter(|link| link.strong_count() > 0).count()
    }
}
