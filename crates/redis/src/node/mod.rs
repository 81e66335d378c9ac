//! One server: its connections, its request queue and its availability.
//!
//! With an idle connection a request is sent at once, in the caller's task. Otherwise it is queued, and the next reply
//! sends all queued requests in one call: the busier the server, the larger the batches. No request waits for a timer.

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

/// The connections to one server, each with one call in flight. A server executes all calls that it has read from a
/// connection before it sends any reply; with two connections client and server work in parallel.
const CONN_INDEXES: std::ops::Range<ConnIndex> = 0..2;
/// The index of a connection.
type ConnIndex = usize;
/// The connection for everything that is not a decision.
const CONTROL_CONN: ConnIndex = 0;

/// How a script receives its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyPassing {
    /// In `KEYS`, as Redis requires.
    Keys,
    /// In `ARGV`, so that one call can use keys of all slots of a cluster node.
    Argv,
}

/// The runtime of the calling task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOrigin {
    /// The runtime of the connections: the task can make the call itself.
    SameRuntime,
    /// Another runtime, which may stop or block at any time: a task on the connections' runtime makes the call.
    OtherRuntime,
}

/// One server.
#[derive(Debug)]
pub(crate) struct RedisNode {
    key_names: Arc<KeyNames>,
    connector: Connector,
    deadline: Duration,
    key_passing: KeyPassing,
    /// One for each index, or empty while disconnected.
    connections: RwLock<Vec<MultiplexedConnection>>,
    /// Whether the keep-alive task runs.
    has_keep_alive: AtomicBool,
    queue: Mutex<RequestQueue>,
    health: RedisHealth,
    clock: Clock,
    /// For the boundaries of calendar windows, which the server compares with its own time. The other clocks stop while the
    /// machine is suspended, and would be behind from then on.
    wall_clock: Clock,
}

/// The result of a request.
pub(crate) type NodeResult = Result<StoreReply, NodeError>;

