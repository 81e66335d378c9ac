//! How files look: from outside, and inside.

use foldhash::quality::FixedState;
use std::{
    collections::BTreeMap,
    fs,
    hash::BuildHasher as _,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};
use tidegate_policy::FileSource;

/// A file that is larger is no list of networks any more.
const MAX_FILE_SIZE: u64 = 64 * 1024 * 1024;

/// A folder with more names in it is no folder of settings any more.
const MAX_DIRECTORY_ENTRIES: usize = 100_000;

/// Files as they are on the disk, with a note of what each said, for a [`FileWatch`](crate::FileWatch).
#[derive(Debug, Default)]
pub struct ReadFiles(Mutex<BTreeMap<PathBuf, Digest>>);

/// What a file says, in short, or the names in a folder; `None` if it cannot be read. Whoever may write a policy need not look for collisions.
pub(super) type Digest = Option<(u64, u64)>;

/// How a file looks from outside, at the end of all links; `None` if it is not there.
pub(super) type FileStamp = Option<imp::RawStamp>;

/// What was found, in the order of the paths.
#[derive(Debug)]
pub(super) struct FileScan {
    pub(super) stamps: Vec<FileStamp>,
    pub(super) digests: Option<Vec<Digest>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ScanDepth {
    Metadata,
    Content,
}

impl FileSource for ReadFiles {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let read = read_file(path);
        let digest = match &read {
            Ok(bytes) => Some(digest(bytes)),
            Err(_) => list_directory(path).ok().map(|names| names_digest(&names)),
        };
        self.record(path, digest);
        read
    }
}

impl ReadFiles {
    /// The files that were asked for, also those that are not there.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.digests().into_keys().collect()
    }

    /// The names in a folder, in order. It has changed when there are others.
    pub fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let names = list_directory(folder);
        self.record(folder, names.as_ref().ok().map(|names| names_digest(names)));
        names
    }

    fn record(&self, path: &Path, digest: Digest) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned(), digest);
    }

    pub(super) fn digests(&self) -> BTreeMap<PathBuf, Digest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// From outside first: what changes while it is read has another stamp the next time.
pub(super) fn scan(paths: &[PathBuf], depth: ScanDepth) -> FileScan {
    let stamps = paths.iter().map(|path| fs::metadata(path).ok().map(|found| imp::stamp(&found))).collect();
    let digests = match depth {
        ScanDepth::Metadata => None,
        ScanDepth::Content => Some(paths.iter().map(|path| content_digest(path)).collect()),
    };
    FileScan { stamps, digests }
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let file = fs::File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let length = metadata.len().min(MAX_FILE_SIZE);
    // One more, so that its end is seen without asking for more room.
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0) + 1);
    file.take(MAX_FILE_SIZE + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MAX_FILE_SIZE {
        true => Err(io::Error::other("it is larger than 64 MB; split it")),
        false => Ok(bytes),
    }
}

fn content_digest(path: &Path) -> Digest {
    match read_file(path) {
        Ok(bytes) => Some(digest(&bytes)),
        Err(_) => list_directory(path).ok().map(|names| names_digest(&names)),
    }
}

/// No more names than show that there are too many.
fn list_directory(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.take(MAX_DIRECTORY_ENTRIES);
    let mut names: Vec<_> = entries.map(|entry| Ok(entry?.file_name().into())).collect::<io::Result<_>>()?;
    names.sort();
    Ok(names)
}

fn names_digest(names: &[PathBuf]) -> (u64, u64) {
    (names.len() as u64, FixedState::default().hash_one(names))
}

fn digest(bytes: &[u8]) -> (u64, u64) {
    (bytes.len() as u64, FixedState::default().hash_one(bytes))
}

#[cfg(unix)]
mod imp {
    use std::{fs::Metadata, os::unix::fs::MetadataExt as _};

    /// Device, inode, size, and when its content and its inode were last changed.
    pub(in crate::files) type RawStamp = (u64, u64, u64, (i64, i64), (i64, i64));

    pub(super) fn stamp(found: &Metadata) -> RawStamp {
        let modified = (found.mtime(), found.mtime_nsec());
        (found.dev(), found.ino(), found.size(), modified, (found.ctime(), found.ctime_nsec()))
    }
}

#[cfg(not(unix))]
mod imp {
    use std::{fs::Metadata, time::SystemTime};

    /// Size, and when it was last changed.
    pub(in crate::files) type RawStamp = (u64, Option<SystemTime>);

    pub(super) fn stamp(found: &Metadata) -> RawStamp {
        (found.len(), found.modified().ok())
    }
}
