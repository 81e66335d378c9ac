//! A policy file that is reloaded when its content changes.
//!
//! ```text
//!   every 0.25 s ─▶ compare content ──changed, and stable since──▶ read ─▶ apply, or log and keep the previous policy
//!        ▲                │ same                                               │
//!        └────────────────┴────────────────────────────────────────────────────┘
//! ```
//!
//! Files are compared by content, not by modification time or events: editors replace files, Kubernetes swaps links, and
//! events are unreliable on network drives and in containers.

use crate::{
    compile::{Compiler, LivePolicy, PolicyError},
    document::Document,
    events,
    model::Policy,
    problem::Problems,
    source::{DiskFiles, FileSource as _},
};
use std::{
    cell::RefCell,
    collections::BTreeMap,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

/// The interval between comparisons.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// A policy file with the last content of it, of the files that it includes, and of its lists.
#[derive(Debug)]
pub struct WatchedPolicyFile {
    path: PathBuf,
    contents: FileContents,
    /// A change that may be incomplete.
    pending_contents: Option<FileContents>,
    applied_count: u64,
    error: Option<String>,
}

/// `None` for a file that cannot be read.
type FileContents = BTreeMap<PathBuf, Option<Vec<u8>>>;

impl WatchedPolicyFile {
    /// A file that is not read yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            contents: FileContents::new(),
            pending_contents: None,
            applied_count: 0,
            error: None,
        }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of times that the file was applied.
    pub fn applied_count(&self) -> u64 {
        self.applied_count
    }

    /// The reason why the last content was rejected; `None` if it was applied.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Reads the file and applies it with `apply`. Problems have their position in the file.
    pub fn load<T>(&mut self, apply: impl FnOnce(&Policy) -> Result<T, PolicyError>) -> Result<T, Problems> {
        let content = RefCell::new(FileContents::new());
        let read = |path: &Path| {
            let read = DiskFiles.read(path);
            content.borrow_mut().insert(path.to_owned(), read.as_ref().ok().cloned());
            read
        };
        let document = Document::read(&self.path, &read);
        if let Ok(document) = &document {
            document.policy().files().for_each(|file| drop(read(file)));
        }
        (self.contents, self.pending_contents) = (content.into_inner(), None);
        let outcome = document
            .and_then(|document| apply(document.policy()).map_err(|error| document.policy_problems(&error)));
        self.applied_count += u64::from(outcome.is_ok());
        self.error = outcome.as_ref().err().map(ToString::to_string);
        outcome
    }

    /// Whether the content differs from the last read one, and is the same as at the previous call. A file that is still being
    /// written has not changed.
    pub fn has_changed(&mut self) -> bool {
        let now: FileContents =
            self.contents.keys().map(|path| (path.clone(), DiskFiles.read(path).ok())).collect();
        let change = (now != self.contents).then_some(now);
        let is_settled = change.is_some() && change == self.pending_contents;
        self.pending_contents = change;
        is_settled
    }

    /// Logs the outcome of a reload.
    pub fn log_reload(path: &Path, outcome: &Result<(), Problems>) {
        match outcome {
            Ok(()) => events::PolicyFileReloaded { path }.emit(),
            Err(error) => events::PolicyFileRejected { path, error }.emit(),
        }
    }
}

impl LivePolicy {
    /// Applies the policy of a file to a service, and again whenever the file changes, until the policy is dropped. A file with
    /// problems is an error now; later the problems are logged, and the previous policy stays active.
    pub fn from_file(path: impl Into<PathBuf>, compiler: Compiler) -> Result<Arc<Self>, Problems> {
        let mut file = WatchedPolicyFile::new(path);
        let live = file.load(|policy| {
            let live = Self::new(compiler, policy)?;
            live.forbid_gateway_fallbacks()?;
            Ok(Arc::new(live))
        })?;
        let weak = Arc::downgrade(&live);
        poll_files(move || {
            let Some(live) = weak.upgrade() else { return ControlFlow::Break(()) };
            if file.has_changed() {
                let outcome = file.load(|policy| live.replace(policy));
                WatchedPolicyFile::log_reload(&file.path, &outcome);
            }
            ControlFlow::Continue(())
        });
        Ok(live)
    }
}

/// Calls `poll` four times per second on a separate thread, until it returns [`ControlFlow::Break`].
pub fn poll_files(mut poll: impl FnMut() -> ControlFlow<()> + Send + 'static) {
    let watch = move || {
        while poll().is_continue() {
            thread::park_timeout(POLL_INTERVAL);
        }
    };
    if let Err(error) = thread::Builder::new().name("tidegate-policy".to_owned()).spawn(watch) {
        events::PolicyWatchFailed { error: &error }.emit();
    }
}
