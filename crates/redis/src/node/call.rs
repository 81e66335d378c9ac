//! One call: the script that is run, and what it says of each request.

use super::{Answered, Keys, Lane, Node, Problem};
use crate::{
    message::{Express, Message, Reader, Said},
    script::{self, Script},
};
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tidegate_core::Micros;
use tidegate_limiter::{StoreError, store::StoreRequest};
use tokio::time::timeout;

impl Node {
    /// A call that nobody waits for any more when the server is as good as away.
    pub(super) async fn call_in_time(
        &self,
        lane: Lane,
        requests: &[StoreRequest],
        now: Option<Micros>,
    ) -> Vec<Answered> {
        let patience = self.patience();
        match timeout(patience, self.call(lane, requests, now)).await {
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
        lane: Lane,
        requests: &[StoreRequest],
        now: Option<Micros>,
    ) -> Vec<Answered> {
        let said = self.call_once(lane, requests, now).await;
        said.into_iter().zip(requests).map(|(said, request)| settle(said, || self.keys_of(request))).collect()
    }

    async fn call_once(
        &self,
        lane: Lane,
        requests: &[StoreRequest],
        now: Option<Micros>,
    ) -> Vec<Result<Said, Problem>> {
        match Express::of(requests, now, |place| self.names.key(place)) {
            Some(express) => self.call_express(lane, requests, &express, now).await,
            None => Box::pin(self.call_whole(lane, requests, now)).await,
        }
    }

    /// The short way, and the long one for those that turn out to need it.
    async fn call_express(
        &self,
        lane: Lane,
        requests: &[StoreRequest],
        express: &Express,
        now: Option<Micros>,
    ) -> Vec<Result<Said, Problem>> {
        let script = script::express();
        let value = match self.run(lane, script, express.keys(), express.arguments()).await {
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
            false => Box::pin(self.call_whole(lane, &unusual, now)).await,
        }
        .into_iter();
        let said = replies.into_iter().map(|reply| match reply {
            Some(reply) => Ok(Said::Reply(reply)),
            None => heard.next().unwrap_or_else(|| Err(garbled().into())),
        });
        said.collect()
    }

    async fn call_whole(
        &self,
        lane: Lane,
        requests: &[StoreRequest],
        now: Option<Micros>,
    ) -> Vec<Result<Said, Problem>> {
        let mut message = Message::default();
        requests.iter().for_each(|request| message.add(request, |place| self.names.key(place)));
        message.introduce(&self.names.strangers());
        let script = script::for_kinds(message.kinds());
        let bytes = message.bytes(now);
        let value = match self.run(lane, script, message.keys(), [bytes.as_slice()]).await {
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
        lane: Lane,
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
        match self.evaluate(lane, script, &command).await.map_err(|error| self.explain(&error))? {
            Value::BulkString(bytes) => Ok(bytes),
            other => Err(StoreError::Rejected(format!("an answer that is not ours: {other:?}"))),
        }
    }

    /// Sends what runs a script; one that the server does not know is loaded first.
    pub(super) async fn evaluate(
        &self,
        lane: Lane,
        script: &Script,
        command: &Cmd,
    ) -> Result<Value, RedisError> {
        match self.send_on(lane, command).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                Box::pin(self.load(lane, script)).await?;
                Box::pin(self.send_on(lane, command)).await
            }
            other => other,
        }
    }

    /// Tells the server a script.
    async fn load(&self, lane: Lane, script: &Script) -> Result<Value, RedisError> {
        self.send_on(lane, redis::cmd("SCRIPT").arg("LOAD").arg(script.text())).await
    }
}

pub(super) fn garbled() -> StoreError {
    StoreError::Rejected("an answer that cannot be read".to_owned())
}

/// What a node of a cluster says of a key that it does not have.
const NOT_LOCAL: &str = "non local key";

/// What a request is answered with; a refusal names its keys.
pub(super) fn settle(said: Result<Said, Problem>, keys: impl FnOnce() -> String) -> Answered {
    match said? {
        Said::Reply(reply) => Ok(reply),
        Said::Stranger(tag) => Err(Problem::Stranger(tag)),
        Said::Refused(why) if why.contains(NOT_LOCAL) => Err(Problem::Elsewhere),
        Said::Refused(why) => Err(StoreError::Rejected(format!("{why}; key {}", keys())).into()),
    }
}
