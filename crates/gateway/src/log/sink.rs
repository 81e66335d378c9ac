//! The output of the access log.

use crate::events;
use std::{
    fs::{self, File},
    io::{self, BufWriter, Stdout, Write},
    path::{Path, PathBuf},
};

/// The output of the access log: a file, or standard output.
pub(super) enum LogSink {
    File { path: PathBuf, file_id: FileId, file: BufWriter<File>, lines_since_check: usize },
    Standard(BufWriter<Stdout>),
}

/// The device and inode of a file.
type FileId = Option<(u64, u64)>;

/// The number of lines after which a busy log checks whether its file was moved.
const LINES_PER_MOVE_CHECK: usize = 1_024;

impl Default for LogSink {
    fn default() -> Self {
        Self::Standard(BufWriter::new(io::stdout()))
    }
}

impl LogSink {
    /// Opens a file for appending.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().append(true).create(true).open(path)?;
        let file_id = file_id(file.metadata());
        Ok(Self::File { path: path.to_owned(), file_id, file: BufWriter::new(file), lines_since_check: 0 })
    }

    /// Opens a new file if the current one was renamed by log rotation.
    pub(super) fn reopen_if_moved(&mut self) -> io::Result<()> {
        let Self::File { path, file_id: known, file, .. } = self else { return Ok(()) };
        if file_id(fs::metadata(&*path)) == *known {
            return Ok(());
        }
        file.flush()?;
        match Self::open(path) {
            Ok(next) => *self = next,
            Err(error) => {
                events::AccessLogReopenFailed { file: path, error: &error }.emit();
            }
        }
        Ok(())
    }
}

impl Write for LogSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File { lines_since_check: written, .. } if *written >= LINES_PER_MOVE_CHECK => {
                *written = 0;
                self.reopen_if_moved()?;
                self.write(bytes)
            }
            Self::File { file, lines_since_check: written, .. } => {
                *written += 1;
                file.write(bytes)
            }
            Self::Standard(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File { file, .. } => file.flush(),
            Self::Standard(out) => out.flush(),
        }
    }
}

#[cfg(unix)]
fn file_id(found: io::Result<fs::Metadata>) -> FileId {
    use std::os::unix::fs::MetadataExt as _;
    found.ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn file_id(_: io::Result<fs::Metadata>) -> FileId {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_log_file_is_reopened() {
        let folder = tempfile::tempdir().unwrap();
        let (path, old) = (folder.path().join("log"), folder.path().join("log.1"));
        let mut out = LogSink::open(&path).unwrap();
        out.write_all(b"one\n").unwrap();
        fs::rename(&path, &old).unwrap();
        out.reopen_if_moved().unwrap();
        out.write_all(b"two\n").unwrap();
        out.reopen_if_moved().unwrap();
        out.write_all(b"three\n").unwrap();
        out.flush().unwrap();
        assert_eq!(fs::read_to_string(&old).unwrap(), "one\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\nthree\n");
    }

    #[test]
    fn busy_log_reopens_moved_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut out = LogSink::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        for _ in 0..=LINES_PER_MOVE_CHECK {
            out.write_all(b"line\n").unwrap();
        }
        out.flush().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "line\n");
    }
}
