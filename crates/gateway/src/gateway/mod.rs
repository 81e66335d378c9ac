//! A policy in front of servers: what a file says, done.
//!
//! ```text
//!   file ──read──▶ Policy ──┬─ rules, routes, lists ──▶ PolicyFilter, swapped under the workers
//!    ▲                      └─ listen, upstreams, … ──▶ Workers: new ones, while those before finish
//!    └─ changed, SIGHUP, or an admin call
//! ```
//!
//! A new policy is put in force as a whole, or not at all: everything that can fail is tried first, and the one before goes
//! on until it has succeeded.

mod amend;
mod failures;
mod listeners;
mod note;
mod policy_filter;
mod preflight;
mod reload;
mod reply;
mod source;

pub use preflight::Preflight;
pub use source::PolicySource;

use crate::{
    Config,
    metrics::Sending,
    run::{Plans, Workers},
    worker::Order,
};
use failures::ExpressionFailures;
use listeners::listeners;
use policy_filter::{ActivePolicy, PolicyFilter};
use std::{
    collections::VecDeque, fmt, future::Future, net::SocketAddr, num::NonZeroUsize, pin::pin, sync::Arc,
    time::Duration,
};
use tidegate_admin::{Admin, Call, GatewayError, Handle};
use tidegate_http_server::{
    Authorization, BoundListener, FileWatch, ReadFiles, ServerThreads, ThreadedListener,
};
use tidegate_limiter::Clock;
use tidegate_observe::{Listening, Observer, ReportUpstreams, RequestRecorder, Scene, said, version};
use tidegate_policy::{
    Policy,
    compile::{Compiler, PolicyGate},
    lint,
};
use tidegate_rule::Rules;
use tidegate_service::decisions::{self, AppState};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{self, MissedTickBehavior},
};

/// A gateway: a policy, in force in front of the servers that it names.
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
    calls: mpsc::Receiver<Call>,
    handle: Handle,
    admin: Option<Admin>,
    decisions: Option<ThreadedListener>,
    /// The tokens of the decision API, until it is started.
    authorization: Option<Authorization>,
    /// Where questions are answered, as soon as anybody serves.
    desk: Option<Arc<AppState>>,
    serving: Option<Serving>,
    observer: Arc<Observer>,
    /// Counts and keeps what the policy decides.
    recorder: Arc<RequestRecorder>,
    upstreams: Arc<ReportUpstreams>,
    sending: Option<Sending>,
    retired: VecDeque<Workers>,
    /// Threads of replaced listeners of the decision API, until their connections are drained.
    leaving: Vec<ServerThreads>,
    failures: ExpressionFailures,
}

/// Those who serve now.
struct Serving {
    filter: Arc<PolicyFilter>,
    workers: Workers,
}

/// How often schedules are followed.
const MOMENT: Duration = Duration::from_secs(1);

impl Gateway {
    /// Reads the policy, puts its rules in force and binds its listeners. Nothing is served before it [runs](Self::run).
    pub fn open(source: PolicySource, rules: Rules) -> Result<Self, GatewayError> {
        let files = ReadFiles::default();
        let policy = source.read(&files)?;
        let listeners = listeners(&policy, &[])?;
        let admin = Admin::bind(&policy.admin, None)?;
        let decisions =
            policy.decisions.as_ref().map(|declared| decisions::bind(declared, None)).transpose()?;
        let authorization = Authorization::of_decisions(&policy)?;
        let observer = Observer::new(rules.clone(), Clock::system());
        let compiler = Compiler::new(rules);
        let gate = compiler.compile(&policy, None).map_err(|error| source.error(error))?;
        let (handle, calls) = Handle::new();
        let workers = Config::of(&policy).workers;
        advise(&policy);
        let recorder = RequestRecorder::new(&observer, gate.views().map(|rule| rule.name()), &policy.observe);
        Ok(Self {
            source,
            watch: FileWatch::of(&files),
            compiler,
            policy,
            gate,
            listeners,
            workers,
            calls,
            handle,
            admin,
            decisions,
            authorization: Some(authorization),
            desk: None,
            serving: None,
            observer,
            recorder,
            upstreams: Arc::new(Vec::new),
            sending: None,
            retired: VecDeque::new(),
            leaving: Vec::new(),
            failures: ExpressionFailures::default(),
        })
    }

    /// On so many threads; one for each core unless told otherwise.
    #[must_use]
    pub fn workers(self, workers: NonZeroUsize) -> Self {
        Self { workers, ..self }
    }

