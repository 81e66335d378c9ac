//! Lines of JSON, read member by member without building anything of them.

use super::{
    batch::{Record, Span},
    field::Field,
};

/// Which members say what.
#[derive(Clone, Debug)]
pub(super) struct JsonFormat {
    /// By the name of a member, with dots between those that are nested.
    members: Vec<(String, Field)>,
}

/// How deep members are looked for.
const DEEPEST: usize = 6;

impl JsonFormat {
    pub(super) fn new(members: Vec<(String, Field)>) -> Self {
        Self { members }
    }

    /// Reads a line that starts at `at`; what is escaped goes to `aside`. `Err` names what is wrong.
    pub(super) fn read(
        &self,
        line: &[u8],
        at: usize,
        record: &mut Record,
        aside: &mut String,
    ) -> Result<(), &'static str> {
        if line.first() != Some(&b'{') {
            return Err("it does not start with `{`");
        }
        record.time = u64::MAX;
        let mut scan = Scan { line, place: 0, at, members: &self.members, path: Vec::new(), record, aside };
        scan.object(0).ok_or("it is not JSON, or a value makes no sense")?;
        scan.blank();
        if scan.place != line.len() {
            return Err("there is something behind the last `}`");
        }
        let Record { time, path, .. } = *scan.record;
        match (time, path.is_empty()) {
            (u64::MAX, _) => Err("no member tells the time"),
            (_, true) => Err("no member tells the path"),
            _ => Ok(()),
        }
    }
}

struct Scan<'a> {
    line: &'a [u8],
    place: usize,
    at: usize,
    members: &'a [(String, Field)],
    /// The names that lead here.
    path: Vec<u8>,
    record: &'a mut Record,
    aside: &'a mut String,
}

impl Scan<'_> {
    fn blank(&mut self) {
        while self.line.get(self.place).is_some_and(u8::is_ascii_whitespace) {
            self.place += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> Option<()> {
        self.blank();
        (self.line.get(self.place) == Some(&byte)).then(|| self.place += 1)
    }

    fn object(&mut self, depth: usize) -> Option<()> {
        self.eat(b'{')?;
        if self.eat(b'}').is_some() {
            return Some(());
        }
        loop {
            self.blank();
            let name = self.string()?;
            self.eat(b':')?;
            self.blank();
            let before = self.path.len();
            if before > 0 {
                self.path.push(b'.');
            }
            self.path.extend_from_slice(&self.line[name.0..name.1]);
            self.member(depth)?;
            self.path.truncate(before);
            if self.eat(b',').is_none() {
                return self.eat(b'}');
            }
        }
    }

    fn member(&mut self, depth: usize) -> Option<()> {
        if self.line.get(self.place) == Some(&b'{') && depth < DEEPEST {
            return self.object(depth + 1);
        }
        let known =
            self.members.iter().find(|(name, _)| name.as_bytes() == self.path).map(|(_, field)| *field);
        let Some(field) = known else { return self.skip(depth) };
        if self.line.get(self.place) != Some(&b'"') {
            let start = self.place;
            self.skip(depth)?;
            let value = &self.line[start..self.place];
            return match value {
                b"null" => Some(()),
                value => field.put(value, Span::new(self.at + start, value.len()), self.record),
            };
        }
        let (start, end) = self.string()?;
        let value = &self.line[start..end];
        if memchr::memchr(b'\\', value).is_none() {
            return field.put(value, Span::new(self.at + start, value.len()), self.record);
        }
        let from = self.aside.len();
        unescape(value, self.aside)?;
        let value = self.aside.as_bytes().get(from..)?;
        field.put(value, Span::aside(from, value.len()), self.record)
    }

    /// Where the text between two quotes is.
    fn string(&mut self) -> Option<(usize, usize)> {
        self.eat(b'"')?;
        let start = self.place;
        loop {
            self.place += memchr::memchr2(b'"', b'\\', self.line.get(self.place..)?)?;
            match self.line[self.place] {
                b'"' => break,
                _ => self.place += 2,
            }
        }
        self.place += 1;
        Some((start, self.place - 1))
    }

    /// Past a value that nobody looks at.
    fn skip(&mut self, depth: usize) -> Option<()> {
        self.blank();
        match self.line.get(self.place)? {
            b'"' => self.string().map(|_| ()),
            open @ (b'{' | b'[') => {
                if depth > 64 {
                    return None;
                }
                let close = if *open == b'{' { b'}' } else { b']' };
                self.place += 1;
                loop {
                    self.blank();
                    match self.line.get(self.place)? {
                        byte if *byte == close => {
                            self.place += 1;
                            return Some(());
                        }
                        b',' | b':' => self.place += 1,
                        _ => self.skip(depth + 1)?,
                    }
                }
            }
            _ => {
                let rest = &self.line[self.place..];
                let is_end = |byte: &u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
                let end = rest.iter().position(is_end).unwrap_or(rest.len());
                self.place += end;
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
                let (sign, after) = unicode(signs.as_str())?;
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

/// Four digits, or twice that with `\u` between them.
fn unicode(text: &str) -> Option<(char, &str)> {
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
