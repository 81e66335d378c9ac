//! One call: the script that is run, and what it says of each request.

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
    /// A call that nobody waits for any more when the server is as good as away.
    pub(super) async fn call_with_timeout(
        &self,
        conn: ConnIndex,
        requests: &[StoreRequest],
        now: Option<Micros>,
    ) -> Vec<NodeResult> {
        let patience = self.reply_timeout();
        match timeout(patience, self.call(conn, requests, now)).await {
            Ok(answers) => answers,
            Err(_) => {
                vec![
                    Err(StoreError::Unavailable(format!("no answer within {patience:?}")).into());
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
        match FastPathMessage::try_new(requests, now, |place| self.key_names.key(place)) {
            Some(express) => self.call_fast_path(conn, requests, &express, now).await,
            None => Box::pin(self.call_decide(conn, requests, now)).await,
        }
    }

    /// The short way, and the long one for those that turn out to need it.
    async fn call_fast_path(
        &self,
        conn: ConnIndex,
        requests: &[StoreRequest],
        express: &FastPathMessage,
        now: Option<Micros>,
    ) -> Vec<Result<ScriptReply, NodeError>> {
        let script = script::fast_path_script();
        let value = match self.run_script(conn, script, express.keys(), express.arguments()).await {
            Ok(value) => value,
            Err(error) => return vec![Err(error.into()); requests.len()],
        };
        let Ok(replies) = FastPathMessage::decode(&value, requests) else {
            return vec![Err(malformed_reply().into()); requests.len()];
        };
        let unusual = replies.iter().zip(requests).filter(|(reply, _)| reply.is_none());
        let unusual: Vec<_> = unusual.map(|(_, request)| request.clone()).collect();
        let mut fallbacks = match unusual.is_empty() {
            true => Vec::new(),
            false => Box::pin(self.call_decide(conn, &unusual, now)).await,
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
        let mut message = Message::default();
        requests.iter().for_each(|request| message.add(request, |place| self.key_names.key(place)));
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

    /// Runs a script. One that the server does not know has not run: it is loaded, and run then.
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
            other => Err(StoreError::Rejected(format!("an answer that is not ours: {other:?}"))),
        }
    }

    /// Sends what runs a script; one that the server does not know is loaded first.
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

    /// Tells the server a script.
    async fn load_script(&self, conn: ConnIndex, script: &Script) -> Result<Value, RedisError> {
        self.send_on(conn, redis::cmd("SCRIPT").arg("LOAD").arg(script.text())).await
    }
}

pub(super) fn malformed_reply() -> StoreError {
    StoreError::Rejected("an answer that cannot be read".to_owned())
}

/// What a node of a cluster says of a key that it does not have.
const NON_LOCAL_KEY_ERROR: &str = "non local key";

/// What a request is answered with; a refusal names its keys.
pub(super) fn resolve_reply(
    outcome: Result<ScriptReply, NodeError>,
    keys: impl FnOnce() -> String,
) -> NodeResult {
    match outcome? {
        ScriptReply::Reply(reply) => Ok(reply),
        ScriptReply::UnknownTag(tag) => Err(NodeError::UnknownTag(tag)),
        ScriptReply::Refused(cause) if cause.contains(NON_LOCAL_KEY_ERROR) => Err(NodeError::NotLocal),
        ScriptReply::Refused(cause) => Err(StoreError::Rejected(format!("{cause}; key {}", keys())).into()),
    }
}
