//! One call: runs the script and decodes the reply to each request.

use super::{ConnIndex, KeyPassing, NodeError, NodeResult, RedisNode};
use crate::{
    message::{FastPathMessage, Message, ReplyReader, ScriptReply},
    script::{self, Script},
};
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tidegate_core::Micros;
use tidegate_limiter::{StoreError, store::StoreRequest};
use tokio::time::timeout;

impl RedisNode {
    /// Makes a call and gives up after the reply timeout.
    pub(super) async fn call_with_timeout(
        &self,
        conn: ConnIndex,
        requests: &[StoreRequest],
        now: Option<Micros>,
    ) -> Vec<NodeResult> {
        let reply_timeout = self.reply_timeout();
        match timeout(reply_timeout, self.call(conn, requests, now)).await {
            Ok(answers) => answers,
            Err(_) => {
                vec![
                    Err(StoreError::Unavailable(format!("no reply within {reply_timeout:?}")).into());
                    requests.len()
                ]
            }
        }
    }

    pub(super) async fn call(
        &self,
        conn: ConnIndex,
        requests: &[StoreRequest],
        now: Option<Micros>,
    ) -> Vec<NodeResult> {
        let outcome = self.call_once(conn, requests, now).await;
        outcome
            .into_iter()
            .zip(requests)
            .map(|(outcome, request)| resolve_reply(outcome, || self.describe_keys(request)))
            .collect()
    }

    async fn call_once(
        &self,
        conn: ConnIndex,
        requests: &[StoreRequest],
        now: Option<Micros>,
    ) -> Vec<Result<ScriptReply, NodeError>> {
        match FastPathMessage::try_new(requests, now, |key_ref| self.key_names.key(key_ref)) {
            Some(message) => self.call_fast_path(conn, requests, &message, now).await,
            None => Box::pin(self.call_decide(conn, requests, now)).await,
        }
    }

    /// Runs the fast-path script, and the full script for the requests that it cannot decide.
    async fn call_fast_path(
        &self,
        conn: ConnIndex,
        requests: &[StoreRequest],
        message: &FastPathMessage,
        now: Option<Micros>,
    ) -> Vec<Result<ScriptReply, NodeError>> {
        let script = script::fast_path_script();
        let value = match self.run_script(conn, script, message.keys(), message.arguments()).await {
            Ok(value) => value,
            Err(error) => return vec![Err(error.into()); requests.len()],
        };
        let Ok(replies) = FastPathMessage::decode(&value, requests) else {
            return vec![Err(malformed_reply().into()); requests.len()];
        };
        let undecided = replies.iter().zip(requests).filter(|(reply, _)| reply.is_none());
        let undecided: Vec<_> = undecided.map(|(_, request)| request.clone()).collect();
        let mut fallbacks = match undecided.is_empty() {
            true => Vec::new(),
            false => Box::pin(self.call_decide(conn, &undecided, now)).await,
        }
        .into_iter();
        let outcome = replies.into_iter().map(|reply| match reply {
            Some(reply) => Ok(ScriptReply::Reply(reply)),
            None => fallbacks.next().unwrap_or_else(|| Err(malformed_reply().into())),
        });
        outcome.collect()
    }

    async fn call_decide(
        &self,
        conn: ConnIndex,
        requests: &[StoreRequest],
        now: Option<Micros>,
    ) -> Vec<Result<ScriptReply, NodeError>> {
        let mut message = Message::new(now.unwrap_or_else(|| self.wall_clock.now()));
        requests.iter().for_each(|request| message.add(request, |key_ref| self.key_names.key(key_ref)));
        message.append_foreign(&self.key_names.foreign_quotas());
        let script = script::decide_script(message.kinds());
        let bytes = message.encode(now);
        let value = match self.run_script(conn, script, message.keys(), [bytes.as_slice()]).await {
            Ok(value) => value,
            Err(error) => return vec![Err(error.into()); requests.len()],
        };
        let Ok(mut reader) = ReplyReader::new(&value) else {
            return vec![Err(malformed_reply().into()); requests.len()];
        };
        requests
            .iter()
            .map(|request| reader.read_next(request).map_err(|_| malformed_reply().into()))
            .collect()
    }

    /// Runs a script and returns its reply.
    async fn run_script<'a>(
        &self,
        conn: ConnIndex,
        script: &Script,
        keys: &[String],
        arguments: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Vec<u8>, StoreError> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script.hash());
        match self.key_passing {
            KeyPassing::Keys => command.arg(keys.len()).arg(keys),
            KeyPassing::Argv => command.arg(0),
        };
        arguments.into_iter().for_each(|argument| {
            command.arg(argument);
        });
        if self.key_passing == KeyPassing::Argv {
            command.arg(keys);
        }
        match self.send_eval(conn, script, &command).await.map_err(|error| self.convert_error(&error))? {
            Value::BulkString(bytes) => Ok(bytes),
            other => Err(StoreError::ErrorReply(format!("unexpected script reply: {other:?}"))),
        }
    }

    /// Sends an `EVALSHA`; on `NOSCRIPT` loads the script and sends it again, because it did not run.
    pub(super) async fn send_eval(
        &self,
        conn: ConnIndex,
        script: &Script,
        command: &Cmd,
    ) -> Result<Value, RedisError> {
        match self.send_on(conn, command).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                Box::pin(self.load_script(conn, script)).await?;
                Box::pin(self.send_on(conn, command)).await
            }
            other => other,
        }
    }

    async fn load_script(&self, conn: ConnIndex, script: &Script) -> Result<Value, RedisError> {
        self.send_on(conn, redis::cmd("SCRIPT").arg("LOAD").arg(script.text())).await
    }
}

pub(super) fn malformed_reply() -> StoreError {
    StoreError::ErrorReply("malformed script reply".to_owned())
}

/// The error of a cluster node when a script uses a key of another node.
const NON_LOCAL_KEY_ERROR: &str = "non local key";

/// Converts the script's reply to a request; a rejection names the keys.
pub(super) fn resolve_reply(
    outcome: Result<ScriptReply, NodeError>,
    keys: impl FnOnce() -> String,
) -> NodeResult {
    match outcome? {
        ScriptReply::Reply(reply) => Ok(reply),
        ScriptReply::UnknownTag(tag) => Err(NodeError::UnknownTag(tag)),
        ScriptReply::Error(cause) if cause.contains(NON_LOCAL_KEY_ERROR) => Err(NodeError::NotLocal),
        ScriptReply::Error(cause) => Err(StoreError::ErrorReply(format!("{cause}; key {}", keys())).into()),
    }
}
