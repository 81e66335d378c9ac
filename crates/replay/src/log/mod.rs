//! Access logs: formats, files, and merging by time.

mod batch;
mod builtin;
mod cloudfront;
mod docker;
mod error;
mod escape;
mod field;
mod format;
mod haproxy;
mod history;
mod input;
mod json;
mod merge;
mod parser;
mod recorded;
mod text;
mod time;
mod window;

pub use batch::{BatchSpan, LogBatch, LogRecord, LoggedRequest};
pub use error::LogError;
pub use field::{DurationUnit, LogField, MAX_HEADERS};
pub use format::{FormatError, LineFormat, LineFormats};
pub use history::HistoryLines;
pub use input::LogInput;
pub use merge::{DisplacedLine, Displacement, LogStats, LoggedRequests, RequestLog};
pub use parser::{FormatAttempts, LogParser};
pub use recorded::{RecordedRequests, is_per_client};
pub use window::{SortWindow, SortWindowError};
