//! A policy in front of servers: what a file says, done.
//!
//! ```text
//!   file ──read──▶ Policy ──┬─ rules, routes, lists ──▶ PolicyJudge, swapped under the workers
//!    ▲                      └─ listen, upstreams, … ──▶ Workers: new ones, while those before finish
//!    └─ changed, SIGHUP, or an admin call
//! ```
//!
//! A new policy is put in force as a whole, or not at all: everything that can fail is tried first, and the one before goes
//! on until it has succeeded.

mod amend;
mod error;
mod head;
mod judge;
mod listeners;
mod note;
mod source;

pub use error::GatewayError;
pub(crate) use head::GatewayHead;
pub(crate) use judge::{DENIAL, name_denial};
pub use source::PolicySource;

use crate::{
    AmendError, Amended, Bound, Config, Fault, FileWatch, ReadFiles,
    admin::Admin,
    decisions::{DecisionDoor, Desk, Tokens},
    hall::Threads,
    observe::{Listening, Observer, Scene, Sending, Tally, Watcher, said, version},
    run::{Plans, UpstreamHealth, Workers},
    worker::Order,
};
use amend::Amendment;
use judge::{PolicyJudge, Served};
use listeners::{has_same_connections, listeners};
use std::{
    collections::VecDeque, fmt, future::Future, net::SocketAddr, num::NonZeroUsize, pin::pin, sync::Arc,
    time::Duration,
};
use tidegate_engine::Clock;
use tidegate_policy::{
    Policy,
    compile::{Compiler, PolicyGate},
    lint,
};
use tidegate_rule::Rules;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{self, MissedTickBehavior},
};

/// A gateway: a policy, in force in front of the servers that it names.
///
/// ```no_run
/// # async fn serve() -> Result<(), tidegate_server::GatewayError> {
/// use tidegate_rule::Rules;
/// use tidegate_server::{Gateway, PolicySource};
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
    listeners: Vec<Bound>,
    workers: NonZeroUsize,
    calls: mpsc::Receiver<Call>,
    handle: Handle,
    admin: Option<Admin>,
    decisions: Option<DecisionDoor>,
    /// Who may ask, until there is a desk.
    tokens: Option<Tokens>,
    /// Where questions are answered, as soon as anybody serves.
    desk: Option<Arc<Desk>>,
    serving: Option<Serving>,
    observer: Arc<Observer>,
    /// Where what the policy says is counted.
    tally: Arc<Tally>,
    upstreams: Arc<Vec<UpstreamHealth>>,
    sending: Option<Sending>,
    retired: VecDeque<Workers>,
    /// Listeners of programs that were there before, until those who ask there are answered.
    leaving: Vec<Threads>,
}

/// Those who serve now.
struct Serving {
    judge: Arc<PolicyJudge>,
    workers: Workers,
}

/// Asks a gateway that runs to do something. Clones ask the same one.
#[derive(Clone, Debug)]
pub struct Handle {
    calls: mpsc::Sender<Call>,
}

/// What a gateway is asked to do, and whom to tell how that went.
#[derive(Debug)]
enum Call {
    /// To read its policy again.
    Reload(oneshot::Sender<Result<Reloaded, GatewayError>>),
    /// To change it.
    Amend(Amendment, oneshot::Sender<Result<Amended, AmendError>>),
}

/// What a new policy has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reloaded {
    /// Nothing but what is in the files of lists.
    Lists,
    /// Rules and routes; connections stay.
    Rules,
    /// What there is to connect to, too. Connections are taken over with their next request.
    Connections,
}

/// Workers of earlier policies that may still finish; of more, the oldest are hurried.
const MOST_RETIRED: usize = 4;
/// How often schedules are followed.
const MOMENT: Duration = Duration::from_secs(1);
/// Calls that may wait.
const CALLS: usize = 16;

impl Gateway {
    /// Reads the policy, puts its rules in force and binds its listeners. Nothing is served before it [runs](Self::run).
    pub fn open(source: PolicySource, rules: Rules) -> Result<Self, GatewayError> {
        let files = ReadFiles::default();
        let policy = source.read(&files)?;
        let listeners = listeners(&policy, &[])?;
        let admin = Admin::bind(&policy.admin)?;
        let decisions = policy.decisions.as_ref().map(DecisionDoor::bind).transpose()?;
        let tokens = Tokens::of(&policy)?;
        let observer = Observer::new(rules.clone(), Clock::system());
        let compiler = Compiler::new(rules);
        let gate = compiler.compile(&policy, None).map_err(|error| source.error(error))?;
        let (sender, calls) = mpsc::channel(CALLS);
        let workers = Config::of(&policy).workers;
        advise(&policy);
        let tally = observer.tally(gate.views().map(|rule| rule.name()), &policy.observe);
        Ok(Self {
            source,
            watch: FileWatch::of(&files),
            compiler,
            policy,
            gate,
            listeners,
            workers,
            calls,
            handle: Handle { calls: sender },
            admin,
            decisions,
            tokens: Some(tokens),
            desk: None,
            serving: None,
            observer,
            tally,
            upstreams: Arc::default(),
            sending: None,
            retired: VecDeque::new(),
            leaving: Vec::new(),
        })
    }

