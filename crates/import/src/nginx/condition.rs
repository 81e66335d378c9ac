//! Conditions of `if`, as a `match`, and regular expressions that are no more than texts.
//!
//! | nginx | policy |
//! |---|---|
//! | `if ($host = a.com)` | `host: a.com` |
//! | `if ($request_method !~ ^(GET\|HEAD_WORD)$)` | `not: { method: [GET, HEAD_WORD] }` |
//! | `if ($http_user_agent ~* (curl\|wget))` | `when: 'user-agent' in request.headers && (…contains('curl') \|\| …)` |
//! | `if ($blocked)`, of a `geo` | `client: […]` |

use super::{lexer::Directive, region::and_not, variables::Variables};
use tidegate_policy::{
    is_host,
    matching::check_condition,
    model::{Expression, Glob, Match, Network},
    source::truncate,
};

/// The requests for which a condition holds; an error says what cannot be carried over.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Condition {
    pub(super) matching: Match,
    /// Only at listeners of this scheme.
    pub(super) scheme: Option<&'static str>,
}

impl Condition {
    /// `if (…)`
    pub(super) fn of(directive: &Directive, variables: &Variables) -> Result<Self, String> {
        let words: Vec<&str> = directive.args.iter().map(|word| word.text.as_str()).collect();
        let words = unbracketed(&words).ok_or("a condition that is not understood")?;
        let strange = || format!("a condition by `{}`", truncate(&words.join(" ")));
        let name = words.first().and_then(|name| name.strip_prefix('$')).ok_or_else(strange)?;
        let (operator, value) = match &words[..] {
            [_, operator, value @ ..] => (*operator, value.join(" ")),
            _ => ("", String::new()),
        };
        let (operator, is_negated) = match operator {
            "!=" => ("=", true),
            "!~" => ("~", true),
            "!~*" => ("~*", true),
            operator => (operator, false),
        };
        if name == "scheme" && operator == "=" {
            let scheme = match (&*value, is_negated) {
                ("http", false) | ("https", true) => "http",
                ("https", false) | ("http", true) => "https",
                _ => return Err(strange()),
            };
            return Ok(Self { matching: Match::default(), scheme: Some(scheme) });
        }
        let found = match operator {
            "" => variables.is_true(name),
            // A value that is made of the request, too.
            "=" if value.contains('$') => None,
            "=" => equal(name, &value, variables),
            "~" => like(name, &value, Case::Exact),
            "~*" => like(name, &value, Case::Ignored),
            _ => None,
        };
        let mut matching = found.ok_or_else(strange)?;
        if is_negated {
            let these = std::mem::take(&mut matching);
            and_not(&mut matching, these);
        }
        Ok(Self { matching, scheme: None })
    }
}

/// `($a` `=` `b)` without its brackets.
fn unbracketed<'w>(words: &[&'w str]) -> Option<Vec<&'w str>> {
    let mut words: Vec<&str> = words.to_vec();
    let first = words.first_mut()?;
    *first = first.strip_prefix('(')?;
    let last = words.last_mut()?;
    *last = last.strip_suffix(')')?;
    words.retain(|word| !word.is_empty());
    Some(words)
}

fn equal(name: &str, value: &str, variables: &Variables) -> Option<Match> {
    match name {
        "host" | "http_host" => {
            let host = value.to_lowercase();
            let is_name = is_host(&host) && !host.contains('*');
            is_name.then(|| Match { hosts: vec![Glob(host)], ..Match::default() })
        }
        "remote_addr" => {
            let network = Network::Prefix(value.parse().ok()?);
            Some(Match { clients: vec![network], ..Match::default() })
        }
        _ => variables.equals(name, value),
    }
}

