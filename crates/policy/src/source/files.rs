//! Where files come from.

use super::MAX_FILE_BYTES;
use std::{
    fs,
    io::{self, Read as _},
    path::Path,
};

/// Gives the contents of files, so that nothing here touches a disk by itself. A closure does it too; one that keeps the
/// paths knows which files a policy was read from.
pub trait FileSource {
    /// The contents of one.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
}

impl<F: Fn(&Path) -> io::Result<Vec<u8>>> FileSource for F {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self(path)
    }
}

/// Files as they are on the disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFiles;

impl FileSource for DiskFiles {
    /// No more of one than shows that it is too large.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        fs::File::open(path)?.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}
