//! Where lines go.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Stdout, Write},
    path::{Path, PathBuf},
};

/// Where lines go: a file, or standard output.
pub(super) enum Out {
    File { path: PathBuf, mark: Mark, file: BufWriter<File>, written: usize },
    Standard(BufWriter<Stdout>),
}

/// Which file it is, whatever its name.
type Mark = Option<(u64, u64)>;

/// A busy log looks this often, in lines, whether its file was moved away.
const LOOK: usize = 1_024;

impl Default for Out {
    fn default() -> Self {
        Self::Standard(BufWriter::new(io::stdout()))
    }
}

impl Out {
    /// To the end of this file.
    pub(super) fn to(path: &Path) -> io::Result<Self> {
        let file = File::options().append(true).create(true).open(path)?;
        let mark = mark(file.metadata());
        Ok(Self::File { path: path.to_owned(), mark, file: BufWriter::new(file), written: 0 })
    }

    /// Whoever rotates logs gives the file another name: then the next line goes to a new one.
    pub(super) fn reopen_if_moved(&mut self) -> io::Result<()> {
        let Self::File { path, mark: known, file, .. } = self else { return Ok(()) };
        if mark(fs::metadata(&*path)) == *known {
            return Ok(());
        }
        file.flush()?;
        match Self::to(path) {
            Ok(next) => *self = next,
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "the log goes on where it was moved to");
            }
        }
        Ok(())
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File { written, .. } if *written >= LOOK => {
                *written = 0;
                self.reopen_if_moved()?;
                self.write(bytes)
            }
            Self::File { file, written, .. } => {
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
fn mark(found: io::Result<fs::Metadata>) -> Mark {
    use std::os::unix::fs::MetadataExt as _;
    found.ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn mark(_: io::Result<fs::Metadata>) -> Mark {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_moved_away_is_opened_anew() {
        let folder = tempfile::tempdir().unwrap();
        let (path, old) = (folder.path().join("log"), folder.path().join("log.1"));
        let mut out = Out::to(&path).unwrap();
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
    fn a_busy_log_looks_by_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut out = Out::to(&path).unwrap();
        fs::remove_file(&path).unwrap();
        for _ in 0..=LOOK {
            out.write_all(b"line\n").unwrap();
        }
        out.flush().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "line\n");
    }
}
