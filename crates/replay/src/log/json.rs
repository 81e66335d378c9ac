//! JSON lines, parsed member by member without building a tree.

use super::{
    batch::{BatchSpan, LogRecord},
    field::LogField,
};

/// The fields of JSON members.
#[derive(Clone, Debug)]
pub(super) struct JsonFormat {
    /// Member paths, with dots between nested names, and their fields.
    members: Vec<(String, LogField)>,
}

/// The maximum depth of members.
const MAX_DEPTH: usize = 6;

impl JsonFormat {
    pub(super) fn new(members: Vec<(String, LogField)>) -> Self {
        Self { members }
    }

    /// Parses a line that starts at `at`; unescaped values are appended to `aside`. `Err` explains the failure.
    pub(super) fn parse(
        &self,
        line: &[u8],
        at: usize,
        record: &mut LogRecord,
        unescaped: &mut String,
    ) -> Result<(), &'static str> {
        if line.first() != Some(&b'{') {
            return Err("the line does not start with `{`");
        }
        record.time = u64::MAX;
        let mut scan = JsonScanner {
            line,
            position: 0,
            offset: at,
            members: &self.members,
            path: Vec::new(),
            record,
            unescaped,
        };
        scan.parse_object(0).ok_or("invalid JSON or an invalid value")?;
        scan.skip_whitespace();
        if scan.position != line.len() {
            return Err("unexpected text after the last `}`");
        }
        let LogRecord { time, path, .. } = *scan.record;
        match (time, path.is_empty()) {
            (u64::MAX, _) => Err("no time field"),
            (_, true) => Err("no path field"),
            _ => Ok(()),
        }
    }
}

struct JsonScanner<'a> {
    line: &'a [u8],
    position: usize,
    offset: usize,
    members: &'a [(String, LogField)],
    /// The path of the current member.
    path: Vec<u8>,
    record: &'a mut LogRecord,
    unescaped: &'a mut String,
}

impl JsonScanner<'_> {
    fn skip_whitespace(&mut self) {
        while self.line.get(self.position).is_some_and(u8::is_ascii_whitespace) {
            self.position += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.skip_whitespace();
        (self.line.get(self.position) == Some(&byte)).then(|| self.position += 1)
    }

    fn parse_object(&mut self, depth: usize) -> Option<()> {
        self.expect(b'{')?;
        if self.expect(b'}').is_some() {
            return Some(());
        }
        loop {
            self.skip_whitespace();
            let name = self.parse_string()?;
            self.expect(b':')?;
            self.skip_whitespace();
            let before = self.path.len();
            if before > 0 {
                self.path.push(b'.');
            }
            self.path.extend_from_slice(&self.line[name.0..name.1]);
            self.parse_member(depth)?;
            self.path.truncate(before);
            if self.expect(b',').is_none() {
                return self.expect(b'}');
            }
        }
    }

    fn parse_member(&mut self, depth: usize) -> Option<()> {
        if self.line.get(self.position) == Some(&b'{') && depth < MAX_DEPTH {
            return self.parse_object(depth + 1);
        }
        let known =
            self.members.iter().find(|(name, _)| name.as_bytes() == self.path).map(|(_, field)| *field);
        let Some(field) = known else { return self.skip_value(depth) };
        if self.line.get(self.position) != Some(&b'"') {
            let start = self.position;
            self.skip_value(depth)?;
            let value = &self.line[start..self.position];
            return match value {
                b"null" => Some(()),
                value => {
                    field.parse_into(value, BatchSpan::new(self.offset + start, value.len()), self.record)
                }
            };
        }
        let (start, end) = self.parse_string()?;
        let value = &self.line[start..end];
        if memchr::memchr(b'\\', value).is_none() {
            return field.parse_into(value, BatchSpan::new(self.offset + start, value.len()), self.record);
        }
        let from = self.unescaped.len();
        unescape(value, self.unescaped)?;
        let value = self.unescaped.as_bytes().get(from..)?;
        field.parse_into(value, BatchSpan::unescaped(from, value.len()), self.record)
    }

    /// Returns the range of a quoted string.
    fn parse_string(&mut self) -> Option<(usize, usize)> {
        self.expect(b'"')?;
        let start = self.position;
        loop {
            self.position += memchr::memchr2(b'"', b'\\', self.line.get(self.position..)?)?;
            match self.line[self.position] {
                b'"' => break,
                _ => self.position += 2,
            }
        }
        self.position += 1;
        Some((start, self.position - 1))
    }

    /// Skips a value.
    fn skip_value(&mut self, depth: usize) -> Option<()> {
        self.skip_whitespace();
        match self.line.get(self.position)? {
            b'"' => self.parse_string().map(|_| ()),
            open @ (b'{' | b'[') => {
                if depth > 64 {
                    return None;
                }
                let close = if *open == b'{' { b'}' } else { b']' };
                self.position += 1;
                loop {
                    self.skip_whitespace();
                    match self.line.get(self.position)? {
                        byte if *byte == close => {
                            self.position += 1;
                            return Some(());
                        }
                        b',' | b':' => self.position += 1,
                        _ => self.skip_value(depth + 1)?,
                    }
                }
            }
            _ => {
                let rest = &self.line[self.position..];
                let is_end = |byte: &u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
                let end = rest.iter().position(is_end).unwrap_or(rest.len());
                self.position += end;
                (end > 0).then_some(())
            }
        }
    }
}

fn unescape(value: &[u8], into: &mut String) -> Option<()> {
    let text = str::from_utf8(value).ok()?;
    let mut rest = text;
    while let Some((plain, behind)) = rest.split_once('\\') {
        into.push_str(plain);
        let mut signs = behind.chars();
        match signs.next()? {
            'n' => into.push('\n'),
            't' => into.push('\t'),
            'r' => into.push('\r'),
            'b' => into.push('\u{8}'),
            'f' => into.push('\u{c}'),
            'u' => {
                let (sign, after) = parse_unicode_escape(signs.as_str())?;
                into.push(sign);
                rest = after;
                continue;
            }
            sign => into.push(sign),
        }
        rest = signs.as_str();
    }
    into.push_str(rest);
    Some(())
}

/// Parses the digits of `\uXXXX`, or a surrogate pair.
fn parse_unicode_escape(text: &str) -> Option<(char, &str)> {
    let four = |text: &str| u32::from_str_radix(text.get(..4)?, 16).ok();
    let high = four(text)?;
    let behind = text.get(4..)?;
    if (0xd800..0xdc00).contains(&high)
        && let Some(low) =
            behind.strip_prefix("\\u").and_then(four).filter(|low| (0xdc00..0xe000).contains(low))
    {
        let code = 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00);
        return Some((char::from_u32(code)?, behind.get(6..)?));
    }
    Some((char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER), behind))
}
