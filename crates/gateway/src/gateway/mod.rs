//! A gateway that serves a policy, and reloads it when it changes.
//!
//! ```text
//!   file ──read──▶ Policy ──┬─ rules, routes, lists ──▶ PolicyFilter, replaced atomically
//!    ▲                      └─ listen, upstreams, … ──▶ Workers: new ones, while the previous drain
//!    └─ changed, SIGHUP, or an admin call
//! ```
//!
//! A new policy is put in force as a whole, or not at all: everything that can fail is tried first, and the previous policy
//! stays in force until then.

mod failures;
mod listeners;
mod log_note;
mod overload_log;
mod policy_change;
mod policy_filter;
mod preflight;
mod reload;
mod source;

pub use preflight::Preflight;
pub use source::PolicySource;

use crate::{
    Config, events,
    fallback_cache::FallbackCache,
    key_set_fetcher::KeySetFetcher,
    metrics::MetricsExporter,
    run::{PreparedConfig, Workers},
    worker::WorkerCommand,
};
use failures::ExpressionFailures;
use futures_util::future::BoxFuture;
use listeners::bind_listeners;
use overload_log::OverloadLog;
use policy_filter::{ActivePolicy, PolicyFilter};
use std::{
    collections::VecDeque, fmt, future::Future, net::SocketAddr, num::NonZeroUsize, pin::pin, sync::Arc,
    time::Duration,
};
use tidegate_admin::{AdminServer, GatewayCommand, GatewayError, GatewayHandle, KeyOverrides};
use tidegate_http_server::{
    Authorization, BoundListener, FileWatch, ReadFiles, ServerThreads, ShutdownSignal, ThreadedListener,
};
use tidegate_limiter::Clock;
use tidegate_observe::{
    CacheReporter, ConfigSnapshot, ListenerInfo, Observer, RequestRecorder, SpanReporter, UpstreamReporter,
    policy_version, summarize_rules,
};
use tidegate_policy::{
    Policy,
    compile::{Compiler, PolicyGate},
    lint,
    model::DecisionListener,
};
use tidegate_rule::Rules;
use tidegate_service::decisions::{self, AppState, envoy};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{self, MissedTickBehavior},
};

/// A gateway that serves a policy: its listeners, rules, routes and upstreams.
///
/// ```no_run
/// # async fn serve() -> Result<(), tidegate_gateway::GatewayError> {
/// use tidegate_rule::Rules;
/// use tidegate_gateway::{Gateway, PolicySource};
///
/// let gateway = Gateway::open(PolicySource::file("policy.yaml"), Rules::new())?;
/// println!("on {:?}", gateway.addresses());
/// gateway.run(std::future::pending()).await
/// # }
/// ```
pub struct Gateway {
    source: PolicySource,
    watch: FileWatch,
    compiler: Compiler,
    policy: Policy,
    gate: PolicyGate,
    listeners: Vec<BoundListener>,
    workers: NonZeroUsize,
    commands: mpsc::Receiver<GatewayCommand>,
    handle: GatewayHandle,
    admin: Option<AdminServer>,
    decisions: Option<ThreadedListener>,
    /// The tokens of the decision API, until it is started.
    authorization: Option<Authorization>,
    envoy: Option<ThreadedListener>,
    /// The tokens of the rate limit service, until it is started.
    envoy_authorization: Option<Authorization>,
    /// The state of the decision API, once the gateway runs.
    decision_state: Option<Arc<AppState>>,
    active_workers: Option<ActiveWorkers>,
    observer: Arc<Observer>,
    /// Quotas of single keys.
    overrides: Arc<KeyOverrides>,
    rules: Rules,
    /// Counts and records the decisions of the policy.
    recorder: Arc<RequestRecorder>,
    upstreams: Arc<UpstreamReporter>,
    spans: Option<Arc<SpanReporter>>,
    /// Stored responses; they survive reloads.
    cache: Arc<FallbackCache>,
    metrics_exporter: Option<MetricsExporter>,
    key_set_fetcher: Option<KeySetFetcher>,
    draining_workers: VecDeque<Workers>,
    /// Threads of replaced listeners of APIs, until their connections are drained.
    draining_threads: Vec<ServerThreads>,
    failures: ExpressionFailures,
    overload_log: OverloadLog,
}

/// The current workers and their filter.
struct ActiveWorkers {
    filter: Arc<PolicyFilter>,
    workers: Workers,
}

/// How often schedules and other time-dependent state are updated.
const SCHEDULE_INTERVAL: Duration = Duration::from_secs(1);

impl Gateway {
    /// Reads the policy, compiles its rules and binds its listeners. It serves once it [runs](Self::run).
    pub fn open(source: PolicySource, rules: Rules) -> Result<Self, GatewayError> {
        let observer = Observer::new(rules.clone(), Clock::system());
        Self::open_with(source, Compiler::new(rules.clone()), observer, rules)
    }

