//! Reads JSON as in RFC 8259, and keeps the places.

use super::{DEEPEST, Fault, Keys, Name, Node, Span, Value, too_deep};

pub(super) fn parse(file: usize, text: &str) -> Result<Node, Fault> {
    let mut reader = Reader { file, text, at: 0 };
    let node = reader.value(0)?;
    reader.skip_spaces();
    match reader.rest().is_empty() {
        true => Ok(node),
        false => Err(reader.fault("more than one value")),
    }
}

const FIX: &str = "write JSON, or name the file .yaml";

struct Reader<'a> {
    file: usize,
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Result<Node, Fault> {
        self.skip_spaces();
        let start = self.at;
        if depth >= DEEPEST && self.rest().starts_with(['[', '{']) {
            return Err(too_deep(self.span(start, start + 1)));
        }
        let value = match self.rest().as_bytes().first() {
            None => return Err(self.fault("missing: a value")),
            Some(b'{') => self.map(depth)?,
            Some(b'[') => self.list(depth)?,
            Some(b'"') => Value::Text(self.string()?),
            Some(_) => self.word()?,
        };
        Ok(Node { value, at: self.span(start, self.at) })
    }

    fn map(&mut self, depth: usize) -> Result<Value, Fault> {
        self.at += 1;
        let (mut entries, mut keys) = (Vec::new(), Keys::default());
        if self.takes('}') {
            return Ok(Value::Map(entries));
        }
        loop {
            self.skip_spaces();
            let start = self.at;
            if !self.rest().starts_with('"') {
                return Err(self.fault("missing: a key in double quotes"));
            }
            let name = Name { text: self.string()?, at: self.span(start, self.at) };
            keys.take(self.text, &entries, &name)?;
            if !self.takes(':') {
                return Err(self.fault("missing: a colon"));
            }
            entries.push((name, self.value(depth + 1)?));
            if self.takes('}') {
                return Ok(Value::Map(entries));
            }
            if !self.takes(',') {
                return Err(self.fault("missing: a comma or the end of the map"));
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, Fault> {
        self.at += 1;
        let mut items = Vec::new();
        if self.takes(']') {
            return Ok(Value::List(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            if self.takes(']') {
                return Ok(Value::List(items));
            }
            if !self.takes(',') {
                return Err(self.fault("missing: a comma or the end of the list"));
            }
        }
    }

    fn string(&mut self) -> Result<String, Fault> {
        let start = self.at;
        self.at += 1;
        let mut whole = String::new();
        loop {
            let Some(next) = self.rest().chars().next() else {
                return Err(Fault::new(self.span(start, start + 1), "a text without an end", FIX));
            };
            match next {
                '"' => {
                    self.at += 1;
                    return Ok(whole);
                }
                '\\' => whole.push(self.escape()?),
                '\n' | '\r' => {
                    let at = self.span(self.at, self.at + 1);
                    return Err(Fault::new(at, "a line that ends inside a text", "write \\n"));
                }
                control if control < ' ' => return Err(self.fault("a control character inside a text")),
                plain => {
                    whole.push(plain);
                    self.at += plain.len_utf8();
                }
            }
        }
    }

    fn escape(&mut self) -> Result<char, Fault> {
        let start = self.at;
        let unknown = |reader: &Self| Fault::new(reader.span(start, start + 2), "an unknown escape", FIX);
        self.at += 2;
        let plain = match self.text.as_bytes().get(start + 1) {
            Some(b'n') => '\n',
            Some(b't') => '\t',
            Some(b'r') => '\r',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'u') => {
                let half = |reader: &Self| {
                    Fault::new(reader.span(start, reader.at), "half of a pair of escapes", FIX)
                };
                let first = self.hex().ok_or_else(|| unknown(self))?;
                if !(0xd800..0xe000).contains(&first) {
                    return char::from_u32(first).ok_or_else(|| unknown(self));
                }
                if first >= 0xdc00 || !self.rest().starts_with("\\u") {
                    return Err(half(self));
                }
                self.at += 2;
                let second = self.hex().filter(|second| (0xdc00..0xe000).contains(second));
                let second = second.ok_or_else(|| half(self))?;
                return char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00))
                    .ok_or_else(|| half(self));
            }
            _ => return Err(unknown(self)),
        };
        Ok(plain)
    }

    fn hex(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        self.at += 4;
        is_hex.then(|| u32::from_str_radix(digits, 16).ok())?
    }

    /// A number, `true`, `false` or `null`.
    fn word(&mut self) -> Result<Value, Fault> {
        let rest = self.rest();
        for (word, value) in
            [("true", Value::Bool(true)), ("false", Value::Bool(false)), ("null", Value::Null)]
        {
            if rest.starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        match number(rest) {
            0 => {
                let ends = |c: char| c.is_whitespace() || matches!(c, ',' | ']' | '}' | ':');
                let end = rest.find(ends).unwrap_or(rest.len()).max(1);
                let word = super::short(rest.get(..end).unwrap_or_default());
                let at = self.span(self.at, self.at + end);
                Err(Fault::new(at, format!("`{word}` is not a value"), FIX))
            }
            length => {
                self.at += length;
                Ok(Value::Number(rest[..length].to_owned()))
            }
        }
    }

    fn takes(&mut self, sign: char) -> bool {
        self.skip_spaces();
        let is_next = self.rest().starts_with(sign);
        self.at += usize::from(is_next);
        is_next
    }

    fn skip_spaces(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn span(&self, start: usize, end: usize) -> Span {
        Span { file: self.file, start, end: end.max(start) }
    }

    fn fault(&self, problem: &str) -> Fault {
        Fault::new(self.span(self.at, self.at + 1), problem, FIX)
    }
}

/// How many bytes of a text are a number; zero where it does not start with one.
fn number(text: &str) -> usize {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let sign = usize::from(text.starts_with('-'));
    let whole = match digits(&text[sign..]) {
        0 => return 0,
        _ if text[sign..].starts_with('0') => 1,
        count => count,
    };
    let mut end = sign + whole;
    if text[end..].starts_with('.') {
        match digits(&text[end + 1..]) {
            0 => return 0,
            count => end += 1 + count,
        }
    }
    if text[end..].starts_with(['e', 'E']) {
        let sign = usize::from(text[end + 1..].starts_with(['+', '-']));
        match digits(&text[end + 1 + sign..]) {
            0 => return 0,
            count => end += 1 + sign + count,
        }
    }
    end
}
