//! The policy file of a program.

use tidegate_rule::{Connect, Rules};

#[cfg(feature = "policy")]
pub use file::{PolicyStatus, init, policy_status, reload};

/// Rules apart from those of the program, which connect to stores as those do: for tests, and for a program that serves
/// several others.
pub fn rules() -> Rules {
    connected(Rules::global()).sibling()
}

fn connected(rules: &Rules) -> &Rules {
    if let Some(connect) = CONNECT {
        rules.connect_by(connect);
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
    use super::connected;
    use std::{
        ops::ControlFlow,
        path::{Path, PathBuf},
        sync::{Mutex, MutexGuard, PoisonError},
    };
    use tidegate_policy::{
        Policy, PolicyFile, Problems, compile::Compiler, compile::PolicyError, poll_files,
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
        let mut file = PolicyFile::new(path.as_ref());
        file.load(apply)?;
        watch(file);
        Ok(())
    }

    /// Reads the policy file again, now; a program without one does nothing. A file with problems changes nothing.
    pub fn reload() -> Result<(), Problems> {
        active().as_mut().map_or(Ok(()), |file| file.load(apply))
    }

    /// The state of the policy file.
    pub fn policy_status() -> PolicyStatus {
        let file = active();
        PolicyStatus {
            applied: file.as_ref().map_or(0, PolicyFile::applied),
            path: file.as_ref().map(|file| file.path().to_owned()),
            error: file.as_ref().and_then(|file| file.error().map(str::to_owned)),
        }
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
        if active().is_some() {
            return;
        }
        let mut file = PolicyFile::new(path);
        let outcome = file.load(apply);
        PolicyFile::report(path, &outcome);
        watch(file);
    }

    fn apply(policy: &Policy) -> Result<(), PolicyError> {
        Compiler::new(connected(Rules::global()).clone()).apply(policy)
    }

    /// The policy file of this program.
    static ACTIVE: Mutex<Option<PolicyFile>> = Mutex::new(None);

    fn active() -> MutexGuard<'static, Option<PolicyFile>> {
        ACTIVE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(file: PolicyFile) {
        if active().replace(file).is_none() {
            poll_files(|| {
                poll();
                ControlFlow::Continue(())
            });
        }
    }

    /// Logs when nothing is locked: a log subscriber may ask for the status.
    fn poll() {
        let mut active = active();
        let Some(file) = active.as_mut() else { return };
        if !file.has_changed() {
            return;
        }
        let (path, outcome) = (file.path().to_owned(), file.load(apply));
        drop(active);
        PolicyFile::report(&path, &outcome);
    }
}

#[cfg(not(feature = "redis"))]
const CONNECT: Option<Connect> = None;

#[cfg(feature = "redis")]
const CONNECT: Option<Connect> = Some(|connection| {
    // The thread of stores ends with the process.
    let mut builder = tidegate_redis::RedisStore::builder().resident();
    if let Some(prefix) = connection.prefix {
        builder = builder.prefix(prefix);
    }
    if let Some(deadline) = connection.deadline {
        builder = builder.deadline(deadline);
    }
    Ok(std::sync::Arc::new(builder.open(connection.url)?))
});
