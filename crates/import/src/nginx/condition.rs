//! Converts conditions of `if` to a `match`, and regular expressions of literal alternatives to expressions of a policy.
//!
//! | nginx | policy |
//! |---|---|
//! | `if ($host = a.com)` | `host: a.com` |
//! | `if ($request_method !~ ^(GET\|HEAD)$)` | `not: { method: [GET, HEAD] }` |
//! | `if ($http_user_agent ~* (curl\|wget))` | `when: 'user-agent' in request.headers && (…contains('curl') \|\| …)` |
//! | `if ($blocked)`, of a `geo` | `client: […]` |

use super::{lexer::Directive, match_set::exclude, variables::NginxVariables};
use tidegate_policy::{
    is_host,
    matching::check_condition,
    model::{Expression, Glob, Match, Network},
    source::truncate,
};

/// The requests for which a condition is true.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NginxCondition {
    pub(super) matching: Match,
    /// The condition applies only at listeners of this scheme.
    pub(super) scheme: Option<&'static str>,
}

impl NginxCondition {
    /// Parses `if (…)`. The error names the condition that a policy cannot express.
    pub(super) fn parse(directive: &Directive, variables: &NginxVariables) -> Result<Self, String> {
        let args: Vec<&str> = directive.args.iter().map(|arg| arg.text.as_str()).collect();
        let args = strip_brackets(&args).ok_or("a malformed condition")?;
        let unsupported = || format!("the condition `{}`", truncate(&args.join(" ")));
        let name = args.first().and_then(|name| name.strip_prefix('$')).ok_or_else(unsupported)?;
        let (operator, value) = match &args[..] {
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
                _ => return Err(unsupported()),
            };
            return Ok(Self { matching: Match::default(), scheme: Some(scheme) });
        }
        let found = match operator {
            "" => variables.match_true(name),
            // The value depends on the request, too.
            "=" if value.contains('$') => None,
            "=" => match_equal(name, &value, variables),
            "~" => match_regex(name, &value, CaseSensitivity::Sensitive),
            "~*" => match_regex(name, &value, CaseSensitivity::Insensitive),
            _ => None,
        };
        let mut matching = found.ok_or_else(unsupported)?;
        if is_negated {
            let these = std::mem::take(&mut matching);
            exclude(&mut matching, these);
        }
        Ok(Self { matching, scheme: None })
    }
}

/// Removes the parentheses of `($a` `=` `b)`.
fn strip_brackets<'w>(args: &[&'w str]) -> Option<Vec<&'w str>> {
    let mut args: Vec<&str> = args.to_vec();
    let first = args.first_mut()?;
    *first = first.strip_prefix('(')?;
    let last = args.last_mut()?;
    *last = last.strip_suffix(')')?;
    args.retain(|arg| !arg.is_empty());
    Some(args)
}

fn match_equal(name: &str, value: &str, variables: &NginxVariables) -> Option<Match> {
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
        _ => variables.match_equals(name, value),
    }
}

fn match_regex(name: &str, expression: &str, case: CaseSensitivity) -> Option<Match> {
    let (subject, guard) = match name {
        "host" => ("request.host".to_owned(), None),
        "request_method" => {
            if let Some(methods) = regex_methods(expression, case) {
                return Some(Match { methods, ..Match::default() });
            }
            ("request.method".to_owned(), None)
        }
        "uri" | "document_uri" => ("request.path".to_owned(), None),
        name => {
            let header = name.strip_prefix("http_").filter(|rest| is_header_name(rest))?;
            let header = header.replace('_', "-").to_ascii_lowercase();
            (format!("request.headers['{header}']"), Some(format!("'{header}' in request.headers")))
        }
    };
    regex_to_expression(expression, &subject, case, guard.as_deref())
        .map(|when| Match { when: Some(when), ..Match::default() })
}

fn is_header_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// Returns the methods of an expression such as `^(GET|HEAD)$`.
fn regex_methods(expression: &str, case: CaseSensitivity) -> Option<Vec<String>> {
    let texts = regex_literals(expression, case)?;
    let is_method = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_uppercase());
    let are_whole =
        texts.iter().all(|text| text.is_start_anchored && text.is_end_anchored && is_method(&text.text));
    (case == CaseSensitivity::Sensitive && are_whole)
        .then(|| texts.into_iter().map(|text| text.text).collect())
}

/// Whether a comparison distinguishes upper and lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CaseSensitivity {
    Sensitive,
    Insensitive,
}

