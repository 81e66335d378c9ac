//! Starts and stops workers.

use crate::{
    Config, RequestFilter,
    connection_limit::ConnectionLimiter,
    log::{AccessLog, LogThread},
    traces::{TraceExporter, Tracer},
    upstream::{ServerHealth, Upstream, UpstreamConfig},
    worker::{self, Worker, WorkerCommand, deadline_clock},
};
use futures_util::future::BoxFuture;
use std::{future::Future, sync::Arc, thread};
use tidegate_http_server::{BoundListener, StartupError, build_runtime, refresh_certificates};
use tidegate_observe::{SpanReporter, UpstreamReporter};
use tokio::{
    sync::{oneshot, watch},
    task::JoinSet,
};

/// Serves until `shutdown`, then accepts no more connections and drains requests in flight for at most
/// [`drain_timeout`](tidegate_policy::model::Connections::drain_timeout).
///
/// Errors are returned before the first connection is accepted.
pub async fn run(
    config: Config,
    listeners: Vec<BoundListener>,
    filter: Arc<dyn RequestFilter>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), StartupError> {
    let workers = start(config, listeners, filter).await?;
    shutdown.await;
    stop(workers).await
}

// These are boxed so that they are compiled with this crate and not again with each program that runs the gateway.
fn start(
    config: Config,
    listeners: Vec<BoundListener>,
    filter: Arc<dyn RequestFilter>,
) -> BoxFuture<'static, Result<Workers, StartupError>> {
    Box::pin(async move { Workers::start(PreparedConfig::prepare(config).await?, &listeners, filter) })
}

fn stop(workers: Workers) -> BoxFuture<'static, Result<(), StartupError>> {
    Box::pin(async move {
        workers.send_command(WorkerCommand::Stop);
        workers.join().await
    })
}

/// A configuration with its resolved upstreams, opened log and trace exporter.
pub(crate) struct PreparedConfig {
    config: Config,
    upstreams: Vec<UpstreamConfig>,
    log: Option<(AccessLog, LogThread)>,
    tracer: Option<(Tracer, TraceExporter)>,
}

