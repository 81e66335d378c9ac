//! Why a log could not be read.

use std::{error, fmt, io};

/// Why a log could not be read, in words for a person.
#[derive(Debug)]
pub enum LogError {
    /// A file could not be opened or read.
    Read {
        /// What it is called.
        name: String,
        /// Why.
        error: io::Error,
    },
    /// No line is of a format that is known.
    Unknown {
        /// What the file is called.
        name: String,
        /// The number of the first line.
        line: u64,
        /// The line, or the beginning of it.
        text: String,
        /// What was tried, and where each gave up.
        tried: Vec<(String, String)>,
    },
    /// There is no request in it.
    Empty {
        /// What the files are called.
        names: Vec<String>,
    },
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { name, error } => write!(f, "cannot read {name}: {error}"),
            Self::Unknown { name, line, text, tried } => {
                write!(f, "{name}:{line}: this is in no format that was tried\n  {text}")?;
                for (format, why) in tried {
                    write!(f, "\n  {format}: {why}")?;
                }
                f.write_str(
                    "\nsay how lines look with --format, as in '$remote_addr [$time_local] \"$request\" $status'",
                )
            }
            Self::Empty { names } => {
                write!(f, "{}: there is no request in it; give a log with at least one", names.join(", "))
            }
        }
    }
}

impl error::Error for LogError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Read { error, .. } => Some(error),
            Self::Unknown { .. } | Self::Empty { .. } => None,
        }
    }
}
