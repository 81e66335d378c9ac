//! The syntax of nginx's files: words, `;` and blocks, each with its place.
//!
//! Quotes count where a word starts; a backslash takes the meaning from the sign behind it; `#` starts a comment between two
//! words; `${` does not start a block.

use tidegate_policy::source::{SourceSpan, SpannedError, truncate};

/// `name args;` or `name args { block }`
#[derive(Clone, Debug)]
pub(super) struct Directive {
    pub(super) name: String,
    pub(super) args: Vec<Word>,
    pub(super) block: Option<Vec<Self>>,
    /// From its name to the sign that ends it.
    pub(super) at: SourceSpan,
}

/// A word, without its quotes.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) at: SourceSpan,
}

/// Nobody nests deeper.
pub(super) const DEEPEST: usize = 64;

impl Directive {
    /// The argument at this place.
    pub(super) fn arg(&self, place: usize) -> Option<&str> {
        self.args.get(place).map(|word| word.text.as_str())
    }

    /// What follows a `name=` among its arguments.
    pub(super) fn option(&self, name: &str) -> Option<(&str, SourceSpan)> {
        self.args.iter().find_map(|word| {
            let value = word.text.strip_prefix(name)?.strip_prefix('=')?;
            Some((value, word.at))
        })
    }

    pub(super) fn has(&self, word: &str) -> bool {
        self.args.iter().any(|arg| arg.text == word)
    }
}

/// All directives of a text.
pub(super) fn read(file: usize, text: &str) -> Result<Vec<Directive>, SpannedError> {
    let mut lexer = Lexer { file, text, at: 0 };
    let mut open: Vec<Block> = Vec::new();
    let mut here = Vec::new();
    let mut words: Vec<Word> = Vec::new();
    loop {
        match lexer.next()? {
            Token::Word(word) => words.push(word),
            Token::End => {
                let directive = lexer.directive(&mut words, None)?;
                here.push(directive);
            }
            Token::Open if words.first().is_some_and(|name| name.text.ends_with("_by_lua_block")) => {
                lexer.skip_block()?;
                let directive = lexer.directive(&mut words, Some(Vec::new()))?;
                here.push(directive);
            }
            Token::Open => {
                let head = lexer.directive(&mut words, Some(Vec::new()))?;
                if open.len() >= DEEPEST {
                    let problem = format!("more than {DEEPEST} levels deep");
                    return Err(SpannedError::new(head.at, problem, "say it with fewer levels"));
                }
                open.push(Block { head, before: std::mem::take(&mut here) });
            }
            Token::Close => {
                lexer.none_left(&words)?;
                let Some(Block { mut head, before }) = open.pop() else {
                    let fix = "leave it out, or open a block with `{` before";
                    return Err(SpannedError::new(lexer.last(1), "a `}` that closes nothing", fix));
                };
                head.block = Some(std::mem::replace(&mut here, before));
                here.push(head);
            }
            Token::Nothing => break,
        }
    }
    lexer.none_left(&words)?;
    match open.pop() {
        None => Ok(here),
        Some(Block { head, .. }) => {
            let problem = format!("the block of `{}` is not closed", truncate(&head.name));
            Err(SpannedError::new(head.at, problem, "write a `}` where it ends"))
        }
    }
}

/// A block that is being read.
struct Block {
    head: Directive,
    before: Vec<Directive>,
}

enum Token {
    Word(Word),
    /// `;`
    End,
    /// `{`
    Open,
    /// `}`
    Close,
    /// The text is over.
    Nothing,
}

struct Lexer<'a> {
    file: usize,
    text: &'a str,
    at: usize,
}

