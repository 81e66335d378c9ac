//! Values as they are written in files and in the environment.

use crate::Mode;
use std::{ops::Range, time::Duration};
use tidegate_core::{Micros, Quota, QuotaError, spelling::meant};
use tidegate_engine::Outage;

/// What is wrong with a value, where in it, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    pub(super) problem: String,
    pub(super) fix: String,
    /// The bytes of the value that are at fault; all of it where that is not known.
    pub(super) span: Option<Range<usize>>,
}

impl Mistake {
    pub(super) fn new(problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { problem: problem.into(), fix: fix.into(), span: None }
    }
}

impl From<QuotaError> for Mistake {
    fn from(error: QuotaError) -> Self {
        let span = error.span();
        Self { problem: error.problem().to_owned(), fix: error.fix().to_owned(), span }
    }
}

/// An address may hold a password: where none belongs, it must not be told what stands there.
pub(super) fn refuse_address(text: &str) -> Result<&str, Mistake> {
    match looks_like_address(text) {
        false => Ok(text),
        true => Err(Mistake::new(
            "an address does not belong here",
            "put it under `store`, or with a name under `stores`",
        )),
    }
}

pub(crate) fn looks_like_address(text: &str) -> bool {
    text.contains("://") || text.contains('@')
}

pub(super) fn quota(text: &str) -> Result<Quota, Mistake> {
    Ok(text.parse::<Quota>()?)
}

pub(super) fn time(text: &str) -> Result<Duration, Mistake> {
    Ok(text.parse::<Micros>()?.into())
}

/// How often to look at a file: not so often that looking is all that is done.
#[cfg(feature = "file")]
pub(super) fn pace(text: &str) -> Result<Duration, Mistake> {
    match time(text)? {
        pace if pace < SHORTEST_PACE => {
            Err(Mistake::new(format!("`{text}` is too often"), "look every 100ms at most, such as `1s`"))
        }
        pace => Ok(pace),
    }
}

/// How often a file is looked at, at most.
#[cfg(feature = "file")]
pub(crate) const SHORTEST_PACE: Duration = Duration::from_millis(100);

pub(super) fn mode(text: &str) -> Result<Mode, Mistake> {
    let fix = "use one of enforce, shadow, off";
    text.parse().map_err(|_| Mistake::new(format!("unknown mode `{text}`"), suggested(text, &MODES, fix)))
}

const MODES: [&str; 3] = ["enforce", "shadow", "off"];

/// `open`, `closed`, `local`, or `local N` where so many processes share the quota.
pub(super) fn outage(text: &str) -> Result<Outage, Mistake> {
    let fix = "use open, closed, or local N, where N processes share the quota";
    let (word, rest) = text.split_once(' ').map_or((text, ""), |(word, rest)| (word, rest.trim()));
    match (word, rest) {
        ("open", "") => Ok(Outage::Open),
        ("closed", "") => Ok(Outage::Closed),
        ("local", "") => Ok(Outage::Local { nodes: 1 }),
        ("local", nodes) => match nodes.parse() {
            Ok(nodes) if nodes > 0 => Ok(Outage::Local { nodes }),
            _ => Err(Mistake::new(format!("`{nodes}` is not a number of processes"), fix)),
        },
        _ => Err(Mistake::new(
            format!("unknown answer to an outage `{text}`"),
            suggested(word, &["open", "closed", "local"], fix),
        )),
    }
}

/// A text with `$NAME` and `${NAME}` replaced by what `variable` knows of them; `$$` is a dollar.
pub(super) fn expanded(text: &str, variable: &Variables<'_>) -> Result<String, Mistake> {
    let mut whole = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('$') {
        whole.push_str(before);
        let (name, after) = match behind.strip_prefix('{') {
            Some(braced) => braced
                .split_once('}')
                .ok_or_else(|| Mistake::new("a `${` without its `}`", "write ${NAME}, or $$ for a dollar"))?,
            None => {
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
                behind.split_at(behind.find(|c| !is_part(c)).unwrap_or(behind.len()))
            }
        };
        rest = after;
        match (name, after.strip_prefix('$')) {
            ("", Some(after)) if !behind.starts_with('{') => {
                whole.push('$');
                rest = after;
            }
            ("", _) => return Err(Mistake::new("a `$` without a name", "write $NAME, or $$ for a dollar")),
            (name, _) => whole.push_str(&variable(name).ok_or_else(|| not_set(name))?),
        }
    }
    whole.push_str(rest);
    Ok(whole)
}

/// What is no usual name may be the rest of a password with a dollar in it, and is not told.
fn not_set(name: &str) -> Mistake {
    let is_usual = name.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    let name = if is_usual { name } else { "behind a `$`" };
    let fix =
        format!("set {} in the environment, or write $$ for a dollar", if is_usual { name } else { "it" });
    Mistake::new(format!("the variable {name} is not set"), fix)
}

/// What the environment says. An argument, so that a test need not change that of its process.
pub(super) type Variables<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// The known word that was meant by a mistyped one, in front of what to write in general.
pub(super) fn suggested(word: &str, known: &[&str], otherwise: &str) -> String {
    match meant(word, known.iter().copied()) {
        Some(known) => format!("did you mean `{known}`? {otherwise}"),
        None => otherwise.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{expanded, outage};
    use tidegate_engine::Outage;

    #[test]
    fn answers_to_an_outage() {
        let table = [
            ("open", Some(Outage::Open)),
            ("closed", Some(Outage::Closed)),
            ("local", Some(Outage::Local { nodes: 1 })),
            ("local 4", Some(Outage::Local { nodes: 4 })),
            ("local 0", None),
            ("local four", None),
            ("open 3", None),
            ("opne", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(outage(text).ok(), expected, "{text}");
        }
        assert!(outage("opne").unwrap_err().fix.starts_with("did you mean `open`?"));
    }

    #[test]
    fn variables_are_expanded() {
        let variable = |name: &str| match name {
            "HOST" => Some("db".to_owned()),
            "SECRET" => Some("pa$$word".to_owned()),
            _ => None,
        };
        let table = [
            ("memory", Ok("memory")),
            ("redis://$HOST:6379", Ok("redis://db:6379")),
            ("redis://:${SECRET}@$HOST", Ok("redis://:pa$$word@db")),
            ("redis://:a$$b@host", Ok("redis://:a$b@host")),
            ("redis://$NOWHERE", Err("the variable NOWHERE is not set")),
            ("redis://:hunter$2a@host", Err("the variable behind a `$` is not set")),
            ("redis://${HOST", Err("a `${` without its `}`")),
            ("redis://$@host", Err("a `$` without a name")),
            ("redis://${}@host", Err("a `$` without a name")),
            ("redis://host/$", Err("a `$` without a name")),
        ];
        for (text, expected) in table {
            let found = expanded(text, &variable);
            assert_eq!(found.as_deref().map_err(|mistake| mistake.problem.as_str()), expected, "{text}");
        }
    }
}
