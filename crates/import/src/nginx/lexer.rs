//! The syntax of nginx files: words, `;` and blocks, each with its position.
//!
//! A quote is special only at the start of a word; a backslash escapes the next character; `#` starts a comment only
//! between two words; `${` does not start a block.

use tidegate_policy::source::{SourceSpan, SpannedError, truncate};

/// `name args;` or `name args { block }`
#[derive(Clone, Debug)]
pub(super) struct Directive {
    pub(super) name: String,
    pub(super) args: Vec<NginxWord>,
    pub(super) block: Option<Vec<Self>>,
    /// From its name to the end of its last argument.
    pub(super) span: SourceSpan,
}

/// A word without its quotes.
#[derive(Clone, Debug)]
pub(super) struct NginxWord {
    pub(super) text: String,
    pub(super) span: SourceSpan,
}

/// The maximum depth of nested blocks and includes.
pub(super) const MAX_NESTING: usize = 64;

impl Directive {
    /// Returns the argument at this index.
    pub(super) fn arg(&self, index: usize) -> Option<&str> {
        self.args.get(index).map(|word| word.text.as_str())
    }

    /// Returns the value of the `name=value` argument.
    pub(super) fn option(&self, name: &str) -> Option<(&str, SourceSpan)> {
        self.args.iter().find_map(|word| {
            let value = word.text.strip_prefix(name)?.strip_prefix('=')?;
            Some((value, word.span))
        })
    }

    pub(super) fn has_arg(&self, word: &str) -> bool {
        self.args.iter().any(|arg| arg.text == word)
    }
}

/// Parses all directives of a text.
pub(super) fn parse(file: usize, text: &str) -> Result<Vec<Directive>, SpannedError> {
    let mut lexer = Lexer { file, text, position: 0 };
    let mut open: Vec<OpenBlock> = Vec::new();
    let mut here = Vec::new();
    let mut words: Vec<NginxWord> = Vec::new();
    loop {
        match lexer.next()? {
            NginxToken::Word(word) => words.push(word),
            NginxToken::End => {
                let directive = lexer.build_directive(&mut words, None)?;
                here.push(directive);
            }
            NginxToken::Open if words.first().is_some_and(|name| name.text.ends_with("_by_lua_block")) => {
                lexer.skip_block()?;
                let directive = lexer.build_directive(&mut words, Some(Vec::new()))?;
                here.push(directive);
            }
            NginxToken::Open => {
                let head = lexer.build_directive(&mut words, Some(Vec::new()))?;
                if open.len() >= MAX_NESTING {
                    let problem = format!("more than {MAX_NESTING} levels deep");
                    return Err(SpannedError::new(head.span, problem, "use fewer levels"));
                }
                open.push(OpenBlock { head, siblings: std::mem::take(&mut here) });
            }
            NginxToken::Close => {
                lexer.expect_no_words(&words)?;
                let Some(OpenBlock { mut head, siblings: before }) = open.pop() else {
                    let fix = "remove it, or add the missing `{` before it";
                    return Err(SpannedError::new(
                        lexer.last_span(1),
                        "unexpected `}` without an open block",
                        fix,
                    ));
                };
                head.block = Some(std::mem::replace(&mut here, before));
                here.push(head);
            }
            NginxToken::Eof => break,
        }
    }
    lexer.expect_no_words(&words)?;
    match open.pop() {
        None => Ok(here),
        Some(OpenBlock { head, .. }) => {
            let problem = format!("the block `{}` is not closed", truncate(&head.name));
            Err(SpannedError::new(head.span, problem, "add a `}` at its end"))
        }
    }
}

/// A block whose `}` is not read yet.
struct OpenBlock {
    head: Directive,
    siblings: Vec<Directive>,
}

enum NginxToken {
    Word(NginxWord),
    /// `;`
    End,
    /// `{`
    Open,
    /// `}`
    Close,
    /// The end of the text.
    Eof,
}

struct Lexer<'a> {
    file: usize,
    text: &'a str,
    position: usize,
}

