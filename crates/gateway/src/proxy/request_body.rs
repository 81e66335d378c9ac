//! The body of a request, on its way to a server.

use super::{Failure, head};
use crate::{client::Client, watch::Deadline};
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::{
    cell::Cell,
    fmt,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};
use tidegate_bandwidth::{Bandwidth, ShapedStream};
use tidegate_policy::head::HeadError;

/// The body of a request, on its way to a server.
pub(crate) enum RequestBody {
    Empty,
    Upload(Box<Upload>),
    /// One that is slowed down.
    Slowed(Box<ShapedStream<Upload>>),
}

/// A body that is taken from a client piece by piece, as fast as the server takes it.
pub(crate) struct Upload {
    incoming: Incoming,
    /// Bytes that it may still have.
    left: u64,
    client: Rc<Client>,
    /// While there is nothing of it.
    deadline: Option<Deadline>,
    note: Note,
}

/// How far a body has got, for whoever waits for the answer.
#[derive(Clone, Debug)]
pub(crate) struct Note(Rc<Notes>);

#[derive(Debug)]
struct Notes {
    failure: Cell<Option<Failure>>,
    progress: Cell<Progress>,
}

/// How far a body has got. Times are the milliseconds of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The server took the last piece at this time, and could take another.
    Taken(u64),
    /// The next piece is to come: the client has not sent it, or may not send it yet.
    Awaited,
    /// The server was given the last piece at this time.
    Sent(u64),
}

/// A body that ends before its end.
#[derive(Debug)]
pub(crate) struct CutOff;

impl RequestBody {
    /// A body that moves no faster than any of these rates.
    pub(super) fn of(incoming: Incoming, client: &Rc<Client>, rates: &[Bandwidth]) -> Self {
        if incoming.is_end_stream() {
            return Self::Empty;
        }
        let upload = Upload {
            incoming,
            left: client.worker.terms.head.body_size,
            client: client.clone(),
            deadline: None,
            note: Note::new(client.worker.watch.now()),
        };
        match rates.split_first() {
            None => Self::Upload(Box::new(upload)),
            // The time of the client does not run while it is not read from.
            Some((first, others)) => {
                let shaped = first.limit_reads(upload);
                Self::Slowed(Box::new(others.iter().fold(shaped, ShapedStream::limit_reads)))
            }
        }
    }

    /// Where it will be said how far it has got; `None` where there is nothing to be sent.
    pub(crate) fn note(&self) -> Option<Note> {
        match self {
            Self::Empty => None,
            Self::Upload(upload) => Some(upload.note.clone()),
            Self::Slowed(slowed) => Some(slowed.get_ref().note.clone()),
        }
    }
}

impl RequestBody {
    /// Notes down how far it has got.
    fn mark<E>(&self, polled: &Poll<Option<Result<Frame<Bytes>, E>>>) {
        let upload = match self {
            Self::Empty => return,
            Self::Upload(upload) => upload,
            Self::Slowed(slowed) => slowed.get_ref(),
        };
        let now = upload.client.worker.watch.now();
        upload.note.0.progress.set(match polled {
            Poll::Pending => Progress::Awaited,
            Poll::Ready(Some(_)) if !self.is_end_stream() => Progress::Taken(now),
            Poll::Ready(_) => Progress::Sent(now),
        });
    }
}

impl Note {
    fn new(now: u64) -> Self {
        let progress = Cell::new(Progress::Taken(now));
        Self(Rc::new(Notes { failure: Cell::new(None), progress }))
    }

    /// What went wrong with it.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.0.failure.get()
    }

    pub(crate) fn progress(&self) -> Progress {
        self.0.progress.get()
    }
}

impl Upload {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let frame = match Pin::new(&mut self.incoming).poll_frame(context) {
            Poll::Ready(frame) => frame,
            Poll::Pending => return self.wait(context),
        };
        self.deadline = None;
        Poll::Ready(frame.map(|frame| {
            let frame = frame.map_err(|_| Failure::BrokenBody)?;
            let length = frame.data_ref().map_or(0, |data| data.len() as u64);
            self.left = self.left.checked_sub(length).ok_or(Failure::Head(HeadError::TooLarge))?;
            Ok(match frame.into_trailers() {
                Ok(trailers) => Frame::trailers(head::clean_trailers(trailers, &self.client)),
                Err(frame) => frame,
            })
        }))
    }

    fn wait(&mut self, context: &Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let worker = &self.client.worker;
        let deadline = self.deadline.get_or_insert_with(|| {
            let deadline = worker.watch.deadline();
            deadline.set(worker.terms.body);
            deadline
        });
        if deadline.is_over() {
            return Poll::Ready(Some(Err(Failure::SlowBody)));
        }
        deadline.listen(context);
        Poll::Pending
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        let upload = self.get_mut();
        upload.poll_next(context).map(|frame| {
            frame.map(|frame| {
                frame.map_err(|failure| {
                    upload.note.0.failure.set(Some(failure));
                    CutOff
                })
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !matches!(self.note.progress(), Progress::Sent(_)) {
            self.client.is_unheard();
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        let body = self.get_mut();
        let polled = match body {
            Self::Empty => return Poll::Ready(None),
            Self::Upload(upload) => Pin::new(&mut **upload).poll_frame(context),
            Self::Slowed(slowed) => Pin::new(&mut **slowed).poll_frame(context),
        };
        body.mark(&polled);
        polled
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Upload(upload) => upload.is_end_stream(),
            Self::Slowed(slowed) => slowed.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Upload(upload) => upload.size_hint(),
            Self::Slowed(slowed) => slowed.size_hint(),
        }
    }
}

impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestBody")
    }
}

impl fmt::Display for CutOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body ended before its end")
    }
}

impl std::error::Error for CutOff {}
