//! Finds values in a stream of server-sent events.

use super::{
    JsonPointer,
    json::JsonScanner,
    scanner::{BodyValue, ScanState},
};
use memchr::memchr2;
use std::sync::Arc;

/// Finds the last value of each JSON pointer in the data of server-sent events (WHATWG HTML, 9.2). Data that are not JSON, such
/// as `[DONE]`, are ignored.
pub(super) struct EventStreamScanner {
    json: JsonScanner,
    /// The last values.
    values: Vec<Option<BodyValue>>,
    line: Line,
    event: Event,
}

/// The position in a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    /// The number of bytes of `data:` at the start of the line.
    Name(usize),
    /// After `data:`. A space is left out.
    Colon,
    Data,
    /// Another field, or a comment.
    Other,
    /// After a carriage return. A line feed belongs to it.
    CarriageReturn,
}

/// Whether the current event has data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Empty,
    Data,
}

const DATA_FIELD: &[u8] = b"data:";

impl EventStreamScanner {
    pub(super) fn new(pointers: Arc<[JsonPointer]>) -> Self {
        let values = vec![None; pointers.len()];
        Self { json: JsonScanner::new(pointers), values, line: Line::Name(0), event: Event::Empty }
    }

    /// Reads the next piece.
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            match self.line {
                Line::CarriageReturn => {
                    self.line = Line::Name(0);
                    if byte == b'\n' {
                        bytes = rest;
                    }
                    continue;
                }
                Line::Data | Line::Other => {
                    let end = memchr2(b'\n', b'\r', bytes).unwrap_or(bytes.len());
                    let (text, rest) = bytes.split_at(end);
                    if self.line == Line::Data {
                        self.json.push(text);
                    }
                    bytes = match rest.split_first() {
                        Some((end, rest)) => {
                            self.end_line(*end);
                            rest
                        }
                        None => rest,
                    };
                    continue;
                }
                Line::Name(0) if matches!(byte, b'\n' | b'\r') => {
                    self.end_event();
                    self.end_line(byte);
                }
                Line::Name(matched) if DATA_FIELD.get(matched) == Some(&byte) => {
                    self.line = if byte == b':' { Line::Colon } else { Line::Name(matched + 1) };
                }
                Line::Colon => {
                    self.start_data();
                    if byte != b' ' {
                        continue;
                    }
                }
                Line::Name(_) => {
                    self.line = Line::Other;
                    continue;
                }
            }
            bytes = rest;
        }
    }

    fn start_data(&mut self) {
        if self.event == Event::Data {
            // The lines of one event are joined by line feeds.
            self.json.push(b"\n");
        }
        (self.line, self.event) = (Line::Data, Event::Data);
    }

    fn end_line(&mut self, end: u8) {
        self.line = if end == b'\r' { Line::CarriageReturn } else { Line::Name(0) };
    }

    /// Takes the values of a complete event.
    pub(super) fn end_event(&mut self) {
        if self.event == Event::Empty {
            return;
        }
        if self.json.state() == ScanState::Complete {
            for (last, value) in self.values.iter_mut().zip(self.json.values()) {
                if let Some(value) = value.take() {
                    *last = Some(value);
                }
            }
        }
        self.json.reset();
        self.event = Event::Empty;
    }

    /// The last value of each pointer, in order.
    pub(super) fn values(&mut self) -> &mut Vec<Option<BodyValue>> {
        &mut self.values
    }
}
