//! A problem as in RFC 9457, written as JSON.

use std::fmt::{self, Write as _};

/// What is told of a refusal.
pub(super) struct Problem<'a> {
    pub(super) kind: &'static str,
    pub(super) title: &'static str,
    pub(super) status: u16,
    pub(super) detail: &'a str,
    pub(super) violated: &'a [&'a str],
    pub(super) retry_after: Option<u64>,
}

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, title, status, detail, violated, retry_after } = *self;
        write!(f, r#"{{"type":{},"title":{},"status":{status}"#, Quoted(kind), Quoted(title))?;
        write!(f, r#","detail":{}"#, Quoted(detail))?;
        if let Some((first, rest)) = violated.split_first() {
            write!(f, r#","violated-policies":[{}"#, Quoted(first))?;
            rest.iter().try_for_each(|name| write!(f, ",{}", Quoted(name)))?;
            f.write_char(']')?;
        }
        if let Some(seconds) = retry_after {
            write!(f, r#","retry-after":{seconds}"#)?;
        }
        f.write_char('}')
    }
}

/// Text in quotes.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for sign in self.0.chars() {
            match sign {
                '"' | '\\' => write!(f, "\\{sign}")?,
                '\n' => f.write_str("\\n")?,
                '\u{0}'..='\u{1f}' => write!(f, "\\u{:04x}", u32::from(sign))?,
                _ => f.write_char(sign)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_problem_is_read_back(
            detail in "(?s).*",
            violated in proptest::collection::vec("(?s).{0,8}", 0..3),
            retry_after in any::<Option<u64>>(),
        ) {
            let violated: Vec<_> = violated.iter().map(String::as_str).collect();
            let problem =
                Problem { kind: "about:blank", title: "T", status: 429, detail: &detail, violated: &violated, retry_after };
            let read: serde_json::Value = serde_json::from_str(&problem.to_string()).unwrap();
            let mut meant = serde_json::json!({
                "type": "about:blank", "title": "T", "status": 429, "detail": detail,
            });
            if !violated.is_empty() {
                meant["violated-policies"] = serde_json::json!(violated);
            }
            if let Some(seconds) = retry_after {
                meant["retry-after"] = seconds.into();
            }
            prop_assert_eq!(read, meant);
        }
    }
}
