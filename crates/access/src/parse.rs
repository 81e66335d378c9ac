//! Lists as text: one entry per line.
//!
//! ```text
//!   # comments start with a number sign
//!   deny 10.0.0.0/8
//!   192.0.2.7            # gets the default action of the list
//!   allow 2001:db8::1
//!   deny key mallory     # the remaining text of the line is the key
//! ```
//!
//! A key needs the word `key`, so that a typo in an address is an error instead of an unused key.

use super::{build::AccessListBuilder, list::ListAction, prefix::Prefix};
use tidegate_core::SettingError;

/// Parses all entries into the builder, including the errors.
pub(super) fn parse_entries(text: &str, default_action: ListAction, builder: &mut AccessListBuilder) {
    // A byte order mark is not part of the first entry.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (line, number) in text.lines().zip(1..) {
        let entry = strip_comment(line).trim();
        if entry.is_empty() {
            continue;
        }
        let (action, what) = match split_first_word(entry) {
            ("allow", rest) => (ListAction::Allow, rest),
            ("deny", rest) => (ListAction::Deny, rest),
            _ => (default_action, entry),
        };
        let read = match split_first_word(what) {
            ("key", "") => Err(SettingError::new(
                format!("missing key after `{}`", truncate(entry)),
                "write `key alice`",
            )),
            ("key", key) => {
                builder.add_key(key.into(), action, Some(number));
                Ok(())
            }
            _ => parse_prefix(entry, what).map(|prefix| builder.add(prefix, action, Some(number))),
        };
        if let Err(error) = read {
            builder.add_problem(number, error);
        }
    }
}

fn parse_prefix(entry: &str, address: &str) -> Result<Prefix, SettingError> {
    if address.is_empty() {
        let fix = format!("write `{entry} 192.0.2.7`, or `{entry} key alice`");
        return Err(SettingError::new(format!("missing address after `{entry}`"), fix));
    }
    address.parse::<Prefix>().map_err(|error| {
        let looks_like_a_key = !address.contains(['.', ':', '/']);
        match split_first_word(address) {
            (address, rest) if !rest.is_empty() && address.parse::<Prefix>().is_ok() => SettingError::new(
                format!("unexpected `{}` after the address", truncate(rest)),
                "write one entry per line, and `#` before a comment",
            ),
            _ if looks_like_a_key => {
                let what = truncate(address);
                SettingError::new(
                    format!("`{what}` is not an address"),
                    format!("write `key {what}` for a key"),
                )
            }
            _ if address.len() > MAX_SHOWN_LEN => SettingError::new(
                format!("`{}` is not an address", truncate(address)),
                "write one address or prefix per line",
            ),
            _ => error,
        }
    })
}

/// The maximum number of characters of a line in an error.
const MAX_SHOWN_LEN: usize = 80;

fn truncate(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN_LEN) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or(text)),
        None => text.to_owned(),
    }
}

/// Removes a comment. A key may contain `#`, so only one at the start or after a space starts a comment.
fn strip_comment(line: &str) -> &str {
    let starts_comment =
        |at: &usize| line.get(..*at).is_some_and(|before| before.trim_end().len() < before.len());
    let comment = line.match_indices('#').map(|(at, _)| at).find(|at| *at == 0 || starts_comment(at));
    comment.and_then(|at| line.get(..at)).unwrap_or(line)
}

fn split_first_word(text: &str) -> (&str, &str) {
    match text.split_once(char::is_whitespace) {
        Some((word, rest)) => (word, rest.trim_start()),
        None => (text, ""),
    }
}
