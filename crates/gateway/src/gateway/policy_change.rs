//! A policy file that is changed by who serves it.

use super::Gateway;
use tidegate_admin::{ChangeResult, PolicyChange, PolicyFile, PolicyFileError};

impl Gateway {
    /// Changes the policy file, and puts it in force. Where that fails the file is again as it was.
    pub(super) async fn change_policy(
        &mut self,
        amendment: PolicyChange,
    ) -> Result<ChangeResult, PolicyFileError> {
        let path = self.source.path().ok_or(PolicyFileError::NoFile)?;
        let file = PolicyFile::new(path).with_author("api");
        let checked = file.clone().if_unchanged(self.policy.clone());
        let amended = run_blocking(move || match amendment {
            PolicyChange::SetMode(rule, to) => checked.set_mode(&rule, &to),
            PolicyChange::RollBack(id) => checked.roll_back(id).map(ChangeResult::Changed),
        });
        let ChangeResult::Changed(change) = amended.await? else { return Ok(ChangeResult::Unchanged) };
        match self.reload().await {
            Ok(_) => {
                tracing::info!("the policy was changed: {change}");
                Ok(ChangeResult::Changed(change))
            }
            Err(error) => {
                let refused = error.to_string();
                run_blocking(move || Err(file.restore(&change, refused))).await
            }
        }
    }
}

/// Does what waits for the disk, elsewhere.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PolicyFileError> + Send + 'static,
) -> Result<T, PolicyFileError> {
    // It ends early only with the runtime.
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(PolicyFileError::GatewayStopped))
}
