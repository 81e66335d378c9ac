//! The files of a policy: digests of the content that was read, and a notification when it changes.
//!
//! ```text
//!   0.5 s pass ──▶ compare metadata ──differs──▶ settle ──▶ compare content ──differs──▶ changed
//!        ▲               │ same                  (0.1 s)          │ same
//!        └───────────────┴────────────────────────────────────────┘
//! ```
//!
//! Files are polled, which works for every way to replace a file and on file systems without events.

mod scan;

pub use scan::ReadFiles;

use crate::events;
use scan::{Digest, FileScan, FileStamp, ScanDepth};
use std::{collections::BTreeMap, path::PathBuf, pin::Pin, sync::Arc, time::Duration};
use tokio::{task::JoinHandle, time};

/// How long files must be unchanged before they are read.
const SETTLE_DELAY: Duration = Duration::from_millis(100);

/// The number of scans of constantly changing files before they are read anyway: about one second.
const MAX_SETTLE_SCANS: u32 = 10;

/// How often the metadata of files is compared.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Watches the content of files: [`changed`](Self::changed) returns once per burst of changes.
///
/// A file may be written, replaced, removed and created again, reached through symbolic links that are swapped, or not
/// exist yet. Removal is a change; a new modification time with the same content is not. Requires a tokio runtime with
/// timers.
///
/// ```no_run
/// # async fn example(path: &std::path::Path) {
/// use tidegate_policy::Policy;
/// use tidegate_http_server::{FileWatch, ReadFiles};
///
/// let files = ReadFiles::default();
/// let mut policy = Policy::read(path, &files);
/// let mut watch = FileWatch::new(&files);
/// loop {
///     watch.changed().await;
///     let files = ReadFiles::default();
///     policy = Policy::read(path, &files);
///     watch.watch(&files);
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct FileWatch {
    /// In the same order as `digests` and the results of a scan.
    paths: Arc<[PathBuf]>,
    digests: Vec<Digest>,
    /// The metadata of the last settled scan; `None` at first.
    stamps: Option<Vec<FileStamp>>,
    phase: WatchPhase,
    /// The scan in progress. It is reused after a cancellation, so that a hanging disk blocks at most one thread.
    scanning: Option<JoinHandle<FileScan>>,
}

#[derive(Debug)]
enum WatchPhase {
    /// A scan is due.
    Due,
    /// Waiting for the next poll.
    Idle { timer: PollTimer },
    /// Files are changing.
    Settling { timer: PollTimer, scans: u32, last: Vec<FileStamp> },
}

type PollTimer = Pin<Box<time::Sleep>>;

/// The result of one scan.
#[derive(Debug, PartialEq, Eq)]
enum ScanResult {
    Unchanged,
    Settling,
    Changed,
}

impl FileWatch {
    /// Watches the files that were read. A change since then is reported at once.
    pub fn new(files: &ReadFiles) -> Self {
        let (paths, digests) = split_files(files);
        Self { paths, digests, stamps: None, phase: WatchPhase::Due, scanning: None }
    }

    /// Replaces the watched files by those that were read now.
    pub fn watch(&mut self, files: &ReadFiles) {
        (self.paths, self.digests) = split_files(files);
        self.stamps = None;
        self.phase = WatchPhase::Due;
        self.scanning = None;
    }

    /// Waits until the content of a file differs from what was read and all files have settled: no change for 0.1 s, or 1 s
    /// of constant changes. Cancel safe.
    pub async fn changed(&mut self) {
        while self.next_scan().await != ScanResult::Changed {}
    }

    /// Waits until a scan is due, and scans.
    async fn next_scan(&mut self) -> ScanResult {
        self.wait().await;
        let depth = match self.phase {
            WatchPhase::Settling { .. } => ScanDepth::Content,
            _ => ScanDepth::Metadata,
        };
        let scan = self.scan(depth).await;
        let is_unchanged = self.stamps.as_ref() == Some(&scan.stamps);
        match &mut self.phase {
            WatchPhase::Settling { timer, scans, last }
                if *last != scan.stamps && *scans < MAX_SETTLE_SCANS =>
            {
                *timer = Box::pin(time::sleep(SETTLE_DELAY));
                *scans += 1;
                *last = scan.stamps;
                ScanResult::Settling
            }
            WatchPhase::Settling { .. } => {
                self.stamps = Some(scan.stamps);
                self.start_idle();
                match scan.digests {
                    Some(digests) if digests != self.digests => {
                        self.digests = digests;
                        ScanResult::Changed
                    }
                    _ => ScanResult::Unchanged,
                }
            }
            _ if is_unchanged => {
                self.start_idle();
                ScanResult::Unchanged
            }
            _ => {
                let timer = Box::pin(time::sleep(SETTLE_DELAY));
                self.phase = WatchPhase::Settling { timer, scans: 0, last: scan.stamps };
                ScanResult::Settling
            }
        }
    }

