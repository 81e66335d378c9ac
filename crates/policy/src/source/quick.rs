//! Reads YAML that is written plainly, without asking the parser.
//!
//! ```text
//!   # comments                                   maps and lists by indentation,
//!   descriptors:                                 words and quoted texts that end with their line,
//!     - key: user                                maps and lists in brackets that do, too
//!       rate_limit: { unit: hour, requests_per_unit: 100 }
//! ```
//!
//! Whatever it is not sure of it does not read (`None`): the parser then reads the whole text from its start, and every error is
//! the parser's. What it does read is what the parser would have read, with the same places; a test compares them. So places
//! are the parser's even where they are odd: a text in quotes ends where its line does, and a map where the next thing starts.

use super::{DEEPEST, Keys, Name, Node, Span, Text, Value, yaml::plain};

/// The only document of a text that is written plainly.
pub(super) fn read<'a, T: Text<'a>>(file: usize, text: &'a str) -> Option<Node<T>> {
    let is_plain = |byte: u8| byte == b'\n' || (b' '..=b'~').contains(&byte);
    // Without a way out it is done for many bytes at once.
    if !text.bytes().fold(true, |all, byte| all & is_plain(byte)) {
        return None;
    }
    let (items, entries) = (Vec::new(), Vec::new());
    let mut reader = Reader { file, text, at: 0, line: 0, column: None, depth: 0, items, entries };
    reader.find_line()?;
    let root = reader.block(reader.column?)?;
    reader.column.is_none().then_some(root)
}

struct Reader<'a, T> {
    file: usize,
    text: &'a str,
    at: usize,
    /// Where this line starts.
    line: usize,
    /// That of what comes next, by which it is known to what it belongs; none where nothing does.
    column: Option<usize>,
    depth: usize,
    /// Of lists and maps that have not ended.
    items: Vec<Node<T>>,
    entries: Vec<(Name<T>, Node<T>)>,
}

/// A text that ends with its line.
struct Word<'a> {
    text: &'a str,
    style: Style,
    start: usize,
    /// Behind the quotes.
    end: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    Quoted,
}

/// What words stand in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    Lines,
    Brackets,
}

/// Where a list stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dashes {
    Deeper,
    /// In the column of the key that it belongs to.
    BelowKey,
}

/// What is spread over lines.
impl<'a, T: Text<'a>> Reader<'a, T> {
    fn block(&mut self, column: usize) -> Option<Node<T>> {
        if self.is_dash() {
            return self.list(column, Dashes::Deeper);
        }
        let word = self.word(Inside::Lines)?;
        self.map(column, word)
    }

    /// A map, of which the first key was seen.
    fn map(&mut self, column: usize, mut key: Word<'a>) -> Option<Node<T>> {
        self.enter()?;
        let (start, from, mut keys) = (key.start, self.entries.len(), Keys::default());
        loop {
            let name = self.name(&key)?;
            keys.take(self.text, self.entries.get(from..)?, &name).ok()?;
            let node = self.value(column)?;
            self.entries.push((name, node));
            if self.column != Some(column) {
                break;
            }
            key = self.word(Inside::Lines)?;
        }
        self.depth -= 1;
        let entries = self.entries.drain(from..).collect();
        Some(self.node(Value::Map(entries), start, self.at))
    }

    /// What stands behind the colon of a key, or below it.
    fn value(&mut self, column: usize) -> Option<Node<T>> {
        let colon = self.at - 1;
        self.skip_spaces();
        let node = match self.peek() {
            None | Some(b'\n' | b'#') => {
                self.end_line()?;
                match self.column {
                    Some(below) if below > column => self.block(below)?,
                    Some(below) if below == column && self.is_dash() => {
                        self.list(column, Dashes::BelowKey)?
                    }
                    _ => self.node(Value::Null, colon, colon),
                }
            }
            Some(b'{' | b'[') => self.brackets_of_line()?,
            Some(_) => {
                let word = self.word(Inside::Lines)?;
                self.word_of_line(&word)?
            }
        };
        (self.column <= Some(column)).then_some(node)
    }

    fn list(&mut self, column: usize, dashes: Dashes) -> Option<Node<T>> {
        self.enter()?;
        let (mut start, from) = (self.at, self.items.len());
        while self.column == Some(column) && self.is_dash() {
            self.at += 1;
            self.skip_spaces();
            if dashes == Dashes::BelowKey && self.items.len() == from {
                start = self.at;
            }
            let item = self.item()?;
            self.items.push(item);
        }
        let has_ended = match dashes {
            Dashes::Deeper => self.column < Some(column),
            Dashes::BelowKey => self.column <= Some(column),
        };
        self.depth -= 1;
        let items = self.items.drain(from..).collect();
        has_ended.then(|| self.node(Value::List(items), start, self.at))
    }

    /// What stands behind a dash.
    fn item(&mut self) -> Option<Node<T>> {
        let column = self.at - self.line;
        if matches!(self.peek()?, b'{' | b'[') {
            return self.brackets_of_line();
        }
        if self.is_dash() {
            self.column = Some(column);
            return self.list(column, Dashes::Deeper);
        }
        let word = self.word(Inside::Lines)?;
        match self.is_colon() {
            true => {
                self.column = Some(column);
                self.map(column, word)
            }
            false => self.word_of_line(&word),
        }
    }

    fn word_of_line(&mut self, word: &Word<'a>) -> Option<Node<T>> {
        let line = self.end_line()?;
        let end = if word.style == Style::Quoted { line } else { word.end };
        Some(self.node(word.value(), word.start, end))
    }

    fn brackets_of_line(&mut self) -> Option<Node<T>> {
        let start = self.at;
        let value = self.brackets()?;
        let end = self.end_line()?;
        Some(self.node(value, start, end))
    }
}