/// Why a request has no reply.
#[derive(Clone, Debug)]
pub(crate) enum NodeError {
    Store(StoreError),
    /// The key belongs to another node of the cluster. Nothing was charged.
    NotLocal,
    /// An unknown quota with this tag wrote the state. Nothing was charged.
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
            has_keep_alive: AtomicBool::new(false),
            queue: Mutex::default(),
            clock: Clock::system(),
            wall_clock: Clock::wall(),
        })
    }

    pub(crate) fn health(&self) -> &RedisHealth {
        &self.health
    }

    /// The server's name for messages, without credentials.
    pub(crate) fn display_name(&self) -> &str {
        self.connector.display_name()
    }

    /// Opens the connections and starts the keep-alive task.
    pub(crate) async fn connect(self: &Arc<Self>) -> Result<(), RedisError> {
        let connections = self.connector.connect(CONN_INDEXES.len()).await?;
        *self.connections.write().unwrap_or_else(PoisonError::into_inner) = connections;
        self.keep_alive();
        Ok(())
    }

    /// Drops the connections; calls in flight keep theirs until they end.
    pub(super) fn disconnect(&self) {
        self.connections.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Waits for the first connection attempt, up to the deadline.
    pub(crate) async fn ready(&self) -> Result<(), StoreError> {
        match timeout(self.deadline, self.health.ready()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(cause)) => Err(StoreError::Unavailable(cause.to_string())),
            Err(_) => Err(StoreError::Timeout),
        }
    }

    /// Executes a request about a key whose slot is migrating to this node. It is not batched, because `ASKING` applies
    /// only to the next command.
    pub(crate) async fn submit_asking(self: &Arc<Self>, request: &StoreRequest) -> NodeResult {
        self.ready().await?;
        let mut message = Message::new(self.wall_clock.now());
        message.add(request, |key_ref| self.key_names.key(key_ref));
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

    /// Sends one command about a key whose slot is migrating to this node.
    pub(crate) async fn send_asking(&self, command: &Cmd) -> Result<Value, RedisError> {
        let Some(mut connection) = self.connection(CONTROL_CONN) else {
            return Err((ErrorKind::Io, "not connected").into());
        };
        let mut pipeline = redis::pipe();
        pipeline.cmd("ASKING").add_command(command.clone());
        let mut values = connection.send_packed_commands(&pipeline, 1, 1).await?;
        values.pop().unwrap_or(Value::Nil).extract_error()
    }

    /// Sends one command within the deadline.
    pub(crate) async fn send_command(self: &Arc<Self>, command: &Cmd) -> Result<Value, StoreError> {
        self.ready().await?;
        let reply = match timeout(self.deadline, self.send(command)).await {
            Ok(reply) => reply.map_err(|error| self.convert_error(&error)),
            Err(_) => Err(StoreError::Timeout),
        };
        self.record_result(reply.as_ref().err());
        reply
    }

    /// Sends commands as one pipeline within the deadline. An error of one command is in its value.
    pub(crate) async fn send_pipeline(
        self: &Arc<Self>,
        commands: &Pipeline,
    ) -> Result<Vec<Value>, StoreError> {
        self.ready().await?;
        let Some(mut connection) = self.connection(CONTROL_CONN) else {
            let unavailable = StoreError::Unavailable("not connected".to_owned());
            self.record_result(Some(&unavailable));
            return Err(unavailable);
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

    /// Executes requests at the given time instead of the server's, for tests of the store.
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

    /// Fails with an I/O error after the reply timeout.
    async fn with_timeout<T>(
        &self,
        reply: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        let timed_out = || RedisError::from((ErrorKind::Io, "no reply"));
        timeout(self.reply_timeout(), reply).await.unwrap_or_else(|_| Err(timed_out()))
    }

    /// The time without a reply after which the server counts as unavailable.
    fn reply_timeout(&self) -> Duration {
        MIN_REPLY_TIMEOUT.max(self.deadline * 2)
    }

    /// The server keys of a request, for messages.
    fn describe_keys(&self, request: &StoreRequest) -> String {
        let keys: Vec<_> =
            key_refs(request).map(|key_ref| format!("`{}`", self.key_names.key(key_ref))).collect();
        keys.join(", ")
    }

    async fn send_on(&self, conn: ConnIndex, command: &Cmd) -> Result<Value, RedisError> {
        let Some(mut connection) = self.connection(conn) else {
            return Err((ErrorKind::Io, "not connected").into());
        };
        connection.send_packed_command(command).await.and_then(Value::extract_error)
    }

    /// Converts an error, and drops the connections if they are unusable.
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
        StoreError::ErrorReply(error.to_string())
    }

    fn connection(&self, conn: ConnIndex) -> Option<MultiplexedConnection> {
        self.connections.read().unwrap_or_else(PoisonError::into_inner).get(conn).cloned()
    }
}

/// The least reply timeout; a longer deadline raises it to twice the deadline.
const MIN_REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// The keys of a request.
pub(crate) fn key_refs(request: &StoreRequest) -> impl Iterator<Item = &KeyRef> {
    let (checks, key_ref): (&[_], Option<&KeyRef>) = match request {
        StoreRequest::Decide(checks) => (checks, None),
        StoreRequest::TakeUpTo(check) => (std::slice::from_ref(check), None),
        StoreRequest::Refund { key_ref, .. }
        | StoreRequest::Reset(key_ref)
        | StoreRequest::Renew { key_ref, .. } => (&[], Some(key_ref)),
    };
    checks.iter().map(|check| &check.key_ref).chain(key_ref)
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used, reason = "this is how a test fails")]
mod tests {
    use super::*;
    use crate::connector::ClientTls;
    use tidegate_core::{CarryOver, Demand};
    use tidegate_limiter::store::{PermitMode, QuotaSelection, StoreCheck, StoreLimit};
    use tidegate_testkit::servers::RedisServer;

    /// A machine was suspended for some days. The clock of the process stood still, and the next call reads the current time.
    #[tokio::test]
    async fn calendar_windows_follow_the_wall_clock_after_a_suspension() {
        let server = RedisServer::start().unwrap();
        let info = redis::IntoConnectionInfo::into_connection_info(server.url()).unwrap();
        let connector = Connector::for_server(info, &ClientTls::default()).unwrap();
        let modes = Arc::<FailureModes>::default();
        let key_names = Arc::new(KeyNames::new("test"));
        let (wall_clock, manual_clock) = Clock::manual();
        let node = RedisNode::new(key_names, connector, Duration::from_secs(5), KeyPassing::Keys, &modes);
        let now = node.wall_clock.now();
        assert!(format!("{:?}", node.wall_clock).starts_with("Clock(wall"));
        let node = Arc::new(RedisNode { wall_clock, ..Arc::into_inner(node).unwrap() });
        node.connect().await.unwrap();

        let quota = "2/day fixed-window in UTC".parse().unwrap();
        let limit = StoreLimit::new("rule", vec![quota], QuotaSelection::All, CarryOver::Keep);
        let key_ref = KeyRef { limit: Arc::new(limit), key: "a".to_owned(), tier: 0 };
        let (demand, permit_mode) = (Demand::new(1), PermitMode::Peek);
        let check = StoreCheck { key_ref, demand, permit_mode, receipt: true };
        let requests = [StoreRequest::Decide(vec![check])];
        manual_clock.set(now.saturating_sub(Micros::from_secs(3 * 86_400)));
        assert!(node.call(CONTROL_CONN, &requests, None).await[0].is_err());
        manual_clock.set(now);
        assert!(node.call(CONTROL_CONN, &requests, None).await[0].is_ok());
    }
}
