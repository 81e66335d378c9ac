//! One server: a connection, the requests that wait for it, and whether it is there.
//!
//! A lone request goes out at once, in the task that asks. While it is on its way others gather, and go together in
//! one call as soon as an answer comes back: the busier the server, the larger the calls. Nobody waits for a timer.

mod call;
mod care;
mod queue;

use crate::{
    dial::Dial,
    health::{Health, Modes},
    message::{Message, Reader},
    names::Names,
    script,
};
use call::{garbled, settle};
use queue::Queue;
pub(crate) use queue::as_asked;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value, aio::MultiplexedConnection};
use std::{
    sync::{Arc, Mutex, PoisonError, RwLock, atomic::AtomicBool},
    time::Duration,
};
use tidegate_core::Micros;
use tidegate_limiter::{
    Clock, StoreError,
    store::{KeyRef, StoreReply, StoreRequest},
};
use tokio::time::timeout;

/// Connections to one server, each of which carries one call at a time. A server answers all calls that it finds on a
/// connection before it sends any of the answers; on two, one side works on a call while the other works on the next.
const LANES: std::ops::Range<Lane> = 0..2;
/// Which of them.
type Lane = usize;
/// The lane of everything that is not a decision.
const FIRST: Lane = 0;

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
    /// Whether idle connections are kept in use.
    is_kept_alive: AtomicBool,
    queue: Mutex<Queue>,
    health: Health,
    clock: Clock,
}

/// What became of a request.
pub(crate) type Answered = Result<StoreReply, Problem>;

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
    pub(crate) fn new(
        names: Arc<Names>,
        dial: Dial,
        deadline: Duration,
        keys: Keys,
        modes: &Arc<Modes>,
    ) -> Arc<Self> {
        Arc::new(Self {
            names,
            keys,
            deadline,
            health: Health::new(dial.shown().to_owned(), modes.clone()),
            dial,
            connections: RwLock::default(),
            is_kept_alive: AtomicBool::new(false),
            queue: Mutex::default(),
            clock: Clock::system(),
        })
    }

    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    /// The server as it may be shown.
    pub(crate) fn shown(&self) -> &str {
        self.dial.shown()
    }

    /// Connects, or says why it cannot.
    pub(crate) async fn connect(self: &Arc<Self>) -> Result<(), RedisError> {
        let connections = self.dial.connect(LANES.len()).await?;
        *self.connections.write().unwrap_or_else(PoisonError::into_inner) = connections;
        self.keep_alive();
        Ok(())
    }

    /// Leaves its connections to the calls that still wait on them.
    pub(super) fn disconnect(&self) {
        self.connections.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Waits up to the deadline while the server is being connected to.
    pub(crate) async fn ready(&self) -> Result<(), StoreError> {
        match timeout(self.deadline, self.health.ready()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(cause)) => Err(StoreError::Unavailable(cause.to_string())),
            Err(_) => Err(StoreError::Timeout),
        }
    }

    /// Does what is asked about a key whose slot is moving here. It is alone, so that nothing comes between the two
    /// commands that this takes.
    pub(crate) async fn submit_asking(self: &Arc<Self>, request: &StoreRequest) -> Answered {
        self.ready().await?;
        let mut message = Message::default();
        message.add(request, |place| self.names.key(place));
        message.introduce(&self.names.strangers());
        let script = script::for_kinds(message.kinds());
        let mut eval = redis::cmd("EVAL");
        eval.arg(script.text()).arg(0).arg(message.bytes(None)).arg(message.keys());
        let told = match timeout(self.deadline, self.send_asking(&eval)).await {
            Ok(told) => told.map_err(|error| self.explain(&error)),
            Err(_) => Err(StoreError::Timeout),
        };
        self.take_note(told.as_ref().err());
        match told? {
            Value::BulkString(bytes) => {
                let said = Reader::new(&bytes).and_then(|mut reader| reader.next(request));
                settle(said.map_err(|_| garbled().into()), || self.keys_of(request))
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
        self.ready().await?;
        let told = match timeout(self.deadline, self.send(command)).await {
            Ok(told) => told.map_err(|error| self.explain(&error)),
            Err(_) => Err(StoreError::Timeout),
        };
        self.take_note(told.as_ref().err());
        told
    }

    /// Sends plain commands together, by the deadline. What the server says of each is in its answer.
    pub(crate) async fn commands(self: &Arc<Self>, commands: &Pipeline) -> Result<Vec<Value>, StoreError> {
        self.ready().await?;
        let Some(mut connection) = self.connection(FIRST) else {
            let away = StoreError::Unavailable("not connected".to_owned());
            self.take_note(Some(&away));
            return Err(away);
        };
        let sent = connection.send_packed_commands(commands, 0, commands.len());
        let told = match timeout(self.deadline, sent).await {
            Ok(told) => told.map_err(|error| self.explain(&error)),
            Err(_) => Err(StoreError::Timeout),
        };
        self.take_note(told.as_ref().err());
        told
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection(FIRST).is_some()
    }

    /// What is asked, at a moment that the caller names: for checks of the store itself.
    pub(crate) async fn submit_at(self: &Arc<Self>, requests: &[StoreRequest], now: Micros) -> Vec<Answered> {
        self.call_in_time(FIRST, requests, Some(now)).await
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

    /// How long an answer may take before the server counts as unavailable.
    fn patience(&self) -> Duration {
        ANSWER.max(self.deadline * 2)
    }

    /// The keys in the server that a request is about, for messages.
    fn keys_of(&self, request: &StoreRequest) -> String {
        let keys: Vec<_> = places(request).map(|place| format!("`{}`", self.names.key(place))).collect();
        keys.join(", ")
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
                self.disconnect();
            }
            return StoreError::Unavailable(error.to_string());
        }
        StoreError::Rejected(error.to_string())
    }

    fn connection(&self, lane: Lane) -> Option<MultiplexedConnection> {
        self.connections.read().unwrap_or_else(PoisonError::into_inner).get(lane).cloned()
    }
}

/// How long an answer may take before the server counts as unavailable, unless a decision may take half as long.
const ANSWER: Duration = Duration::from_secs(1);

/// The keys that a request is about.
pub(crate) fn places(request: &StoreRequest) -> impl Iterator<Item = &KeyRef> {
    let (asks, place): (&[_], Option<&KeyRef>) = match request {
        StoreRequest::Decide(asks) => (asks, None),
        StoreRequest::TakeUpTo(ask) => (std::slice::from_ref(ask), None),
        StoreRequest::Refund { key_ref: place, .. }
        | StoreRequest::Reset(place)
        | StoreRequest::Renew { key_ref: place, .. } => (&[], Some(place)),
    };
    asks.iter().map(|ask| &ask.key_ref).chain(place)
}
