//! Overrides of a fleet: one script per change, so that all of it happens or nothing.

use crate::topology::Topology;
use redis::{Cmd, Value};
use tidegate_core::Micros;
use tidegate_limiter::{
    StoreError,
    store::{OverrideChanges, OverrideReply, OverrideRequest},
};

const CHANGE_LUA: &str = include_str!("override_change.lua");
const CHANGES_LUA: &str = include_str!("override_changes.lua");

/// The names of the keys. They have one hash tag, so that a cluster keeps them on one node.
struct OverrideKeys {
    lines: String,
    changes: String,
    ends: String,
    history: String,
    counters: String,
}

impl OverrideKeys {
    fn new(prefix: &str) -> Self {
        let key = |name: &str| format!("{prefix}:{{overrides}}:{name}");
        Self {
            lines: key("lines"),
            changes: key("changes"),
            ends: key("ends"),
            history: key("history"),
            counters: key("counters"),
        }
    }
}

impl Topology {
    pub(crate) async fn overrides(
        &self,
        prefix: &str,
        request: &OverrideRequest,
    ) -> Result<OverrideReply, StoreError> {
        let keys = OverrideKeys::new(prefix);
        let reply = self.send_command(&keys.lines, &command(&keys, request)).await?;
        parse_reply(request, reply).ok_or_else(|| StoreError::ErrorReply("invalid overrides".to_owned()))
    }
}

fn command(keys: &OverrideKeys, request: &OverrideRequest) -> Cmd {
    let OverrideKeys { lines, changes, ends, history, counters } = keys;
    match request {
        OverrideRequest::Change { id, expected, members, until, now, max } => {
            let number = |number: Option<u64>| number.map(|it| it.to_string()).unwrap_or_default();
            let mut eval = redis::cmd("EVAL");
            eval.arg(CHANGE_LUA).arg(5).arg(lines).arg(changes).arg(ends).arg(history).arg(counters);
            eval.arg(format!("{id:016x}")).arg(number(*expected)).arg(members);
            eval.arg(number(until.map(Micros::get))).arg(now.get()).arg(*max);
            eval
        }
        OverrideRequest::ChangesAfter { change, limit, is_first } => {
            let mut eval = redis::cmd("EVAL");
            eval.arg(CHANGES_LUA).arg(3).arg(lines).arg(changes).arg(counters);
            eval.arg(*change).arg(*limit).arg(u8::from(*is_first));
            eval
        }
        OverrideRequest::History => {
            let mut range = redis::cmd("LRANGE");
            range.arg(history).arg(0).arg(-1);
            range
        }
    }
}

/// `None` if the reply has another form.
fn parse_reply(request: &OverrideRequest, reply: Value) -> Option<OverrideReply> {
    let texts: Vec<String> = redis::from_redis_value(reply).ok()?;
    let text = |index: usize| texts.get(index).map(String::as_str);
    let number = |index: usize| text(index)?.parse::<u64>().ok();
    match request {
        OverrideRequest::History => Some(OverrideReply::History(texts)),
        OverrideRequest::ChangesAfter { .. } => Some(OverrideReply::Changes(OverrideChanges {
            is_reset: text(0)? == "1",
            last: number(1)?,
            latest: number(2)?,
            lines: texts.iter().skip(3).filter(|line| !line.is_empty()).cloned().collect(),
        })),
        OverrideRequest::Change { .. } => match text(0)? {
            "changed" => number(1).map(OverrideReply::Changed),
            "conflict" => {
                Some(OverrideReply::Conflict(text(1).filter(|line| !line.is_empty()).map(str::to_owned)))
            }
            "absent" => Some(OverrideReply::Absent),
            "full" => Some(OverrideReply::Full),
            _ => None,
        },
    }
}
