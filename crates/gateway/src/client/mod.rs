//! One client connection, from its first byte to its last.
//!
//! ```text
//!            first byte          head complete
//!   Idle ───────────────▶ Head ────────────────▶ Busy ──▶ … last response sent: Idle
//!    idle-timeout          header-timeout         (body-timeout while a body makes no progress)
//! ```
//!
//! A connection that has been idle for 100 ms releases its HTTP state and buffers, and creates them again when the next byte
//! arrives. So thousands of idle connections cost little more than their sockets: a task of two cache lines, an
//! [`OpenConnection`], and a [`Deadline`].

mod http1;
mod http2;
mod http2_stream;
mod io;
mod lingering_close;
mod preface;
mod reject;
mod task;
mod transport;
mod tunnel;

pub(crate) use http2::LocalExecutor;
pub(crate) use http2_stream::Http2Stream;
pub(crate) use io::ClientIo;
pub(crate) use reject::reject;
pub(crate) use task::ConnectionTask;
pub(crate) use transport::ClientBody;
pub(crate) use tunnel::Tunnel;

use crate::{
    ConnectionInfo, RequestFilter, connection_limit::ConnectionPermit, deadline::Deadline,
    proxy::ForwardedHeaderWriter, transfer_pace::TransferPace, worker::Worker,
};
use http2_stream::SendProgress;
use lingering_close::ClientInput;
use std::{
    cell::{Cell, RefCell},
    ops::Deref,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
};

/// A client connection, from the first byte to the last.
pub(crate) struct OpenConnection {
    pub(crate) worker: Rc<Worker>,
    pub(crate) connection_info: ConnectionInfo,
    pub(crate) filter: Arc<dyn RequestFilter>,
    deadline: Deadline,
    /// The end of the last response, in milliseconds.
    idle_since: Cell<u64>,
    permit: ConnectionPermit,
}

/// The state of a client connection that is not idle.
pub(crate) struct ClientConnection {
    open: Rc<OpenConnection>,
    /// Writes the forwarding headers; created for the first request.
    pub(crate) forwarded_header_writer: RefCell<Option<Box<ForwardedHeaderWriter>>>,
    /// The server side of an upgraded connection.
    pub(crate) tunnel: RefCell<Option<Box<Tunnel>>>,
    /// The HTTP/2 stream that is being polled.
    pub(crate) stream: RefCell<Option<Rc<Http2Stream>>>,
    phase: Cell<ConnectionPhase>,
    write: Cell<WriteState>,
    /// Whether the client reads its responses fast enough.
    write_pace: Cell<TransferPace>,
    /// What the HTTP/2 streams have sent.
    send_progress: Cell<SendProgress>,
    /// Bytes of HTTP/2 responses that are buffered for sending.
    unsent_bytes: Cell<u64>,
    send_capacity: Cell<SendCapacity>,
    /// Tasks of HTTP/2 responses that wait until the client reads.
    blocked_wakers: RefCell<Vec<Waker>>,
    in_flight: Cell<u32>,
    input: Cell<ClientInput>,
    version: Cell<HttpVersion>,
    /// The current idle timeout, in milliseconds: until buffers are released, then until the connection is closed.
    idle_timeout: Cell<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionPhase {
    Idle,
    Head,
    Busy,
    /// Upgraded to another protocol; `tunnel-timeout` limits pauses.
    Tunnel,
}

/// Whether the client reads what the gateway writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteState {
    Ready,
    Blocked,
}

/// Whether responses over HTTP/2 may buffer more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SendCapacity {
    Available,
    /// Until a part of the buffered bytes is sent: waking all streams for each frame would cost more than the frame.
    Exhausted,
}

/// The HTTP version, which decides how a body of unknown length ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HttpVersion {
    Http11,
    /// HTTP/1.0.
    Http10,
}

/// The idle time after which a connection releases its buffers, in milliseconds.
const BUFFER_RELEASE_DELAY: u64 = 100;

