//! Finds values in a body.

use super::{JsonPointer, event_stream::EventStreamScanner, json::JsonScanner};
use std::{borrow::Cow, fmt, sync::Arc};
use tidegate_core::LARGEST_EXACT;

/// The format of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFormat {
    /// One JSON text.
    Json,
    /// Server-sent events whose data are JSON.
    EventStream,
}

impl BodyFormat {
    /// The format of a body with this `Content-Type`: events if it is `text/event-stream`, else JSON.
    pub fn from_content_type(content_type: Option<&[u8]>) -> Self {
        let kind = content_type.unwrap_or_default();
        let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        match kind.eq_ignore_ascii_case(b"text/event-stream") {
            true => Self::EventStream,
            false => Self::Json,
        }
    }
}

/// Finds the values of JSON pointers in a body that arrives in pieces. Its memory does not depend on the length of the body.
///
/// ```
/// use tidegate_rule::body::{BodyFormat, BodyScanner, JsonPointer};
///
/// let pointer: JsonPointer = "/usage/total_tokens".parse()?;
/// let mut scanner = BodyScanner::new([pointer.clone()].into(), BodyFormat::EventStream);
/// scanner.push(b"data: {\"usage\": {\"total_tok");
/// scanner.push(b"ens\": 12}}\n\ndata: [DONE]\n\n");
/// assert_eq!(scanner.finish().get(&pointer).and_then(|value| value.to_count()), Some(12));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct BodyScanner {
    pointers: Arc<[JsonPointer]>,
    kind: ScannerKind,
}

enum ScannerKind {
    Json(JsonScanner),
    Events(EventStreamScanner),
}

impl BodyScanner {
    /// A scanner for these pointers.
    pub fn new(pointers: Arc<[JsonPointer]>, format: BodyFormat) -> Self {
        let kind = match format {
            BodyFormat::Json => ScannerKind::Json(JsonScanner::new(pointers.clone())),
            BodyFormat::EventStream => ScannerKind::Events(EventStreamScanner::new(pointers.clone())),
        };
        Self { pointers, kind }
    }

    /// Reads the next piece.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        match &mut self.kind {
            ScannerKind::Json(json) => json.push(bytes),
            ScannerKind::Events(events) => events.push(bytes),
        }
    }

    /// The values at the end of the body. A JSON text that is cut off has the values before the cut; an invalid one has none.
    pub fn finish(mut self) -> BodyValues {
        let (state, values) = match &mut self.kind {
            ScannerKind::Json(json) => (json.state(), json.values()),
            ScannerKind::Events(events) => {
                events.end_event();
                (ScanState::Complete, events.values())
            }
        };
        if state == ScanState::Invalid {
            values.fill(None);
        }
        BodyValues { state, values: std::mem::take(values), pointers: self.pointers }
    }
}

impl fmt::Debug for BodyScanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyScanner").field("pointers", &self.pointers).finish_non_exhaustive()
    }
}

/// How a scan ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScanState {
    /// The text is complete.
    Complete,
    /// The text is cut off.
    #[default]
    Incomplete,
    /// The text is not JSON.
    Invalid,
}

/// The values of JSON pointers in a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodyValues {
    pointers: Arc<[JsonPointer]>,
    values: Vec<Option<BodyValue>>,
    state: ScanState,
}

impl BodyValues {
    /// The value of a pointer. `None` if the body has none, or if it is neither a string, a number nor a boolean.
    pub fn get(&self, pointer: &JsonPointer) -> Option<&BodyValue> {
        let index = self.pointers.iter().position(|known| known == pointer)?;
        self.values.get(index)?.as_ref()
    }

    /// How the scan ended.
    pub fn state(&self) -> ScanState {
        self.state
    }

    /// Whether it has no value.
    pub fn is_empty(&self) -> bool {
        self.values.iter().all(Option::is_none)
    }
}

/// A value in a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyValue {
    /// A string.
    Text(Box<str>),
    /// A number, as it was written.
    Number(Box<str>),
    /// A boolean.
    Bool(bool),
}

impl BodyValue {
    /// The number of tokens that a number stands for; a fraction counts as a whole token. `None` for a negative number, for one
    /// of 2^53 or more, and for other values.
    pub fn to_count(&self) -> Option<u64> {
        let Self::Number(text) = self else { return None };
        if let Ok(count) = text.parse::<u64>() {
            return Some(count).filter(|count| *count <= LARGEST_EXACT);
        }
        count_from_float(text.parse().ok()?)
    }

    /// The value as a part of a key.
    pub fn to_text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) | Self::Number(text) => Cow::Borrowed(text),
            Self::Bool(value) => Cow::Borrowed(if *value { "true" } else { "false" }),
        }
    }
}

/// Rounds a number up to tokens. `None` if it is negative, 2^53 or more, or not a number.
pub fn count_from_float(number: f64) -> Option<u64> {
    let count = number.ceil();
    // Every whole number below 2^53 is exact.
    let is_exact = (0.0..=LARGEST_EXACT as f64).contains(&count);
    is_exact.then_some(count as u64)
}
