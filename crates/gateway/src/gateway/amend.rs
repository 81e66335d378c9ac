//! A policy file that is changed by who serves it.

use super::Gateway;
use tidegate_admin::{AmendError, Amended, Amendment, PolicyFile};

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