impl OpenConnection {
    pub(crate) fn new(
        worker: Rc<Worker>,
        connection_info: ConnectionInfo,
        filter: Arc<dyn RequestFilter>,
        permit: ConnectionPermit,
    ) -> Self {
        worker.connection_opened();
        let deadline = worker.deadlines.new_deadline();
        deadline.set(worker.settings.idle_timeout);
        let idle_since = Cell::new(worker.deadlines.now());
        Self { worker, connection_info, filter, deadline, idle_since, permit }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.worker.connection_closed();
    }
}

impl Deref for ClientConnection {
    type Target = OpenConnection;

    #[inline]
    fn deref(&self) -> &OpenConnection {
        &self.open
    }
}

impl ClientConnection {
    fn new(open: Rc<OpenConnection>) -> Rc<Self> {
        Rc::new(Self {
            open,
            forwarded_header_writer: RefCell::default(),
            tunnel: RefCell::default(),
            stream: RefCell::default(),
            phase: Cell::new(ConnectionPhase::Idle),
            write: Cell::new(WriteState::Ready),
            write_pace: Cell::default(),
            send_progress: Cell::default(),
            unsent_bytes: Cell::new(0),
            send_capacity: Cell::new(SendCapacity::Available),
            blocked_wakers: RefCell::default(),
            in_flight: Cell::new(0),
            input: Cell::new(ClientInput::Done),
            version: Cell::new(HttpVersion::Http11),
            idle_timeout: Cell::new(BUFFER_RELEASE_DELAY),
        })
    }

    /// Called when the head of a request is complete.
    #[inline]
    pub(crate) fn on_request(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
        self.phase.set(ConnectionPhase::Busy);
        self.deadline.clear();
    }

    /// Marks the client as an HTTP/1.0 client.
    pub(crate) fn set_http10(&self) {
        self.version.set(HttpVersion::Http10);
    }

    /// Marks that the client may be sending a body that is not read.
    pub(crate) fn mark_unread_body(&self) {
        self.input.set(ClientInput::Unread);
    }

    /// Whether the client may be sending a body that is not read.
    fn has_unread_body(&self) -> bool {
        self.input.get() == ClientInput::Unread
    }

    /// Wakes the task of the connection, if another one is running. The body of a request may be polled by the task of an
    /// HTTP/2 connection to a server.
    fn wake_from(&self, context: &Context<'_>) {
        if !self.is_task(context) {
            self.deadline.wake();
        }
    }

    /// Whether this is the task of the connection.
    fn is_task(&self, context: &Context<'_>) -> bool {
        self.deadline.is_registered(context)
    }

    /// Called when the last byte of a response is sent, or the request is canceled.
    #[inline]
    pub(crate) fn on_response_end(&self) {
        let in_flight = self.in_flight.get() - 1;
        self.in_flight.set(in_flight);
        if in_flight == 0 {
            self.phase.set(ConnectionPhase::Idle);
            self.start_idle_timeout();
        }
    }

    /// Called when bytes arrive. In HTTP/2 they need not belong to a request.
    #[inline]
    fn on_read(&self) {
        match self.phase.get() {
            ConnectionPhase::Idle if self.idle_timeout.get() == BUFFER_RELEASE_DELAY => {
                self.phase.set(ConnectionPhase::Head);
                self.deadline.set(self.worker.settings.header_timeout);
            }
            ConnectionPhase::Tunnel if self.write.get() == WriteState::Ready => {
                self.deadline.set(self.worker.settings.tunnel_timeout);
            }
            _ => {}
        }
    }

    /// Called when a write would block.
    #[inline]
    fn on_write_blocked(&self) {
        if self.write.replace(WriteState::Blocked) == WriteState::Ready {
            let mut pace = self.write_pace.get();
            let limits = self.worker.settings.pace_limits();
            self.deadline.set(pace.start_wait(self.worker.deadlines.now(), limits));
            self.write_pace.set(pace);
        }
    }

