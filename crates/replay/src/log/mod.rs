//! Access logs: formats, files, and the order of time.

mod batch;
mod error;
mod field;
mod files;
mod format;
mod json;
mod known;
mod merge;
mod parser;
mod text;
mod time;

pub use batch::{Batch, Line, Record, Span};
pub use error::LogError;
pub use field::{Field, MOST_HEADERS};
pub use files::Input;
pub use format::{Format, FormatError, Formats};
pub use merge::{Lines, Log, LogStats};
pub use parser::{Broken, Parser};
