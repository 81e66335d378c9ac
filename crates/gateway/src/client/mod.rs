//! One connection of a client, from its first byte to its last.
//!
//! ```text
//!            first byte          head is there
//!   Idle ───────────────▶ RequestHead ────────────────▶ Rejected ──▶ … the last answer is gone: Idle
//!    idle-timeout          header-timeout         (body-timeout where bodies stand still)
//! ```
//!
//! A connection that has been idle for a moment is taken apart: what HTTP needs to know of it is dropped, buffers and all,
//! and made anew when the next byte comes. So thousands of idle connections cost little more than their sockets.

mod http1;
mod http2;
mod io;
mod linger;
mod preface;
mod refusal;
mod tunnel;
mod turn;

pub(crate) use http2::HereOnly;
pub(crate) use io::ClientIo;
pub(crate) use refusal::refuse;
pub(crate) use tunnel::Tunnel;
pub(crate) use turn::Turn;

use crate::{Origin, RequestFilter, places::Place, proxy::Introduction, watch::Deadline, worker::Worker};
use linger::Sends;
use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
};
use tidegate_http_server::{HTTP2, Stream};

/// What is known of a connection.
pub(crate) struct Client {
    pub(crate) worker: Rc<Worker>,
    pub(crate) origin: Origin,
    /// What servers are told of it; made for the first request.
    pub(crate) introduction: RefCell<Option<Box<Introduction>>>,
    /// A connection to a server that this one becomes one with.
    pub(crate) tunnel: RefCell<Option<Box<Tunnel>>>,
    /// Of the stream of HTTP/2 that is being looked at.
    pub(crate) turn: RefCell<Option<Rc<Turn>>>,
    deadline: Deadline,
    phase: Cell<Phase>,
    write: Cell<Write>,
    /// Bytes of answers of HTTP/2 that wait to be sent.
    unsent: Cell<u64>,
    /// Answers of HTTP/2 that wait until the client takes what is written to it.
    blocked: RefCell<Vec<Waker>>,
    in_flight: Cell<u32>,
    sends: Cell<Sends>,
    age: Cell<Age>,
    /// How long it is idle before something happens, in milliseconds.
    rest: Cell<u64>,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Head,
    Busy,
    /// It speaks of something else; `tunnel-timeout` for each silence.
    Tunnel,
}

/// Whether the client takes what is written to it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Write {
    Flows,
    Stands,
}

/// Whether a client knows how a body of unknown length ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Age {
    Usual,
    /// It speaks HTTP/1.0.
    Old,
}

/// How long a connection is idle before it is taken apart, in milliseconds.
const MOMENT: u64 = 100;

impl Client {
    pub(crate) fn new(worker: Rc<Worker>, origin: Origin, place: Place) -> Rc<Self> {
        worker.joined();
        let deadline = worker.watch.deadline();
        deadline.set(worker.terms.idle);
        Rc::new(Self {
            worker,
            origin,
            introduction: RefCell::default(),
            tunnel: RefCell::default(),
            turn: RefCell::default(),
            deadline,
            phase: Cell::new(Phase::Idle),
            write: Cell::new(Write::Flows),
            unsent: Cell::new(0),
            blocked: RefCell::default(),
            in_flight: Cell::new(0),
            sends: Cell::new(Sends::Nothing),
            age: Cell::new(Age::Usual),
            rest: Cell::new(MOMENT),
            place,
        })
    }

    /// A request is there.
    #[inline]
    pub(crate) fn asked(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
        self.phase.set(Phase::Busy);
        self.deadline.clear();
    }

    /// It speaks HTTP/1.0.
    pub(crate) fn is_old(&self) {
        self.age.set(Age::Old);
    }

    /// It may be sending what nobody will read.
    pub(crate) fn is_unheard(&self) {
        self.sends.set(Sends::More);
    }

    /// The last byte of an answer is gone, or its request was given up.
    #[inline]
    pub(crate) fn answered(&self) {
        let in_flight = self.in_flight.get() - 1;
        self.in_flight.set(in_flight);
        if in_flight == 0 {
            self.phase.set(Phase::Idle);
            self.rest();
        }
    }

    /// Bytes came. In HTTP/2 they need not be those of a request.
    #[inline]
    fn arrived(&self) {
        match self.phase.get() {
            Phase::Idle if self.rest.get() == MOMENT => {
                self.phase.set(Phase::Head);
                self.deadline.set(self.worker.terms.header);
            }
            Phase::Tunnel if self.write.get() == Write::Flows => self.deadline.set(self.worker.terms.tunnel),
            _ => {}
        }
    }

