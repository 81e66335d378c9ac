//! Values in the bodies of requests and responses, found while the bodies pass.
//!
//! ```text
//!   bytes of a body ──▶ BodyScanner ──┬─▶ JSON ──────────────────────────▶ the value of each pointer
//!                                     └─▶ events ──▶ JSON of each event ──▶ the last value of each pointer
//! ```
//!
//! A scanner stores the values of its pointers and nothing else: its memory does not depend on the length of the body.

mod event_stream;
mod json;
mod pointer;
mod scanner;

pub use pointer::JsonPointer;
pub use scanner::{BodyFormat, BodyScanner, BodyValue, BodyValues, ScanState, count_from_float};
