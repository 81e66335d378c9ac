//! Changes of the policy file by the gateway that serves it.

use super::Gateway;
use crate::events;
use tidegate_admin::{ChangeResult, PolicyChange, PolicyFile, PolicyFileError};

impl Gateway {
    /// Changes the policy file, and puts it in force. If that fails, the file is restored.
    pub(super) async fn change_policy(
        &mut self,
        change: PolicyChange,
    ) -> Result<ChangeResult, PolicyFileError> {
        let path = self.source.path().ok_or(PolicyFileError::NoFile)?;
        let file = PolicyFile::new(path).with_author("api");
        let checked = file.clone().if_unchanged(self.policy.clone());
        let changed = run_blocking(move || match change {
            PolicyChange::SetMode(rule, to) => checked.set_mode(&rule, &to),
            PolicyChange::RollBack(id) => checked.roll_back(id).map(ChangeResult::Changed),
        });
        let ChangeResult::Changed(change) = changed.await? else { return Ok(ChangeResult::Unchanged) };
        match self.reload().await {
            Ok(_) => {
                events::PolicyChanged { change: &change }.emit();
                Ok(ChangeResult::Changed(change))
            }
            Err(error) => {
                let reason = error.to_string();
                run_blocking(move || Err(file.restore(&change, reason))).await
            }
        }
    }
}

/// Runs file operations on a blocking thread.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PolicyFileError> + Send + 'static,
) -> Result<T, PolicyFileError> {
    // A blocking task is canceled only when the runtime shuts down.
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(PolicyFileError::GatewayStopped))
}
