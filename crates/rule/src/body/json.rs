//! Finds values in a JSON text that arrives in pieces.
//!
//! A parser of whole texts would need the body in memory, and one of events collects every string. This one stores only the
//! names and values that a pointer can match, and skips everything else.

use super::{
    JsonPointer,
    pointer::MAX_TOKEN_BYTES,
    scanner::{BodyValue, ScanState},
};
use memchr::memchr2;
use std::sync::Arc;

/// Finds the values of JSON pointers.
///
/// ```text
///            {            name         :
///   Value ─────▶ FirstName ───▶ Colon ───▶ Value ──▶ scalar ──▶ AfterValue ──▶ Name, Value, or the end of the container
///            [
///   Value ─────▶ FirstItem ──────────────▶ Value
/// ```
///
/// It does not reject every invalid text: numbers and escapes are checked only where they are used.
pub(super) struct JsonScanner {
    pointers: Arc<[JsonPointer]>,
    values: Vec<Option<BodyValue>>,
    /// The number of names of each pointer that the current path has.
    matched: Vec<usize>,
    containers: Vec<Container>,
    state: State,
    /// The name or the value that is collected.
    text: Vec<u8>,
    collect: Collect,
    escape: Escape,
}

/// An object or an array that contains the current position.
#[derive(Clone, Copy)]
struct Container {
    kind: ContainerKind,
    /// Whether a pointer can match inside.
    relevance: Relevance,
}

#[derive(Clone, Copy)]
enum ContainerKind {
    Object,
    Array { index: usize },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Relevance {
    Relevant,
    Skipped,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// A value follows.
    Value,
    /// A value follows, or the end of an array.
    FirstItem,
    /// A name follows, or the end of an object.
    FirstName,
    /// A name follows.
    Name,
    /// A colon follows.
    Colon,
    /// A comma follows, or the end of the container.
    AfterValue,
    InName,
    InString,
    InNumber,
    /// In `true`, `false` or `null`.
    InLiteral,
    Complete,
    Invalid,
}

/// Whether the current text is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Collect {
    Skip,
    Store,
    /// It is longer than any that can be used.
    TooLong,
}

/// The state of an escape in a string.
#[derive(Clone, Copy)]
enum Escape {
    None,
    Backslash,
    /// The hexadecimal digits of `\u`.
    Unicode {
        digits: u8,
        unit: u16,
    },
}

/// The maximum nesting depth.
const MAX_DEPTH: usize = 128;
/// The maximum length of a value, in bytes: that of a key that is not hashed.
const MAX_VALUE_BYTES: usize = 4_096;

impl JsonScanner {
    pub(super) fn new(pointers: Arc<[JsonPointer]>) -> Self {
        let count = pointers.len();
        Self {
            pointers,
            values: vec![None; count],
            matched: vec![0; count],
            containers: Vec::new(),
            state: State::Value,
            text: Vec::new(),
            collect: Collect::Skip,
            escape: Escape::None,
        }
    }

    /// Starts with a new text, and removes all values.
    pub(super) fn reset(&mut self) {
        self.values.fill(None);
        self.matched.fill(0);
        self.containers.clear();
        self.state = State::Value;
        self.escape = Escape::None;
    }

    pub(super) fn state(&self) -> ScanState {
        match self.state {
            State::Complete => ScanState::Complete,
            State::Invalid => ScanState::Invalid,
            _ => ScanState::Incomplete,
        }
    }

    /// The values of the pointers, in order.
    pub(super) fn values(&mut self) -> &mut Vec<Option<BodyValue>> {
        &mut self.values
    }