    async fn wait(&mut self) {
        match &mut self.phase {
            WatchPhase::Due => {}
            WatchPhase::Settling { timer, .. } => timer.await,
            WatchPhase::Idle { timer } => {
                timer.await;
                self.phase = WatchPhase::Due;
            }
        }
    }

    async fn scan(&mut self, depth: ScanDepth) -> FileScan {
        let scanning = self.scanning.get_or_insert_with(|| {
            let paths = self.paths.clone();
            tokio::task::spawn_blocking(move || scan::scan(&paths, depth))
        });
        let scan = scanning.await;
        self.scanning = None;
        scan.unwrap_or_else(|error| {
            events::FileScanFailed { error: &error }.emit();
            FileScan { stamps: self.stamps.clone().unwrap_or_default(), digests: None }
        })
    }

    fn start_idle(&mut self) {
        self.phase = WatchPhase::Idle { timer: Box::pin(time::sleep(POLL_INTERVAL)) };
    }
}

fn split_files(files: &ReadFiles) -> (Arc<[PathBuf]>, Vec<Digest>) {
    let files: BTreeMap<PathBuf, Digest> = files.digests();
    let (paths, digests): (Vec<_>, Vec<_>) = files.into_iter().unzip();
    (paths.into(), digests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        path::Path,
        time::{Duration, SystemTime},
    };
    use tidegate_policy::FileSource as _;

    /// Steps until the files are unchanged or a change is reported; returns the number of reported changes.
    async fn count_changes(watch: &mut FileWatch) -> usize {
        let mut changes = 0;
        let scans = async {
            loop {
                match watch.next_scan().await {
                    ScanResult::Unchanged => break,
                    ScanResult::Settling => {}
                    ScanResult::Changed => {
                        changes += 1;
                        break;
                    }
                }
            }
        };
        time::timeout(Duration::from_secs(20), scans).await.unwrap();
        changes
    }

    fn read(path: &Path) -> ReadFiles {
        let files = ReadFiles::default();
        let _ = files.read(path);
        files
    }

    #[tokio::test]
    async fn unchanged_content_is_not_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        fs::write(&path, "one").unwrap();
        let mut watch = FileWatch::new(&read(&path));
        assert_eq!(count_changes(&mut watch).await, 0);

        fs::write(folder.path().join("neighbour.yaml"), "other").unwrap();
        assert_eq!(count_changes(&mut watch).await, 0, "only another file was written");

        let file = fs::File::options().append(true).open(&path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(count_changes(&mut watch).await, 0, "only the modification time changed");

        fs::write(&path, "one").unwrap();
        assert_eq!(count_changes(&mut watch).await, 0, "the same content was written");

        fs::write(&path, "two").unwrap();
        assert_eq!(count_changes(&mut watch).await, 1);
        assert_eq!(count_changes(&mut watch).await, 0, "a change is reported once");
    }

    #[tokio::test]
    async fn change_after_read_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        fs::write(&path, "one").unwrap();
        let files = read(&path);
        fs::write(&path, "two").unwrap();
        let mut watch = FileWatch::new(&files);
        assert_eq!(count_changes(&mut watch).await, 1);

        let files = read(&path);
        fs::write(&path, "six").unwrap();
        watch.watch(&files);
        assert_eq!(count_changes(&mut watch).await, 1);
        assert_eq!(count_changes(&mut watch).await, 0);
    }

    #[tokio::test]
    async fn constantly_changing_file_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        fs::write(&path, "").unwrap();
        let mut watch = FileWatch::new(&read(&path));
        assert_eq!(count_changes(&mut watch).await, 0);
        let mut text = String::new();
        for scans in 0.. {
            assert!(scans < 2 * MAX_SETTLE_SCANS, "the change was never reported");
            text.push('x');
            fs::write(&path, &text).unwrap();
            match watch.next_scan().await {
                ScanResult::Changed => break,
                result => assert_eq!(result, ScanResult::Settling),
            }
        }
        assert!(text.len() > MAX_SETTLE_SCANS as usize, "the watch waited for the file to settle");
    }
}
