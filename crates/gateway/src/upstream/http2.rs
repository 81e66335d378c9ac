//! The HTTP/2 connections of one worker to a server.
//!
//! A stream whose client does not read its response stays open. So a connection has at most as many streams as its window has room
//! for, and as the server allows; further requests open another connection, and none waits for the clients of others.

use super::connection::MAX_IDLE_TIME;
use crate::{
    client::LocalExecutor,
    proxy::{IncompleteBody, RequestBody},
};
use bytes::Bytes;
use hyper::{
    body::{Body, Frame, SizeHint},
    client::conn::http2,
};
use hyper_util::rt::TokioIo;
use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    io,
    pin::Pin,
    rc::{Rc, Weak},
    task::{Context, Poll},
};
use tidegate_http_server::Stream;

/// The maximum number of streams of a connection.
const MAX_STREAMS: u32 = 128;
/// The flow control windows of one response, and of all responses of a connection.
const STREAM_WINDOW: u32 = 128 * 1_024;
const CONNECTION_WINDOW: u32 = MAX_STREAMS * STREAM_WINDOW;
/// The send buffer of a request, whatever window the server grants. A request holds at most this and two frames.
const SEND_BUFFER_SIZE: usize = 16 * 1_024;
/// The limit of streams before the server has sent its own: the request that opened the connection.
const INITIAL_STREAMS: usize = 1;

/// All connections, the oldest first.
#[derive(Default)]
pub(super) struct Http2Pool {
    connections: RefCell<Vec<Rc<Http2Connection>>>,
}

/// A connection that requests share.
struct Http2Connection {
    sender: http2::SendRequest<Http2Upload>,
    /// Its task, which has the limit of the server.
    driver: Weak<RefCell<Driver>>,
    streams: Cell<usize>,
    /// The last time at which it had streams, in milliseconds.
    last_used: Cell<u64>,
}

type Driver = http2::Connection<TokioIo<Stream>, Http2Upload, LocalExecutor>;

/// A stream of a connection, until it is dropped. The request and the response share it.
pub(crate) struct Http2Permit(Rc<Http2Connection>);

/// The body of a request.
pub(super) struct Http2Upload {
    body: RequestBody,
    _permit: Rc<Http2Permit>,
}

impl Http2Pool {
    /// A stream of an open connection; `None` if all connections are full.
    pub(super) fn acquire(&self) -> Option<Rc<Http2Permit>> {
        let mut connections = self.connections.borrow_mut();
        connections.retain(|connection| !connection.sender.is_closed());
        let free = connections.iter().find(|connection| connection.has_room())?;
        Some(Http2Permit::new(free))
    }

    /// Starts a connection, and acquires its first stream.
    pub(super) async fn open(&self, stream: Stream, now: u64) -> io::Result<Rc<Http2Permit>> {
        let handshake = http2::Builder::new(LocalExecutor)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_max_send_streams(INITIAL_STREAMS)
            .max_send_buf_size(SEND_BUFFER_SIZE)
            .handshake(TokioIo::new(stream));
        let (sender, driver) = handshake.await.map_err(io::Error::other)?;
        let driver = Rc::new(RefCell::new(driver));
        let connection = Rc::new(Http2Connection {
            sender,
            driver: Rc::downgrade(&driver),
            streams: Cell::new(0),
            last_used: Cell::new(now),
        });
        tokio::task::spawn_local(poll_fn(move |context| Pin::new(&mut *driver.borrow_mut()).poll(context)));
        let permit = Http2Permit::new(&connection);
        self.connections.borrow_mut().push(connection);
        Ok(permit)
    }

    /// Closes connections that have had no stream for too long, and those that the server has closed.
    pub(super) fn close_idle(&self, now: u64) {
        self.connections.borrow_mut().retain(|connection| {
            if connection.streams.get() > 0 {
                connection.last_used.set(now);
            }
            !connection.sender.is_closed() && now.saturating_sub(connection.last_used.get()) < MAX_IDLE_TIME
        });
    }
}

impl Http2Connection {
    fn has_room(&self) -> bool {
        let Some(driver) = self.driver.upgrade() else { return false };
        let limit = driver.try_borrow().map_or(0, |driver| driver.current_max_send_streams());
        self.streams.get() < limit.min(MAX_STREAMS as usize)
    }
}

impl Http2Permit {
    fn new(connection: &Rc<Http2Connection>) -> Rc<Self> {
        connection.streams.update(|streams| streams + 1);
        Rc::new(Self(connection.clone()))
    }

    /// Sends requests on the connection.
    pub(super) fn sender(&self) -> http2::SendRequest<Http2Upload> {
        self.0.sender.clone()
    }
}

impl Drop for Http2Permit {
    fn drop(&mut self) {
        self.0.streams.update(|streams| streams - 1);
    }
}

impl Http2Upload {
    pub(super) fn new(body: RequestBody, permit: &Rc<Http2Permit>) -> Self {
        Self { body, _permit: permit.clone() }
    }

    pub(super) fn into_inner(self) -> RequestBody {
        self.body
    }
}

impl Body for Http2Upload {
    type Data = Bytes;
    type Error = IncompleteBody;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncompleteBody>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