impl Lexer<'_> {
    fn next(&mut self) -> Result<NginxToken, SpannedError> {
        loop {
            let rest = self.text.get(self.position..).unwrap_or_default();
            let Some(first) = rest.chars().next() else { return Ok(NginxToken::Eof) };
            match first {
                ' ' | '\t' | '\r' | '\n' => self.position += 1,
                '#' => self.position += rest.find('\n').unwrap_or(rest.len()),
                ';' | '{' | '}' => {
                    self.position += 1;
                    return Ok(match first {
                        ';' => NginxToken::End,
                        '{' => NginxToken::Open,
                        _ => NginxToken::Close,
                    });
                }
                '"' | '\'' => return self.read_quoted_word(first).map(NginxToken::Word),
                _ => return Ok(NginxToken::Word(self.read_bare_word())),
            }
        }
    }

    fn read_bare_word(&mut self) -> NginxWord {
        let (start, mut text) = (self.position, String::new());
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
                '\\' => push_escaped(&mut text, signs.next().map(|(_, next)| next)),
                sign => text.push(sign),
            }
            is_variable = sign == '$';
        }
        self.position = end;
        NginxWord { text, span: self.span(start, end) }
    }

    fn read_quoted_word(&mut self, quote: char) -> Result<NginxWord, SpannedError> {
        let (start, mut text) = (self.position, String::new());
        let mut signs = self.text.get(start + 1..).unwrap_or_default().char_indices();
        while let Some((at, sign)) = signs.next() {
            match sign {
                '\\' => push_escaped(&mut text, signs.next().map(|(_, next)| next)),
                sign if sign == quote => {
                    self.position = start + 1 + at + 1;
                    let behind = self.text.get(self.position..).and_then(|rest| rest.chars().next());
                    if behind.is_some_and(|sign| !" \t\r\n;{)".contains(sign)) {
                        let fix = "add a space after the quote, or quote the whole word";
                        return Err(SpannedError::new(
                            self.last_span(1),
                            "unexpected character after a closing quote",
                            fix,
                        ));
                    }
                    return Ok(NginxWord { text, span: self.span(start, self.position) });
                }
                sign => text.push(sign),
            }
        }
        let fix = format!("add the closing {quote}");
        Err(SpannedError::new(self.span(start, start + 1), "unterminated quoted string", fix))
    }

    /// Skips a block of Lua code by counting its braces.
    fn skip_block(&mut self) -> Result<(), SpannedError> {
        let (start, mut depth) = (self.position, 1_usize);
        for (at, sign) in self.text.get(start..).unwrap_or_default().char_indices() {
            match sign {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                self.position = start + at + 1;
                return Ok(());
            }
        }
        let at = self.span(start.saturating_sub(1), start);
        Err(SpannedError::new(at, "unterminated code block", "add a `}` at its end"))
    }

    /// Builds a directive from the words before the `;` or `{` that was just read.
    fn build_directive(
        &self,
        words: &mut Vec<NginxWord>,
        block: Option<Vec<Directive>>,
    ) -> Result<Directive, SpannedError> {
        let mut words = std::mem::take(words).into_iter();
        let Some(name) = words.next() else {
            let sign = if block.is_some() { '{' } else { ';' };
            let problem = format!("unexpected `{sign}` without a directive");
            return Err(SpannedError::new(
                self.last_span(1),
                problem,
                "write a directive before it, or remove it",
            ));
        };
        let args: Vec<NginxWord> = words.collect();
        let end = args.last().map_or(name.span.end, |word| word.span.end);
        Ok(Directive { span: self.span(name.span.start, end), name: name.text, args, block })
    }

    fn expect_no_words(&self, words: &[NginxWord]) -> Result<(), SpannedError> {
        match words.first() {
            None => Ok(()),
            Some(first) => {
                let end = words.last().map_or(first.span.end, |word| word.span.end);
                let problem = format!("the directive `{}` is not terminated", truncate(&first.text));
                Err(SpannedError::new(self.span(first.span.start, end), problem, "add a `;` after it"))
            }
        }
    }

    fn span(&self, start: usize, end: usize) -> SourceSpan {
        SourceSpan { file: self.file, start, end }
    }

    /// The span of the last `count` bytes.
    fn last_span(&self, count: usize) -> SourceSpan {
        self.span(self.position.saturating_sub(count), self.position)
    }
}

/// Appends the character that an nginx escape sequence stands for.
fn push_escaped(text: &mut String, sign: Option<char>) {
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

    /// Prints words separated by `|`, `;` after each directive, and blocks in braces.
    fn display(directives: &[Directive]) -> String {
        let show = |directive: &Directive| {
            let words: Vec<_> = [directive.name.clone()]
                .into_iter()
                .chain(directive.args.iter().map(|word| word.text.clone()))
                .collect();
            let words = words.join("|");
            match &directive.block {
                Some(block) => format!("{words}{{{}}}", display(block)),
                None => format!("{words};"),
            }
        };
        directives.iter().map(show).collect()
    }

    #[test]
    fn words_are_split_like_nginx() {
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
            let found = parse(0, text).map_or("!".to_owned(), |directives| display(&directives));
            assert_eq!(found, expected, "{text}");
        }
    }
}