    /// Called when bytes were written.
    #[inline]
    fn on_written(&self, bytes: usize) {
        let mut pace = self.write_pace.get();
        pace.add_bytes(bytes as u64);
        if self.write.get() == WriteState::Blocked {
            pace.end_wait(self.worker.deadlines.now());
        }
        self.write_pace.set(pace);
        self.on_write_resumed();
    }

    /// Called when everything that was written is sent.
    #[inline]
    fn on_flushed(&self) {
        if self.write.get() == WriteState::Blocked {
            self.on_written(0);
        }
    }

    #[inline]
    fn on_write_resumed(&self) {
        if self.write.get() == WriteState::Blocked {
            self.write.set(WriteState::Ready);
            self.blocked_wakers.take().into_iter().for_each(Waker::wake);
            match self.phase.get() {
                ConnectionPhase::Busy => self.deadline.clear(),
                ConnectionPhase::Idle => self.start_idle_timeout(),
                ConnectionPhase::Head => self.deadline.set(self.worker.settings.header_timeout),
                ConnectionPhase::Tunnel => self.deadline.set(self.worker.settings.tunnel_timeout),
            }
        } else if self.phase.get() == ConnectionPhase::Tunnel {
            self.deadline.set(self.worker.settings.tunnel_timeout);
        }
    }

    /// Waits until another frame of a response may be buffered.
    pub(crate) fn poll_send_capacity(&self, context: &Context<'_>) -> Poll<()> {
        if self.has_send_capacity() {
            return Poll::Ready(());
        }
        // The buffers of other connections of the client are full. This one continues when they are not.
        if self.permit.is_limited_by_client()
            && let Some(waker) = self.deadline.waker()
        {
            self.permit.wake_on_capacity(waker);
            if self.has_send_capacity() {
                return Poll::Ready(());
            }
        }
        let mut blocked = self.blocked_wakers.borrow_mut();
        if !blocked.iter().any(|waker| waker.will_wake(context.waker())) {
            blocked.push(context.waker().clone());
        }
        Poll::Pending
    }

    pub(crate) fn add_unsent(&self, bytes: u64) {
        self.unsent_bytes.update(|unsent| unsent + bytes);
        self.permit.add_unsent(bytes);
    }

    pub(crate) fn remove_unsent(&self, bytes: u64) {
        self.unsent_bytes.update(|unsent| unsent - bytes);
        self.permit.remove_unsent(bytes);
        self.wake_blocked();
    }

    /// Wakes the tasks of HTTP/2 responses that wait, if they may buffer more.
    fn wake_blocked(&self) {
        if !self.blocked_wakers.borrow().is_empty() && self.has_send_capacity() {
            self.blocked_wakers.take().into_iter().for_each(Waker::wake);
        }
    }

    fn has_send_capacity(&self) -> bool {
        let (unsent, max) = (self.unsent_bytes.get(), self.permit.max_unsent());
        match self.send_capacity.get() {
            SendCapacity::Available if unsent >= max => self.send_capacity.set(SendCapacity::Exhausted),
            SendCapacity::Exhausted if unsent < max - max / 16 => {
                self.send_capacity.set(SendCapacity::Available);
            }
            SendCapacity::Available | SendCapacity::Exhausted => {}
        }
        self.write.get() == WriteState::Ready && self.send_capacity.get() == SendCapacity::Available
    }

    /// Switches to tunnel mode after an upgrade.
    fn enter_tunnel(&self) {
        self.on_request();
        self.phase.set(ConnectionPhase::Tunnel);
        self.deadline.set(self.worker.settings.tunnel_timeout);
    }

    /// Starts a lingering close: the client has `time` milliseconds to send more or to close.
    fn start_linger(&self, time: u64) {
        self.phase.set(ConnectionPhase::Busy);
        self.deadline.set(time);
    }

    fn start_idle_timeout(&self) {
        if self.write.get() == WriteState::Ready {
            self.idle_since.set(self.worker.deadlines.now());
            self.deadline.set(self.idle_timeout.get());
        }
    }
}
