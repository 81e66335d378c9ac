//! One server: a connection, the requests that wait for it, and whether it is there.
//!
//! A lone request goes out at once, in the task that asks. While it is on its way others gather, and go together in
//! one call as soon as an answer comes back: the busier the server, the larger the calls. Nobody waits for a timer.

mod call;
mod queue;
mod reconnect;

use crate::{
    connector::Connector,
    health::{FailureModes, RedisHealth},
    key_names::KeyNames,
    message::{Message, ReplyReader},
    script,
};
use call::{malformed_reply, resolve_reply};
use queue::RequestQueue;
pub(crate) use queue::strip_unrequested_receipts;
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
const CONN_INDEXES: std::ops::Range<ConnIndex> = 0..2;
/// Which of them.
type ConnIndex = usize;
/// The lane of everything that is not a decision.
const CONTROL_CONN: ConnIndex = 0;

/// How a script is told its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyPassing {
    /// As Redis wants it.
    Keys,
    /// As arguments: the keys of one call may be of any slots that the node of a cluster has.
    Argv,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOrigin {
    /// A task of the runtime that the connections live on: it may make a call itself.
    SameRuntime,
    /// One of another runtime, which may end or stand still at any time: its calls are made for it.
    OtherRuntime,
}

/// One server.
#[derive(Debug)]
pub(crate) struct RedisNode {
    key_names: Arc<KeyNames>,
    connector: Connector,
    deadline: Duration,
    key_passing: KeyPassing,
    /// One for each lane, or none at all.
    connections: RwLock<Vec<MultiplexedConnection>>,
    /// Whether idle connections are kept in use.
    is_kept_alive: AtomicBool,
    queue: Mutex<RequestQueue>,
    health: RedisHealth,
    clock: Clock,
}

/// What became of a request.
pub(crate) type NodeResult = Result<StoreReply, NodeError>;

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(crate) enum NodeError {
    /// The store has none.
    Store(StoreError),
    /// The key belongs to another node of the cluster. Nothing was done.
    NotLocal,
    /// Its state was written by a quota with this tag, which is not known here. Nothing was done.
    UnknownTag(u16),
}

impl From<StoreError> for NodeError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl RedisNode {
    pub(crate) fn new(
        key_names: Arc<KeyNames>,
        connector: Connector,
        deadline: Duration,
        keys: KeyPassing,
        modes: &Arc<FailureModes>,
    ) -> Arc<Self> {
        Arc::new(Self {
            key_names,
            key_passing: keys,
            deadline,
            health: RedisHealth::new(connector.display_name().to_owned(), modes.clone()),
            connector,
            connections: RwLock::default(),
            is_kept_alive: AtomicBool::new(false),
            queue: Mutex::default(),
            clock: Clock::system(),
        })
    }

    pub(crate) fn health(&self) -> &RedisHealth {
        &self.health
    }

    /// The server as it may be shown.
    pub(crate) fn display_name(&self) -> &str {
        self.connector.display_name()
    }

