//! The files of a policy: what was read of them, and a notification when their content changes.
//!
//! ```text
//!   0.5 s pass ──▶ compare metadata ──differs──▶ settle ──▶ compare content ──differs──▶ changed
//!        ▲               │ same                  (0.1 s)          │ same
//!        └───────────────┴────────────────────────────────────────┘
//! ```
//!
//! Files are polled. So it does not matter how a file is replaced, nor whether its file system sends events.

mod scan;

pub use scan::ReadFiles;

use scan::{Digest, FileScan, FileStamp, ScanDepth};
use std::{collections::BTreeMap, path::PathBuf, pin::Pin, sync::Arc, time::Duration};
use tokio::{task::JoinHandle, time};

/// How long files have to be left alone before they are read.
const SETTLE_DELAY: Duration = Duration::from_millis(100);

/// Looks at files that go on changing, before they are read as they are: a second's worth.
const MAX_SETTLE_SCANS: u32 = 10;

/// How often the metadata of files is compared.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Watches files for what they say: [`changed`](Self::changed) tells once for each burst of changes.
///
/// A file may be written to, replaced by another, removed and made anew, be reached through links that are swapped, or not
/// be there yet. One that is touched and says the same has not changed; one that is removed has. To be used in a runtime
/// of tokio with its timers.
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
    /// In the order of `digests` and of what a look finds.
    paths: Arc<[PathBuf]>,
    digests: Vec<Digest>,
    /// How they looked when they were last at rest; unknown to begin with.
    stamps: Option<Vec<FileStamp>>,
    phase: WatchPhase,
    /// A look that is under way. It is kept, so that a disk that hangs holds up one thread and no more.
    scanning: Option<JoinHandle<FileScan>>,
}

#[derive(Debug)]
enum WatchPhase {
    /// Time to look.
    Due,
    /// Nothing to do until the next poll.
    Idle { timer: PollTimer },
    /// Something changes.
    Settling { timer: PollTimer, scans: u32, last: Vec<FileStamp> },
}

type PollTimer = Pin<Box<time::Sleep>>;

/// What came of one look.
#[derive(Debug, PartialEq, Eq)]
enum WatchStep {
    Unchanged,
    Settling,
    Changed,
}

impl FileWatch {
    /// Watches what was read. What has changed since then is told of at once.
    pub fn new(files: &ReadFiles) -> Self {
        let (paths, digests) = split_files(files);
        Self { paths, digests, stamps: None, phase: WatchPhase::Due, scanning: None }
    }

    /// Watches what was read now, and nothing else any more.
    pub fn watch(&mut self, files: &ReadFiles) {
        (self.paths, self.digests) = split_files(files);
        self.stamps = None;
        self.phase = WatchPhase::Due;
        self.scanning = None;
    }

    /// Waits until a file says something else than was read, and all of them have settled: until they were left alone for a
    /// tenth of a second, for a second at most. Nothing is lost if this is given up and called again.
    pub async fn changed(&mut self) {
        while self.step().await != WatchStep::Changed {}
    }

    /// Waits until it is time to look, and looks.
    async fn step(&mut self) -> WatchStep {
        self.wait().await;
        let depth = match self.phase {
            WatchPhase::Settling { .. } => ScanDepth::Content,
            _ => ScanDepth::Metadata,
        };
        let look = self.scan(depth).await;
        let same = self.stamps.as_ref() == Some(&look.stamps);
        match &mut self.phase {
            WatchPhase::Settling { timer: alarm, scans: looks, last }
                if *last != look.stamps && *looks < MAX_SETTLE_SCANS =>
            {
                *alarm = Box::pin(time::sleep(SETTLE_DELAY));
                *looks += 1;
                *last = look.stamps;
                WatchStep::Settling
            }
            WatchPhase::Settling { .. } => {
                self.stamps = Some(look.stamps);
                self.start_idle();
                match look.digests {
                    Some(digests) if digests != self.digests => {
                        self.digests = digests;
                        WatchStep::Changed
                    }
                    _ => WatchStep::Unchanged,
                }
            }
            _ if same => {
                self.start_idle();
                WatchStep::Unchanged
            }
            _ => {
                let alarm = Box::pin(time::sleep(SETTLE_DELAY));
                self.phase = WatchPhase::Settling { timer: alarm, scans: 0, last: look.stamps };
                WatchStep::Settling
            }
        }
    }

    async fn wait(&mut self) {
        match &mut self.phase {
            WatchPhase::Due => {}
            WatchPhase::Settling { timer: alarm, .. } => alarm.await,
            WatchPhase::Idle { timer: poll } => {
                poll.await;
                self.phase = WatchPhase::Due;
            }
        }
    }

    async fn scan(&mut self, depth: ScanDepth) -> FileScan {
        let looking = self.scanning.get_or_insert_with(|| {
            let paths = self.paths.clone();
            tokio::task::spawn_blocking(move || scan::scan(&paths, depth))
        });
        let look = looking.await;
        self.scanning = None;
        look.unwrap_or_else(|error| {
            tracing::error!(%error, "files could not be looked at; they are taken to be as they were");
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

    /// Steps until nothing changes any more, and says how often a change was told of.
    async fn count_changes(watch: &mut FileWatch) -> usize {
        let mut told = 0;
        let steps = async {
            loop {
                match watch.step().await {
                    WatchStep::Unchanged => break,
                    WatchStep::Settling => {}
                    WatchStep::Changed => {
                        told += 1;
                        break;
                    }
                }
            }
        };
        time::timeout(Duration::from_secs(20), steps).await.unwrap();
        told
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
        assert_eq!(count_changes(&mut watch).await, 0, "a neighbour was written");

        let file = fs::File::options().append(true).open(&path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(count_changes(&mut watch).await, 0, "it was touched");

        fs::write(&path, "one").unwrap();
        assert_eq!(count_changes(&mut watch).await, 0, "it was written as it was");

        fs::write(&path, "two").unwrap();
        assert_eq!(count_changes(&mut watch).await, 1);
        assert_eq!(count_changes(&mut watch).await, 0, "once is enough");
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
        for steps in 0.. {
            assert!(steps < 2 * MAX_SETTLE_SCANS, "it was never told of");
            text.push('x');
            fs::write(&path, &text).unwrap();
            match watch.step().await {
                WatchStep::Changed => break,
                step => assert_eq!(step, WatchStep::Settling),
            }
        }
        assert!(text.len() > MAX_SETTLE_SCANS as usize, "it was given time to settle");
    }
}
