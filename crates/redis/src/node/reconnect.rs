//! Checks the server, reconnects after a failure, and keeps idle connections alive.

use super::{CONN_INDEXES, CONTROL_CONN, ConnIndex, KeyPassing, NodeError, NodeResult, RedisNode};
use crate::{error::ConnectError, script};
use redis::RedisError;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tidegate_limiter::StoreError;
use tokio::time::timeout;

/// The pause between two reconnection attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// The time limit of one reconnection attempt.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// The interval between two `PING`s on a connection.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);

impl RedisNode {
    /// Returns an error if the server is not usable as a store.
    pub(crate) async fn inspect(&self) -> Result<(), ConnectError> {
        let info = match self.send(&redis::cmd("INFO")).await {
            Ok(info) => redis::from_redis_value::<String>(info).unwrap_or_default(),
            // A user without permission for INFO may still run the scripts.
            Err(error) if error.code() == Some("NOPERM") => return self.inspect_scripts().await,
            Err(error) => return Err(ConnectError::connection_failed(self.display_name(), &error)),
        };
        let has_line = |line: &str| info.lines().any(|info_line| info_line.trim_end() == line);
        if self.key_passing == KeyPassing::Argv && !has_line("cluster_enabled:1") {
            return Err(ConnectError::new(
                format!("{} is a single server, not a node of a cluster", self.display_name()),
                "use redis:// instead of redis+cluster://",
            ));
        }
        if self.key_passing == KeyPassing::Argv {
            return self.inspect_scripts().await;
        }
        if has_line("role:slave") {
            return Err(ConnectError::new(
                format!("{} is a read-only replica", self.display_name()),
                "connect to its primary, or use redis+sentinel://",
            ));
        }
        if has_line("cluster_enabled:1") {
            return Err(ConnectError::new(
                format!("{} is a node of a cluster", self.display_name()),
                "use redis+cluster:// instead of redis://",
            ));
        }
        self.inspect_scripts().await
    }

    async fn inspect_scripts(&self) -> Result<(), ConnectError> {
        let probe = self.with_timeout(self.probe(CONTROL_CONN)).await;
        probe.map_err(|error| ConnectError::unusable(self.display_name(), &error))
    }

    /// Runs the probe script.
    async fn probe(&self, conn: ConnIndex) -> Result<(), RedisError> {
        let script = script::probe_script();
        let mut command = redis::cmd("EVALSHA");
        command.arg(script.hash());
        match self.key_passing {
            KeyPassing::Keys => command.arg(1).arg(self.key_names.probe_key()),
            // The probe key may belong to another node of the cluster.
            KeyPassing::Argv => command.arg(0),
        };
        self.send_eval(conn, script, &command).await.map(|_| ())
    }

    /// Records the result of a request.
    pub(crate) fn record_result(self: &Arc<Self>, error: Option<&StoreError>) {
        match error {
            Some(StoreError::Unavailable(cause)) => self.mark_unavailable(cause),
            Some(StoreError::ErrorReply(cause)) => self.health.record_rejection(cause),
            Some(_) => {}
            None => self.health.record_decision(),
        }
    }

    /// Records the results and the latency of a call.
    pub(super) fn record_call(self: &Arc<Self>, answers: &[NodeResult], took: Duration) {
        for answer in answers {
            match answer {
                Err(NodeError::Store(error)) => self.record_result(Some(error)),
                Ok(_) | Err(_) => self.record_result(None),
            }
        }
        let is_unavailable =
            |answer: &NodeResult| matches!(answer, Err(NodeError::Store(StoreError::Unavailable(_))));
        if !answers.iter().any(is_unavailable) && self.health.record_latency(took, self.deadline) {
            self.reconnect();
        }
    }

    fn mark_unavailable(self: &Arc<Self>, cause: &str) {
        if self.health.mark_unavailable(&ConnectError::from_message(cause)) {
            self.reconnect();
        }
    }

    /// Reconnects in the background until the server is available.
    pub(crate) fn reconnect(self: &Arc<Self>) {
        let node = Arc::downgrade(self);
        drop(tokio::spawn(async move {
            // The task ends when the node is dropped.
            while let Some(node) = node.upgrade() {
                match node.try_reconnect().await {
                    Ok(()) if node.health.is_hold_off_over() => {
                        node.health.mark_available();
                        return node.send_refunds();
                    }
                    Ok(()) => {}
                    Err(cause) => drop(node.health.mark_unavailable(&cause)),
                }
                drop(node);
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }));
    }

    /// Probes the server, over new connections if necessary.
    async fn try_reconnect(self: &Arc<Self>) -> Result<(), ConnectError> {
        let in_time = async {
            for conn in CONN_INDEXES {
                self.probe(conn).await?;
            }
            Ok::<_, RedisError>(())
        };
        // After a lost reply a connection is out of step: it would match replies to the wrong requests.
        if matches!(timeout(self.deadline, in_time).await, Ok(Ok(()))) {
            return Ok(());
        }
        let late = |time: Duration| ConnectError::from_message(&format!("no reply within {time:?}"));
        let connecting = async {
            self.connect()
                .await
                .map_err(|error| ConnectError::connection_failed(self.display_name(), &error))?;
            self.inspect().await
        };
        timeout(RECONNECT_TIMEOUT, connecting).await.unwrap_or_else(|_| Err(late(RECONNECT_TIMEOUT)))?;
        match timeout(self.deadline, self.probe(CONTROL_CONN)).await {
            Ok(probed) => probed.map_err(|error| ConnectError::unusable(self.display_name(), &error)),
            Err(_) => Err(late(self.deadline)),
        }
    }

    /// Sends `PING` on all connections at an interval, so that the server does not close idle ones, and a lost
    /// connection is detected before the next decision uses it.
    pub(super) fn keep_alive(self: &Arc<Self>) {
        if self.has_keep_alive.swap(true, Ordering::Relaxed) {
            return;
        }
        let node = Arc::downgrade(self);
        drop(tokio::spawn(async move {
            loop {
                tokio::time::sleep(KEEP_ALIVE_INTERVAL).await;
                let Some(node) = node.upgrade() else { return };
                for conn in CONN_INDEXES {
                    if !node.health.is_available() {
                        break;
                    }
                    let ping = node.with_timeout(node.send_on(conn, &redis::cmd("PING"))).await;
                    if let Err(StoreError::Unavailable(cause)) =
                        ping.map_err(|error| node.convert_error(&error))
                    {
                        node.mark_unavailable(&cause);
                    }
                }
            }
        }));
    }
}