    /// Reads the next piece.
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            match self.state {
                State::InName | State::InString => {
                    bytes = self.push_string(bytes);
                    continue;
                }
                State::InNumber if matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E') => {
                    self.store(&[byte]);
                }
                State::InLiteral if byte.is_ascii_lowercase() => self.store(&[byte]),
                State::InNumber | State::InLiteral => {
                    self.end_scalar();
                    continue;
                }
                State::Invalid => return,
                _ if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') => {}
                State::FirstItem if byte == b']' => self.end_container(),
                State::FirstName if byte == b'}' => self.end_container(),
                State::Value | State::FirstItem => self.start_value(byte),
                State::FirstName | State::Name if byte == b'"' => self.start_name(),
                State::Colon if byte == b':' => self.state = State::Value,
                State::AfterValue => self.end_item(byte),
                State::FirstName | State::Name | State::Colon | State::Complete => {
                    self.state = State::Invalid;
                }
            }
            bytes = rest;
        }
    }

    fn start_value(&mut self, byte: u8) {
        let depth = self.containers.len();
        let mut is_value_used = false;
        for (index, pointer) in self.pointers.iter().enumerate() {
            if depth > 0 && self.matched[index] == depth && pointer.tokens().len() == depth {
                is_value_used = true;
                // Of several members with one name, the last one counts.
                self.values[index] = None;
            }
        }
        self.text.clear();
        self.collect = if is_value_used { Collect::Store } else { Collect::Skip };
        self.state = match byte {
            b'"' => State::InString,
            b'-' | b'0'..=b'9' => {
                self.store(&[byte]);
                State::InNumber
            }
            b't' | b'f' | b'n' => {
                self.store(&[byte]);
                State::InLiteral
            }
            b'{' => self.start_container(ContainerKind::Object, State::FirstName),
            b'[' => {
                let state = self.start_container(ContainerKind::Array { index: 0 }, State::FirstItem);
                self.match_index(0);
                state
            }
            _ => State::Invalid,
        };
    }

    fn start_container(&mut self, kind: ContainerKind, next: State) -> State {
        let depth = self.containers.len();
        if depth == MAX_DEPTH {
            return State::Invalid;
        }
        let mut pointers = self.pointers.iter().zip(&self.matched);
        let is_relevant =
            pointers.any(|(pointer, matched)| *matched == depth && pointer.tokens().len() > depth);
        let relevance = if is_relevant { Relevance::Relevant } else { Relevance::Skipped };
        self.containers.push(Container { kind, relevance });
        next
    }

    fn end_container(&mut self) {
        self.containers.pop();
        let depth = self.containers.len();
        self.matched.iter_mut().for_each(|matched| *matched = (*matched).min(depth));
        self.end_value();
    }

    fn end_value(&mut self) {
        self.state = if self.containers.is_empty() { State::Complete } else { State::AfterValue };
    }

    /// Reads the byte after an item of a container.
    fn end_item(&mut self, byte: u8) {
        let Some(container) = self.containers.last_mut() else {
            self.state = State::Invalid;
            return;
        };
        match (&mut container.kind, byte) {
            (ContainerKind::Object, b',') => self.state = State::Name,
            (ContainerKind::Array { index }, b',') => {
                *index += 1;
                let index = *index;
                self.state = State::Value;
                self.match_index(index);
            }
            (ContainerKind::Object, b'}') | (ContainerKind::Array { .. }, b']') => self.end_container(),
            _ => self.state = State::Invalid,
        }
    }

    fn is_relevant(&self) -> bool {
        self.containers.last().is_some_and(|container| container.relevance == Relevance::Relevant)
    }

    fn match_index(&mut self, index: usize) {
        if self.is_relevant() {
            let index = index.to_string();
            self.match_name(|name| name == index.as_bytes());
        }
    }

    /// Updates the pointers for the next item of the current container.
    fn match_name(&mut self, is_name: impl Fn(&[u8]) -> bool) {
        let outer = self.containers.len().saturating_sub(1);
        for (pointer, matched) in self.pointers.iter().zip(&mut self.matched) {
            if *matched >= outer {
                let is_match = pointer.tokens().get(outer).is_some_and(|name| is_name(name.as_bytes()));
                *matched = if is_match { outer + 1 } else { outer };
            }
        }
    }

    fn start_name(&mut self) {
        self.text.clear();
        self.collect = if self.is_relevant() { Collect::Store } else { Collect::Skip };
        self.state = State::InName;
    }

    fn end_name(&mut self) {
        if self.is_relevant() {
            let text = match self.collect {
                Collect::Store => Some(std::mem::take(&mut self.text)),
                Collect::Skip | Collect::TooLong => None,
            };
            self.match_name(|name| text.as_deref() == Some(name));
            self.text = text.unwrap_or_default();
        }
        self.state = State::Colon;
    }

    /// Reads a part of a string; returns the rest.
    fn push_string<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        match (self.escape, bytes) {
            (Escape::None, _) => {}
            (Escape::Backslash, [byte, rest @ ..]) => {
                self.escape = Escape::None;
                match byte {
                    b'u' => self.escape = Escape::Unicode { digits: 0, unit: 0 },
                    b'n' => self.store(b"\n"),
                    b't' => self.store(b"\t"),
                    b'r' => self.store(b"\r"),
                    b'b' => self.store(b"\x08"),
                    b'f' => self.store(b"\x0c"),
                    b'"' | b'\\' | b'/' => self.store(&[*byte]),
                    _ => self.state = State::Invalid,
                }
                return rest;
            }
            (Escape::Unicode { digits, unit }, [byte, rest @ ..]) => {
                let Some(digit) = char::from(*byte).to_digit(16).and_then(|digit| u16::try_from(digit).ok())
                else {
                    self.state = State::Invalid;
                    return rest;
                };
                let unit = unit << 4 | digit;
                self.escape = match digits {
                    3 => {
                        self.store_unit(unit);
                        Escape::None
                    }
                    _ => Escape::Unicode { digits: digits + 1, unit },
                };
                return rest;
            }
            (_, []) => return bytes,
        }
        let Some(end) = memchr2(b'"', b'\\', bytes) else {
            self.store(bytes);
            return &[];
        };
        let (text, rest) = bytes.split_at(end);
        self.store(text);
        match rest.first() {
            Some(b'\\') => self.escape = Escape::Backslash,
            _ if self.state == State::InName => self.end_name(),
            _ => self.end_scalar(),
        }
        rest.get(1..).unwrap_or_default()
    }

    /// Stores a part of the current text, if it is used.
    fn store(&mut self, part: &[u8]) {
        if self.collect != Collect::Store {
            return;
        }
        let max = if self.state == State::InName { MAX_TOKEN_BYTES } else { MAX_VALUE_BYTES };
        if self.text.len() + part.len() > max {
            self.collect = Collect::TooLong;
        } else {
            self.text.extend_from_slice(part);
        }
    }

    /// Stores a UTF-16 unit of an escape. The second half of a pair is combined with the first.
    fn store_unit(&mut self, unit: u16) {
        if self.collect != Collect::Store {
            return;
        }
        if let 0xdc00..=0xdfff = unit
            && let [.., first @ 0xed, second @ 0xa0..=0xaf, third @ 0x80..=0xbf] = self.text[..]
        {
            let high =
                u32::from(first & 0x0f) << 12 | u32::from(second & 0x3f) << 6 | u32::from(third & 0x3f);
            let code = 0x10000 + ((high - 0xd800) << 10) + (u32::from(unit) - 0xdc00);
            if let Some(character) = char::from_u32(code) {
                self.text.truncate(self.text.len() - 3);
                self.store(character.encode_utf8(&mut [0; 4]).as_bytes());
                return;
            }
        }
        match char::from_u32(u32::from(unit)) {
            Some(character) => self.store(character.encode_utf8(&mut [0; 4]).as_bytes()),
            // A half of a pair, in the form of three bytes that is not valid UTF-8. Without its other half, no value has it.
            None => {
                let [high, low] = [unit >> 6 & 0x3f, unit & 0x3f].map(|bits| 0x80 | bits as u8);
                self.store(&[0xed, high, low]);
            }
        }
    }

    /// Ends a string, a number or a literal.
    fn end_scalar(&mut self) {
        let value = match self.collect {
            Collect::Skip | Collect::TooLong => None,
            Collect::Store => match (self.state, str::from_utf8(&self.text)) {
                (State::InString, Ok(text)) => Some(BodyValue::Text(text.into())),
                (State::InNumber, Ok(text)) => Some(BodyValue::Number(text.into())),
                (State::InLiteral, Ok("true")) => Some(BodyValue::Bool(true)),
                (State::InLiteral, Ok("false")) => Some(BodyValue::Bool(false)),
                _ => None,
            },
        };
        if let Some(value) = value {
            let depth = self.containers.len();
            for (index, pointer) in self.pointers.iter().enumerate() {
                if self.matched[index] == depth && pointer.tokens().len() == depth {
                    self.values[index] = Some(value.clone());
                }
            }
        }
        self.end_value();
    }
}
