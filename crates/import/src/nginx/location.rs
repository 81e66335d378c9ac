//! Locations: which paths they are about, in nginx's words and in those of a policy.
//!
//! | nginx | policy |
//! |---|---|
//! | `location /` | all paths |
//! | `location /api/` | `/api/**` |
//! | `location /api` | `/api*/**`: nginx compares signs, not segments |
//! | `location = /api` | `/api` |
//! | `location ~ ^/api/v1/` | `/api/v1/**` |
//! | `location ~ \.php$` | `when: request.path.endsWith('.php')` |

use super::{
    condition::{Case, expression_of},
    lexer::Directive,
};
use tidegate_policy::{
    is_path,
    model::{Expression, Glob, Match, PathPattern, PathTail, Segment},
};

/// What a location is about.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Place {
    /// `= /path`
    Exact(String),
    /// `/path`, `^~ /path`, or a server outside of its locations, which is a location of the empty text.
    Prefix(String, Strength),
    /// `~ expression`, as far as it can be said otherwise.
    Expression(Box<Match>),
}

/// Whether regular expressions are asked where a prefix is the longest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strength {
    /// They are, and go first.
    Usual,
    /// `^~`: they are not.
    BeforeExpressions,
}

impl Place {
    /// What a location says, or why it cannot be said in a policy.
    pub(super) fn of(directive: &Directive) -> Result<Self, String> {
        let place = match (directive.arg(0), directive.arg(1)) {
            (Some("="), Some(path)) => Self::Exact(path.to_owned()),
            (Some("^~"), Some(path)) => Self::Prefix(path.to_owned(), Strength::BeforeExpressions),
            (Some("~"), Some(text)) => return expression(text).map(Self::of_match),
            (Some("~*"), Some(text)) => return expression_of_any_case(text).map(Self::of_match),
            (Some(path), None) => {
                match (path.strip_prefix("~*"), path.strip_prefix('~'), path.strip_prefix('=')) {
                    (Some(text), ..) => return expression_of_any_case(text).map(Self::of_match),
                    (_, Some(text), _) => return expression(text).map(Self::of_match),
                    (.., Some(path)) => Self::Exact(path.to_owned()),
                    _ if path.starts_with('@') => {
                        return Err("a location that only nginx itself goes to".to_owned());
                    }
                    _ => match path.strip_prefix("^~") {
                        Some(path) => Self::Prefix(path.to_owned(), Strength::BeforeExpressions),
                        None => Self::Prefix(path.to_owned(), Strength::Usual),
                    },
                }
            }
            _ => return Err("a location that is not understood".to_owned()),
        };
        let text = place.text().unwrap_or_default();
        if !text.starts_with('/') {
            return Err("a location that does not start with a slash".to_owned());
        }
        match place.pattern() {
            Some(pattern) if is_path(&pattern) => Ok(place),
            _ => Err("a path that a policy cannot say".to_owned()),
        }
    }

    fn of_match(matching: Match) -> Self {
        Self::Expression(Box::new(matching))
    }

    /// The text of a path.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Exact(text) | Self::Prefix(text, _) => Some(text),
            Self::Expression(_) => None,
        }
    }

    /// Whether regular expressions do not matter where it is the nearest.
    pub(super) fn is_strong(&self) -> bool {
        !matches!(self, Self::Prefix(_, Strength::Usual))
    }

    /// Whether all that is about `inner` would be about this, if that were not there.
    pub(super) fn covers(&self, inner: &Self) -> bool {
        match (self, inner) {
            (Self::Prefix(outer, _), Self::Prefix(inner, _)) => {
                outer.len() < inner.len() && inner.starts_with(outer.as_str())
            }
            // A slash at the end makes no difference to a policy.
            (Self::Prefix(outer, _), Self::Exact(inner)) => {
                inner.starts_with(outer.as_str()) || outer.strip_suffix('/') == Some(inner)
            }
            _ => false,
        }
    }

    /// Its paths; `None` for an expression.
    pub(super) fn pattern(&self) -> Option<PathPattern> {
        match self {
            Self::Exact(text) => Some(PathPattern { segments: texts(text), tail: None }),
            Self::Prefix(text, _) => Some(prefix(text)),
            Self::Expression(_) => None,
        }
    }
}

fn texts(text: &str) -> Vec<Segment> {
    let parts = text.split('/').filter(|part| !part.is_empty());
    parts.map(|part| Segment::Text(part.to_owned())).collect()
}

