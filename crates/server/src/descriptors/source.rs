//! A directory of descriptor files, read again when it changes.

use std::{
    fs, io,
    io::Read as _,
    path::{Path, PathBuf},
    time::Duration,
};
use tidegate_policy::descriptors::{DescriptorFile, DescriptorSet, Merge};
use tokio::time;

/// A directory of descriptor files.
///
/// It is compared by what is in it, not by times or events: editors replace files, Kubernetes swaps links, and neither
/// network drives nor containers are reliable at telling.
#[derive(Clone, Debug)]
pub struct DescriptorSource {
    directory: PathBuf,
    hidden: Hidden,
    merge: Merge,
    /// What was read last, whether or not it made sense.
    last: Option<Vec<DescriptorFile>>,
}

/// Whether files count whose names start with a dot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hidden {
    /// They do not: Kubernetes keeps what was there before in such.
    #[default]
    Ignored,
    /// They do, as with envoyproxy/ratelimit unless told otherwise.
    Read,
}

/// How often it is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// A larger file is a mistake; so are more of them.
const MOST_BYTES: u64 = 16 << 20;
const MOST_FILES: usize = 10_000;

impl DescriptorSource {
    /// All files of this directory, and of none below.
    pub fn directory(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), hidden: Hidden::default(), merge: Merge::default(), last: None }
    }

    /// The same with files whose names start with a dot, or without.
    #[must_use]
    pub fn hidden(self, hidden: Hidden) -> Self {
        Self { hidden, ..self }
    }

    /// What becomes of a domain that is in several files.
    #[must_use]
    pub fn merge(self, merge: Merge) -> Self {
        Self { merge, ..self }
    }

    /// What they say now; else which of them makes no sense, and why.
    pub fn load(&mut self) -> Result<DescriptorSet, String> {
        let files = self.read()?;
        self.last = Some(files);
        let files = self.last.as_deref().unwrap_or_default();
        DescriptorSet::read(files, self.merge).map_err(|error| error.to_string())
    }

    /// Waits until they say something else than was [loaded](Self::load).
    pub async fn changed(&self) {
        loop {
            time::sleep(EVERY).await;
            // A directory that cannot be read is one that is being replaced, or one that is told of when it is loaded.
            if self.read().is_ok_and(|files| Some(&files) != self.last.as_ref()) {
                return;
            }
        }
    }

    fn read(&self) -> Result<Vec<DescriptorFile>, String> {
        let directory = &self.directory;
        let blame = |path: &Path, error: &io::Error| format!("{}: {error}", path.display());
        let mut files = Vec::new();
        for entry in fs::read_dir(directory).map_err(|error| blame(directory, &error))? {
            let path = entry.map_err(|error| blame(directory, &error))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with('.') && self.hidden == Hidden::Ignored || !path.is_file() {
                continue;
            }
            if files.len() == MOST_FILES {
                return Err(format!("{}: more than {MOST_FILES} files; take some out", directory.display()));
            }
            let mut text = String::new();
            let read =
                fs::File::open(&path).and_then(|file| file.take(MOST_BYTES + 1).read_to_string(&mut text));
            let length = read.map_err(|error| blame(&path, &error))?;
            if length as u64 > MOST_BYTES {
                return Err(format!("{}: more than {MOST_BYTES} bytes; split it", path.display()));
            }
            files.push(DescriptorFile { name, text });
        }
        files.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(files)
    }
}