impl Lexer<'_> {
    fn next(&mut self) -> Result<Token, SpannedError> {
        loop {
            let rest = self.text.get(self.at..).unwrap_or_default();
            let Some(first) = rest.chars().next() else { return Ok(Token::Nothing) };
            match first {
                ' ' | '\t' | '\r' | '\n' => self.at += 1,
                '#' => self.at += rest.find('\n').unwrap_or(rest.len()),
                ';' | '{' | '}' => {
                    self.at += 1;
                    return Ok(match first {
                        ';' => Token::End,
                        '{' => Token::Open,
                        _ => Token::Close,
                    });
                }
                '"' | '\'' => return self.quoted(first).map(Token::Word),
                _ => return Ok(Token::Word(self.bare())),
            }
        }
    }

    fn bare(&mut self) -> Word {
        let (start, mut text) = (self.at, String::new());
        let mut is_variable = false;
        let mut signs = self.text.get(start..).unwrap_or_default().char_indices().peekable();
        let mut end = self.text.len();
        while let Some((at, sign)) = signs.next() {
            match sign {
                '{' if is_variable => text.push(sign),
                ' ' | '\t' | '\r' | '\n' | ';' | '{' => {
                    end = start + at;
                    break;
                }
                '\\' => escape(&mut text, signs.next().map(|(_, next)| next)),
                sign => text.push(sign),
            }
            is_variable = sign == '$';
        }
        self.at = end;
        Word { text, at: self.span(start, end) }
    }

    fn quoted(&mut self, quote: char) -> Result<Word, SpannedError> {
        let (start, mut text) = (self.at, String::new());
        let mut signs = self.text.get(start + 1..).unwrap_or_default().char_indices();
        while let Some((at, sign)) = signs.next() {
            match sign {
                '\\' => escape(&mut text, signs.next().map(|(_, next)| next)),
                sign if sign == quote => {
                    self.at = start + 1 + at + 1;
                    let behind = self.text.get(self.at..).and_then(|rest| rest.chars().next());
                    if behind.is_some_and(|sign| !" \t\r\n;{)".contains(sign)) {
                        let fix = "write a space between, or put all of the word into quotes";
                        return Err(SpannedError::new(self.last(1), "a quote that ends within a word", fix));
                    }
                    return Ok(Word { text, at: self.span(start, self.at) });
                }
                sign => text.push(sign),
            }
        }
        let fix = format!("write a {quote} where it ends");
        Err(SpannedError::new(self.span(start, start + 1), "a quote that is not closed", fix))
    }

    /// Code of another language: only its braces are counted.
    fn skip_block(&mut self) -> Result<(), SpannedError> {
        let (start, mut depth) = (self.at, 1_usize);
        for (at, sign) in self.text.get(start..).unwrap_or_default().char_indices() {
            match sign {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                self.at = start + at + 1;
                return Ok(());
            }
        }
        let at = self.span(start.saturating_sub(1), start);
        Err(SpannedError::new(at, "a block of code that is not closed", "write a `}` where it ends"))
    }

    /// What these words say, up to the sign that was just read.
    fn directive(
        &self,
        words: &mut Vec<Word>,
        block: Option<Vec<Directive>>,
    ) -> Result<Directive, SpannedError> {
        let mut words = std::mem::take(words).into_iter();
        let Some(name) = words.next() else {
            let sign = if block.is_some() { '{' } else { ';' };
            let problem = format!("a `{sign}` without a word before it");
            return Err(SpannedError::new(self.last(1), problem, "write a directive, or leave it out"));
        };
        let args: Vec<Word> = words.collect();
        let end = args.last().map_or(name.at.end, |word| word.at.end);
        Ok(Directive { at: self.span(name.at.start, end), name: name.text, args, block })
    }

    fn none_left(&self, words: &[Word]) -> Result<(), SpannedError> {
        match words.first() {
            None => Ok(()),
            Some(first) => {
                let end = words.last().map_or(first.at.end, |word| word.at.end);
                let problem = format!("`{}` is not ended", truncate(&first.text));
                Err(SpannedError::new(self.span(first.at.start, end), problem, "write a `;` behind it"))
            }
        }
    }

    fn span(&self, start: usize, end: usize) -> SourceSpan {
        SourceSpan { file: self.file, start, end }
    }

    /// The last bytes that were read.
    fn last(&self, count: usize) -> SourceSpan {
        self.span(self.at.saturating_sub(count), self.at)
    }
}

/// What nginx makes of a backslash and what is behind it.
fn escape(text: &mut String, sign: Option<char>) {
    match sign {
        Some('"' | '\'' | '\\') => text.extend(sign),
        Some('t') => text.push('\t'),
        Some('r') => text.push('\r'),
        Some('n') => text.push('\n'),
        other => {
            text.push('\\');
            text.extend(other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words with a bar between them, `;` behind each directive, and blocks in braces.
    fn shown(directives: &[Directive]) -> String {
        let show = |directive: &Directive| {
            let words: Vec<_> = [directive.name.clone()]
                .into_iter()
                .chain(directive.args.iter().map(|word| word.text.clone()))
                .collect();
            let words = words.join("|");
            match &directive.block {
                Some(block) => format!("{words}{{{}}}", shown(block)),
                None => format!("{words};"),
            }
        };
        directives.iter().map(show).collect()
    }

    #[test]
    fn words_are_what_nginx_takes_them_for() {
        let cases = [
            ("", ""),
            ("a;", "a;"),
            ("a b  c ;", "a|b|c;"),
            ("a{b c;}", "a{b|c;}"),
            ("a # b;\n c;", "a|c;"),
            ("a b#c;", "a|b#c;"),
            ("a 'b c' \"d;{\";", "a|b c|d;{;"),
            ("a '';", "a|;"),
            (r#"a "b\"c" b\ c d\;e;"#, r#"a|b"c|b\ c|d\;e;"#),
            (r"a \.php$ 'x\ty';", "a|\\.php$|x\ty;"),
            ("a ${b}c;", "a|${b}c;"),
            ("a b'c;", "a|b'c;"),
            ("a } b;}", "!"),
            ("x_by_lua_block { if a then { } end } b;", "x_by_lua_block{}b;"),
        ];
        for (text, expected) in cases {
            let found = read(0, text).map_or("!".to_owned(), |directives| shown(&directives));
            assert_eq!(found, expected, "{text}");
        }
    }
}