    /// Where requests come in.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(BoundListener::address).collect()
    }

    /// Where operators come in, if anywhere.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(Admin::address)
    }

    /// Where programs ask for decisions, if anywhere.
    pub fn decisions_address(&self) -> Option<SocketAddr> {
        self.decisions.as_ref().map(ThreadedListener::address)
    }

    /// What is in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Asks it to do something, from elsewhere.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Serves until `shutdown`, and lets requests in flight end.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<(), GatewayError> {
        let plan = Plans::of(self.config(&self.policy)).await?;
        self.sending =
            self.policy.metrics.as_ref().map(|terms| Sending::start(terms, &self.observer)).transpose()?;
        self.upstreams = plan.report_upstreams();
        let active = self.active(plan.config());
        self.serving = Some(Serving::start(plan, &self.listeners, active)?);
        let authorization = self.authorization.take().unwrap_or_default();
        let desk = Arc::new(AppState::new(self.gate.clone(), self.recorder.clone(), authorization));
        self.desk = Some(desk.clone());
        self.show();
        if let Some(admin) = &mut self.admin {
            admin.start(self.handle.clone(), &self.observer, &desk)?;
        }
        if let Some(decisions) = &mut self.decisions {
            decisions.start(
                &decisions::server(&desk, &self.policy.connections),
                "decisions",
                self.workers,
            )?;
        }
        let mut moments = time::interval(MOMENT);
        moments.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => return self.end().await,
                _ = moments.tick() => {
                    self.gate.update_schedules();
                    desk.close_expired();
                    self.observer.follow_time();
                    self.failures.log(&self.gate, self.observer.clock.now());
                }
                // What was wrong is told, and stays as it was.
                () = self.watch.changed() => drop(self.reload().await),
                call = self.calls.recv() => match call {
                    // Who asked may be gone.
                    Some(Call::Reload(answer)) => drop(answer.send(self.reload().await)),
                    Some(Call::Amend(amendment, answer)) => drop(answer.send(self.amend(amendment).await)),
                    None => {}
                }
            }
        }
    }

    fn active(&self, config: &Config) -> ActivePolicy {
        ActivePolicy::new(self.gate.clone(), config, &self.observer, self.recorder.clone())
    }

    /// Shows operators what is in force.
    fn show(&self) {
        let listening = |bound: &BoundListener| Listening {
            address: bound.address(),
            tls: bound.certificate().is_some(),
        };
        self.observer.show(Scene {
            version: version(&self.policy),
            said: Arc::new(said(&self.policy)),
            policy: Arc::new(self.policy.clone()),
            file: self.source.path().map(Into::into),
            loaded: self.observer.clock.now(),
            gate: self.gate.clone(),
            tally: self.recorder.tally.clone(),
            upstreams: self.upstreams.clone(),
            listeners: self.listeners.iter().map(listening).collect(),
            decisions: self.decisions_address(),
            workers: self.workers.get(),
        });
    }

    fn config(&self, policy: &Policy) -> Config {
        Config { workers: self.workers, ..Config::of(policy) }
    }

    async fn end(self) -> Result<(), GatewayError> {
        let mut leaving = JoinSet::new();
        self.leaving.into_iter().for_each(|threads| drop(leaving.spawn(threads.end())));
        if let Some(decisions) = self.decisions {
            leaving.spawn(decisions.end());
        }
        if let Some(admin) = self.admin {
            leaving.spawn(admin.end());
        }
        let serving = self.serving.map(|serving| serving.workers);
        let all: Vec<Workers> = serving.into_iter().chain(self.retired).collect();
        all.iter().for_each(|workers| workers.order(Order::Stop));
        for workers in all {
            workers.ended().await?;
        }
        // They say by themselves what goes wrong.
        while leaving.join_next().await.is_some() {}
        Ok(())
    }
}

impl Serving {
    fn start(plans: Plans, listeners: &[BoundListener], policy: ActivePolicy) -> Result<Self, GatewayError> {
        let filter = Arc::new(PolicyFilter::new(policy));
        let workers = Workers::start(plans, listeners, filter.clone())?;
        Ok(Self { filter, workers })
    }
}

/// Tells what is hardly meant; it is in force all the same.
fn advise(policy: &Policy) {
    for advice in lint(policy) {
        tracing::warn!("{advice}");
    }
    for warning in Preflight::of(policy, &|_| Ok(())).warnings {
        tracing::warn!("{}; {}", warning.problem, warning.fix);
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}
