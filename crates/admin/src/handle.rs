//! A handle to a running gateway: reloads the policy, or changes it.

use crate::{ChangeResult, GatewayError, PolicyFileError, RuleSetting};
use std::{fmt, sync::Arc};
use tidegate_core::SettingError;
use tidegate_overload::{FeatureOverride, FeatureStatus};
use tokio::sync::{mpsc, oneshot};

/// Sends commands to a running gateway. Clones send to the same gateway.
#[derive(Clone, Debug)]
pub struct GatewayHandle {
    commands: mpsc::Sender<GatewayCommand>,
}

/// A command to a gateway, with the sender of the reply.
#[derive(Debug)]
pub enum GatewayCommand {
    /// Reload the policy.
    Reload(oneshot::Sender<Result<ReloadScope, GatewayError>>),
    /// Change the policy.
    Change(PolicyChange, oneshot::Sender<Result<ChangeResult, PolicyFileError>>),
    /// Set the override of a feature.
    SetFeature(FeatureChange, oneshot::Sender<Result<FeatureStatus, FeatureError>>),
}

/// A change of the policy, and who makes it.
#[derive(Debug)]
pub struct PolicyChange {
    /// The author, in the history.
    pub author: Arc<str>,
    /// The change.
    pub edit: PolicyFileEdit,
}

/// A change of the policy file.
#[derive(Debug)]
pub enum PolicyFileEdit {
    /// Set a value of a rule.
    Set(RuleSetting),
    /// Revert the last change; with an id, only if the last change has this id.
    RollBack(Option<u64>),
}

/// A change of the override of a feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureChange {
    /// The name of the feature.
    pub feature: String,
    /// The override.
    pub to: FeatureOverride,
    /// Why, for the log.
    pub reason: Option<String>,
    /// Who, for the log.
    pub author: Arc<str>,
}

/// The override of a feature cannot be set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FeatureError {
    /// The policy has no such feature.
    #[error("{0}")]
    Unknown(#[source] SettingError),
    /// The gateway has stopped.
    #[error("gateway stopped")]
    GatewayStopped,
}

/// The scope of a policy reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadScope {
    /// Only the files of lists.
    Lists,
    /// Rules and routes; connections are unchanged.
    Rules,
    /// Listeners or upstreams too. Connections move to the new ones with their next request.
    Connections,
}

/// The maximum number of queued commands.
const COMMAND_QUEUE_CAPACITY: usize = 16;

impl GatewayHandle {
    /// Creates a handle, and the receiver of its commands.
    pub fn new() -> (Self, mpsc::Receiver<GatewayCommand>) {
        let (commands, receiver) = mpsc::channel(COMMAND_QUEUE_CAPACITY);
        (Self { commands }, receiver)
    }

    /// Reloads the policy, and returns the scope of the change. An invalid policy leaves the previous one in force.
    pub async fn reload(&self) -> Result<ReloadScope, GatewayError> {
        let (reply, response) = oneshot::channel();
        let stopped = GatewayError::Stopped;
        self.commands.send(GatewayCommand::Reload(reply)).await.map_err(|_| stopped)?;
        response.await.unwrap_or(Err(GatewayError::Stopped))
    }

    /// Changes the policy file, and puts it in force.
    pub async fn change_policy(&self, change: PolicyChange) -> Result<ChangeResult, PolicyFileError> {
        let (reply, response) = oneshot::channel();
        self.commands
            .send(GatewayCommand::Change(change, reply))
            .await
            .map_err(|_| PolicyFileError::GatewayStopped)?;
        response.await.unwrap_or(Err(PolicyFileError::GatewayStopped))
    }

    /// Sets or clears the override of a feature, in all workers and until it is set again or the gateway stops. Returns the
    /// state of the feature.
    pub async fn set_feature(&self, change: FeatureChange) -> Result<FeatureStatus, FeatureError> {
        let (reply, response) = oneshot::channel();
        let stopped = FeatureError::GatewayStopped;
        self.commands.send(GatewayCommand::SetFeature(change, reply)).await.map_err(|_| stopped)?;
        response.await.unwrap_or(Err(FeatureError::GatewayStopped))
    }
}

impl fmt::Display for ReloadScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lists => "lists reloaded",
            Self::Rules => "rules and routes reloaded",
            Self::Connections => "rules, routes, listeners and upstreams reloaded",
        })
    }
}
