//! A policy file that is changed by who serves it.

use super::{Call, Gateway, Handle};
use crate::{AmendError, Amended, PolicyFile};
use tidegate_policy::model::Enforcement;
use tokio::sync::oneshot;

/// What is to be changed.
#[derive(Debug)]
pub(super) enum Amendment {
    /// The mode of a rule.
    Mode(String, Enforcement),
    /// What was changed last: this one, where it matters which.
    RollBack(Option<u64>),
}

impl Gateway {
    /// Changes the policy file, and puts it in force. Where that fails the file is again as it was.
    pub(super) async fn amend(&mut self, amendment: Amendment) -> Result<Amended, AmendError> {
        let path = self.source.path().ok_or(AmendError::NoFile)?;
        let file = PolicyFile::at(path).by("api");
        let checked = file.clone().if_still(self.policy.clone());
        let amended = blocking(move || match amendment {
            Amendment::Mode(rule, to) => checked.set_mode(&rule, &to),
            Amendment::RollBack(id) => checked.roll_back(id).map(Amended::Changed),
        });
        let Amended::Changed(change) = amended.await? else { return Ok(Amended::Same) };
        match self.reload().await {
            Ok(_) => {
                tracing::info!("the policy was changed: {change}");
                Ok(Amended::Changed(change))
            }
            Err(error) => {
                let refused = error.to_string();
                blocking(move || Err(file.take_back(&change, refused))).await
            }
        }
    }
}

/// Does what waits for the disk, elsewhere.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, AmendError> + Send + 'static,
) -> Result<T, AmendError> {
    // It ends early only with the runtime.
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(AmendError::Gone))
}

impl Handle {
    /// Has a rule be in this mode: in the policy file, and in force.
    pub async fn set_mode(&self, rule: impl Into<String>, to: Enforcement) -> Result<Amended, AmendError> {
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
