//! The policy file of a program.

use tidegate_rule::{ConnectStore, Rules};

#[cfg(feature = "policy")]
pub use file::{PolicyStatus, features, init, policy_status, reload};

/// Returns rules that are separate from the global ones but connect to stores in the same way, for tests and for programs
/// with several sets of rules.
pub fn rules() -> Rules {
    with_connector(Rules::global()).with_same_connect()
}

fn with_connector(rules: &Rules) -> &Rules {
    if let Some(connect) = STORE_CONNECTOR {
        rules.set_connect(connect);
    }
    rules
}

/// The functions that attributes expand to.
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
    use tidegate_overload::Features;
    use tidegate_policy::{
        Policy, Problems, WatchedPolicyFile, compile::Compiler, compile::PolicyError, poll_files,
    };
    use tidegate_rule::Rules;

    /// Applies a policy file to all attributes and layers of this program, and reapplies it when the file changes.
    ///
    /// ```no_run
    /// tidegate::init("policy.yaml")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A rule of the file replaces the declaration of the attribute with its name: the mode, store, failure-mode and wait,
    /// and, if the rule has them, the quotas, message, capacity and breaker. A rule without an attribute is ignored,
    /// because the same file can configure a gateway. Without a file, all limits are in memory, as declared in code.
    ///
    /// Attributes are registered by their first call. If the rule of an attribute that is first called later is invalid
    /// for it, the problem is logged then, and the attribute stays as declared. An unavailable store is not an error;
    /// `failure-mode` applies until it is available.
    ///
    /// When the file changes, it is reloaded, and counters are retained. The problems of an invalid file are logged, and the
    /// previous policy stays in force.
    ///
    /// A program that does not call this function loads the file in the environment variable `TIDEGATE_POLICY` when the
    /// first function with an attribute is called.
    ///
    /// # Errors
    ///
    /// Returns the problems of an invalid file, each with the line, the column and the fix as `tidegate check` prints them,
    /// and rules that are invalid for their attributes. Nothing changes then.
    pub fn init(path: impl AsRef<Path>) -> Result<(), Problems> {
        let mut active = lock_active();
        let mut file = WatchedPolicyFile::new(path.as_ref());
        file.load(apply)?;
        watch(&mut active, file);
        Ok(())
    }

    /// Reloads the policy file immediately. Does nothing in a program without one.
    ///
    /// # Errors
    ///
    /// Returns the problems of an invalid file. Nothing changes then.
    pub fn reload() -> Result<(), Problems> {
        let mut active = lock_active();
        let Some(file) = active.as_mut() else { return Ok(()) };
        let outcome = file.load(apply);
        update_status(file);
        outcome
    }

    /// Returns the state of the policy file.
    pub fn policy_status() -> PolicyStatus {
        lock_status().clone()
    }

    /// The state of the policy file.
    #[derive(Clone, Debug)]
    #[non_exhaustive]
    pub struct PolicyStatus {
        /// The number of times that the file was applied.
        pub applied: u64,
        /// The path; `None` for a program without a policy file.
        pub path: Option<PathBuf>,
        /// The problems of the last content; `None` if it was applied.
        pub error: Option<String>,
    }

    /// Loads the file in the environment variable, unless the program has loaded one. An invalid file is watched, too.
    pub(super) fn load(path: &Path) {
        // The lock is in use only while the program itself loads a file.
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

    /// The features of the policy file, to turn them on and off by hand.
    pub fn features() -> Features {
        FEATURES.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
    }

    fn apply(policy: &Policy) -> Result<(), PolicyError> {
        let compiler = Compiler::new(with_connector(Rules::global()).clone());
        let applied = compiler.apply_after(policy, &features())?;
        *FEATURES.lock().unwrap_or_else(PoisonError::into_inner) = Some(applied);
        Ok(())
    }

    static FEATURES: Mutex<Option<Features>> = Mutex::new(None);

    /// The policy file of this program. Locked while a file is loaded, so that files are applied in order.
    static ACTIVE: Mutex<Option<WatchedPolicyFile>> = Mutex::new(None);
    /// Locked only for copying, because a log subscriber may read the status while a file is loaded.
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

    /// Reloads the file if it has changed. Logs after the lock is released.
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
