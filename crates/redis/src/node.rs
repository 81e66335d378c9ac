//! One server: a connection, the requests that wait for it, and whether it is there.
//!
//! A lone request goes out at once, in the task that asks. While it is on its way others gather, and go together in
//! one call as soon as an answer comes back: the busier the server, the larger the calls. Nobody waits for a timer.

use crate::{
    dial::Dial,
    error::ConnectError,
    health::{Health, Mood},
    message::{Express, Message, Reader, Said},
    names::Names,
    script::{self, Script},
};
use redis::{Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value, aio::MultiplexedConnection};
use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tidegate_core::Micros;
use tidegate_engine::{
    StoreError,
    store::{Place, Reply, Request},
};
use tokio::{runtime::Handle, sync::oneshot, time::timeout};

/// Connections to one server, each of which carries one call at a time. A server answers all calls that it finds on a
/// connection before it sends any of the answers; on two, one side works on a call while the other works on the next.
const LANES: std::ops::Range<Lane> = 0..2;
/// Which of them.
type Lane = usize;
/// The lane of everything that is not a decision.
const FIRST: Lane = 0;
/// Requests in one call. The server does nothing else while it works on one.
const MOST_TOGETHER: usize = 128;

/// How a script is told its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// As Redis wants it.
    Declared,
    /// As arguments: the keys of one call may be of any slots that the node of a cluster has.
    Argued,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A task of the runtime that the connections live on: it may make a call itself.
    AtHome,
    /// One of another runtime, which may end or stand still at any time: its calls are made for it.
    Abroad,
}

/// One server.
#[derive(Debug)]
pub(crate) struct Node {
    names: Arc<Names>,
    dial: Dial,
    deadline: Duration,
    keys: Keys,
    /// One for each lane, or none at all.
    connections: RwLock<Vec<MultiplexedConnection>>,
    /// Lone calls in a row on each lane that had no answer in time.
    unanswered: [AtomicU32; LANES.end],
    queue: Mutex<Queue>,
    health: Health,
}

#[derive(Debug)]
struct Queue {
    /// Lanes on which nothing is on its way.
    free: Vec<Lane>,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    request: Request,
    answer: oneshot::Sender<Answered>,
}

