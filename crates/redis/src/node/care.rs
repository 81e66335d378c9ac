//! Whether the server is there, and of use.

use super::{FIRST, Keys, LANES, Lane, Node};
use crate::{error::ConnectError, script};
use redis::RedisError;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tidegate_engine::StoreError;
use tokio::time::timeout;

/// Calls in a row without an answer after which a connection is of no more use.
const MOST_UNANSWERED: u32 = 8;
/// How often a server that went away is looked for.
const RETRY: Duration = Duration::from_millis(100);
/// How long connecting may take.
const RECONNECT: Duration = Duration::from_millis(500);

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
    pub(super) fn note_lane(self: &Arc<Self>, lane: Lane, is_answered: bool) {
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
}
