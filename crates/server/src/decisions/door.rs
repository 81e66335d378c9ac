//! The listener of programs that ask, with threads of its own.

use super::{desk::Desk, routes};
use crate::{
    Bound, Fault,
    greeting::Greeting,
    listen::{Door, PlainDoor, welcome},
    tls::Certificate,
    worker,
};
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
};
use std::{convert::Infallible, net::SocketAddr, num::NonZeroUsize, sync::Arc, thread, time::Duration};
use tidegate_policy::model::{Connections, Decisions, Listener};
use tokio::{
    sync::{Semaphore, oneshot, watch},
    task::JoinHandle,
    time,
};

/// The listener of programs that ask. Dropping it has its threads end when their requests have.
pub(crate) struct DecisionDoor {
    bound: Bound,
    serving: Option<Serving>,
}

struct Serving {
    /// They end when this is gone.
    _stop: watch::Sender<()>,
    ends: Vec<oneshot::Receiver<()>>,
    refreshing: JoinHandle<()>,
}

impl DecisionDoor {
    pub(crate) fn bind(declared: &Decisions) -> Result<Self, Fault> {
        Ok(Self { bound: Bound::bind(&listener(declared))?, serving: None })
    }

    /// The same socket where the address stays, with what is declared now.
    pub(crate) fn again(&self, declared: &Decisions) -> Result<Self, Fault> {
        let listener = listener(declared);
        let bound = match self.bound.declared().address == listener.address {
            true => self.bound.again(&listener)?,
            false => Bound::bind(&listener)?,
        };
        Ok(Self { bound, serving: None })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.bound.address()
    }

    /// Serves from now on, by so many threads.
    pub(crate) fn start(
        &mut self,
        desk: &Arc<Desk>,
        threads: NonZeroUsize,
        terms: &Connections,
    ) -> Result<(), Fault> {
        let (stop, stopped) = watch::channel(());
        let places = usize::try_from(terms.most).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        let hall = Hall {
            desk: desk.clone(),
            places: Arc::new(Semaphore::new(places)),
            idle: terms.header_timeout.max(terms.idle_timeout),
            handshake: terms.header_timeout,
            head: usize::try_from(terms.header_size).unwrap_or(usize::MAX),
            drain: terms.drain,
        };
        let mut ends = Vec::new();
        for number in 0..threads.get() {
            let (door, hall, stopped) =
                (self.bound.door().map_err(Fault::Machine)?, hall.clone(), stopped.clone());
            let (ended, end) = oneshot::channel();
            let work = move || {
                if let Err(fault) = hall.work(door, stopped) {
                    tracing::error!(%fault, "a thread for decisions has ended");
                }
                let _ = ended.send(());
            };
            thread::Builder::new().name(format!("decisions-{number}")).spawn(work).map_err(Fault::Machine)?;
            ends.push(end);
        }
        let refreshing = tokio::spawn(refresh(self.bound.certificate()));
        self.serving = Some(Serving { _stop: stop, ends, refreshing });
        Ok(())
    }

    /// Takes no more connections, and returns when requests in flight have ended.
    pub(crate) async fn end(self) {
        let Self { bound, serving } = self;
        drop(bound);
        let Some(mut serving) = serving else { return };
        let ends = std::mem::take(&mut serving.ends);
        drop(serving);
        for end in ends {
            let _ = end.await;
        }
    }
}

fn listener(declared: &Decisions) -> Listener {
    Listener { address: declared.listen, tls: declared.tls.clone() }
}

/// What all threads have in common.
#[derive(Clone)]
struct Hall {
    desk: Arc<Desk>,
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

impl Hall {
    fn work(self, door: PlainDoor, stopped: watch::Receiver<()>) -> Result<(), Fault> {
        worker::runtime()?.block_on(async {
            let door = door.open().map_err(Fault::Machine)?;
            self.receive(door, stopped).await;
            Ok(())
        })
    }

    async fn receive(self, door: Door, mut stopped: watch::Receiver<()>) {
        let shutdown = GracefulShutdown::new();
        loop {
            let accepted = tokio::select! {
                // Nobody sends anything: it ends with its sender.
                _ = stopped.changed() => break,
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
            let watcher = shutdown.watcher();
            let serve = async move {
                let Some(stream) = welcome(stream, certificate, hall.handshake).await else { return };
                let (builder, desk) = (hall.builder(), hall.desk.clone());
                let service = service_fn(move |request| {
                    let desk = desk.clone();
                    async move { Ok::<_, Infallible>(routes::serve(&desk, request).await) }
                });
                // Who went away hears nothing.
                let stream = TokioIo::new(Greeting::new(stream, hall.idle));
                let _ = watcher.watch(builder.serve_connection(stream, service)).await;
                drop(place);
            };
            tokio::spawn(serve);
        }
        drop(door);
        let _ = time::timeout(self.drain, shutdown.shutdown()).await;
    }

    fn builder(&self) -> auto::Builder<TokioExecutor> {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        let head = self.head.saturating_add(SLACK);
        // Most heads and bodies are small: one buffer is cheaper to send than two.
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.idle)
            .max_buf_size(head)
            .writev(false);
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

impl Drop for Serving {
    fn drop(&mut self) {
        self.refreshing.abort();
    }
}
