//! Locations, and the `match` of a policy for each kind.
//!
//! | nginx | policy |
//! |---|---|
//! | `location /` | all paths |
//! | `location /api/` | `/api/**` |
//! | `location /api` | `/api*/**`: nginx compares characters, not segments |
//! | `location = /api` | `/api` |
//! | `location ~ ^/api/v1/` | `/api/v1/**` |
//! | `location ~ \.php$` | `when: request.path.endsWith('.php')` |

use super::{
    condition::{CaseSensitivity, regex_to_expression},
    lexer::Directive,
};
use tidegate_policy::{
    is_path,
    model::{Expression, Glob, Match, PathPattern, PathTail, Segment},
};

/// The paths that a location matches.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LocationPattern {
    /// `= /path`
    Exact(String),
    /// `/path` or `^~ /path`. The empty prefix stands for requests of a server outside of its locations.
    Prefix(String, PrefixPriority),
    /// `~ expression`, as the equivalent `match`.
    Regex(Box<Match>),
}

/// Whether nginx checks regular expressions when this prefix is the longest match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PrefixPriority {
    /// It checks them, and they take precedence.
    Normal,
    /// `^~`: it does not check them.
    BeforeRegex,
}

impl LocationPattern {
    /// Parses a location. The error explains why a policy cannot express it.
    pub(super) fn parse(directive: &Directive) -> Result<Self, String> {
        let pattern = match (directive.arg(0), directive.arg(1)) {
            (Some("="), Some(path)) => Self::Exact(path.to_owned()),
            (Some("^~"), Some(path)) => Self::Prefix(path.to_owned(), PrefixPriority::BeforeRegex),
            (Some("~"), Some(text)) => return regex_match(text).map(Self::from_match),
            (Some("~*"), Some(text)) => return regex_match_ignoring_case(text).map(Self::from_match),
            (Some(path), None) => {
                match (path.strip_prefix("~*"), path.strip_prefix('~'), path.strip_prefix('=')) {
                    (Some(text), ..) => return regex_match_ignoring_case(text).map(Self::from_match),
                    (_, Some(text), _) => return regex_match(text).map(Self::from_match),
                    (.., Some(path)) => Self::Exact(path.to_owned()),
                    _ if path.starts_with('@') => {
                        return Err("a named location is used only by nginx itself".to_owned());
                    }
                    _ => match path.strip_prefix("^~") {
                        Some(path) => Self::Prefix(path.to_owned(), PrefixPriority::BeforeRegex),
                        None => Self::Prefix(path.to_owned(), PrefixPriority::Normal),
                    },
                }
            }
            _ => return Err("unsupported location syntax".to_owned()),
        };
        let text = pattern.text().unwrap_or_default();
        if !text.starts_with('/') {
            return Err("the location does not start with a slash".to_owned());
        }
        match pattern.pattern() {
            Some(path) if is_path(&path) => Ok(pattern),
            _ => Err("a policy cannot express this path".to_owned()),
        }
    }

    fn from_match(matching: Match) -> Self {
        Self::Regex(Box::new(matching))
    }

    /// Returns the path; `None` for a regular expression.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Exact(text) | Self::Prefix(text, _) => Some(text),
            Self::Regex(_) => None,
        }
    }

    /// Whether this location takes precedence over regular expressions.
    pub(super) fn is_before_regex(&self) -> bool {
        !matches!(self, Self::Prefix(_, PrefixPriority::Normal))
    }

    /// Whether this location would match all requests of `inner` if `inner` did not exist.
    pub(super) fn covers(&self, inner: &Self) -> bool {
        match (self, inner) {
            (Self::Prefix(outer, _), Self::Prefix(inner, _)) => {
                outer.len() < inner.len() && inner.starts_with(outer.as_str())
            }
            // A policy ignores a trailing slash.
            (Self::Prefix(outer, _), Self::Exact(inner)) => {
                inner.starts_with(outer.as_str()) || outer.strip_suffix('/') == Some(inner)
            }
            _ => false,
        }
    }

    /// Returns the path pattern; `None` for a regular expression.
    pub(super) fn pattern(&self) -> Option<PathPattern> {
        match self {
            Self::Exact(text) => Some(PathPattern { segments: literal_segments(text), tail: None }),
            Self::Prefix(text, _) => Some(prefix_pattern(text)),
            Self::Regex(_) => None,
        }
    }
}

fn literal_segments(text: &str) -> Vec<Segment> {
    let parts = text.split('/').filter(|part| !part.is_empty());
    parts.map(|part| Segment::Text(part.to_owned())).collect()
}

/// Returns the pattern of all paths that start with this text.
fn prefix_pattern(text: &str) -> PathPattern {
    let mut segments = literal_segments(text);
    if !text.ends_with('/')
        && let Some(Segment::Text(last)) = segments.last_mut()
    {
        let glob = Segment::Glob(Glob(format!("{last}*")));
        // A literal `*` cannot be part of a glob.
        match last.contains('*') {
            true => last.push('/'),
            false => _ = segments.pop().map(|_| segments.push(glob)),
        }
    }
    PathPattern { segments, tail: Some(PathTail::Any) }
}

