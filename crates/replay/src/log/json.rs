//! JSON lines, parsed member by member without building a tree.

use super::{
    batch::{BatchSpan, LogRecord, TimeKind},
    escape::Escape,
    field::LogField,
};
use std::fmt::Write as _;

/// The fields of JSON members.
#[derive(Clone, Debug)]
pub(super) struct JsonFormat {
    /// Member paths, with dots between nested names, and their fields.
    members: Vec<(String, LogField)>,
    headers: HeaderMembers,
}

/// Where a line has all headers of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderMembers {
    /// Nowhere.
    None,
    /// In an object of lists of values, at this path.
    Object(&'static str),
    /// In members whose names have this prefix.
    Prefix(&'static str),
}

/// The maximum depth of members.
const MAX_DEPTH: usize = 6;

impl JsonFormat {
    pub(super) fn new(members: Vec<(String, LogField)>, headers: HeaderMembers) -> Self {
        Self { members, headers }
    }

    /// Parses a line that starts at `at`; unescaped values are appended to `unescaped`. `Err` explains the failure.
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
        let mut scan = JsonScanner {
            line,
            position: 0,
            offset: at,
            members: &self.members,
            headers: self.headers,
            header_list: String::new(),
            cost_list: String::new(),
            path: Vec::new(),
            record,
            unescaped,
        };
        scan.parse_object(0).ok_or("invalid JSON or an invalid value")?;
        scan.skip_whitespace();
        if scan.position != line.len() {
            return Err("unexpected text after the last `}`");
        }
        scan.record.header_list = append_list(&scan.header_list, scan.unescaped);
        scan.record.cost_list = append_list(&scan.cost_list, scan.unescaped);
        let LogRecord { time_kind, path, .. } = *scan.record;
        match (time_kind, path.is_empty()) {
            (TimeKind::Missing, _) => Err("no time field"),
            (_, true) => Err("no path field"),
            _ => Ok(()),
        }
    }
}

/// Appends a list to the unescaped values of its batch.
fn append_list(list: &str, unescaped: &mut String) -> BatchSpan {
    if list.is_empty() {
        return BatchSpan::default();
    }
    let start = unescaped.len();
    unescaped.push_str(list);
    BatchSpan::unescaped(start, list.len())
}

/// The object of the costs that a gateway recorded, by the names of its rules.
const COSTS_PREFIX: &[u8] = b"costs.";

struct JsonScanner<'a> {
    line: &'a [u8],
    position: usize,
    offset: usize,
    members: &'a [(String, LogField)],
    headers: HeaderMembers,
    /// The headers so far, as `name:value\n` each.
    header_list: String,
    /// The recorded costs so far, as `reserved 100 tokens\n` each.
    cost_list: String,
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
        if let HeaderMembers::Object(path) = self.headers
            && let Some(name) =
                self.path.strip_prefix(path.as_bytes()).and_then(|rest| rest.strip_prefix(b"."))
        {
            let name = name.to_ascii_lowercase();
            return self.parse_header(&name, depth);
        }
        if self.line.get(self.position) == Some(&b'{') && depth < MAX_DEPTH {
            return self.parse_object(depth + 1);
        }
        if self.path.starts_with(COSTS_PREFIX) {
            return self.parse_cost(depth);
        }
        let known =
            self.members.iter().find(|(name, _)| name.as_bytes() == self.path).map(|(_, field)| *field);
        let Some(field) = known else {
            if let HeaderMembers::Prefix(prefix) = self.headers
                && let Some(name) = self.path.strip_prefix(prefix.as_bytes())
            {
                let name = name.to_ascii_lowercase();
                return self.parse_header(&name, depth);
            }
            return self.skip_value(depth);
        };
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
        Escape::Backslash.parse_field(field, value, self.offset + start, self.record, self.unescaped)
    }

    /// Parses the value or the list of values of a header into the header list. The name is in lowercase.
    fn parse_header(&mut self, name: &[u8], depth: usize) -> Option<()> {
        match self.line.get(self.position)? {
            b'"' => {
                let (start, end) = self.parse_string()?;
                self.append_header(name, &self.line[start..end]);
                Some(())
            }
            b'[' => {
                self.position += 1;
                loop {
                    self.skip_whitespace();
                    match self.line.get(self.position)? {
                        b']' => {
                            self.position += 1;
                            return Some(());
                        }
                        b',' => self.position += 1,
                        b'"' => self.parse_header(name, depth)?,
                        _ => self.skip_value(depth)?,
                    }
                }
            }
            _ => self.skip_value(depth),
        }
    }

    /// Parses the number at `costs.RULE.reserved` or `costs.RULE.stated` into the cost list; skips other values.
    fn parse_cost(&mut self, depth: usize) -> Option<()> {
        let start = self.position;
        self.skip_value(depth)?;
        let number = str::from_utf8(&self.line[start..self.position]).ok();
        let number = number.and_then(|number| number.parse::<u64>().ok());
        let path = str::from_utf8(&self.path).ok().and_then(|path| path.get(COSTS_PREFIX.len()..));
        if let (Some(number), Some((rule, kind))) = (number, path.and_then(|path| path.rsplit_once('.'))) {
            let _ = writeln!(self.cost_list, "{kind} {number} {rule}");
        }
        Some(())
    }

    fn append_header(&mut self, name: &[u8], value: &[u8]) {
        let start = self.header_list.len();
        self.header_list.push_str(&String::from_utf8_lossy(name));
        self.header_list.push(':');
        Escape::Backslash.undo(value, &mut self.header_list);
        // A header has no line breaks, and the list needs them.
        if self.header_list[start..].contains('\n') {
            self.header_list.truncate(start);
        } else {
            self.header_list.push('\n');
        }
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