/// What stands in a line.
impl<'a, T: Text<'a>> Reader<'a, T> {
    fn brackets(&mut self) -> Option<Value<T>> {
        self.enter()?;
        let close = if self.peek() == Some(b'{') { b'}' } else { b']' };
        let (items, entries, mut keys) = (self.items.len(), self.entries.len(), Keys::default());
        self.at += 1;
        self.skip_spaces();
        while self.peek() != Some(close) {
            if close == b']' {
                let item = self.inner()?;
                self.items.push(item);
            } else {
                let key = self.word(Inside::Brackets)?;
                let name = self.name(&key)?;
                keys.take(self.text, self.entries.get(entries..)?, &name).ok()?;
                self.skip_spaces();
                let node = self.inner()?;
                self.entries.push((name, node));
            }
            self.skip_spaces();
            match self.peek()? {
                b',' => self.at += 1,
                byte if byte == close => break,
                _ => return None,
            }
            self.skip_spaces();
            // Behind a comma at the end the parser's places are other ones.
            if self.peek() == Some(close) {
                return None;
            }
        }
        self.at += 1;
        self.depth -= 1;
        Some(match close {
            b']' => Value::List(self.items.drain(items..).collect()),
            _ => Value::Map(self.entries.drain(entries..).collect()),
        })
    }

    /// A value in brackets.
    fn inner(&mut self) -> Option<Node<T>> {
        let start = self.at;
        if matches!(self.peek()?, b'{' | b'[') {
            let value = self.brackets()?;
            self.skip_spaces();
            return Some(self.node(value, start, self.at));
        }
        let word = self.word(Inside::Brackets)?;
        if word.style == Style::Quoted {
            self.skip_spaces();
        }
        Some(self.node(word.value(), start, self.at))
    }

    /// Goes over the colon behind a key.
    fn name(&mut self, key: &Word<'a>) -> Option<Name<T>> {
        let text = match key.value() {
            Value::Text(text) | Value::Number(text) if self.is_colon() => text,
            _ => return None,
        };
        self.at += 1;
        Some(Name { text, at: self.span(key.start, key.end) })
    }

    fn word(&mut self, inside: Inside) -> Option<Word<'a>> {
        let start = self.at;
        let (style, range) = match self.peek()? {
            quote @ (b'"' | b'\'') => {
                let length = self
                    .rest()
                    .iter()
                    .skip(1)
                    .position(|byte| matches!(byte, b'\n' | b'\\') || *byte == quote)?;
                let end = start + 1 + length;
                self.at = end + 1;
                // Two of them are one in the text.
                if self.byte(end) != Some(quote) || self.peek() == Some(quote) {
                    return None;
                }
                (Style::Quoted, start + 1..end)
            }
            _ => {
                self.at = self.plain_end(inside)?;
                (Style::Plain, start..self.at)
            }
        };
        Some(Word { text: self.text.get(range)?, style, start, end: self.at })
    }

    /// Where a text without quotes ends.
    fn plain_end(&self, inside: Inside) -> Option<usize> {
        let bytes = self.text.as_bytes();
        let ends = |byte: Option<&u8>| match byte {
            None | Some(b' ' | b'\n') => true,
            Some(b',' | b'[' | b']' | b'{' | b'}') => inside == Inside::Brackets,
            Some(_) => false,
        };
        match bytes.get(self.at)? {
            b'-' if ends(bytes.get(self.at + 1)) => return None,
            b' ' | b'\n' | b'?' | b':' | b',' | b'[' | b']' | b'{' | b'}' | b'#' | b'&' | b'*' | b'!'
            | b'|' | b'>' | b'%' | b'@' | b'`' => return None,
            _ => {}
        }
        let mut at = self.at + 1;
        loop {
            match bytes.get(at) {
                Some(b' ') => {
                    let next = at + count_spaces(bytes.get(at..)?);
                    match bytes.get(next) {
                        None | Some(b'\n' | b'#') => return Some(at),
                        // The parser allows some of these, and not others.
                        Some(b':' | b'-') if ends(bytes.get(next + 1)) => return None,
                        byte if ends(byte) => return Some(at),
                        Some(_) => at = next,
                    }
                }
                Some(b':') if ends(bytes.get(at + 1)) => return Some(at),
                byte if ends(byte) => return Some(at),
                _ => at += 1,
            }
        }
    }
}