    /// The client does not take what is written to it.
    #[inline]
    fn stands(&self) {
        if self.write.replace(Write::Stands) == Write::Flows {
            self.deadline.set(self.worker.terms.body);
        }
    }

    #[inline]
    fn flows(&self) {
        if self.write.get() == Write::Stands {
            self.write.set(Write::Flows);
            self.blocked.take().into_iter().for_each(Waker::wake);
            match self.phase.get() {
                Phase::Busy => self.deadline.clear(),
                Phase::Idle => self.rest(),
                Phase::Head => self.deadline.set(self.worker.terms.header),
                Phase::Tunnel => self.deadline.set(self.worker.terms.tunnel),
            }
        } else if self.phase.get() == Phase::Tunnel {
            self.deadline.set(self.worker.terms.tunnel);
        }
    }

    /// Whether one more piece of an answer may wait to be sent; the task is woken when it may.
    pub(crate) fn poll_room(&self, context: &Context<'_>) -> Poll<()> {
        if self.write.get() == Write::Flows && self.unsent.get() < self.place.most_unsent() {
            return Poll::Ready(());
        }
        let mut blocked = self.blocked.borrow_mut();
        if !blocked.iter().any(|waker| waker.will_wake(context.waker())) {
            blocked.push(context.waker().clone());
        }
        Poll::Pending
    }

    pub(crate) fn add_unsent(&self, bytes: u64) {
        self.unsent.update(|unsent| unsent + bytes);
        self.place.add_unsent(bytes);
    }

    pub(crate) fn remove_unsent(&self, bytes: u64) {
        self.unsent.update(|unsent| unsent - bytes);
        self.place.remove_unsent(bytes);
        // Not for each piece.
        if self.write.get() == Write::Flows && self.unsent.get() < self.place.most_unsent() / 2 {
            self.blocked.take().into_iter().for_each(Waker::wake);
        }
    }

    /// From now on it speaks of something else.
    fn tunnels(&self) {
        self.asked();
        self.phase.set(Phase::Tunnel);
        self.deadline.set(self.worker.terms.tunnel);
    }

    /// It is being closed, and has so many milliseconds to say something or to end.
    fn lingers(&self, time: u64) {
        self.phase.set(Phase::Busy);
        self.deadline.set(time);
    }

    fn rest(&self) {
        if self.write.get() == Write::Flows {
            self.deadline.set(self.rest.get());
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.worker.left();
    }
}

/// Serves a connection until it ends.
pub(crate) async fn serve<F: RequestFilter>(stream: Stream, client: Rc<Client>, filter: Arc<F>) {
    let is_http2 = stream.agreed() == Some(HTTP2);
    let is_plain = matches!(stream, Stream::Plain(_));
    let mut io = ClientIo::new(stream, client.clone());
    if wait(&io, &client).await == Wait::Over {
        return;
    }
    if is_http2 || is_plain && Box::pin(preface::is_next(&mut io, &client)).await {
        client.rest.set(client.worker.terms.idle);
        return Box::pin(http2::serve(io, client.clone(), filter)).await;
    }
    loop {
        if wait(&io, &client).await == Wait::Over {
            return;
        }
        match Box::pin(http1::serve(io, client.clone(), filter.clone())).await {
            http1::End::Closed => return,
            http1::End::Over(io, sends) => return Box::pin(linger::close(io, sends, &client)).await,
            http1::End::Quiet(quiet) => {
                io = quiet;
                client.introduction.take();
                client.deadline.set(client.worker.terms.idle.saturating_sub(MOMENT));
            }
            http1::End::Tunnel(io, tunnel) => return Box::pin(tunnel.carry(io, &client)).await,
        }
    }
}

#[derive(PartialEq, Eq)]
enum Wait {
    /// There is something to be read.
    Read,
    /// It has been too long, or the gateway ends.
    Over,
}

/// Waits for the next request without anything that could read it.
async fn wait(io: &ClientIo, client: &Client) -> Wait {
    poll_fn(|context| {
        client.deadline.listen(context);
        if client.deadline.is_over() || client.worker.is_draining() {
            return Poll::Ready(Wait::Over);
        }
        match io.poll_ready(context) {
            Poll::Ready(Ok(())) => Poll::Ready(Wait::Read),
            Poll::Ready(Err(_)) => Poll::Ready(Wait::Over),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
