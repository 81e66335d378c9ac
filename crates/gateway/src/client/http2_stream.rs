//! One stream of an HTTP/2 client, beside hyper.
//!
//! In HTTP/1.1 the whole connection blocks when a client does not read. In HTTP/2 one stream may block while others make
//! progress. hyper then does not poll its response again, so nothing would end the stream, or send the rest of its request.

use super::ClientConnection;
use crate::{deadline::Deadline, proxy::SharedUpload, transfer_pace::TransferPace};
use hyper::rt::Executor;
use std::{
    cell::{Cell, OnceCell, RefCell},
    future::{Future, poll_fn},
    pin::pin,
    rc::Rc,
    task::{Context, Poll},
};

/// The state of one stream.
pub(crate) struct Http2Stream {
    client: Rc<ClientConnection>,
    /// The bytes of the response that are buffered for sending.
    unsent: Cell<u64>,
    /// Set while there are some: the client must read them.
    deadline: OnceCell<Deadline>,
    pace: Cell<TransferPace>,
    /// What all streams had sent when this one last sent something.
    at_progress: Cell<SendProgress>,
    /// The bytes that all streams had sent when this one last had to wait for others.
    sent_at_check: Cell<u64>,
    /// The rest of the request, if the response has begun before its end.
    upload: RefCell<Option<SharedUpload>>,
}

/// What the streams of a connection have sent.
#[derive(Clone, Copy, Default)]
pub(super) struct SendProgress {
    bytes: u64,
    /// The streams that have buffered bytes now, and those that began to have some, ever.
    sending: u64,
    started: u64,
}

/// The largest number of bytes that a stream sends before another stream has its turn: what it can buffer.
const MAX_TURN: u64 = 64 * 1_024;

impl Http2Stream {
    pub(crate) fn new(client: &Rc<ClientConnection>) -> Rc<Self> {
        Rc::new(Self {
            client: client.clone(),
            unsent: Cell::new(0),
            deadline: OnceCell::new(),
            pace: Cell::default(),
            at_progress: Cell::default(),
            sent_at_check: Cell::new(0),
            upload: RefCell::default(),
        })
    }

    /// The connection.
    pub(crate) fn client(&self) -> &ClientConnection {
        &self.client
    }

    /// Sends the rest of this request while the client does not read the response.
    pub(crate) fn set_upload(&self, upload: SharedUpload) {
        self.upload.replace(Some(upload));
    }

    fn poll_upload(&self, context: &mut Context<'_>) {
        if let Some(upload) = self.upload.borrow().as_ref() {
            upload.poll(context);
        }
    }

    /// Called when bytes are buffered for sending.
    pub(crate) fn add_unsent(&self, bytes: u64) {
        if self.unsent.replace(self.unsent.get() + bytes) == 0 {
            self.update_progress(|all| {
                all.sending += 1;
                all.started += 1;
            });
            self.start_wait();
        }
    }

    /// Called when bytes are sent.
    pub(crate) fn on_sent(&self, bytes: u64) {
        let mut pace = self.pace.get();
        pace.end_wait(self.client.worker.deadlines.now());
        pace.add_bytes(bytes);
        self.pace.set(pace);
        self.update_progress(|all| all.bytes += bytes);
        self.remove_unsent(bytes);
    }

    /// Called when bytes are sent, or dropped with their stream.
    pub(crate) fn remove_unsent(&self, bytes: u64) {
        self.unsent.update(|unsent| unsent - bytes);
        if self.unsent.get() > 0 {
            self.start_wait();
            return;
        }
        self.client.send_progress.update(|all| SendProgress { sending: all.sending - 1, ..all });
        let mut pace = self.pace.get();
        pace.end_wait(self.client.worker.deadlines.now());
        self.pace.set(pace);
        if let Some(deadline) = self.deadline.get() {
            deadline.clear();
        }
    }

    /// Called when this stream makes progress.
    fn update_progress(&self, update: impl FnOnce(&mut SendProgress)) {
        let mut all = self.client.send_progress.get();
        update(&mut all);
        self.client.send_progress.set(all);
        self.at_progress.set(all);
        self.sent_at_check.set(all.bytes);
    }

    fn start_wait(&self) {
        let worker = &self.client.worker;
        let mut pace = self.pace.get();
        let time = pace.start_wait(worker.deadlines.now(), worker.settings.pace_limits());
        self.pace.set(pace);
        self.deadline.get_or_init(|| worker.deadlines.new_deadline()).set(time);
    }

    /// Whether the client is too slow to read this response.
    fn is_expired(&self, context: &Context<'_>) -> bool {
        let Some(deadline) = self.deadline.get() else { return false };
        deadline.register(context);
        if !deadline.is_expired() {
            return false;
        }
        if !self.is_queued() {
            return true;
        }
        self.sent_at_check.set(self.client.send_progress.get().bytes);
        self.pace.take();
        self.start_wait();
        false
    }

    /// Whether the other streams have not had their turns since this stream sent something, and the client reads all streams
    /// together fast enough.
    fn is_queued(&self) -> bool {
        let (all, at_progress) = (self.client.send_progress.get(), self.at_progress.get());
        let turns = at_progress.sending + (all.started - at_progress.started);
        let min_bytes = self.client.worker.settings.pace_limits().min_bytes.max(1);
        all.bytes - at_progress.bytes < turns * MAX_TURN
            && all.bytes - self.sent_at_check.get() >= all.sending.saturating_mul(min_bytes)
    }
}

/// Runs the streams of one connection. A stream that times out is dropped, which resets it; other streams continue.
#[derive(Clone)]
pub(super) struct StreamExecutor(pub(super) Rc<ClientConnection>);

impl<F: Future<Output: 'static> + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, future: F) {
        let (client, stream) = (self.0.clone(), Http2Stream::new(&self.0));
        tokio::task::spawn_local(async move {
            {
                let mut future = pin!(future);
                poll_fn(|context| {
                    client.stream.replace(Some(stream.clone()));
                    let polled = future.as_mut().poll(context);
                    client.stream.take();
                    if polled.is_ready() || stream.is_expired(context) {
                        return Poll::Ready(());
                    }
                    stream.poll_upload(context);
                    Poll::Pending
                })
                .await;
            }
            // Bytes of the response that are not sent yet keep the stream.
            stream.upload.take();
        });
    }
}