/// Converts a regular expression that a path pattern, a suffix test or a literal test can express.
fn regex_match(text: &str) -> Result<Match, String> {
    let unsupported = || "a policy cannot express this regular expression".to_owned();
    if let Some(endings) = regex_suffixes(text) {
        return Ok(suffix_match("request.path", &endings));
    }
    let texts = || regex_to_expression(text, "request.path", CaseSensitivity::Sensitive, None);
    match regex_paths(text) {
        Some(paths) => Ok(Match { paths, ..Match::default() }),
        None => texts().map(|when| Match { when: Some(when), ..Match::default() }).ok_or_else(unsupported),
    }
}

/// Converts `^…` and `^…$` to path patterns.
fn regex_paths(text: &str) -> Option<Vec<PathPattern>> {
    let from = text.strip_prefix('^')?;
    let (from, is_whole) = from.strip_suffix('$').map_or((from, false), |from| (from, true));
    let from = if is_whole { from } else { from.strip_suffix(".*").unwrap_or(from) };
    let mut paths = Vec::new();
    for path in expand_alternatives(from)? {
        paths.push(regex_path(&path, is_whole).filter(is_path)?);
    }
    (!paths.is_empty()).then_some(paths)
}

/// Converts a case-insensitive expression to an expression of the policy, because its paths are case-sensitive.
fn regex_match_ignoring_case(text: &str) -> Result<Match, String> {
    match regex_suffixes(text) {
        Some(endings) => {
            let endings: Vec<_> = endings.iter().map(|ending| ending.to_ascii_lowercase()).collect();
            Ok(suffix_match("request.path.lowerAscii()", &endings))
        }
        None => regex_to_expression(text, "request.path", CaseSensitivity::Insensitive, None)
            .map(|when| Match { when: Some(when), ..Match::default() })
            .ok_or_else(|| "a policy cannot express this case-insensitive regular expression".to_owned()),
    }
}

fn suffix_match(path: &str, endings: &[String]) -> Match {
    let tests: Vec<_> = endings.iter().map(|ending| format!("{path}.endsWith('{ending}')")).collect();
    Match { when: Some(Expression(tests.join(" || ").into())), ..Match::default() }
}

/// Parses `\.php$` and `\.(gif|png)$` into suffixes.
fn regex_suffixes(text: &str) -> Option<Vec<String>> {
    let inner = text.strip_prefix("\\.")?.strip_suffix('$')?;
    let is_word = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let extensions = match inner.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')) {
        Some(extensions) => extensions.strip_prefix("?:").unwrap_or(extensions),
        None => inner,
    };
    let extensions: Vec<&str> = extensions.split('|').collect();
    // The bounds keep the expression within the size limit of a policy.
    let are_extensions = extensions.len() <= 20 && inner.len() <= 160 && extensions.iter().all(is_word);
    // Without parentheses, `|` would split the whole expression.
    let is_plain = extensions.len() == 1 || inner.starts_with('(');
    (are_extensions && is_plain).then(|| extensions.iter().map(|word| format!(".{word}")).collect())
}

/// Expands `/(a|b)/` to `/a/` and `/b/`. Only one group is supported.
fn expand_alternatives(text: &str) -> Option<Vec<String>> {
    let Some((before, rest)) = text.split_once('(') else { return Some(vec![text.to_owned()]) };
    let (group, behind) = rest.split_once(')')?;
    let group = group.strip_prefix("?:").unwrap_or(group);
    if behind.contains(['(', ')']) || before.ends_with('\\') || behind.starts_with(['?', '*', '+', '{']) {
        return None;
    }
    Some(group.split('|').map(|each| format!("{before}{each}{behind}")).collect())
}

/// Converts literal text and `[^/]+` segments to a path pattern.
fn regex_path(text: &str, is_whole: bool) -> Option<PathPattern> {
    if !text.starts_with('/') {
        return None;
    }
    let mut segments = Vec::new();
    // `[^/]+` contains a slash, so replace it before the text is split at slashes.
    let text = text.replace("[^/]+", "\u{1}");
    for part in text.split('/').filter(|part| !part.is_empty()) {
        segments.push(match part {
            "\u{1}" => Segment::Glob(Glob("*".to_owned())),
            part => Segment::Text(unescape_literal(part)?),
        });
    }
    if is_whole {
        return Some(PathPattern { segments, tail: None });
    }
    if !text.ends_with('/') {
        match segments.pop()? {
            Segment::Text(last) => segments.push(Segment::Glob(Glob(format!("{last}*")))),
            other => segments.push(other),
        }
    }
    Some(PathPattern { segments, tail: Some(PathTail::Any) })
}

/// Returns the literal text of an expression without special characters.
fn unescape_literal(text: &str) -> Option<String> {
    let mut plain = String::new();
    let mut signs = text.chars();
    while let Some(sign) = signs.next() {
        match sign {
            '\\' => plain.push(signs.next().filter(|next| matches!(next, '.' | '-' | '_'))?),
            sign if sign.is_ascii_alphanumeric() || matches!(sign, '-' | '_' | '~' | '@') => plain.push(sign),
            _ => return None,
        }
    }
    Some(plain)
}