fn like(name: &str, expression: &str, case: Case) -> Option<Match> {
    let (subject, guard) = match name {
        "host" => ("request.host".to_owned(), None),
        "request_method" => {
            if let Some(methods) = whole_words(expression, case) {
                return Some(Match { methods, ..Match::default() });
            }
            ("request.method".to_owned(), None)
        }
        "uri" | "document_uri" => ("request.path".to_owned(), None),
        name => {
            let header = name.strip_prefix("http_").filter(|rest| is_name(rest))?;
            let header = header.replace('_', "-").to_ascii_lowercase();
            (format!("request.headers['{header}']"), Some(format!("'{header}' in request.headers")))
        }
    };
    expression_of(expression, &subject, case, guard.as_deref())
        .map(|when| Match { when: Some(when), ..Match::default() })
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// `^(GET|HEAD_WORD)$`, as methods.
fn whole_words(expression: &str, case: Case) -> Option<Vec<String>> {
    let texts = texts(expression, case)?;
    let is_method = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_uppercase());
    let are_whole = texts.iter().all(|text| text.is_start && text.is_end && is_method(&text.text));
    (case == Case::Exact && are_whole).then(|| texts.into_iter().map(|text| text.text).collect())
}

/// Whether upper and lower case differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    Exact,
    Ignored,
}

/// A regular expression that is no more than some texts, as an expression of a policy.
pub(super) fn expression_of(
    expression: &str,
    subject: &str,
    case: Case,
    guard: Option<&str>,
) -> Option<Expression> {
    let texts = texts(expression, case)?;
    let subject = match case {
        Case::Exact => subject.to_owned(),
        Case::Ignored => format!("{subject}.lowerAscii()"),
    };
    let test = |text: &Text| match (text.is_start, text.is_end) {
        (true, true) => format!("{subject} == '{}'", text.text),
        (true, false) => format!("{subject}.startsWith('{}')", text.text),
        (false, true) => format!("{subject}.endsWith('{}')", text.text),
        (false, false) => format!("{subject}.contains('{}')", text.text),
    };
    let tests = texts.iter().map(test).collect::<Vec<_>>().join(" || ");
    let when = match guard {
        Some(guard) => format!("{guard} && ({tests})"),
        None => tests,
    };
    let when = Expression(when.into());
    check_condition(&when).is_ok().then_some(when)
}

/// A text, and whether it has to be at the start and at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Text {
    text: String,
    is_start: bool,
    is_end: bool,
}

/// As many as an expression of a policy has room for.
const MOST_TEXTS: usize = 20;
/// The longest expression that is looked at, in bytes.
const LONGEST: usize = 400;

/// The texts that an expression stands for; `None` if it stands for more than a few.
fn texts(expression: &str, case: Case) -> Option<Vec<Text>> {
    if expression.len() > LONGEST {
        return None;
    }
    let lower = |c: char| if case == Case::Ignored { c.to_ascii_lowercase() } else { c };
    let signs: Vec<char> = expression.chars().map(lower).collect();
    let mut parser = Parser { signs: &signs, at: 0 };
    let texts = parser.alternatives()?;
    let are_plain = texts.iter().all(|text| {
        let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '\'' | '\\') || c == ' ';
        !text.text.is_empty() && text.text.chars().all(is_plain)
    });
    (parser.at == signs.len() && are_plain).then_some(texts)
}

