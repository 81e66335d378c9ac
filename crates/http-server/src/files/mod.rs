//! The files of a policy: what was read of them, and a notification when their content changes.
//!
//! ```text
//!   0.5 s pass ──▶ compare metadata ──differs──▶ settle ──▶ compare content ──differs──▶ changed
//!        ▲               │ same                  (0.1 s)          │ same
//!        └───────────────┴────────────────────────────────────────┘
//! ```
//!
//! Files are polled. So it does not matter how a file is replaced, nor whether its file system sends events.

mod look;

pub use look::ReadFiles;

use look::{Depth, Digest, Look, Stamp};
use std::{collections::BTreeMap, path::PathBuf, pin::Pin, sync::Arc, time::Duration};
use tokio::{task::JoinHandle, time};

/// How long files have to be left alone before they are read.
const QUIET: Duration = Duration::from_millis(100);

/// Looks at files that go on changing, before they are read as they are: a second's worth.
const MOST_LOOKS: u32 = 10;

/// How often the metadata of files is compared.
const POLL: Duration = Duration::from_millis(500);

/// Watches files for what they say: [`changed`](Self::changed) tells once for each burst of changes.
///
/// A file may be written to, replaced by another, removed and made anew, be reached through links that are swapped, or not
/// be there yet. One that is touched and says the same has not changed; one that is removed has. To be used in a runtime
/// of tokio with its timers.
///
/// ```no_run
/// # async fn story(path: &std::path::Path) {
/// use tidegate_policy::Policy;
/// use tidegate_http_server::{FileWatch, ReadFiles};
///
/// let files = ReadFiles::default();
/// let mut policy = Policy::read(path, &files);
/// let mut watch = FileWatch::of(&files);
/// loop {
///     watch.changed().await;
///     let files = ReadFiles::default();
///     policy = Policy::read(path, &files);
///     watch.follow(&files);
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct FileWatch {
    /// In the order of `digests` and of what a look finds.
    paths: Arc<[PathBuf]>,
    digests: Vec<Digest>,
    /// How they looked when they were last at rest; unknown to begin with.
    stamps: Option<Vec<Stamp>>,
    phase: Phase,
    /// A look that is under way. It is kept, so that a disk that hangs holds up one thread and no more.
    looking: Option<JoinHandle<Look>>,
}

#[derive(Debug)]
enum Phase {
    /// Time to look.
    Due,
    /// Nothing to do until the next poll.
    Rest { poll: Alarm },
    /// Something changes.
    Settle { alarm: Alarm, looks: u32, last: Vec<Stamp> },
}

type Alarm = Pin<Box<time::Sleep>>;

/// What came of one look.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Same,
    Settling,
    Changed,
}

impl FileWatch {
    /// Watches what was read. What has changed since then is told of at once.
    pub fn of(files: &ReadFiles) -> Self {
        let (paths, digests) = parted(files);
        Self { paths, digests, stamps: None, phase: Phase::Due, looking: None }
    }

    /// Watches what was read now, and nothing else any more.
    pub fn follow(&mut self, files: &ReadFiles) {
        (self.paths, self.digests) = parted(files);
        self.stamps = None;
        self.phase = Phase::Due;
        self.looking = None;
    }

    /// Waits until a file says something else than was read, and all of them have settled: until they were left alone for a
    /// tenth of a second, for a second at most. Nothing is lost if this is given up and called again.
    pub async fn changed(&mut self) {
        while self.step().await != Step::Changed {}
    }

