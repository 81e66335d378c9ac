//! Threads that serve a router on a listener.

use crate::{
    Bound, Fault,
    listen::{Door, PlainDoor, welcome},
    tls::Certificate,
    worker,
};
use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use std::{num::NonZeroUsize, sync::Arc, thread, time::Duration};
use tidegate_policy::model::Connections;
use tokio::{
    sync::{Semaphore, oneshot, watch},
    task::JoinHandle,
    time,
};

/// Threads that serve. Dropping it has them end when their requests have.
pub(crate) struct Threads {
    /// They end when this is gone.
    _stop: watch::Sender<()>,
    ends: Vec<oneshot::Receiver<()>>,
    refreshing: JoinHandle<()>,
}

impl Threads {
    /// Serves from now on, by so many threads of this name.
    pub(crate) fn start(
        bound: &Bound,
        hall: &Hall,
        name: &'static str,
        threads: NonZeroUsize,
    ) -> Result<Self, Fault> {
        let (stop, stopped) = watch::channel(());
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
        Ok(Self { _stop: stop, ends, refreshing: tokio::spawn(refresh(bound.certificate())) })
    }

    /// Takes no more connections, and returns when requests in flight have ended.
    pub(crate) async fn end(mut self) {
        let ends = std::mem::take(&mut self.ends);
        drop(self);
        for end in ends {
            let _ = end.await;
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.refreshing.abort();
    }
}

/// What all threads have in common.
#[derive(Clone)]
pub(crate) struct Hall {
    router: Router,
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
    /// One that serves this, on these terms.
    pub(crate) fn new(router: Router, terms: &Connections) -> Self {
        let places = usize::try_from(terms.most).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self {
            router,
            places: Arc::new(Semaphore::new(places)),
            idle: terms.header_timeout.max(terms.idle_timeout),
            handshake: terms.header_timeout,
            head: usize::try_from(terms.header_size).unwrap_or(usize::MAX),
            drain: terms.drain,
        }
    }

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
                let (builder, service) = (hall.builder(), TowerToHyperService::new(hall.router.clone()));
                // Who went away hears nothing.
                let _ = watcher.watch(builder.serve_connection(TokioIo::new(stream), service)).await;
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
        builder.http1().timer(TokioTimer::new()).header_read_timeout(self.idle).max_buf_size(head);
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
