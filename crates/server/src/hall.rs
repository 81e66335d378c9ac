//! Threads that serve HTTP on a listener.

use crate::{
    Bound, Fault,
    greeting::Greeting,
    listen::{Door, PlainDoor, welcome},
    pulse::{Pulse, Pulsing},
    tls::Certificate,
    worker,
};
use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Request, Response};
use http_body::Body;
use hyper::{
    body::Incoming,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use std::{
    convert::Infallible,
    error,
    future::{Future, pending},
    num::NonZeroUsize,
    pin::pin,
    sync::Arc,
    thread,
    time::Duration,
};
use tidegate_policy::model::Connections;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{
        Semaphore, mpsc,
        oneshot::{self, error::TryRecvError},
        watch,
    },
    task::JoinHandle,
    time,
};

/// Threads that serve. Dropping it has them end when their requests have.
pub(crate) struct Threads {
    /// They end when this is gone, too.
    stop: watch::Sender<Until>,
    ends: Vec<oneshot::Receiver<()>>,
    refreshing: JoinHandle<()>,
}

/// How long connections are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// As long as they like.
    TheyEnd,
    /// Until one request more of those who have not said anything yet, and none of the others: somebody else listens now.
    FirstRequest,
    /// Until their requests in flight have ended.
    Now,
}

impl Threads {
    /// Serves from now on, by so many threads of this name.
    pub(crate) fn start<S, B>(
        bound: &Bound,
        hall: &Hall<S>,
        name: &'static str,
        threads: NonZeroUsize,
    ) -> Result<Self, Fault>
    where
        S: Serves<B>,
        B: Body<Data = Bytes, Error: Into<Box<dyn error::Error + Send + Sync>>> + Send + 'static,
    {
        let (stop, stopped) = watch::channel(Until::TheyEnd);
        let mut ends = Vec::new();
        for number in 0..threads.get() {
            let (door, hall, stopped) =
                (bound.door().map_err(Fault::Machine)?, hall.clone(), stopped.clone());
            let (ended, end) = oneshot::channel();
            let work = move || {
                if let Err(fault) = hall.work(door, stopped) {
                    tracing::error!(%fault, "a thread for {name} has ended");
                }
                let _ = ended.send(());
            };
            thread::Builder::new().name(format!("{name}-{number}")).spawn(work).map_err(Fault::Machine)?;
            ends.push(end);
        }
        Ok(Self { stop, ends, refreshing: tokio::spawn(refresh(bound.certificate())) })
    }

    /// Takes no more connections, now that others listen: whoever has connected here and not asked yet is still answered.
    pub(crate) fn leave(&self) {
        // Threads that are gone do not hear it.
        let _ = self.stop.send(Until::FirstRequest);
    }

    /// Whether all threads have ended.
    pub(crate) fn have_ended(&mut self) -> bool {
        self.ends.iter_mut().all(|end| end.try_recv() != Err(TryRecvError::Empty))
    }

    /// Takes no more connections, and returns when requests in flight have ended.
    pub(crate) async fn end(mut self) {
        let _ = self.stop.send(Until::Now);
        for end in std::mem::take(&mut self.ends) {
            let _ = end.await;
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.refreshing.abort();
    }
}

/// What answers requests, on any thread.
pub(crate) trait Serves<B>:
    Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send> + Clone + Send + 'static
{
}

impl<B, S> Serves<B> for S where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// What all threads have in common.
#[derive(Clone)]
pub(crate) struct Hall<S> {
    service: S,
    /// Connections at the same time.
    places: Arc<Semaphore>,
    idle: Duration,
    handshake: Duration,
    head: usize,
    drain: Duration,
}

/// How long to wait where the machine has no more room for connections.
const BREATH: Duration = Duration::from_millis(50);
/// What a head needs besides its own bytes.
const SLACK: usize = 8_192;

impl<S> Hall<S> {
    /// One that serves this, on these terms.
    pub(crate) fn new(service: S, terms: &Connections) -> Self {
        let places = usize::try_from(terms.most).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self {
            service,
            places: Arc::new(Semaphore::new(places)),
            idle: terms.header_timeout.max(terms.idle_timeout),
            handshake: terms.header_timeout,
            head: usize::try_from(terms.header_size).unwrap_or(usize::MAX),
            drain: terms.drain,
        }
    }