    /// Waits until it is time to look, and looks.
    async fn step(&mut self) -> Step {
        self.wait().await;
        let depth = match self.phase {
            Phase::Settle { .. } => Depth::Inside,
            _ => Depth::Outside,
        };
        let look = self.look(depth).await;
        let same = self.stamps.as_ref() == Some(&look.stamps);
        match &mut self.phase {
            Phase::Settle { alarm, looks, last } if *last != look.stamps && *looks < MOST_LOOKS => {
                *alarm = Box::pin(time::sleep(QUIET));
                *looks += 1;
                *last = look.stamps;
                Step::Settling
            }
            Phase::Settle { .. } => {
                self.stamps = Some(look.stamps);
                self.rest();
                match look.digests {
                    Some(digests) if digests != self.digests => {
                        self.digests = digests;
                        Step::Changed
                    }
                    _ => Step::Same,
                }
            }
            _ if same => {
                self.rest();
                Step::Same
            }
            _ => {
                let alarm = Box::pin(time::sleep(QUIET));
                self.phase = Phase::Settle { alarm, looks: 0, last: look.stamps };
                Step::Settling
            }
        }
    }

    async fn wait(&mut self) {
        match &mut self.phase {
            Phase::Due => {}
            Phase::Settle { alarm, .. } => alarm.await,
            Phase::Rest { poll } => {
                poll.await;
                self.phase = Phase::Due;
            }
        }
    }

    async fn look(&mut self, depth: Depth) -> Look {
        let looking = self.looking.get_or_insert_with(|| {
            let paths = self.paths.clone();
            tokio::task::spawn_blocking(move || look::look(&paths, depth))
        });
        let look = looking.await;
        self.looking = None;
        look.unwrap_or_else(|error| {
            tracing::error!(%error, "files could not be looked at; they are taken to be as they were");
            Look { stamps: self.stamps.clone().unwrap_or_default(), digests: None }
        })
    }

    fn rest(&mut self) {
        self.phase = Phase::Rest { poll: Box::pin(time::sleep(POLL)) };
    }
}

fn parted(files: &ReadFiles) -> (Arc<[PathBuf]>, Vec<Digest>) {
    let files: BTreeMap<PathBuf, Digest> = files.noted();
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
    async fn told(watch: &mut FileWatch) -> usize {
        let mut told = 0;
        let steps = async {
            loop {
                match watch.step().await {
                    Step::Same => break,
                    Step::Settling => {}
                    Step::Changed => {
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
    async fn neither_a_neighbour_nor_a_touch_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        fs::write(&path, "one").unwrap();
        let mut watch = FileWatch::of(&read(&path));
        assert_eq!(told(&mut watch).await, 0);

        fs::write(folder.path().join("neighbour.yaml"), "other").unwrap();
        assert_eq!(told(&mut watch).await, 0, "a neighbour was written");

        let file = fs::File::options().append(true).open(&path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(told(&mut watch).await, 0, "it was touched");

        fs::write(&path, "one").unwrap();
        assert_eq!(told(&mut watch).await, 0, "it was written as it was");

        fs::write(&path, "two").unwrap();
        assert_eq!(told(&mut watch).await, 1);
        assert_eq!(told(&mut watch).await, 0, "once is enough");
    }

    #[tokio::test]
    async fn a_change_since_it_was_read_is_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        fs::write(&path, "one").unwrap();
        let files = read(&path);
        fs::write(&path, "two").unwrap();
        let mut watch = FileWatch::of(&files);
        assert_eq!(told(&mut watch).await, 1);

        let files = read(&path);
        fs::write(&path, "six").unwrap();
        watch.follow(&files);
        assert_eq!(told(&mut watch).await, 1);
        assert_eq!(told(&mut watch).await, 0);
    }

    #[tokio::test]
    async fn a_file_that_never_rests_is_told_of_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        fs::write(&path, "").unwrap();
        let mut watch = FileWatch::of(&read(&path));
        assert_eq!(told(&mut watch).await, 0);
        let mut text = String::new();
        for steps in 0.. {
            assert!(steps < 2 * MOST_LOOKS, "it was never told of");
            text.push('x');
            fs::write(&path, &text).unwrap();
            match watch.step().await {
                Step::Changed => break,
                step => assert_eq!(step, Step::Settling),
            }
        }
        assert!(text.len() > MOST_LOOKS as usize, "it was given time to settle");
    }
}