/// Reads alternatives of texts, each with its anchors, and multiplies groups out.
struct Parser<'e> {
    signs: &'e [char],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.signs.get(self.at).copied()
    }

    fn skip(&mut self, text: &str) -> bool {
        let is_there = self.signs[self.at..].iter().copied().take(text.len()).eq(text.chars());
        self.at += if is_there { text.len() } else { 0 };
        is_there
    }

    fn alternatives(&mut self) -> Option<Vec<Text>> {
        let mut all = self.sequence()?;
        while self.skip("|") {
            all.extend(self.sequence()?);
        }
        (all.len() <= MOST_TEXTS).then_some(all)
    }

    fn sequence(&mut self) -> Option<Vec<Text>> {
        let mut all = vec![Text::default()];
        while let Some(sign) = self.peek().filter(|sign| !matches!(sign, '|' | ')')) {
            // What comes behind an end can only be more of nothing.
            if all.iter().any(|text| text.is_end) {
                return None;
            }
            self.at += 1;
            let mut next: Vec<Text> = match sign {
                '^' => {
                    if all.iter().any(|text| text.is_start || !text.text.is_empty()) {
                        return None;
                    }
                    all.iter_mut().for_each(|text| text.is_start = true);
                    continue;
                }
                '$' => {
                    all.iter_mut().for_each(|text| text.is_end = true);
                    continue;
                }
                '(' => {
                    let _ = self.skip("?:");
                    let inner = self.alternatives()?;
                    if !self.skip(")") {
                        return None;
                    }
                    inner
                }
                '[' => self.set()?,
                // Any text before a text, or behind it, is as good as no anchor there.
                '.' if self.skip("*") => {
                    let is_first = all.iter().all(|text| text.text.is_empty());
                    let is_last = self.peek().is_none_or(|next| matches!(next, '|' | ')'));
                    match (is_first, is_last) {
                        (true, _) => all.iter_mut().for_each(|text| text.is_start = false),
                        (_, true) => {}
                        _ => return None,
                    }
                    continue;
                }
                '\\' => {
                    let escaped = self.peek().filter(|sign| !sign.is_ascii_alphanumeric())?;
                    self.at += 1;
                    vec![Text { text: escaped.to_string(), ..Text::default() }]
                }
                '.' | '*' | '+' | '?' | '{' | '}' | ']' => return None,
                sign => vec![Text { text: sign.to_string(), ..Text::default() }],
            };
            match self.peek() {
                Some('?') => {
                    self.at += 1;
                    next.push(Text::default());
                }
                Some('*' | '+' | '{') => return None,
                _ => {}
            }
            all = product(&all, &next)?;
        }
        Some(all)
    }

    /// `[abc]`, of a few signs and without ranges.
    fn set(&mut self) -> Option<Vec<Text>> {
        let mut signs = Vec::new();
        loop {
            let sign = self.peek()?;
            self.at += 1;
            match sign {
                ']' if !signs.is_empty() => return Some(signs),
                '^' | '-' | '\\' | '[' | ']' => return None,
                sign => signs.push(Text { text: sign.to_string(), ..Text::default() }),
            }
        }
    }
}

/// Each of these followed by each of those.
fn product(these: &[Text], those: &[Text]) -> Option<Vec<Text>> {
    let mut all = Vec::new();
    for one in these {
        for other in those {
            if other.is_start && !(one.text.is_empty()) || one.is_end {
                return None;
            }
            let text = Text {
                text: format!("{}{}", one.text, other.text),
                is_start: one.is_start || other.is_start,
                is_end: other.is_end,
            };
            if !all.contains(&text) {
                all.push(text);
            }
        }
    }
    (all.len() <= MOST_TEXTS).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_of_texts_become_tests_of_texts() {
        let cases = [
            (r"/\.ht", Some("p.contains('/.ht')")),
            (r"/\.(git|svn)", Some("p.contains('/.git') || p.contains('/.svn')")),
            (r"^/a|b$", Some("p.startsWith('/a') || p.endsWith('b')")),
            (r"^(GET|POST)$", Some("p == 'GET' || p == 'POST'")),
            (r"\.jpe?g$", Some("p.endsWith('.jpeg') || p.endsWith('.jpg')")),
            (r".*bot.*", Some("p.contains('bot')")),
            (r"^.*/x$", Some("p.endsWith('/x')")),
            (r"[ab]c", Some("p.contains('ac') || p.contains('bc')")),
            (r"/\.(?!well-known)", None),
            (r"^/user/[0-9]+$", None),
            (r"\d+", None),
            ("a.c", None),
            ("a+", None),
            ("(a|)", None),
            ("", None),
            ("it's", None),
        ];
        for (expression, expected) in cases {
            let found = texts(expression, Case::Exact).map(|texts| {
                let test = |text: &Text| match (text.is_start, text.is_end) {
                    (true, true) => format!("p == '{}'", text.text),
                    (true, false) => format!("p.startsWith('{}')", text.text),
                    (false, true) => format!("p.endsWith('{}')", text.text),
                    (false, false) => format!("p.contains('{}')", text.text),
                };
                texts.iter().map(test).collect::<Vec<_>>().join(" || ")
            });
            assert_eq!(found.as_deref(), expected, "{expression}");
        }
    }
}
