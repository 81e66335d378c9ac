//! Asks a gateway that runs to read its policy again, or to change it.

use crate::{ChangeResult, GatewayError, PolicyFileError};
use std::fmt;
use tidegate_policy::model::RuleEnforcement;
use tokio::sync::{mpsc, oneshot};

/// Asks a gateway that runs to do something. Clones ask the same one.
#[derive(Clone, Debug)]
pub struct GatewayHandle {
    commands: mpsc::Sender<GatewayCommand>,
}

/// What a gateway is asked to do, and whom to tell how that went.
#[derive(Debug)]
pub enum GatewayCommand {
    /// To read its policy again.
    Reload(oneshot::Sender<Result<ReloadScope, GatewayError>>),
    /// To change it.
    Change(PolicyChange, oneshot::Sender<Result<ChangeResult, PolicyFileError>>),
}

/// What is to be changed.
#[derive(Debug)]
pub enum PolicyChange {
    /// The mode of a rule.
    SetMode(String, RuleEnforcement),
    /// What was changed last: this one, where it matters which.
    RollBack(Option<u64>),
}

/// What a new policy has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadScope {
    /// Nothing but what is in the files of lists.
    Lists,
    /// Rules and routes; connections stay.
    Rules,
    /// What there is to connect to, too. Connections are taken over with their next request.
    Connections,
}

/// Calls that may wait.
const COMMAND_QUEUE_CAPACITY: usize = 16;

impl GatewayHandle {
    /// A handle, and where the gateway gets the calls.
    pub fn new() -> (Self, mpsc::Receiver<GatewayCommand>) {
        let (calls, received) = mpsc::channel(COMMAND_QUEUE_CAPACITY);
        (Self { commands: calls }, received)
    }

    /// Has the policy read again, and says what has changed. Where it is wrong, the one before stays in force.
    pub async fn reload(&self) -> Result<ReloadScope, GatewayError> {
        let (answer, answered) = oneshot::channel();
        let gone = GatewayError::Stopped;
        self.commands.send(GatewayCommand::Reload(answer)).await.map_err(|_| gone)?;
        answered.await.unwrap_or(Err(GatewayError::Stopped))
    }

    /// Has a rule be in this mode: in the policy file, and in force.
    pub async fn set_mode(
        &self,
        rule: impl Into<String>,
        to: RuleEnforcement,
    ) -> Result<ChangeResult, PolicyFileError> {
        self.change_policy(PolicyChange::SetMode(rule.into(), to)).await
    }

    /// Takes the last change of a mode back: this one, where it matters which.
    pub async fn roll_back(&self, id: Option<u64>) -> Result<ChangeResult, PolicyFileError> {
        self.change_policy(PolicyChange::RollBack(id)).await
    }

    async fn change_policy(&self, amendment: PolicyChange) -> Result<ChangeResult, PolicyFileError> {
        let (answer, answered) = oneshot::channel();
        self.commands
            .send(GatewayCommand::Change(amendment, answer))
            .await
            .map_err(|_| PolicyFileError::GatewayStopped)?;
        answered.await.unwrap_or(Err(PolicyFileError::GatewayStopped))
    }
}

impl fmt::Display for ReloadScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lists => "nothing but lists may have changed",
            Self::Rules => "rules and routes changed",
            Self::Connections => "connections changed, too, and are taken over one by one",
        })
    }
}