    /// Like [`open`](Self::open), with this clock for counters in memory; for tests.
    pub fn open_with_clock(source: PolicySource, rules: Rules, clock: Clock) -> Result<Self, GatewayError> {
        let observer = Observer::new(rules.clone(), clock.clone());
        Self::open_with(source, Compiler::new(rules.clone()).clock(clock), observer, rules)
    }

    fn open_with(
        source: PolicySource,
        compiler: Compiler,
        observer: Arc<Observer>,
        rules: Rules,
    ) -> Result<Self, GatewayError> {
        let files = ReadFiles::default();
        let policy = source.read(&files)?;
        let listeners = bind_listeners(&policy, &[])?;
        let admin = AdminServer::bind(&policy.admin, None)?;
        let bind = |declared: &DecisionListener| decisions::bind(declared, None);
        let decisions = policy.decisions.as_ref().map(bind).transpose()?;
        let envoy = policy.envoy.as_ref().map(bind).transpose()?;
        let authorization = Authorization::for_listener(policy.decisions.as_ref(), &policy.admin)?;
        let envoy_authorization = Authorization::for_listener(policy.envoy.as_ref(), &policy.admin)?;
        let overrides = KeyOverrides::new(observer.clock.clone());
        let opened = overrides.open(&policy)?;
        let gate = compiler.compile(&policy, None).map_err(|error| source.gateway_error(error))?;
        overrides.activate(opened, &policy, &gate, &rules);
        let (handle, commands) = GatewayHandle::new();
        let workers = Config::from_policy(&policy).workers;
        log_warnings(&policy);
        let recorder = RequestRecorder::new(&observer, gate.views().map(|rule| rule.name()), &policy.observe);
        let cache = Arc::new(FallbackCache::new(observer.clock.clone()));
        Ok(Self {
            source,
            watch: FileWatch::new(&files),
            compiler,
            policy,
            gate,
            listeners,
            workers,
            commands,
            handle,
            admin,
            decisions,
            authorization: Some(authorization),
            envoy,
            envoy_authorization: Some(envoy_authorization),
            decision_state: None,
            active_workers: None,
            observer,
            overrides,
            rules,
            recorder,
            upstreams: Arc::new(Vec::new),
            spans: None,
            cache,
            metrics_exporter: None,
            key_set_fetcher: None,
            draining_workers: VecDeque::new(),
            draining_threads: Vec::new(),
            failures: ExpressionFailures::default(),
            overload_log: OverloadLog::default(),
        })
    }

    /// Sets the number of worker threads; one per core by default.
    #[must_use]
    pub fn workers(self, workers: NonZeroUsize) -> Self {
        Self { workers, ..self }
    }

