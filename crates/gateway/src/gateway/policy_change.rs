//! Changes by operators: of the policy file, and of features.

use super::Gateway;
use crate::events;
use tidegate_admin::{
    ChangeResult, FeatureChange, FeatureError, PolicyChange, PolicyFile, PolicyFileEdit, PolicyFileError,
};
use tidegate_overload::FeatureStatus;

impl Gateway {
    /// Changes the policy file, and puts it in force. If that fails, the file is restored.
    pub(super) async fn change_policy(
        &mut self,
        change: PolicyChange,
    ) -> Result<ChangeResult, PolicyFileError> {
        let path = self.source.path().ok_or(PolicyFileError::NoFile)?;
        let file = PolicyFile::new(path).with_author(&*change.author);
        let checked = file.clone().if_unchanged(self.policy.clone());
        let changed = run_blocking(move || match change.edit {
            PolicyFileEdit::Set(setting) => checked.set(&setting),
            PolicyFileEdit::RollBack(id) => checked.roll_back(id).map(ChangeResult::Changed),
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

    /// Sets or clears the override of a feature. A reload takes the overrides of the gate over, so both run on one task.
    pub(super) fn set_feature(&mut self, change: &FeatureChange) -> Result<FeatureStatus, FeatureError> {
        let features = self.gate.features();
        features.set_override(&change.feature, change.to).map_err(FeatureError::Unknown)?;
        let status = features.status(&change.feature).map_err(FeatureError::Unknown)?;
        self.overload_log.record(&change.feature, status.off_cause);
        events::FeatureOverridden { change }.emit();
        Ok(status)
    }
}

/// Runs file operations on a blocking thread.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PolicyFileError> + Send + 'static,
) -> Result<T, PolicyFileError> {
    // A blocking task is canceled only when the runtime shuts down.
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(PolicyFileError::GatewayStopped))
}
