//! One server, and the connections to it that one worker keeps.

use super::{Line, Plan, Times, plan::ServerPlan};
use crate::{stream::Stream, watch::Watch};
use std::{
    cell::{Cell, RefCell},
    io,
    net::SocketAddr,
    rc::Rc,
    time::Duration,
};
use tokio::{net::TcpStream, time};

/// A server, in one worker.
pub(crate) struct Server {
    host: String,
    port: u16,
    address: Option<SocketAddr>,
    times: Times,
    watch: Rc<Watch>,
    keep_alive: usize,
    /// Nobody's, the one that was used last on top.
    #[allow(clippy::vec_box, reason = "they are handed on as they are")]
    idle: RefCell<Vec<Box<Line>>>,
    in_flight: Cell<u64>,
}

/// A request that is with a server, until it is dropped.
pub(crate) struct Visit {
    pub(crate) server: Rc<Server>,
}

impl Server {
    pub(super) fn new(server: &ServerPlan, plan: &Plan, watch: &Rc<Watch>) -> Rc<Self> {
        Rc::new(Self {
            host: server.host.clone(),
            port: server.port,
            address: server.address().map(|address| (address, server.port).into()),
            times: plan.times,
            watch: watch.clone(),
            keep_alive: plan.keep_alive,
            idle: RefCell::default(),
            in_flight: Cell::new(0),
        })
    }

    /// A request is on its way here.
    pub(crate) fn visit(self: &Rc<Self>) -> Visit {
        self.in_flight.set(self.in_flight.get() + 1);
        Visit { server: self.clone() }
    }

    /// A connection that was used before.
    pub(crate) fn take(&self) -> Option<Box<Line>> {
        self.idle.borrow_mut().pop()
    }

    /// Keeps a connection for the next request, if it can have one.
    pub(crate) fn keep(&self, mut line: Box<Line>) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.keep_alive && line.rest(self.watch.now()) {
            idle.push(line);
        }
    }

    /// A new connection.
    pub(crate) async fn connect(&self) -> io::Result<Box<Line>> {
        let stream = self.dial();
        let stream = time::timeout(Duration::from_millis(self.times.connect), stream).await??;
        Line::new(stream, self.watch.deadline()).await.map_err(io::Error::other)
    }

    async fn dial(&self) -> io::Result<Stream> {
        let stream = match self.address {
            Some(address) => TcpStream::connect(address).await?,
            None => TcpStream::connect((self.host.as_str(), self.port)).await?,
        };
        stream.set_nodelay(true)?;
        Ok(Stream::Plain(stream))
    }

    /// How long there may be nothing of an answer, in milliseconds.
    pub(crate) fn idle_time(&self) -> u64 {
        self.times.idle
    }

    /// Closes connections that have been idle for long, and those that the server has closed.
    pub(super) fn sweep(&self) {
        let now = self.watch.now();
        self.idle.borrow_mut().retain_mut(|line| line.is_fresh(now));
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.server.in_flight.set(self.server.in_flight.get() - 1);
    }
}