impl PreparedConfig {
    /// Resolves the servers of all upstreams, and opens the log and the trace exporter.
    pub(crate) async fn prepare(config: Config) -> Result<Self, StartupError> {
        let mut upstreams = Vec::new();
        for (name, upstream) in &config.upstreams {
            upstreams.push(UpstreamConfig::resolve(name, upstream, &config.roots).await?);
        }
        let log = AccessLog::open(&config.log)?;
        let tracer = config.traces.as_ref().map(|traces| Tracer::open(traces, &config.roots)).transpose()?;
        Ok(Self { config, upstreams, log, tracer })
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the reporter of sent and lost spans, if requests are traced.
    pub(crate) fn span_reporter(&self) -> Option<Arc<SpanReporter>> {
        let traces = self.config.traces.clone()?;
        Some(Arc::new(move || [traces.sent(), traces.lost()]))
    }

    /// Returns the reporter of the health of all upstream servers.
    pub(crate) fn upstream_reporter(&self) -> Arc<UpstreamReporter> {
        let named = self.config.upstreams.keys().zip(&self.upstreams);
        let servers = |upstream: &UpstreamConfig| {
            upstream
                .servers
                .iter()
                .map(|server| (server.authority.to_string(), server.health.clone()))
                .collect()
        };
        let upstreams: Vec<(String, Vec<_>)> =
            named.map(|(name, upstream)| (name.clone(), servers(upstream))).collect();
        Arc::new(move || {
            let now = deadline_clock().now().get() / 1_000;
            let report = |(name, health): &(String, Arc<ServerHealth>)| (name.clone(), health.report(now));
            let upstream =
                |(name, servers): &(String, Vec<_>)| (name.clone(), servers.iter().map(report).collect());
            upstreams.iter().map(upstream).collect()
        })
    }
}

/// All threads that serve one configuration. They stop on drop.
pub(crate) struct Workers {
    commands: watch::Sender<WorkerCommand>,
    results: Vec<oneshot::Receiver<Result<(), StartupError>>>,
    log_thread: Option<LogThread>,
    trace_exporter: Option<TraceExporter>,
    _refresh: JoinSet<()>,
}

impl Workers {
    /// Starts the configured number of workers. They keep the listeners open.
    pub(crate) fn start(
        prepared: PreparedConfig,
        listeners: &[BoundListener],
        filter: Arc<dyn RequestFilter>,
    ) -> Result<Self, StartupError> {
        let PreparedConfig { config, upstreams, log, tracer } = prepared;
        let ((log, log_thread), (tracer, trace_exporter)) = (log.unzip(), tracer.unzip());
        let (commands, receiver) = watch::channel(WorkerCommand::Serve);
        let connection_limiter = ConnectionLimiter::new(&config.connections);
        let (count, upstreams) = (config.workers.get(), Arc::new(upstreams));
        let start = WorkerArgs {
            config: Arc::new(config),
            upstreams,
            connection_limiter,
            filter,
            commands: receiver,
            log,
            tracer,
        };

        let mut results = Vec::new();
        for number in 0..count {
            let listeners = listeners.iter().map(BoundListener::try_clone).collect::<Result<_, _>>()?;
            let (ended, end) = oneshot::channel();
            let start = start.clone();
            let work = move || {
                // The receiver may be dropped.
                let _ = ended.send(start.run(number, listeners));
            };
            thread::Builder::new()
                .name(format!("worker-{number}"))
                .spawn(work)
                .map_err(StartupError::System)?;
            results.push(end);
        }
        let certificates = listeners.iter().filter_map(BoundListener::certificate).collect();
        Ok(Self {
            commands,
            results,
            log_thread,
            trace_exporter,
            _refresh: refresh_certificates(certificates),
        })
    }

    /// Sends a command to all workers.
    pub(crate) fn send_command(&self, command: WorkerCommand) {
        let _ = self.commands.send(command);
    }

    /// Whether all workers have ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.commands.is_closed()
    }

    /// Waits until all workers have ended, the log is written and traces are sent.
    pub(crate) async fn join(mut self) -> Result<(), StartupError> {
        for end in self.results.drain(..) {
            end.await.unwrap_or(Ok(()))?;
        }
        if let Some(log_thread) = self.log_thread.take() {
            let _ = tokio::task::spawn_blocking(move || log_thread.join()).await;
        }
        if let Some(trace_exporter) = self.trace_exporter.take() {
            trace_exporter.shutdown().await;
        }
        Ok(())
    }
}

/// The arguments of every worker of a configuration.
#[derive(Clone)]
struct WorkerArgs {
    config: Arc<Config>,
    upstreams: Arc<Vec<UpstreamConfig>>,
    connection_limiter: Arc<ConnectionLimiter>,
    filter: Arc<dyn RequestFilter>,
    commands: watch::Receiver<WorkerCommand>,
    log: Option<AccessLog>,
    tracer: Option<Tracer>,
}

impl WorkerArgs {
    /// Runs a worker on this thread.
    fn run(self, number: usize, listeners: Vec<BoundListener>) -> Result<(), StartupError> {
        build_runtime()?.block_on(async {
            let listeners = listeners.into_iter().map(BoundListener::into_listener);
            let listeners = listeners.collect::<Result<_, _>>()?;
            let deadlines = worker::system_deadlines();
            let upstreams =
                self.upstreams.iter().map(|upstream| Upstream::new(upstream, &deadlines)).collect();
            let worker = Worker::new(
                &self.config,
                upstreams,
                self.connection_limiter,
                deadlines,
                (self.log, self.tracer),
            );
            if number == 0 {
                worker.check_servers();
            }
            worker.run(listeners, self.filter, self.commands).await;
            Ok(())
        })
    }
}
