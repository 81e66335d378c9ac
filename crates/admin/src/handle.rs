//! Asks a gateway that runs to read its policy again, or to change it.

use crate::{AmendError, Amended, GatewayError};
use std::fmt;
use tidegate_policy::model::RuleEnforcement;
use tokio::sync::{mpsc, oneshot};

/// Asks a gateway that runs to do something. Clones ask the same one.
#[derive(Clone, Debug)]
pub struct Handle {
    calls: mpsc::Sender<Call>,
}

/// What a gateway is asked to do, and whom to tell how that went.
#[derive(Debug)]
pub enum Call {
    /// To read its policy again.
    Reload(oneshot::Sender<Result<Reloaded, GatewayError>>),
    /// To change it.
    Amend(Amendment, oneshot::Sender<Result<Amended, AmendError>>),
}

/// What is to be changed.
#[derive(Debug)]
pub enum Amendment {
    /// The mode of a rule.
    Mode(String, RuleEnforcement),
    /// What was changed last: this one, where it matters which.
    RollBack(Option<u64>),
}

/// What a new policy has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reloaded {
    /// Nothing but what is in the files of lists.
    Lists,
    /// Rules and routes; connections stay.
    Rules,
    /// What there is to connect to, too. Connections are taken over with their next request.
    Connections,
}

/// Calls that may wait.
const CALLS: usize = 16;

impl Handle {
    /// A handle, and where the gateway gets the calls.
    pub fn new() -> (Self, mpsc::Receiver<Call>) {
        let (calls, received) = mpsc::channel(CALLS);
        (Self { calls }, received)
    }

    /// Has the policy read again, and says what has changed. Where it is wrong, the one before stays in force.
    pub async fn reload(&self) -> Result<Reloaded, GatewayError> {
        let (answer, answered) = oneshot::channel();
        let gone = GatewayError::Gone;
        self.calls.send(Call::Reload(answer)).await.map_err(|_| gone)?;
        answered.await.unwrap_or(Err(GatewayError::Gone))
    }

    /// Has a rule be in this mode: in the policy file, and in force.
    pub async fn set_mode(
        &self,
        rule: impl Into<String>,
        to: RuleEnforcement,
    ) -> Result<Amended, AmendError> {
        self.amend(Amendment::Mode(rule.into(), to)).await
    }

    /// Takes the last change of a mode back: this one, where it matters which.
    pub async fn roll_back(&self, id: Option<u64>) -> Result<Amended, AmendError> {
        self.amend(Amendment::RollBack(id)).await
    }

    async fn amend(&self, amendment: Amendment) -> Result<Amended, AmendError> {
        let (answer, answered) = oneshot::channel();
        self.calls.send(Call::Amend(amendment, answer)).await.map_err(|_| AmendError::Gone)?;
        answered.await.unwrap_or(Err(AmendError::Gone))
    }
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lists => "nothing but lists may have changed",
            Self::Rules => "rules and routes changed",
            Self::Connections => "connections changed, too, and are taken over one by one",
        })
    }
}
