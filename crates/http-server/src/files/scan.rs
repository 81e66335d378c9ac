//! Scans of files: their metadata and digests of their content.

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

/// The largest file that is read. Lists of networks are smaller.
const MAX_FILE_SIZE: u64 = 64 * 1024 * 1024;

/// The largest number of directory entries that are listed. Directories of settings have fewer.
const MAX_DIRECTORY_ENTRIES: usize = 100_000;

/// Reads files from disk and records a digest of each, for a [`FileWatch`](crate::FileWatch).
#[derive(Debug, Default)]
pub struct ReadFiles(Mutex<BTreeMap<PathBuf, Digest>>);

/// A digest of the content of a file, or of the names in a directory; `None` if it cannot be read. It need not resist
/// collisions: a client that may write the policy gains nothing by one.
pub(super) type Digest = Option<(u64, u64)>;

/// The metadata of a file, after symbolic links; `None` if it does not exist.
pub(super) type FileStamp = Option<imp::RawStamp>;

/// The result of a scan, in the order of the paths.
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
    /// The paths that were read, including those that do not exist.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.digests().into_keys().collect()
    }

    /// Lists the entries of a directory, sorted. A new or removed name is a change.
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

/// Reads the metadata before the content: a file that changes during the read has different metadata in the next scan.
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
        return Err(io::Error::other("not a file"));
    }
    let length = metadata.len().min(MAX_FILE_SIZE);
    // One byte more, so that reading the end of the file does not reallocate.
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0) + 1);
    file.take(MAX_FILE_SIZE + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MAX_FILE_SIZE {
        true => Err(io::Error::other("file is larger than 64 MB; split it")),
        false => Ok(bytes),
    }
}

fn content_digest(path: &Path) -> Digest {
    match read_file(path) {
        Ok(bytes) => Some(digest(&bytes)),
        Err(_) => list_directory(path).ok().map(|names| names_digest(&names)),
    }
}

/// Lists at most `MAX_DIRECTORY_ENTRIES` entries.
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

    /// Device, inode, size, modification time, and status change time.
    pub(in crate::files) type RawStamp = (u64, u64, u64, (i64, i64), (i64, i64));

    pub(super) fn stamp(found: &Metadata) -> RawStamp {
        let modified = (found.mtime(), found.mtime_nsec());
        (found.dev(), found.ino(), found.size(), modified, (found.ctime(), found.ctime_nsec()))
    }
}

#[cfg(not(unix))]
mod imp {
    use std::{fs::Metadata, time::SystemTime};

    /// Size and modification time.
    pub(in crate::files) type RawStamp = (u64, Option<SystemTime>);

    pub(super) fn stamp(found: &Metadata) -> RawStamp {
        (found.len(), found.modified().ok())
    }
}