    fn work<B>(self, door: PlainDoor, until: watch::Receiver<Until>) -> Result<(), Fault>
    where
        S: Serves<B>,
        B: Body<Data = Bytes, Error: Into<Box<dyn error::Error + Send + Sync>>> + Send + 'static,
    {
        worker::runtime()?.block_on(async {
            let door = door.open().map_err(Fault::Machine)?;
            self.receive(door, until).await;
            Ok(())
        })
    }

    /// Serves on this runtime until `stop`, and then until requests in flight have ended.
    pub(crate) async fn serve_until<B>(
        self,
        bound: Bound,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Fault>
    where
        S: Serves<B>,
        B: Body<Data = Bytes, Error: Into<Box<dyn error::Error + Send + Sync>>> + Send + 'static,
    {
        let door = bound.door().and_then(PlainDoor::open).map_err(Fault::Machine)?;
        let certificate = bound.certificate();
        // The listener is gone when its door is.
        drop(bound);
        let (stopping, until) = watch::channel(Until::TheyEnd);
        let stop = async {
            stop.await;
            // Whoever does not hear it is gone.
            let _ = stopping.send(Until::Now);
            pending::<()>().await;
        };
        let refreshing = async {
            refresh(certificate).await;
            pending::<()>().await;
        };
        tokio::select! {
            () = self.receive(door, until) => {}
            () = stop => {}
            () = refreshing => {}
        }
        Ok(())
    }

    async fn receive<B>(self, door: Door, mut until: watch::Receiver<Until>)
    where
        S: Serves<B>,
        B: Body<Data = Bytes, Error: Into<Box<dyn error::Error + Send + Sync>>> + Send + 'static,
    {
        // Gone when the last connection is.
        let (here, mut all_gone) = mpsc::channel::<Infallible>(1);
        loop {
            let accepted = tokio::select! {
                _ = until.changed() => break,
                accepted = door.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else {
                time::sleep(BREATH).await;
                continue;
            };
            // Who finds no place is sent away; who waits in silence would hold one of those that wait behind.
            let Ok(place) = self.places.clone().try_acquire_owned() else { continue };
            let _ = stream.set_nodelay(true);
            let (hall, certificate) = (self.clone(), door.certificate());
            let (here, until) = (here.clone(), until.clone());
            tokio::spawn(async move {
                let Some(stream) = welcome(stream, certificate, hall.handshake).await else { return };
                hall.serve(stream, until).await;
                drop((place, here));
            });
        }
        drop((door, here));
        let _ = time::timeout(self.drain, all_gone.recv()).await;
    }

    /// Serves one connection until it is told otherwise; then it ends with the request that is in flight.
    async fn serve<B, I>(self, stream: I, mut until: watch::Receiver<Until>)
    where
        S: Serves<B>,
        B: Body<Data = Bytes, Error: Into<Box<dyn error::Error + Send + Sync>>> + Send + 'static,
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (greeting, heard) = Greeting::new(stream, self.idle);
        let (builder, pulse, inner) = (self.builder(), Arc::new(Pulse::default()), self.service);
        let io = TokioIo::new(Pulsing { io: greeting, pulse: pulse.clone() });
        let (mut stopped, requests) = (pin!(pulse.stopped(self.idle)), pulse.clone());
        let service = service_fn(move |request| {
            let busy = requests.busy();
            inner.call(request).inspect(move |_| drop(busy))
        });
        let mut connection = pin!(builder.serve_connection(io, service));
        let leave = async {
            // Without a sender it is over, too.
            let said = until.wait_for(|until| *until != Until::TheyEnd).await.map(|until| *until);
            if said.is_ok_and(|said| said == Until::FirstRequest) {
                tokio::select! {
                    _ = heard => {}
                    _ = until.wait_for(|until| *until == Until::Now) => {}
                }
            }
        };
        // Who went away hears nothing.
        tokio::select! {
            _ = connection.as_mut() => return,
            () = stopped.as_mut() => return,
            () = leave => connection.as_mut().graceful_shutdown(),
        }
        tokio::select! {
            _ = connection => {}
            () = stopped => {}
        }
    }

    fn builder(&self) -> auto::Builder<TokioExecutor> {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        let head = self.head.saturating_add(SLACK);
        // Most heads and bodies are small: one buffer is cheaper to send than two.
        builder.http1().header_read_timeout(None).max_buf_size(head).writev(false);
        let list = u32::try_from(self.head).unwrap_or(u32::MAX);
        builder.http2().timer(TokioTimer::new()).keep_alive_interval(self.idle).max_header_list_size(list);
        builder
    }
}

/// How often files of certificates are looked at.
const REFRESH: Duration = Duration::from_secs(1);

async fn refresh(certificate: Option<Arc<Certificate>>) {
    let Some(certificate) = certificate else { return };
    loop {
        time::sleep(REFRESH).await;
        certificate.refresh();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a story ends where it goes wrong")]
#[allow(clippy::disallowed_methods, reason = "its time is virtual")]
mod tests {
    use super::*;
    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        time::Instant,
    };

    const IDLE: Duration = Duration::from_secs(60);
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n";

    /// How long a connection is served whose client says this and then only listens; and what it hears. An answer comes after
    /// so long, in so many pieces with so long between them.
    async fn served(said: &[u8], answer: Duration, (pieces, between): (u32, Duration)) -> (Duration, String) {
        let service = service_fn(move |_: Request<Incoming>| async move {
            time::sleep(answer).await;
            let body = stream::unfold(pieces, move |left| async move {
                let left = left.checked_sub(1)?;
                time::sleep(between).await;
                Some((Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"piece"))), left))
            });
            Ok::<_, Infallible>(Response::new(StreamBody::new(Box::pin(body))))
        });
        let terms = Connections { idle_timeout: IDLE, header_timeout: IDLE, ..Connections::default() };
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let (_stop, until) = watch::channel(Until::TheyEnd);
        let start = Instant::now();
        let serving = tokio::spawn(Hall::new(service, &terms).serve(server, until));
        client.write_all(said).await.unwrap();
        let mut heard = String::new();
        client.read_to_string(&mut heard).await.unwrap();
        serving.await.unwrap();
        (start.elapsed(), heard)
    }

    fn is_after_rest(took: Duration, since: Duration) -> bool {
        (since + IDLE..=since + IDLE * 3 / 2).contains(&took)
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_half_a_head_is_not_waited_for() {
        let (took, heard) = served(&REQUEST[..20], Duration::ZERO, (1, Duration::ZERO)).await;
        assert!(heard.is_empty() && is_after_rest(took, Duration::ZERO), "{took:?} {heard}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_no_more_is_not_waited_for() {
        let (took, heard) = served(REQUEST, Duration::ZERO, (1, Duration::ZERO)).await;
        assert!(heard.contains("piece") && is_after_rest(took, Duration::ZERO), "{took:?} {heard}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_may_take_its_time() {
        let (took, heard) = served(REQUEST, IDLE * 10, (1, Duration::ZERO)).await;
        assert!(heard.contains("piece") && is_after_rest(took, IDLE * 10), "{took:?} {heard}");
        let (took, heard) = served(REQUEST, Duration::ZERO, (20, IDLE / 2)).await;
        assert_eq!(heard.matches("piece").count(), 20);
        assert!(is_after_rest(took, IDLE * 10), "{took:?}");
    }
}