/// Converts a regular expression of literal alternatives to an expression of a policy.
pub(super) fn regex_to_expression(
    expression: &str,
    subject: &str,
    case: CaseSensitivity,
    guard: Option<&str>,
) -> Option<Expression> {
    let texts = regex_literals(expression, case)?;
    let subject = match case {
        CaseSensitivity::Sensitive => subject.to_owned(),
        CaseSensitivity::Insensitive => format!("{subject}.lowerAscii()"),
    };
    let test = |text: &LiteralPattern| match (text.is_start_anchored, text.is_end_anchored) {
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

/// A literal text with its anchors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LiteralPattern {
    text: String,
    is_start_anchored: bool,
    is_end_anchored: bool,
}

/// The number of literals that fit into an expression of a policy.
const MAX_LITERALS: usize = 20;
/// The maximum length of a regular expression that is parsed.
const MAX_REGEX_BYTES: usize = 400;

/// Returns the literals that a regular expression matches; `None` if they are not a small, finite set.
fn regex_literals(expression: &str, case: CaseSensitivity) -> Option<Vec<LiteralPattern>> {
    if expression.len() > MAX_REGEX_BYTES {
        return None;
    }
    let lower = |c: char| if case == CaseSensitivity::Insensitive { c.to_ascii_lowercase() } else { c };
    let signs: Vec<char> = expression.chars().map(lower).collect();
    let mut parser = RegexParser { chars: &signs, position: 0 };
    let texts = parser.parse_alternatives()?;
    let are_plain = texts.iter().all(|text| {
        let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '\'' | '\\') || c == ' ';
        !text.text.is_empty() && text.text.chars().all(is_plain)
    });
    (parser.position == signs.len() && are_plain).then_some(texts)
}

/// Parses alternatives of literals with their anchors, and expands groups.
struct RegexParser<'e> {
    chars: &'e [char],
    position: usize,
}

impl RegexParser<'_> {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.position).copied()
    }

    fn skip(&mut self, text: &str) -> bool {
        let is_there = self.chars[self.position..].iter().copied().take(text.len()).eq(text.chars());
        self.position += if is_there { text.len() } else { 0 };
        is_there
    }

    fn parse_alternatives(&mut self) -> Option<Vec<LiteralPattern>> {
        let mut all = self.parse_sequence()?;
        while self.skip("|") {
            all.extend(self.parse_sequence()?);
        }
        (all.len() <= MAX_LITERALS).then_some(all)
    }

    fn parse_sequence(&mut self) -> Option<Vec<LiteralPattern>> {
        let mut all = vec![LiteralPattern::default()];
        while let Some(sign) = self.peek().filter(|sign| !matches!(sign, '|' | ')')) {
            // Nothing can match after `$`.
            if all.iter().any(|text| text.is_end_anchored) {
                return None;
            }
            self.position += 1;
            let mut next: Vec<LiteralPattern> = match sign {
                '^' => {
                    if all.iter().any(|text| text.is_start_anchored || !text.text.is_empty()) {
                        return None;
                    }
                    all.iter_mut().for_each(|text| text.is_start_anchored = true);
                    continue;
                }
                '$' => {
                    all.iter_mut().for_each(|text| text.is_end_anchored = true);
                    continue;
                }
                '(' => {
                    let _ = self.skip("?:");
                    let inner = self.parse_alternatives()?;
                    if !self.skip(")") {
                        return None;
                    }
                    inner
                }
                '[' => self.parse_set()?,
                // A leading or trailing `.*` is equivalent to a missing anchor.
                '.' if self.skip("*") => {
                    let is_first = all.iter().all(|text| text.text.is_empty());
                    let is_last = self.peek().is_none_or(|next| matches!(next, '|' | ')'));
                    match (is_first, is_last) {
                        (true, _) => all.iter_mut().for_each(|text| text.is_start_anchored = false),
                        (_, true) => {}
                        _ => return None,
                    }
                    continue;
                }
                '\\' => {
                    let escaped = self.peek().filter(|sign| !sign.is_ascii_alphanumeric())?;
                    self.position += 1;
                    vec![LiteralPattern { text: escaped.to_string(), ..LiteralPattern::default() }]
                }
                '.' | '*' | '+' | '?' | '{' | '}' | ']' => return None,
                sign => vec![LiteralPattern { text: sign.to_string(), ..LiteralPattern::default() }],
            };
            match self.peek() {
                Some('?') => {
                    self.position += 1;
                    next.push(LiteralPattern::default());
                }
                Some('*' | '+' | '{') => return None,
                _ => {}
            }
            all = concatenate_literals(&all, &next)?;
        }
        Some(all)
    }

    /// Parses `[abc]`, a set of a few characters without ranges.
    fn parse_set(&mut self) -> Option<Vec<LiteralPattern>> {
        let mut signs = Vec::new();
        loop {
            let sign = self.peek()?;
            self.position += 1;
            match sign {
                ']' if !signs.is_empty() => return Some(signs),
                '^' | '-' | '\\' | '[' | ']' => return None,
                sign => signs.push(LiteralPattern { text: sign.to_string(), ..LiteralPattern::default() }),
            }
        }
    }
}

/// Concatenates each literal of the first list with each of the second.
fn concatenate_literals(these: &[LiteralPattern], those: &[LiteralPattern]) -> Option<Vec<LiteralPattern>> {
    let mut all = Vec::new();
    for one in these {
        for other in those {
            if other.is_start_anchored && !(one.text.is_empty()) || one.is_end_anchored {
                return None;
            }
            let text = LiteralPattern {
                text: format!("{}{}", one.text, other.text),
                is_start_anchored: one.is_start_anchored || other.is_start_anchored,
                is_end_anchored: other.is_end_anchored,
            };
            if !all.contains(&text) {
                all.push(text);
            }
        }
    }
    (all.len() <= MAX_LITERALS).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_regexes_become_expressions() {
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
            let found = regex_literals(expression, CaseSensitivity::Sensitive).map(|texts| {
                let test = |text: &LiteralPattern| match (text.is_start_anchored, text.is_end_anchored) {
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