/// All paths that start with these signs.
fn prefix(text: &str) -> PathPattern {
    let mut segments = texts(text);
    if !text.ends_with('/')
        && let Some(Segment::Text(last)) = segments.last_mut()
    {
        let glob = Segment::Glob(Glob(format!("{last}*")));
        // A star that is meant is no star.
        match last.contains('*') {
            true => last.push('/'),
            false => _ = segments.pop().map(|_| segments.push(glob)),
        }
    }
    PathPattern { segments, tail: Some(PathTail::Any) }
}

/// Regular expressions that say no more than a path or an ending can.
fn expression(text: &str) -> Result<Match, String> {
    let strange = || "a regular expression that stands for more than texts".to_owned();
    if let Some(endings) = endings(text) {
        return Ok(ends_with("request.path", &endings));
    }
    let texts = || expression_of(text, "request.path", Case::Exact, None);
    match paths(text) {
        Some(paths) => Ok(Match { paths, ..Match::default() }),
        None => texts().map(|when| Match { when: Some(when), ..Match::default() }).ok_or_else(strange),
    }
}

/// Paths that start with these signs, or are these.
fn paths(text: &str) -> Option<Vec<PathPattern>> {
    let from = text.strip_prefix('^')?;
    let (from, is_whole) = from.strip_suffix('$').map_or((from, false), |from| (from, true));
    let from = if is_whole { from } else { from.strip_suffix(".*").unwrap_or(from) };
    let mut paths = Vec::new();
    for path in alternatives(from)? {
        paths.push(pattern(&path, is_whole).filter(is_path)?);
    }
    (!paths.is_empty()).then_some(paths)
}

/// Paths in a policy are not compared so, but endings can be.
fn expression_of_any_case(text: &str) -> Result<Match, String> {
    match endings(text) {
        Some(endings) => {
            let endings: Vec<_> = endings.iter().map(|ending| ending.to_ascii_lowercase()).collect();
            Ok(ends_with("request.path.lowerAscii()", &endings))
        }
        None => expression_of(text, "request.path", Case::Ignored, None)
            .map(|when| Match { when: Some(when), ..Match::default() })
            .ok_or_else(|| {
                "a regular expression that ignores case and stands for more than texts".to_owned()
            }),
    }
}

fn ends_with(path: &str, endings: &[String]) -> Match {
    let tests: Vec<_> = endings.iter().map(|ending| format!("{path}.endsWith('{ending}')")).collect();
    Match { when: Some(Expression(tests.join(" || ").into())), ..Match::default() }
}

/// `\.php$`, `\.(jpe?g|png)$` without the `?`.
fn endings(text: &str) -> Option<Vec<String>> {
    let inner = text.strip_prefix("\\.")?.strip_suffix('$')?;
    let is_word = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let words = match inner.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')) {
        Some(words) => words.strip_prefix("?:").unwrap_or(words),
        None => inner,
    };
    let words: Vec<&str> = words.split('|').collect();
    // As many as an expression of a policy has room for.
    let are_words = words.len() <= 20 && inner.len() <= 160 && words.iter().all(is_word);
    // Without parentheses a bar would divide the whole expression.
    let is_plain = words.len() == 1 || inner.starts_with('(');
    (are_words && is_plain).then(|| words.iter().map(|word| format!(".{word}")).collect())
}

/// `/(a|b)/` as `/a/` and `/b/`; one such group is enough.
fn alternatives(text: &str) -> Option<Vec<String>> {
    let Some((before, rest)) = text.split_once('(') else { return Some(vec![text.to_owned()]) };
    let (group, behind) = rest.split_once(')')?;
    let group = group.strip_prefix("?:").unwrap_or(group);
    if behind.contains(['(', ')']) || before.ends_with('\\') || behind.starts_with(['?', '*', '+', '{']) {
        return None;
    }
    Some(group.split('|').map(|each| format!("{before}{each}{behind}")).collect())
}

/// A path of letters and `[^/]+`, whole or as a start.
fn pattern(text: &str, is_whole: bool) -> Option<PathPattern> {
    if !text.starts_with('/') {
        return None;
    }
    let mut segments = Vec::new();
    // A set of signs may hold the slash that it leaves out.
    let text = text.replace("[^/]+", "\u{1}");
    for part in text.split('/').filter(|part| !part.is_empty()) {
        segments.push(match part {
            "\u{1}" => Segment::Glob(Glob("*".to_owned())),
            part => Segment::Text(literal(part)?),
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

/// An expression that stands for itself.
fn literal(text: &str) -> Option<String> {
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
