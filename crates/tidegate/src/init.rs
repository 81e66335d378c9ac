//! The policy file of a program.

use tidegate_rule::{ConnectStore, Rules};

#[cfg(feature = "policy")]
pub use file::{PolicyStatus, init, policy_status, reload};

/// Rules apart from those of the program, which connect to stores as those do: for tests, and for a program that serves
/// several others.
pub fn rules() -> Rules {
    with_connector(Rules::global()).with_same_connect()
}

fn with_connector(rules: &Rules) -> &Rules {
    if let Some(connect) = STORE_CONNECTOR {
        rules.set_connect(connect);
    }
    rules
}

/// What attributes expand to.
pub mod site {
    pub use tidegate_rule::site::*;

    /// Loads the policy file that the environment names, once, before the first attribute declares its rule.
    pub fn load_policy() {
        #[cfg(feature = "policy")]
        tidegate_rule::site::load_policy(Some(super::file::load));
        #[cfg(not(feature = "policy"))]
        tidegate_rule::site::load_policy(None);
    }
}

#[cfg(feature = "policy")]
mod file {
    use super::with_connector;
    use std::{
        ops::ControlFlow,
        path::{Path, PathBuf},
        sync::{Mutex, MutexGuard, PoisonError},
    };
    use tidegate_policy::{
        Policy, Problems, WatchedPolicyFile, compile::Compiler, compile::PolicyError, poll_files,
    };
    use tidegate_rule::Rules;

    /// Applies a policy file to all attributes and layers of this program, and again whenever the file changes.
    ///
    /// ```no_run
    /// tidegate::init("policy.yaml")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A rule of the file replaces what the attribute with its name declares: the quotas if it has some, the mode, store,
    /// on-outage and wait, and the message, capacity and breaker if it has one. A rule that no attribute has is for
    /// somebody else: the same file drives a gateway. Without a file everything is counted in memory, as code declares it.
    ///
    /// A file with problems is an error that changes nothing, with the line, the column and the fix of each as
    /// `tidegate check` prints them; so is a rule that an attribute cannot honour. Attributes are known from their first
    /// call on: what one cannot honour that is first called later is logged then, and it stays as declared. An unreachable
    /// store is not an error: until it is reached, `on-outage` decides.
    ///
    /// The file is read again when it changes. Counters are kept. A file with problems is logged, and the previous policy
    /// stays.
    ///
    /// A program that does not call this loads the file that the environment variable `TIDEGATE_POLICY` names, when the
    /// first function with an attribute is called.
    pub fn init(path: impl AsRef<Path>) -> Result<(), Problems> {
        let mut active = lock_active();
        let mut file = WatchedPolicyFile::new(path.as_ref());
        file.load(apply)?;
        watch(&mut active, file);
        Ok(())
    }

    /// Reads the policy file again, now; a program without one does nothing. A file with problems changes nothing.
    pub fn reload() -> Result<(), Problems> {
        let mut active = lock_active();
        let Some(file) = active.as_mut() else { return Ok(()) };
        let outcome = file.load(apply);
        update_status(file);
        outcome
    }

    /// The state of the policy file.
    pub fn policy_status() -> PolicyStatus {
        lock_status().clone()
    }

    /// The state of the policy file.
    #[derive(Clone, Debug)]
    #[non_exhaustive]
    pub struct PolicyStatus {
        /// How often it was applied.
        pub applied: u64,
        /// Its path; `None` for a program without one.
        pub path: Option<PathBuf>,
        /// Why its last content was rejected; `None` if it was applied.
        pub error: Option<String>,
    }

    /// Loads the file that the environment names, unless the program named one. One with problems is watched, too.
    pub(super) fn load(path: &Path) {
        // Locked only while the program loads a file that it named.
        let Ok(mut active) = ACTIVE.try_lock() else { return };
        if active.is_some() {
            return;
        }
        let mut file = WatchedPolicyFile::new(path);
        let outcome = file.load(apply);
        watch(&mut active, file);
        drop(active);
        WatchedPolicyFile::log_reload(path, &outcome);
    }

    fn apply(policy: &Policy) -> Result<(), PolicyError> {
        Compiler::new(with_connector(Rules::global()).clone()).apply(policy)
    }

    /// The policy file of this program. Locked while it is loaded, so that files are applied one after the other.
    static ACTIVE: Mutex<Option<WatchedPolicyFile>> = Mutex::new(None);
    /// Locked only to copy: a log subscriber may ask for the status while a file is loaded.
    static STATUS: Mutex<PolicyStatus> = Mutex::new(PolicyStatus { applied: 0, path: None, error: None });

    fn lock_active() -> MutexGuard<'static, Option<WatchedPolicyFile>> {
        ACTIVE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_status() -> MutexGuard<'static, PolicyStatus> {
        STATUS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update_status(file: &WatchedPolicyFile) {
        let (applied, path) = (file.applied_count(), Some(file.path().to_owned()));
        *lock_status() = PolicyStatus { applied, path, error: file.error().map(str::to_owned) };
    }

    fn watch(active: &mut Option<WatchedPolicyFile>, file: WatchedPolicyFile) {
        update_status(&file);
        if active.replace(file).is_none() {
            poll_files(|| {
                reload_if_changed();
                ControlFlow::Continue(())
            });
        }
    }

    /// Reloads the file if it has changed, and logs when nothing is locked.
    fn reload_if_changed() {
        let mut active = lock_active();
        let Some(file) = active.as_mut() else { return };
        if !file.has_changed() {
            return;
        }
        let (path, outcome) = (file.path().to_owned(), file.load(apply));
        update_status(file);
        drop(active);
        WatchedPolicyFile::log_reload(&path, &outcome);
    }
}

#[cfg(not(feature = "redis"))]
const STORE_CONNECTOR: Option<ConnectStore> = None;

#[cfg(feature = "redis")]
const STORE_CONNECTOR: Option<ConnectStore> = Some(|connection| {
    // The thread of stores ends with the process.
    let mut builder = tidegate_redis::RedisStore::builder().bind_to_runtime();
    if let Some(prefix) = connection.prefix {
        builder = builder.prefix(prefix);
    }
    if let Some(deadline) = connection.deadline {
        builder = builder.deadline(deadline);
    }
    Ok(std::sync::Arc::new(builder.open(connection.url)?))
});