    /// Connects, or says why it cannot.
    pub(crate) async fn connect(self: &Arc<Self>) -> Result<(), RedisError> {
        let connections = self.connector.connect(CONN_INDEXES.len()).await?;
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
    pub(crate) async fn submit_asking(self: &Arc<Self>, request: &StoreRequest) -> NodeResult {
        self.ready().await?;
        let mut message = Message::default();
        message.add(request, |place| self.key_names.key(place));
        message.append_foreign(&self.key_names.foreign_quotas());
        let script = script::decide_script(message.kinds());
        let mut eval = redis::cmd("EVAL");
        eval.arg(script.text()).arg(0).arg(message.encode(None)).arg(message.keys());
        let reply = match timeout(self.deadline, self.send_asking(&eval)).await {
            Ok(reply) => reply.map_err(|error| self.convert_error(&error)),
            Err(_) => Err(StoreError::Timeout),
        };
        self.record_result(reply.as_ref().err());
        match reply? {
            Value::BulkString(bytes) => {
                let outcome = ReplyReader::new(&bytes).and_then(|mut reader| reader.read_next(request));
                resolve_reply(outcome.map_err(|_| malformed_reply().into()), || self.describe_keys(request))
            }
            _ => Err(malformed_reply().into()),
        }
    }

    /// Sends one command about a key whose slot is moving here.
    pub(crate) async fn send_asking(&self, command: &Cmd) -> Result<Value, RedisError> {
        let Some(mut connection) = self.connection(CONTROL_CONN) else {
            return Err((ErrorKind::Io, "not connected").into());
        };
        let mut pipeline = redis::pipe();
        pipeline.cmd("ASKING").add_command(command.clone());
        let mut values = connection.send_packed_commands(&pipeline, 1, 1).await?;
        values.pop().unwrap_or(Value::Nil).extract_error()
    }

    /// Sends a plain command by the deadline.
    pub(crate) async fn send_command(self: &Arc<Self>, command: &Cmd) -> Result<Value, StoreError> {
        self.ready().await?;
        let reply = match timeout(self.deadline, self.send(command)).await {
            Ok(reply) => reply.map_err(|error| self.convert_error(&error)),
            Err(_) => Err(StoreError::Timeout),
        };
        self.record_result(reply.as_ref().err());
        reply
    }

    /// Sends plain commands together, by the deadline. What the server says of each is in its answer.
    pub(crate) async fn send_pipeline(
        self: &Arc<Self>,
        commands: &Pipeline,
    ) -> Result<Vec<Value>, StoreError> {
        self.ready().await?;
        let Some(mut connection) = self.connection(CONTROL_CONN) else {
            let away = StoreError::Unavailable("not connected".to_owned());
            self.record_result(Some(&away));
            return Err(away);
        };
        let sent = connection.send_packed_commands(commands, 0, commands.len());
        let reply = match timeout(self.deadline, sent).await {
            Ok(reply) => reply.map_err(|error| self.convert_error(&error)),
            Err(_) => Err(StoreError::Timeout),
        };
        self.record_result(reply.as_ref().err());
        reply
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection(CONTROL_CONN).is_some()
    }

    /// What is asked, at a moment that the caller names: for checks of the store itself.
    pub(crate) async fn submit_at(
        self: &Arc<Self>,
        requests: &[StoreRequest],
        now: Micros,
    ) -> Vec<NodeResult> {
        self.call_with_timeout(CONTROL_CONN, requests, Some(now)).await
    }

    /// Sends one command.
    pub(crate) async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        self.with_timeout(self.send_on(CONTROL_CONN, command)).await
    }

    /// An answer, or that there is none in any reasonable time.
    async fn with_timeout<T>(
        &self,
        answer: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        let late = || RedisError::from((ErrorKind::Io, "no answer"));
        timeout(self.reply_timeout(), answer).await.unwrap_or_else(|_| Err(late()))
    }

    /// How long an answer may take before the server counts as unavailable.
    fn reply_timeout(&self) -> Duration {
        MIN_REPLY_TIMEOUT.max(self.deadline * 2)
    }

    /// The keys in the server that a request is about, for messages.
    fn describe_keys(&self, request: &StoreRequest) -> String {
        let keys: Vec<_> =
            key_refs(request).map(|place| format!("`{}`", self.key_names.key(place))).collect();
        keys.join(", ")
    }

    async fn send_on(&self, conn: ConnIndex, command: &Cmd) -> Result<Value, RedisError> {
        let Some(mut connection) = self.connection(conn) else {
            return Err((ErrorKind::Io, "not connected").into());
        };
        connection.send_packed_command(command).await.and_then(Value::extract_error)
    }

    /// The error, and whether the connection is of any more use.
    pub(crate) fn convert_error(&self, error: &RedisError) -> StoreError {
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

    fn connection(&self, conn: ConnIndex) -> Option<MultiplexedConnection> {
        self.connections.read().unwrap_or_else(PoisonError::into_inner).get(conn).cloned()
    }
}

/// How long an answer may take before the server counts as unavailable, unless a decision may take half as long.
const MIN_REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// The keys that a request is about.
pub(crate) fn key_refs(request: &StoreRequest) -> impl Iterator<Item = &KeyRef> {
    let (asks, place): (&[_], Option<&KeyRef>) = match request {
        StoreRequest::Decide(asks) => (asks, None),
        StoreRequest::TakeUpTo(ask) => (std::slice::from_ref(ask), None),
        StoreRequest::Refund { key_ref: place, .. }
        | StoreRequest::Reset(place)
        | StoreRequest::Renew { key_ref: place, .. } => (&[], Some(place)),
    };
    asks.iter().map(|ask| &ask.key_ref).chain(place)
}
