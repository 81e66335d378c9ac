//! How files look: from outside, and inside.

use std::{
    collections::BTreeMap,
    fs,
    hash::{DefaultHasher, Hasher as _},
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};
use tidegate_policy::Files;

/// A file that is larger is no list of networks any more.
const MOST_BYTES: u64 = 64 * 1024 * 1024;

/// Files as they are on the disk, with a note of what each said, for a [`FileWatch`](crate::FileWatch).
#[derive(Debug, Default)]
pub struct ReadFiles(Mutex<BTreeMap<PathBuf, Digest>>);

/// What a file says, in short; `None` if it cannot be read. Whoever may write a policy need not look for collisions.
pub(super) type Digest = Option<(u64, u64)>;

/// How a file looks from outside, at the end of all links; `None` if it is not there.
pub(super) type Stamp = Option<imp::Stamp>;

/// What was found, in the order of the paths.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) stamps: Vec<Stamp>,
    pub(super) digests: Option<Vec<Digest>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Depth {
    Outside,
    Inside,
}

impl Files for ReadFiles {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let read = read(path);
        let digest = read.as_ref().ok().map(|bytes| digest(bytes));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned(), digest);
        read
    }
}

impl ReadFiles {
    /// The files that were asked for, also those that are not there.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.noted().into_keys().collect()
    }

    pub(super) fn noted(&self) -> BTreeMap<PathBuf, Digest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// From outside first: what changes while it is read has another stamp the next time.
pub(super) fn look(paths: &[PathBuf], depth: Depth) -> Look {
    let stamps = paths.iter().map(|path| fs::metadata(path).ok().map(|found| imp::stamp(&found))).collect();
    let digests = match depth {
        Depth::Outside => None,
        Depth::Inside => Some(paths.iter().map(|path| read(path).ok().map(|bytes| digest(&bytes))).collect()),
    };
    Look { stamps, digests }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = fs::File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MOST_BYTES {
        true => Err(io::Error::other("it is larger than 64 MB; split it")),
        false => Ok(bytes),
    }
}

fn digest(bytes: &[u8]) -> (u64, u64) {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    (bytes.len() as u64, hasher.finish())
}

#[cfg(unix)]
mod imp {
    use std::{fs::Metadata, os::unix::fs::MetadataExt as _};

    /// Device, inode, size, and when its content and its inode were last changed.
    pub(in crate::files) type Stamp = (u64, u64, u64, (i64, i64), (i64, i64));

    pub(super) fn stamp(found: &Metadata) -> Stamp {
        let modified = (found.mtime(), found.mtime_nsec());
        (found.dev(), found.ino(), found.size(), modified, (found.ctime(), found.ctime_nsec()))
    }
}

#[cfg(not(unix))]
mod imp {
    use std::{fs::Metadata, time::SystemTime};

    /// Size, and when it was last changed.
    pub(in crate::files) type Stamp = (u64, Option<SystemTime>);

    pub(super) fn stamp(found: &Metadata) -> Stamp {
        (found.len(), found.modified().ok())
    }
}
