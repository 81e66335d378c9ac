//! Sources of files.

use super::MAX_FILE_BYTES;
use std::{
    fs,
    io::{self, Read as _},
    path::Path,
};

/// Provides the contents of files. It is implemented for closures, which can, for example, record the paths that a policy
/// was read from.
pub trait FileSource {
    /// Returns the content of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
}

impl<F: Fn(&Path) -> io::Result<Vec<u8>>> FileSource for F {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self(path)
    }
}

/// Files on disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFiles;

impl FileSource for DiskFiles {
    /// Reads at most one byte more than the maximum size, so that the caller can reject larger files.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        fs::File::open(path)?.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}
