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
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value, aio::MultiplexedConnection};
use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};
use tidegate_core::Micros;
use tidegate_engine::{
    StoreError,
    store::{Place, Reply, Request},
};
use tokio::{sync::oneshot, time::timeout};

/// Calls that may be on their way at once: while the server works on one, the next is being written.
const MOST_IN_FLIGHT: usize = 2;
/// Requests in one call. The server does nothing else while it works on one.
const MOST_TOGETHER: usize = 256;

/// How a script is told its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// As Redis wants it.
    Declared,
    /// As arguments: the keys of one call may be of any slots that the node of a cluster has.
    Argued,
}

/// One server.
#[derive(Debug)]
pub(crate) struct Node {
    names: Arc<Names>,
    dial: Dial,
    deadline: Duration,
    keys: Keys,
    connection: RwLock<Option<MultiplexedConnection>>,
    queue: Mutex<Queue>,
    health: Health,
}

#[derive(Debug, Default)]
struct Queue {
    in_flight: usize,
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
            connection: RwLock::new(None),
            queue: Mutex::default(),
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
        let refused = |error: &RedisError| ConnectError::refused(self.shown(), error);
        let info = redis::cmd("INFO").to_owned();
        let info = self.send(&info).await.map_err(|error| refused(&error))?;
        let info: String = redis::from_redis_value(info).unwrap_or_default();
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
        let script = redis::cmd("EVAL").arg("return cmsgpack.unpack(cmsgpack.pack(1))").arg(0).to_owned();
        match self.send(&script).await {
            Ok(_) => Ok(()),
            Err(error) => Err(ConnectError::new(
                format!("{} does not run scripts: {error}", self.shown()),
                "allow EVAL, EVALSHA and SCRIPT LOAD: a store cannot decide without them",
            )),
        }
    }

    /// Connects, or says why it cannot.
    pub(crate) async fn connect(&self) -> Result<(), RedisError> {
        let connection = self.dial.connect().await?;
        *self.connection.write().unwrap_or_else(PoisonError::into_inner) = Some(connection);
        Ok(())
    }

    /// Does what is asked, alone or together with others, by the deadline.
    pub(crate) async fn submit(self: &Arc<Self>, request: Request) -> Answered {
        if let Mood::Down(why) = self.health.mood() {
            return Err(StoreError::Away(why).into());
        }
        let answer = match self.enter(request) {
            Entry::Alone(request) => {
                let _turn = Turn { node: self };
                let call = async { self.call(std::slice::from_ref(&request), None).await };
                let answers = timeout(self.deadline, call).await;
                answers.map(|mut answers| answers.pop().unwrap_or_else(lost))
            }
            Entry::Together(answer) => {
                timeout(self.deadline, answer).await.map(|answer| answer.unwrap_or_else(|_| lost()))
            }
        };
        let answer = answer.unwrap_or(Err(StoreError::Late.into()));
        self.take_note(&answer);
        answer
    }

    /// Does what is asked about a key whose slot is moving here. It is alone, so that nothing comes between the two
    /// commands that this takes.
    pub(crate) async fn submit_asking(&self, request: &Request) -> Answered {
        let mut message = Message::default();
        message.add(request, |place| self.names.key(place));
        message.introduce(&self.names.strangers());
        let script = script::for_kinds(message.kinds());
        let mut pipeline = redis::pipe();
        pipeline
            .cmd("ASKING")
            .cmd("EVAL")
            .arg(script.text())
            .arg(0)
            .arg(message.bytes(None))
            .arg(message.keys());
        let Some(mut connection) = self.connection() else {
            return Err(StoreError::Away("not connected".to_owned()).into());
        };
        let values = connection.send_packed_commands(&pipeline, 1, 1).await;
        let values = values.map_err(|error| self.explain(&error))?;
        match values.into_iter().next().map(Value::extract_error) {
            Some(Ok(Value::BulkString(bytes))) => {
                let said = Reader::new(&bytes).and_then(|mut reader| reader.next(request));
                settle(said.map_err(|_| garbled().into()))
            }
            Some(Err(error)) => Err(self.explain(&error).into()),
            _ => Err(garbled().into()),
        }
    }

    /// Sends a plain command by the deadline.
    pub(crate) async fn command(&self, command: &Cmd) -> Result<Value, StoreError> {
        let told = timeout(self.deadline, self.send(command)).await;
        told.map_err(|_| StoreError::Late)?.map_err(|error| self.explain(&error))
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection().is_some()
    }

    /// What is asked, at a moment that the caller names: for checks of the store itself.
    pub(crate) async fn submit_at(self: &Arc<Self>, requests: &[Request], now: Micros) -> Vec<Answered> {
        self.call(requests, Some(now)).await
    }

    fn take_note(self: &Arc<Self>, answer: &Answered) {
        let went_down = match answer {
            Err(Problem::Store(StoreError::Late)) => self.health.late(self.deadline),
            Err(Problem::Store(StoreError::Away(why))) => self.health.away(why),
            Err(Problem::Store(StoreError::Refused(why))) => {
                self.health.refused(why);
                false
            }
            Ok(_) | Err(_) => {
                self.health.answered();
                false
            }
        };
        if went_down {
            self.look_after();
        }
    }

    /// Tries to reach the server until it is there again.
    pub(crate) fn look_after(self: &Arc<Self>) {
        let node = Arc::downgrade(self);
        drop(tokio::spawn(async move {
            // A node that nobody needs any more is not looked for.
            while let Some(node) = node.upgrade() {
                if node.is_there().await {
                    return node.health.is_back();
                }
                drop(node);
                tokio::time::sleep(RETRY).await;
            }
        }));
    }

    async fn is_there(&self) -> bool {
        if let Some(mut connection) = self.connection() {
            let ping = redis::cmd("PING");
            if let Ok(Ok(_)) = timeout(self.deadline, connection.send_packed_command(&ping)).await {
                return true;
            }
        }
        matches!(timeout(RECONNECT, self.connect()).await, Ok(Ok(())))
    }

    fn enter(&self, request: Request) -> Entry {
        let mut queue = self.queue();
        if queue.in_flight < MOST_IN_FLIGHT && queue.waiting.is_empty() {
            queue.in_flight += 1;
            return Entry::Alone(request);
        }
        let (answer, receiver) = oneshot::channel();
        queue.waiting.push(Waiting { request, answer });
        Entry::Together(receiver)
    }

    /// Those who go next, or the end of a turn.
    fn next(&self) -> Option<Vec<Waiting>> {
        let mut queue = self.queue();
        if queue.waiting.is_empty() {
            queue.in_flight -= 1;
            return None;
        }
        if queue.waiting.len() <= MOST_TOGETHER {
            return Some(mem::take(&mut queue.waiting));
        }
        Some(queue.waiting.drain(..MOST_TOGETHER).collect())
    }

    async fn serve(self: Arc<Self>, mut waiting: Vec<Waiting>) {
        loop {
            let (requests, answers): (Vec<_>, Vec<_>) =
                waiting.into_iter().map(|one| (one.request, one.answer)).unzip();
            let answered = self.call(&requests, None).await;
            for (answer, one) in answers.into_iter().zip(answered) {
                // Whoever does not wait any more has its answer already: that it took too long.
                let _ = answer.send(one);
            }
            match self.next() {
                Some(next) => waiting = next,
                None => return,
            }
        }
    }

    async fn call(&self, requests: &[Request], now: Option<Micros>) -> Vec<Answered> {
        self.call_once(requests, now).await.into_iter().map(settle).collect()
    }

    async fn call_once(&self, requests: &[Request], now: Option<Micros>) -> Vec<Result<Said, Problem>> {
        match Express::of(requests, now, |place| self.names.key(place)) {
            Some(express) => self.call_express(requests, &express, now).await,
            None => self.call_whole(requests, now).await,
        }
    }

    /// The short way, and the long one for those that turn out to need it.
    async fn call_express(
        &self,
        requests: &[Request],
        express: &Express,
        now: Option<Micros>,
    ) -> Vec<Result<Said, Problem>> {
        let script = script::express();
        let value = match self.run(script, express.keys(), express.arguments()).await {
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
            false => self.call_whole(&unusual, now).await,
        }
        .into_iter();
        let said = replies.into_iter().map(|reply| match reply {
            Some(reply) => Ok(Said::Reply(reply)),
            None => heard.next().unwrap_or_else(|| Err(garbled().into())),
        });
        said.collect()
    }

    async fn call_whole(&self, requests: &[Request], now: Option<Micros>) -> Vec<Result<Said, Problem>> {
        let mut message = Message::default();
        requests.iter().for_each(|request| message.add(request, |place| self.names.key(place)));
        message.introduce(&self.names.strangers());
        let script = script::for_kinds(message.kinds());
        let bytes = message.bytes(now);
        let value = match self.run(script, message.keys(), [bytes.as_slice()]).await {
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
        let value = match self.send(&command).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                let load = redis::cmd("SCRIPT").arg("LOAD").arg(script.text()).to_owned();
                self.send(&load).await.map_err(|error| self.explain(&error))?;
                self.send(&command).await
            }
            other => other,
        };
        match value.map_err(|error| self.explain(&error))? {
            Value::BulkString(bytes) => Ok(bytes),
            other => Err(StoreError::Refused(format!("an answer that is not ours: {other:?}"))),
        }
    }

    /// Sends one command.
    pub(crate) async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        let Some(mut connection) = self.connection() else {
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
                *self.connection.write().unwrap_or_else(PoisonError::into_inner) = None;
            }
            return StoreError::Away(error.to_string());
        }
        StoreError::Refused(error.to_string())
    }

    fn connection(&self) -> Option<MultiplexedConnection> {
        self.connection.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
    Alone(Request),
    Together(oneshot::Receiver<Answered>),
}

/// A turn at the server: when it ends, also because its caller gave up, those who wait go.
struct Turn<'a> {
    node: &'a Arc<Node>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.node.next() {
            drop(tokio::spawn(self.node.clone().serve(waiting)));
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