    /// The addresses of the listeners.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(BoundListener::address).collect()
    }

    /// The address of the admin API, if enabled.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(AdminServer::address)
    }

    /// The address of the decision API, if enabled.
    pub fn decisions_address(&self) -> Option<SocketAddr> {
        self.decisions.as_ref().map(ThreadedListener::address)
    }

    /// The address of the rate limit service for Envoy, if enabled.
    pub fn envoy_address(&self) -> Option<SocketAddr> {
        self.envoy.as_ref().map(ThreadedListener::address)
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns a handle that sends commands to this gateway.
    pub fn handle(&self) -> GatewayHandle {
        self.handle.clone()
    }

    /// Serves until `shutdown`, and then drains requests in flight.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), GatewayError> {
        self.serve(pin!(shutdown)).await
    }

    /// Boxed here, so that the gateway is compiled with this crate and not again with each program that runs it.
    fn serve<'a>(self, shutdown: ShutdownSignal<'a>) -> BoxFuture<'a, Result<(), GatewayError>> {
        Box::pin(self.serve_until(shutdown))
    }

    async fn serve_until(mut self, mut shutdown: ShutdownSignal<'_>) -> Result<(), GatewayError> {
        let prepared = PreparedConfig::prepare(self.build_config(&self.policy)).await?;
        self.metrics_exporter = self
            .policy
            .metrics
            .as_ref()
            .map(|settings| MetricsExporter::start(settings, &self.observer))
            .transpose()?;
        self.fetch_key_set().await?;
        self.overrides.fetch_changes().await;
        (self.upstreams, self.spans) = (prepared.upstream_reporter(), prepared.span_reporter());
        let active = self.active_policy(prepared.config());
        self.active_workers = Some(ActiveWorkers::start(prepared, &self.listeners, active)?);
        let authorization = self.authorization.take().unwrap_or_default();
        let decision_state = Arc::new(AppState::new(self.gate.clone(), self.recorder.clone(), authorization));
        self.decision_state = Some(decision_state.clone());
        self.publish_config();
        if let Some(admin) = &mut self.admin {
            admin.start(self.handle.clone(), &self.observer, &self.overrides, &decision_state)?;
        }
        if let Some(decisions) = &mut self.decisions {
            decisions.start(
                &decisions::server(&decision_state, &self.policy.connections),
                "decisions",
                self.workers,
            )?;
        }
        if let Some(envoy) = &mut self.envoy {
            decision_state.replace_envoy_authorization(self.envoy_authorization.take().unwrap_or_default());
            let server = envoy::server(&decision_state, &self.policy.connections).await;
            envoy.start(&server, "envoy", self.workers)?;
        }
        // Not in the loop below, which a slow store must not delay. It ends with this function.
        let mut fetches = JoinSet::new();
        fetches.spawn(fetch_overrides(self.overrides.clone()));
        let mut ticks = time::interval(SCHEDULE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = &mut shutdown => return self.shutdown().await,
                _ = ticks.tick() => {
                    self.gate.update_schedules();
                    decision_state.close_expired();
                    self.observer.tick();
                    self.overrides.remove_ended();
                    self.failures.log(&self.gate, self.observer.clock.now());
                    self.overload_log.log(&self.gate);
                }
                // `reload` logs an error, and keeps the previous policy.
                () = self.watch.changed() => drop(self.reload().await),
                command = self.commands.recv() => match command {
                    // The caller may have given up, so the result of `send` does not matter.
                    Some(GatewayCommand::Reload(reply)) => drop(reply.send(self.reload().await)),
                    Some(GatewayCommand::Change(change, reply)) => drop(reply.send(self.change_policy(change).await)),
                    Some(GatewayCommand::SetFeature(change, reply)) => drop(reply.send(self.set_feature(&change))),
                    None => {}
                }
            }
        }
    }

    fn active_policy(&self, config: &Config) -> ActivePolicy {
        ActivePolicy::new(self.gate.clone(), config, self.recorder.clone(), self.cache.clone())
    }

    /// Publishes the configuration in force to the observer.
    fn publish_config(&self) {
        let listening = |bound: &BoundListener| ListenerInfo {
            address: bound.address(),
            tls: bound.certificate().is_some(),
        };
        self.cache.set_enabled(!self.gate.cached_fallbacks().is_empty());
        self.observer.activate(ConfigSnapshot {
            version: policy_version(&self.policy),
            rule_summaries: Arc::new(summarize_rules(&self.policy)),
            policy: Arc::new(self.policy.clone()),
            file: self.source.path().map(Into::into),
            loaded_at: self.observer.clock.now(),
            gate: self.gate.clone(),
            counters: self.recorder.counters.clone(),
            upstreams: self.upstreams.clone(),
            spans: self.spans.clone(),
            cache: (!self.gate.cached_fallbacks().is_empty()).then(|| {
                let cache = self.cache.clone();
                Arc::new(move || cache.counts()) as Arc<CacheReporter>
            }),
            listeners: self.listeners.iter().map(listening).collect(),
            decisions: self.decisions_address(),
            envoy: self.envoy_address(),
            workers: self.workers.get(),
        });
    }

    fn build_config(&self, policy: &Policy) -> Config {
        Config { workers: self.workers, ..Config::from_policy(policy) }
    }

    async fn shutdown(self) -> Result<(), GatewayError> {
        let mut shutdowns = JoinSet::new();
        self.draining_threads.into_iter().for_each(|threads| drop(shutdowns.spawn(threads.shutdown())));
        for listener in [self.decisions, self.envoy].into_iter().flatten() {
            shutdowns.spawn(listener.shutdown());
        }
        if let Some(admin) = self.admin {
            shutdowns.spawn(admin.shutdown());
        }
        let serving = self.active_workers.map(|serving| serving.workers);
        let all: Vec<Workers> = serving.into_iter().chain(self.draining_workers).collect();
        all.iter().for_each(|workers| workers.send_command(WorkerCommand::Stop));
        for workers in all {
            workers.join().await?;
        }
        // Each of these logs its own errors.
        while shutdowns.join_next().await.is_some() {}
        Ok(())
    }
}

impl ActiveWorkers {
    fn start(
        prepared: PreparedConfig,
        listeners: &[BoundListener],
        policy: ActivePolicy,
    ) -> Result<Self, GatewayError> {
        let filter = Arc::new(PolicyFilter::new(policy));
        let workers = Workers::start(prepared, listeners, filter.clone())?;
        Ok(Self { filter, workers })
    }
}

/// Fetches the overrides that other gateways have set.
async fn fetch_overrides(overrides: Arc<KeyOverrides>) {
    let mut ticks = time::interval(SCHEDULE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        overrides.fetch_changes().await;
    }
}

/// Logs likely mistakes, which do not prevent the policy from being in force.
fn log_warnings(policy: &Policy) {
    for warning in lint(policy) {
        events::PolicyWarning { warning: &warning }.emit();
    }
    for warning in Preflight::check(policy, &|_| Ok(())).warnings {
        let warning = format!("{}; {}", warning.problem, warning.fix);
        events::PolicyWarning { warning: &warning }.emit();
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}