/// Where it is.
impl<'a, T: Text<'a>> Reader<'a, T> {
    /// Goes over the rest of a line that says nothing more, to what comes next. Gives where the line ended.
    fn end_line(&mut self) -> Option<usize> {
        self.skip_spaces();
        match self.peek() {
            None | Some(b'\n') => {}
            Some(b'#') if self.text.as_bytes().get(..self.at)?.ends_with(b" ") => self.skip_comment(),
            Some(_) => return None,
        }
        let end = self.at;
        self.at = (end + 1).min(self.text.len());
        self.find_line()?;
        Some(end)
    }

    /// Goes from the start of a line to what comes next, in this line or below.
    fn find_line(&mut self) -> Option<()> {
        self.column = None;
        loop {
            self.line = self.at;
            let column = self.skip_spaces();
            match self.peek() {
                None => return Some(()),
                Some(b'#') => self.skip_comment(),
                Some(b'\n') => self.at += 1,
                Some(_) => {
                    self.column = Some(column);
                    let is_marker = self.rest().starts_with(b"---") || self.rest().starts_with(b"...");
                    return (column > 0 || !is_marker).then_some(());
                }
            }
        }
    }

    fn skip_comment(&mut self) {
        let length = self.rest().iter().position(|byte| *byte == b'\n');
        self.at = length.map_or(self.text.len(), |length| self.at + length);
    }

    fn skip_spaces(&mut self) -> usize {
        let spaces = count_spaces(self.rest());
        self.at += spaces;
        spaces
    }

    /// Whether the item of a list starts here.
    fn is_dash(&self) -> bool {
        self.peek() == Some(b'-') && matches!(self.byte(self.at + 1), None | Some(b' ' | b'\n'))
    }

    /// Whether this is the end of a key.
    fn is_colon(&self) -> bool {
        self.peek() == Some(b':') && matches!(self.byte(self.at + 1), None | Some(b' ' | b'\n'))
    }

    fn enter(&mut self) -> Option<()> {
        self.depth += 1;
        (self.depth <= DEEPEST).then_some(())
    }

    fn rest(&self) -> &'a [u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<u8> {
        self.byte(self.at)
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.text.as_bytes().get(at).copied()
    }

    fn node(&self, value: Value<T>, start: usize, end: usize) -> Node<T> {
        Node { value, at: self.span(start, end) }
    }

    fn span(&self, start: usize, end: usize) -> Span {
        Span { file: self.file, start, end }
    }
}

impl<'a> Word<'a> {
    fn value<T: Text<'a>>(&self) -> Value<T> {
        match self.style {
            Style::Plain => plain(T::from(self.text)),
            Style::Quoted => Value::Text(T::from(self.text)),
        }
    }
}

fn count_spaces(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| **byte == b' ').count()
}

#[cfg(test)]
mod tests;
