//! A problem as in RFC 9457, written as JSON.

use tidegate_core::header::write_number;

/// What is told of a refusal.
pub(super) struct Problem<'a> {
    pub(super) kind: &'static str,
    pub(super) title: &'static str,
    pub(super) status: u16,
    pub(super) detail: &'a str,
    pub(super) violated: &'a [&'a str],
    pub(super) retry_after: Option<u64>,
}

impl Problem<'_> {
    /// It as JSON. Many requests may be refused, so it is put together from pieces, not sign by sign.
    pub(super) fn text(&self) -> String {
        let Self { kind, title, status, detail, violated, retry_after } = *self;
        let names: usize = violated.iter().map(|name| name.len() + 3).sum();
        let mut text = String::with_capacity(128 + kind.len() + title.len() + detail.len() + names);
        // Ours, and in need of no care.
        for part in [r#"{"type":""#, kind, r#"","title":""#, title, r#"","status":"#] {
            text.push_str(part);
        }
        number(status.into(), &mut text);
        text.push_str(r#","detail":"#);
        quote(detail, &mut text);
        if !violated.is_empty() {
            text.push_str(r#","violated-policies":["#);
            for (place, name) in violated.iter().enumerate() {
                if place > 0 {
                    text.push(',');
                }
                quote(name, &mut text);
            }
            text.push(']');
        }
        if let Some(seconds) = retry_after {
            text.push_str(r#","retry-after":"#);
            number(seconds, &mut text);
        }
        text.push('}');
        text
    }
}

fn number(number: u64, text: &mut String) {
    // Writing to a text does not fail.
    let _ = write_number(text, number);
}

/// Writes text in quotes.
fn quote(said: &str, text: &mut String) {
    text.push('"');
    let mut rest = said;
    while let Some(place) = rest.bytes().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)) {
        let (plain, special) = rest.split_at(place);
        text.push_str(plain);
        let (special, after) = special.split_at(1);
        rest = after;
        match special {
            "\n" => text.push_str("\\n"),
            "\"" | "\\" => {
                text.push('\\');
                text.push_str(special);
            }
            _ => special.bytes().for_each(|byte| text.push_str(&format!("\\u{byte:04x}"))),
        }
    }
    text.push_str(rest);
    text.push('"');
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
            let read: serde_json::Value = serde_json::from_str(&problem.text()).unwrap();
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
