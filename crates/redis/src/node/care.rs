//! Whether the server is there, and of use.

use super::{Answered, FIRST, Keys, LANES, Lane, Node, Problem};
use crate::{error::ConnectError, script};
use redis::RedisError;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tidegate_limiter::StoreError;
use tokio::time::timeout;

/// How often a server that is unavailable is looked for.
const RETRY: Duration = Duration::from_millis(100);
/// How long connecting may take.
const RECONNECT: Duration = Duration::from_secs(4);
/// How often idle connections are used.
const KEEP_ALIVE: Duration = Duration::from_secs(1);

impl Node {
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

    /// Takes note of what was wrong with an answer, if anything was.
    pub(crate) fn take_note(self: &Arc<Self>, error: Option<&StoreError>) {
        match error {
            Some(StoreError::Unavailable(cause)) => self.went_away(cause),
            Some(StoreError::Rejected(cause)) => self.health.rejected(cause),
            Some(_) => {}
            None => self.health.decided(),
        }
    }

    /// Takes note of a call, and of how long it took.
    pub(super) fn record_call(self: &Arc<Self>, answers: &[Answered], took: Duration) {
        for answer in answers {
            match answer {
                Err(Problem::Store(error)) => self.take_note(Some(error)),
                Ok(_) | Err(_) => self.take_note(None),
            }
        }
        let is_away = |answer: &Answered| matches!(answer, Err(Problem::Store(StoreError::Unavailable(_))));
        if !answers.iter().any(is_away) && self.health.answered(took, self.deadline) {
            self.look_after();
        }
    }

    fn went_away(self: &Arc<Self>, cause: &str) {
        if self.health.unavailable(&ConnectError::of(cause)) {
            self.look_after();
        }
    }

    /// Tries to reach the server until it is available.
    pub(crate) fn look_after(self: &Arc<Self>) {
        let node = Arc::downgrade(self);
        drop(tokio::spawn(async move {
            // A node that nobody needs any more is not looked for.
            while let Some(node) = node.upgrade() {
                match node.reach().await {
                    Ok(()) if node.health.is_hold_off_over() => {
                        node.health.available();
                        return node.send_refunds();
                    }
                    Ok(()) => {}
                    Err(cause) => drop(node.health.unavailable(&cause)),
                }
                drop(node);
                tokio::time::sleep(RETRY).await;
            }
        }));
    }

    /// Returns why the server still is of no use, if it is not.
    async fn reach(self: &Arc<Self>) -> Result<(), ConnectError> {
        let in_time = async {
            for lane in LANES {
                self.probe(lane).await?;
            }
            Ok::<_, RedisError>(())
        };
        // An answer that was lost leaves a connection out of step, so that it never has the right one again.
        if matches!(timeout(self.deadline, in_time).await, Ok(Ok(()))) {
            return Ok(());
        }
        let late = |time: Duration| ConnectError::of(&format!("no answer within {time:?}"));
        let anew = async {
            self.connect().await.map_err(|error| ConnectError::refused(self.shown(), &error))?;
            self.inspect().await
        };
        timeout(RECONNECT, anew).await.unwrap_or_else(|_| Err(late(RECONNECT)))?;
        match timeout(self.deadline, self.probe(FIRST)).await {
            Ok(probed) => probed.map_err(|error| ConnectError::useless(self.shown(), &error)),
            Err(_) => Err(late(self.deadline)),
        }
    }

    /// Uses idle connections now and then: a server does not close them for being idle, and one that is gone is found
    /// out before the next decision needs it.
    pub(super) fn keep_alive(self: &Arc<Self>) {
        if self.is_kept_alive.swap(true, Ordering::Relaxed) {
            return;
        }
        let node = Arc::downgrade(self);
        drop(tokio::spawn(async move {
            loop {
                tokio::time::sleep(KEEP_ALIVE).await;
                let Some(node) = node.upgrade() else { return };
                for lane in LANES {
                    if !node.health.is_available() {
                        break;
                    }
                    let ping = node.in_time(node.send_on(lane, &redis::cmd("PING"))).await;
                    if let Err(StoreError::Unavailable(cause)) = ping.map_err(|error| node.explain(&error)) {
                        node.went_away(&cause);
                    }
                }
            }
        }));
    }
}