    /// On so many threads; one for each core unless told otherwise.
    #[must_use]
    pub fn workers(self, workers: NonZeroUsize) -> Self {
        Self { workers, ..self }
    }

    /// Where requests come in.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(Bound::address).collect()
    }

    /// Where operators come in, if anywhere.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(Admin::address)
    }

    /// Where programs ask for decisions, if anywhere.
    pub fn decisions_address(&self) -> Option<SocketAddr> {
        self.decisions.as_ref().map(DecisionDoor::address)
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
        self.upstreams = Arc::new(plan.health());
        let served = self.served(self.gate.clone(), &self.policy, plan.config());
        self.serving = Some(Serving::start(plan, &self.listeners, served)?);
        let tokens = self.tokens.take().unwrap_or_default();
        let desk = Arc::new(Desk::new(self.gate.clone(), self.seen(&self.policy), tokens));
        self.desk = Some(desk.clone());
        self.show();
        if let Some(admin) = &mut self.admin {
            admin.start(self.handle.clone(), &self.observer, &desk)?;
        }
        if let Some(decisions) = &mut self.decisions {
            decisions.start(&desk, self.workers, &self.policy.connections)?;
        }
        let mut moments = time::interval(MOMENT);
        moments.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => return self.end().await,
                _ = moments.tick() => {
                    self.gate.follow_time();
                    desk.follow_time();
                    self.observer.follow_time();
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

    /// Reads the policy again and puts it in force. What is wrong is told, and changes nothing.
    async fn reload(&mut self) -> Result<Reloaded, GatewayError> {
        let files = ReadFiles::default();
        let read = self.source.read(&files);
        self.watch.follow(&files);
        let outcome = match read {
            Ok(policy) => self.replace(policy).await,
            Err(error) => Err(error),
        };
        self.observer.reloaded(outcome.as_ref().err().map(ToString::to_string));
        match &outcome {
            Ok(reloaded) => tracing::info!("the policy was read again: {reloaded}"),
            Err(error) => {
                tracing::error!("the policy stays as it was, because the new one is wrong:\n{error}");
            }
        }
        outcome
    }

    async fn replace(&mut self, policy: Policy) -> Result<Reloaded, GatewayError> {
        if policy == self.policy {
            self.gate.reread_lists().map_err(|error| self.source.error(error))?;
            return Ok(Reloaded::Lists);
        }
        let has_moved = policy.admin != self.policy.admin;
        let admin = match (&self.admin, has_moved) {
            (_, false) => None,
            (Some(before), true) => before.again(&policy.admin)?,
            (None, true) => Admin::bind(&policy.admin)?,
        };
        let tokens = Tokens::of(&policy)?;
        let decisions = self.next_decisions(&policy)?;
        let sending = match &policy.metrics {
            same if *same == self.policy.metrics => Next::Same,
            None => Next::None,
            Some(terms) => Next::Other(Sending::start(terms, &self.observer)?),
        };
        let reloaded = match has_same_connections(&policy, &self.policy) {
            true => self.replace_rules(&policy)?,
            false => self.replace_all(&policy).await?,
        };
        if has_moved {
            self.admin = admin;
            if let (Some(admin), Some(desk)) = (&mut self.admin, &self.desk) {
                admin.start(self.handle.clone(), &self.observer, desk)?;
            }
        }
        self.replace_decisions(&policy, decisions, tokens).await?;
        match sending {
            Next::Same => {}
            Next::None => self.sending = None,
            Next::Other(sending) => self.sending = Some(sending),
        }
        advise(&policy);
        self.policy = policy;
        self.show();
        Ok(reloaded)
    }

    /// The listener of programs that the next policy has, where it is another one.
    fn next_decisions(&self, policy: &Policy) -> Result<Next<DecisionDoor>, Fault> {
        let listener = |policy: &Policy| policy.decisions.clone().map(|it| (it.listen, it.tls));
        if listener(policy) == listener(&self.policy) && policy.connections == self.policy.connections {
            return Ok(Next::Same);
        }
        Ok(match (&policy.decisions, &self.decisions) {
            (None, _) => Next::None,
            (Some(next), Some(before)) => Next::Other(before.again(next)?),
            (Some(next), None) => Next::Other(DecisionDoor::bind(next)?),
        })
    }

    /// Where it is counted what a policy says, and who keeps why.
    fn seen(&self, policy: &Policy) -> (Arc<Tally>, Option<Watcher>) {
        (self.tally.clone(), Watcher::of(&self.observer, &self.tally, &policy.observe))
    }

    /// Has questions answered by the policy that is in force now.
    async fn replace_decisions(
        &mut self,
        policy: &Policy,
        next: Next<DecisionDoor>,
        tokens: Tokens,
    ) -> Result<(), Fault> {
        let Some(desk) = self.desk.clone() else { return Ok(()) };
        desk.replace(self.gate.clone(), self.seen(policy), tokens);
        let next = match next {
            Next::Same => return Ok(()),
            Next::None => None,
            Next::Other(mut door) => {
                door.start(&desk, self.workers, &policy.connections)?;
                Some(door)
            }
        };
        if let Some(before) = std::mem::replace(&mut self.decisions, next) {
            // Those who ask there are answered; nobody waits for them before the end.
            self.leaving.retain_mut(|threads| !threads.have_ended());
            self.leaving.extend(before.leave());
        }
        Ok(())
    }

    fn replace_rules(&mut self, policy: &Policy) -> Result<Reloaded, GatewayError> {
        self.gate = self.compile(policy)?;
        self.tally = self.next_tally(policy);
        if let Some(serving) = &self.serving {
            serving.judge.replace(self.served(self.gate.clone(), policy, &self.config(policy)));
        }
        Ok(Reloaded::Rules)
    }

    async fn replace_all(&mut self, policy: &Policy) -> Result<Reloaded, GatewayError> {
        // What leaves no trace when it fails comes first; rules come last.
        let plans = Plans::of(self.config(policy)).await?;
        let listeners = listeners(policy, &self.listeners)?;
        self.gate = self.compile(policy)?;
        self.tally = self.next_tally(policy);
        self.upstreams = Arc::new(plans.health());
        let served = self.served(self.gate.clone(), policy, plans.config());
        let next = Serving::start(plans, &listeners, served)?;
        self.listeners = listeners;
        if let Some(before) = self.serving.replace(next) {
            before.workers.order(Order::Retire);
            self.retired.push_back(before.workers);
        }
        self.retired.retain(|workers| !workers.have_ended());
        let hurried = self.retired.len().saturating_sub(MOST_RETIRED);
        self.retired.iter().take(hurried).for_each(|workers| workers.order(Order::Stop));
        Ok(Reloaded::Connections)
    }

    /// Where what a new policy says is counted.
    fn next_tally(&self, policy: &Policy) -> Arc<Tally> {
        self.observer.tally(self.gate.views().map(|rule| rule.name()), &policy.observe)
    }

    fn served(&self, gate: PolicyGate, policy: &Policy, config: &Config) -> Served {
        Served::new(gate, config, (&self.observer, self.tally.clone(), &policy.observe))
    }

    /// Shows operators what is in force.
    fn show(&self) {
        let listening =
            |bound: &Bound| Listening { address: bound.address(), tls: bound.certificate().is_some() };
        self.observer.show(Scene {
            version: version(&self.policy),
            said: Arc::new(said(&self.policy)),
            policy: Arc::new(self.policy.clone()),
            file: self.source.path().map(Into::into),
            loaded: self.observer.clock.now(),
            gate: self.gate.clone(),
            tally: self.tally.clone(),
            upstreams: self.upstreams.clone(),
            listeners: self.listeners.iter().map(listening).collect(),
            decisions: self.decisions_address(),
            workers: self.workers.get(),
        });
    }

    fn compile(&self, policy: &Policy) -> Result<PolicyGate, GatewayError> {
        self.compiler.compile(policy, Some(&self.gate)).map_err(|error| self.source.error(error))
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

/// What a new policy has in the place of something.
enum Next<T> {
    /// The same.
    Same,
    None,
    Other(T),
}

impl Handle {
    /// Has the policy read again, and says what has changed. Where it is wrong, the one before stays in force.
    pub async fn reload(&self) -> Result<Reloaded, GatewayError> {
        let (answer, answered) = oneshot::channel();
        let gone = GatewayError::Gone;
        self.calls.send(Call::Reload(answer)).await.map_err(|_| gone)?;
        answered.await.unwrap_or(Err(GatewayError::Gone))
    }
}

impl Serving {
    fn start(plans: Plans, listeners: &[Bound], served: Served) -> Result<Self, GatewayError> {
        let judge = Arc::new(PolicyJudge::new(served));
        let workers = Workers::start(plans, listeners, judge.clone())?;
        Ok(Self { judge, workers })
    }
}

/// Tells what is hardly meant; it is in force all the same.
fn advise(policy: &Policy) {
    for advice in lint(policy) {
        tracing::warn!("{advice}");
    }
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lists => "nothing but lists may have changed",
            Self::Rules => "rules and routes changed",
            Self::Connections => "connections changed, too, and are taken over one by one",
        })
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}
