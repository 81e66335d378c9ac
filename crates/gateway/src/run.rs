//! Starting workers, and ending them.

use crate::{
    Config, RequestFilter,
    log::{Logbook, Writing},
    places::Places,
    traces::{Exporting, Tracer},
    upstream::{Health, Plan, Upstream},
    worker::{self, Order, Worker, clock_of_deadlines},
};
use std::{future::Future, sync::Arc, thread};
use tidegate_http_server::{BoundListener, Fault, refresh_certificates, runtime};
use tidegate_observe::ReportUpstreams;
use tokio::{
    sync::{oneshot, watch},
    task::JoinSet,
};

/// Serves until `shutdown`, then takes no more connections and lets requests in flight end for as long as
/// [`drain`](tidegate_policy::model::Connections::drain) says.
///
/// Nothing is half-started: a fault comes before the first connection is accepted.
pub async fn run<F: RequestFilter>(
    config: Config,
    listeners: Vec<BoundListener>,
    filter: Arc<F>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Fault> {
    let workers = Workers::start(Plans::of(config).await?, &listeners, filter)?;
    drop(listeners);
    shutdown.await;
    workers.order(Order::Stop);
    workers.ended().await
}

/// What a configuration needs before anybody serves it, all of it found.
pub(crate) struct Plans {
    config: Config,
    upstreams: Vec<Plan>,
    log: Option<(Logbook, Writing)>,
    tracer: Option<(Tracer, Exporting)>,
}

impl Plans {
    /// Finds the servers of all upstreams, and opens the log and what sends traces.
    pub(crate) async fn of(config: Config) -> Result<Self, Fault> {
        let mut upstreams = Vec::new();
        for (name, upstream) in &config.upstreams {
            upstreams.push(Plan::of(name, upstream, &config.roots).await?);
        }
        let log = Logbook::open(&config.log)?;
        let tracer = config.traces.as_ref().map(|traces| Tracer::open(traces, &config.roots)).transpose()?;
        Ok(Self { config, upstreams, log, tracer })
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Says what workers know of the servers of all upstreams.
    pub(crate) fn report_upstreams(&self) -> Arc<ReportUpstreams> {
        let named = self.config.upstreams.keys().zip(&self.upstreams);
        let servers = |plan: &Plan| {
            plan.servers.iter().map(|server| (server.authority.to_string(), server.health.clone())).collect()
        };
        let upstreams: Vec<(String, Vec<_>)> =
            named.map(|(name, plan)| (name.clone(), servers(plan))).collect();
        Arc::new(move || {
            let now = clock_of_deadlines().now().get() / 1_000;
            let report = |(name, health): &(String, Arc<Health>)| (name.clone(), health.report(now));
            let upstream =
                |(name, servers): &(String, Vec<_>)| (name.clone(), servers.iter().map(report).collect());
            upstreams.iter().map(upstream).collect()
        })
    }
}

/// All threads that serve one configuration. Dropping it stops them.
pub(crate) struct Workers {
    orders: watch::Sender<Order>,
    ends: Vec<oneshot::Receiver<Result<(), Fault>>>,
    writing: Option<Writing>,
    exporting: Option<Exporting>,
    _refresh: JoinSet<()>,
}

impl Workers {
    /// Starts one for each thread that the configuration asks for. They hold the listeners open by themselves.
    pub(crate) fn start<F: RequestFilter>(
        plans: Plans,
        listeners: &[BoundListener],
        filter: Arc<F>,
    ) -> Result<Self, Fault> {
        let Plans { config, upstreams, log, tracer } = plans;
        let ((log, writing), (tracer, exporting)) = (log.unzip(), tracer.unzip());
        let (orders, ordered) = watch::channel(Order::Serve);
        let places = Places::new(&config.connections);
        let (count, plans) = (config.workers.get(), Arc::new(upstreams));
        let start = Start { config: Arc::new(config), plans, places, filter, ordered, log, tracer };

        let mut ends = Vec::new();
        for number in 0..count {
            let listeners = listeners.iter().map(BoundListener::try_clone).collect::<Result<_, _>>()?;
            let (ended, end) = oneshot::channel();
            let start = start.clone();
            let work = move || {
                // Whoever started it may be gone.
                let _ = ended.send(start.work(number, listeners));
            };
            thread::Builder::new().name(format!("worker-{number}")).spawn(work).map_err(Fault::Machine)?;
            ends.push(end);
        }
        let certificates = listeners.iter().filter_map(BoundListener::certificate).collect();
        Ok(Self { orders, ends, writing, exporting, _refresh: refresh_certificates(certificates) })
    }

    /// Tells all of them what to do now.
    pub(crate) fn order(&self, order: Order) {
        let _ = self.orders.send(order);
    }

    /// Whether all of them have ended.
    pub(crate) fn have_ended(&self) -> bool {
        self.orders.is_closed()
    }

    /// They have ended, and all that they logged is written, and their traces are sent.
    pub(crate) async fn ended(mut self) -> Result<(), Fault> {
        for end in self.ends.drain(..) {
            end.await.unwrap_or(Ok(()))?;
        }
        if let Some(writing) = self.writing.take() {
            let _ = tokio::task::spawn_blocking(move || writing.join()).await;
        }
        if let Some(exporting) = self.exporting.take() {
            exporting.end().await;
        }
        Ok(())
    }
}

/// What every worker of a configuration is given.
struct Start<F> {
    config: Arc<Config>,
    plans: Arc<Vec<Plan>>,
    places: Arc<Places>,
    filter: Arc<F>,
    ordered: watch::Receiver<Order>,
    log: Option<Logbook>,
    tracer: Option<Tracer>,
}

impl<F: RequestFilter> Start<F> {
    /// Works on this thread, from the first connection to the last.
    fn work(self, number: usize, listeners: Vec<BoundListener>) -> Result<(), Fault> {
        runtime()?.block_on(async {
            let listeners = listeners.into_iter().map(BoundListener::into_listener);
            let listeners = listeners.collect::<Result<_, _>>()?;
            let watch = worker::watch_of_machine();
            let upstreams = self.plans.iter().map(|plan| Upstream::new(plan, &watch)).collect();
            let worker = Worker::new(&self.config, upstreams, self.places, watch, (self.log, self.tracer));
            if number == 0 {
                worker.check_servers();
            }
            worker.run(listeners, self.filter, self.ordered).await;
            Ok(())
        })
    }
}

impl<F> Clone for Start<F> {
    fn clone(&self) -> Self {
        Self {
            config: self.config.clone(),
            plans: self.plans.clone(),
            places: self.places.clone(),
            filter: self.filter.clone(),
            ordered: self.ordered.clone(),
            log: self.log.clone(),
            tracer: self.tracer.clone(),
        }
    }
}