/// What became of a request.
pub(crate) type Answered = Result<Reply, Problem>;

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(crate) enum Problem {
    /// The store has none.
    Store(StoreError),
    /// The key belongs to another node of the cluster. Nothing was done.
    Elsewhere,
    /// Its state was written by a quota with this tag, which is not known here. Nothing was done.
    Stranger(u16),
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Node {
    pub(crate) fn new(names: Arc<Names>, dial: Dial, deadline: Duration, keys: Keys) -> Arc<Self> {
        Arc::new(Self {
            names,
            keys,
            deadline,
            health: Health::new(dial.shown().to_owned()),
            dial,
            connections: RwLock::default(),
            unanswered: Default::default(),
            queue: Mutex::new(Queue { free: LANES.rev().collect(), waiting: Vec::new() }),
        })
    }

    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    /// The server as it may be shown.
    pub(crate) fn shown(&self) -> &str {
        self.dial.shown()
    }

    /// Says what makes this server of no use as a store, if anything does.
    pub(crate) async fn inspect(&self) -> Result<(), ConnectError> {
        let info = match self.send(&redis::cmd("INFO")).await {
            Ok(info) => redis::from_redis_value::<String>(info).unwrap_or_default(),
            // Who may not know may still count.
            Err(error) if error.code() == Some("NOPERM") => return self.inspect_scripts().await,
            Err(error) => return Err(ConnectError::refused(self.shown(), &error)),
        };
        let says = |line: &str| info.lines().any(|said| said.trim_end() == line);
        if self.keys == Keys::Argued && !says("cluster_enabled:1") {
            return Err(ConnectError::new(
                format!("{} is a single server, not a node of a cluster", self.shown()),
                "write redis:// instead of redis+cluster://",
            ));
        }
        if self.keys == Keys::Argued {
            return self.inspect_scripts().await;
        }
        if says("role:slave") {
            return Err(ConnectError::new(
                format!("{} is a read-only replica", self.shown()),
                "connect to its primary, or through redis+sentinel://",
            ));
        }
        if says("cluster_enabled:1") {
            return Err(ConnectError::new(
                format!("{} is a node of a cluster", self.shown()),
                "write redis+cluster:// instead of redis://",
            ));
        }
        self.inspect_scripts().await
    }

    async fn inspect_scripts(&self) -> Result<(), ConnectError> {
        let probe = self.in_time(self.probe(FIRST)).await;
        probe.map_err(|error| ConnectError::useless(self.shown(), &error))
    }

    /// Tries out whether the server can count.
    async fn probe(&self, lane: Lane) -> Result<(), RedisError> {
        let script = script::probe();
        let mut command = redis::cmd("EVALSHA");
        command.arg(script.hash());
        match self.keys {
            Keys::Declared => command.arg(1).arg(self.names.probe()),
            // Which keys a node of a cluster has is not its own doing.
            Keys::Argued => command.arg(0),
        };
        self.evaluate(lane, script, &command).await.map(|_| ())
    }

    /// Connects, or says why it cannot.
    pub(crate) async fn connect(&self) -> Result<(), RedisError> {
        let connections = self.dial.connect(LANES.len()).await?;
        *self.connections.write().unwrap_or_else(PoisonError::into_inner) = connections;
        Ok(())
    }

    /// Does what is asked, alone or together with others, by the deadline.
    pub(crate) async fn submit(self: &Arc<Self>, request: Request, caller: Caller) -> Answered {
        if let Mood::Down(why) = self.health.mood() {
            return Err(StoreError::Away(why).into());
        }
        let answer = match self.enter(request, caller) {
            Entry::Alone(request, lane) => {
                let _turn = Turn { node: self.clone(), lane, is_over: false };
                let call = async { self.call(lane, std::slice::from_ref(&request), None).await };
                let answers = timeout(self.deadline, call).await;
                self.note_lane(lane, answers.is_ok());
                answers.map(|mut answers| answers.pop().unwrap_or_else(lost))
            }
            Entry::Together(answer) => {
                timeout(self.deadline, answer).await.map(|answer| answer.unwrap_or_else(|_| lost()))
            }
        };
        let answer = answer.unwrap_or(Err(StoreError::Late.into()));
        self.take_note(match &answer {
            Err(Problem::Store(error)) => Some(error),
            Ok(_) | Err(_) => None,
        });
        answer
    }

    /// Does what is asked about a key whose slot is moving here. It is alone, so that nothing comes between the two
    /// commands that this takes.
    pub(crate) async fn submit_asking(self: &Arc<Self>, request: &Request) -> Answered {
        if let Mood::Down(why) = self.health.mood() {
            return Err(StoreError::Away(why).into());
        }
        let mut message = Message::default();
        message.add(request, |place| self.names.key(place));
        message.introduce(&self.names.strangers());
        let script = script::for_kinds(message.kinds());
        let mut eval = redis::cmd("EVAL");
        eval.arg(script.text()).arg(0).arg(message.bytes(None)).arg(message.keys());
        let told = match timeout(self.deadline, self.send_asking(&eval)).await {
            Ok(told) => told.map_err(|error| self.explain(&error)),
            Err(_) => Err(StoreError::Late),
        };
        self.take_note(told.as_ref().err());
        match told? {
            Value::BulkString(bytes) => {
                let said = Reader::new(&bytes).and_then(|mut reader| reader.next(request));
                settle(said.map_err(|_| garbled().into()))
            }
            _ => Err(garbled().into()),
        }
    }

    /// Sends one command about a key whose slot is moving here.
    pub(crate) async fn send_asking(&self, command: &Cmd) -> Result<Value, RedisError> {
        let Some(mut connection) = self.connection(FIRST) else {
            return Err((ErrorKind::Io, "not connected").into());
        };
        let mut pipeline = redis::pipe();
        pipeline.cmd("ASKING").add_command(command.clone());
        let mut values = connection.send_packed_commands(&pipeline, 1, 1).await?;
        values.pop().unwrap_or(Value::Nil).extract_error()
    }

    /// Sends a plain command by the deadline.
    pub(crate) async fn command(self: &Arc<Self>, command: &Cmd) -> Result<Value, StoreError> {
        if let Mood::Down(why) = self.health.mood() {
            return Err(StoreError::Away(why));
        }
        let told = match timeout(self.deadline, self.send(command)).await {
            Ok(told) => told.map_err(|error| self.explain(&error)),
            Err(_) => Err(StoreError::Late),
        };
        self.take_note(told.as_ref().err());
        told
    }

    /// Sends plain commands together, by the deadline. What the server says of each is in its answer.
    pub(crate) async fn commands(self: &Arc<Self>, commands: &Pipeline) -> Result<Vec<Value>, StoreError> {
        if let Mood::Down(why) = self.health.mood() {
            return Err(StoreError::Away(why));
        }
        let Some(mut connection) = self.connection(FIRST) else {
            let away = StoreError::Away("not connected".to_owned());
            self.take_note(Some(&away));
            return Err(away);
        };
        let sent = connection.send_packed_commands(commands, 0, commands.len());
        let told = match timeout(self.deadline, sent).await {
            Ok(told) => told.map_err(|error| self.explain(&error)),
            Err(_) => Err(StoreError::Late),
        };
        self.take_note(told.as_ref().err());
        told
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection(FIRST).is_some()
    }

    /// What is asked, at a moment that the caller names: for checks of the store itself.
    pub(crate) async fn submit_at(self: &Arc<Self>, requests: &[Request], now: Micros) -> Vec<Answered> {
        self.call_in_time(FIRST, requests, Some(now)).await
    }

    /// Takes note of what was wrong with an answer, if anything was.
    pub(crate) fn take_note(self: &Arc<Self>, error: Option<&StoreError>) {
        let went_down = match error {
            Some(StoreError::Late) => self.health.late(self.deadline),
            Some(StoreError::Away(why)) => self.health.away(why),
            Some(StoreError::Refused(why)) => {
                self.health.refused(why);
                false
            }
            Some(_) | None => {
                self.health.answered();
                false
            }
        };
        if went_down {
            self.look_after();
        }
    }

    /// A lane that never answers while others do is out of step: the server counts as away until it is connected anew.
    fn note_lane(self: &Arc<Self>, lane: Lane, is_answered: bool) {
        if is_answered {
            return self.unanswered[lane].store(0, Ordering::Relaxed);
        }
        if self.unanswered[lane].fetch_add(1, Ordering::Relaxed) + 1 >= MOST_UNANSWERED {
            self.unanswered[lane].store(0, Ordering::Relaxed);
            self.take_note(Some(&StoreError::Away("a connection without answers".to_owned())));
        }
    }

    /// Tries to reach the server until it is there again.
    pub(crate) fn look_after(self: &Arc<Self>) {
        let node = Arc::downgrade(self);
        drop(tokio::spawn(async move {
            // A node that nobody needs any more is not looked for.
            while let Some(node) = node.upgrade() {
                match node.reach().await {
                    Ok(()) => return node.health.is_back(),
                    Err(why) => node.health.still_away(why),
                }
                drop(node);
                tokio::time::sleep(RETRY).await;
            }
        }));
    }

    /// Says why the server still is of no use, if it is not.
    async fn reach(&self) -> Result<(), String> {
        // An answer that was lost leaves a connection out of step, so that it never has the right one again.
        let all_lanes = async {
            for lane in LANES {
                self.probe(lane).await?;
            }
            Ok::<_, RedisError>(())
        };
        if matches!(timeout(self.deadline, all_lanes).await, Ok(Ok(()))) {
            return Ok(());
        }
        let anew = async {
            self.connect().await?;
            self.probe(FIRST).await
        };
        match timeout(RECONNECT, anew).await {
            Ok(reached) => reached.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no connection within {RECONNECT:?}")),
        }
    }

    fn enter(self: &Arc<Self>, request: Request, caller: Caller) -> Entry {
        let mut queue = self.queue();
        let lane = if queue.waiting.is_empty() { queue.free.pop() } else { None };
        if let (Some(lane), Caller::AtHome) = (lane, caller) {
            return Entry::Alone(request, lane);
        }
        let (answer, receiver) = oneshot::channel();
        queue.waiting.push(Waiting { request, answer });
        drop(queue);
        if let Some(lane) = lane {
            // Who else asks before it begins goes along.
            let turn = Turn { node: self.clone(), lane, is_over: false };
            drop(tokio::spawn(Self::serve(turn, Vec::new())));
        }
        Entry::Together(receiver)
    }

    /// Those who go next, or the end of a turn. Whoever does not wait any more has its answer already: that it took
    /// too long. It is not charged on top of that.
    fn next(&self, lane: Lane) -> Option<Vec<Waiting>> {
        let mut queue = self.queue();
        queue.waiting.retain(|one| !one.answer.is_closed());
        if queue.waiting.is_empty() {
            queue.free.push(lane);
            return None;
        }
        if queue.waiting.len() <= MOST_TOGETHER {
            return Some(mem::take(&mut queue.waiting));
        }
        Some(queue.waiting.drain(..MOST_TOGETHER).collect())
    }

    /// Makes calls on a lane for as long as anybody waits: these first, if there are any.
    async fn serve(mut turn: Turn, first: Vec<Waiting>) {
        let node = turn.node.clone();
        let mut next = if first.is_empty() { node.next(turn.lane) } else { Some(first) };
        while let Some(waiting) = next {
            let (requests, answers): (Vec<_>, Vec<_>) =
                waiting.into_iter().map(|one| (one.request, one.answer)).unzip();
            let answered = node.call_in_time(turn.lane, &requests, None).await;
            // Those who asked may not be there any more to take note.
            if let Some(Err(Problem::Store(error @ StoreError::Away(_)))) = answered.first() {
                node.take_note(Some(error));
            }
            for (answer, one) in answers.into_iter().zip(answered) {
                // Nobody may be waiting for it any more.
                let _ = answer.send(one);
            }
            // Those who were answered may ask again: let them, so that they go together.
            tokio::task::yield_now().await;
            next = node.next(turn.lane);
        }
        turn.is_over = true;
    }

    /// A call that nobody waits for any more when the server is as good as away.
    async fn call_in_time(&self, lane: Lane, requests: &[Request], now: Option<Micros>) -> Vec<Answered> {
        let patience = self.patience();
        match timeout(patience, self.call(lane, requests, now)).await {
            Ok(answers) => answers,
            Err(_) => {
                vec![Err(StoreError::Away(format!("no answer within {patience:?}")).into()); requests.len()]
            }
        }
    }

    async fn call(&self, lane: Lane, requests: &[Request], now: Option<Micros>) -> Vec<Answered> {
        self.call_once(lane, requests, now).await.into_iter().map(settle).collect()
    }

    async fn call_once(
        &self,
        lane: Lane,
        requests: &[Request],
        now: Option<Micros>,
    ) -> Vec<Result<Said, Problem>> {
        match Express::of(requests, now, |place| self.names.key(place)) {
            Some(express) => self.call_express(lane, requests, &express, now).await,
            None => Box::pin(self.call_whole(lane, requests, now)).await,
        }
    }

    /// The short way, and the long one for those that turn out to need it.
    async fn call_express(
        &self,
        lane: Lane,
        requests: &[Request],
        express: &Express,
        now: Option<Micros>,
    ) -> Vec<Result<Said, Problem>> {
        let script = script::express();
        let value = match self.run(lane, script, express.keys(), express.arguments()).await {
            Ok(value) => value,
            Err(error) => return vec![Err(error.into()); requests.len()],
        };
        let Ok(replies) = Express::read(&value, requests) else {
            return vec![Err(garbled().into()); requests.len()];
        };
        let unusual = replies.iter().zip(requests).filter(|(reply, _)| reply.is_none());
        let unusual: Vec<_> = unusual.map(|(_, request)| request.clone()).collect();
        let mut heard = match unusual.is_empty() {
            true => Vec::new(),
            false => Box::pin(self.call_whole(lane, &unusual, now)).await,
        }
        .into_iter();
        let said = replies.into_iter().map(|reply| match reply {
            Some(reply) => Ok(Said::Reply(reply)),
            None => heard.next().unwrap_or_else(|| Err(garbled().into())),
        });
        said.collect()
    }

    async fn call_whole(
        &self,
        lane: Lane,
        requests: &[Request],
        now: Option<Micros>,
    ) -> Vec<Result<Said, Problem>> {
        let mut message = Message::default();
        requests.iter().for_each(|request| message.add(request, |place| self.names.key(place)));
        message.introduce(&self.names.strangers());
        let script = script::for_kinds(message.kinds());
        let bytes = message.bytes(now);
        let value = match self.run(lane, script, message.keys(), [bytes.as_slice()]).await {
            Ok(value) => value,
            Err(error) => return vec![Err(error.into()); requests.len()],
        };
        let Ok(mut reader) = Reader::new(&value) else {
            return vec![Err(garbled().into()); requests.len()];
        };
        requests.iter().map(|request| reader.next(request).map_err(|_| garbled().into())).collect()
    }

    /// Runs a script. One that the server does not know has not run: it is loaded, and run then.
    async fn run<'a>(
        &self,
        lane: Lane,
        script: &Script,
        keys: &[String],
        arguments: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Vec<u8>, StoreError> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script.hash());
        match self.keys {
            Keys::Declared => command.arg(keys.len()).arg(keys),
            Keys::Argued => command.arg(0),
        };
        arguments.into_iter().for_each(|argument| {
            command.arg(argument);
        });
        if self.keys == Keys::Argued {
            command.arg(keys);
        }
        match self.evaluate(lane, script, &command).await.map_err(|error| self.explain(&error))? {
            Value::BulkString(bytes) => Ok(bytes),
            other => Err(StoreError::Refused(format!("an answer that is not ours: {other:?}"))),
        }
    }

    /// Sends what runs a script; one that the server does not know is loaded first.
    async fn evaluate(&self, lane: Lane, script: &Script, command: &Cmd) -> Result<Value, RedisError> {
        match self.send_on(lane, command).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                Box::pin(self.load(lane, script)).await?;
                Box::pin(self.send_on(lane, command)).await
            }
            other => other,
        }
    }

    /// Tells the server a script.
    async fn load(&self, lane: Lane, script: &Script) -> Result<Value, RedisError> {
        self.send_on(lane, redis::cmd("SCRIPT").arg("LOAD").arg(script.text())).await
    }

    /// Sends one command.
    pub(crate) async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        self.in_time(self.send_on(FIRST, command)).await
    }

    /// An answer, or that there is none in any reasonable time.
    async fn in_time<T>(&self, answer: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
        let late = || RedisError::from((ErrorKind::Io, "no answer"));
        timeout(self.patience(), answer).await.unwrap_or_else(|_| Err(late()))
    }

    /// How long an answer may take before the server counts as away.
    fn patience(&self) -> Duration {
        ANSWER.max(self.deadline)
    }

    async fn send_on(&self, lane: Lane, command: &Cmd) -> Result<Value, RedisError> {
        let Some(mut connection) = self.connection(lane) else {
            return Err((ErrorKind::Io, "not connected").into());
        };
        connection.send_packed_command(command).await.and_then(Value::extract_error)
    }

    /// The error, and whether the connection is of any more use.
    pub(crate) fn explain(&self, error: &RedisError) -> StoreError {
        let is_wrong_server = matches!(
            error.kind(),
            ErrorKind::Server(
                ServerErrorKind::ReadOnly
                    | ServerErrorKind::MasterDown
                    | ServerErrorKind::BusyLoading
                    | ServerErrorKind::ClusterDown
            )
        );
        if error.is_unrecoverable_error() || error.is_io_error() || is_wrong_server {
            if !error.is_timeout() {
                self.connections.write().unwrap_or_else(PoisonError::into_inner).clear();
            }
            return StoreError::Away(error.to_string());
        }
        StoreError::Refused(error.to_string())
    }

    fn connection(&self, lane: Lane) -> Option<MultiplexedConnection> {
        self.connections.read().unwrap_or_else(PoisonError::into_inner).get(lane).cloned()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls in a row without an answer after which a connection is of no more use.
const MOST_UNANSWERED: u32 = 8;
/// How long an answer may take before the server counts as away, unless a decision may take longer.
const ANSWER: Duration = Duration::from_secs(1);
/// How often a server that went away is looked for.
const RETRY: Duration = Duration::from_millis(100);
/// How long connecting may take.
const RECONNECT: Duration = Duration::from_millis(500);
/// The keys that a request is about.
pub(crate) fn places(request: &Request) -> impl Iterator<Item = &Place> {
    let (asks, place): (&[_], Option<&Place>) = match request {
        Request::Decide(asks) => (asks, None),
        Request::TakeUpTo(ask) => (std::slice::from_ref(ask), None),
        Request::Refund { place, .. } | Request::Reset(place) | Request::Renew { place, .. } => {
            (&[], Some(place))
        }
    };
    asks.iter().map(|ask| &ask.place).chain(place)
}

enum Entry {
    Alone(Request, Lane),
    Together(oneshot::Receiver<Answered>),
}

/// A turn at the server: when it ends, also because its caller gave up, those who wait go.
struct Turn {
    node: Arc<Node>,
    lane: Lane,
    /// Nobody waited when it ended.
    is_over: bool,
}

impl Drop for Turn {
    fn drop(&mut self) {
        while !self.is_over {
            let Some(waiting) = self.node.next(self.lane) else { return };
            // Without a runtime nobody can serve them: they hear that the call was given up.
            if let Ok(runtime) = Handle::try_current() {
                let turn = Self { node: self.node.clone(), lane: self.lane, is_over: false };
                self.is_over = true;
                drop(runtime.spawn(Node::serve(turn, waiting)));
            }
        }
    }
}

fn garbled() -> StoreError {
    StoreError::Refused("an answer that cannot be read".to_owned())
}

fn lost() -> Answered {
    Err(StoreError::Away("the call was given up".to_owned()).into())
}

/// What a node of a cluster says of a key that it does not have.
const NOT_LOCAL: &str = "non local key";

fn settle(said: Result<Said, Problem>) -> Answered {
    match said? {
        Said::Reply(reply) => Ok(reply),
        Said::Stranger(tag) => Err(Problem::Stranger(tag)),
        Said::Refused(why) if why.contains(NOT_LOCAL) => Err(Problem::Elsewhere),
        Said::Refused(why) => Err(StoreError::Refused(why).into()),
    }
}
