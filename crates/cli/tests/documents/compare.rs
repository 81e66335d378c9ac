//! Compares documented output with real output.
//!
//! Lines must be equal, except for trailing whitespace and for what differs in each run: a date with a time; an id of 16 or 32
//! characters; and seconds after `retry-after`, `t=`, `after` and `durationUntilReset`. A documented line `...` stands for any
//! number of lines.

use regex::{Captures, Regex};

fn normalize(line: &str) -> String {
    let replace = |text: &str, pattern: &str, with: &str| {
        Regex::new(pattern).unwrap().replace_all(text, with).into_owned()
    };
    let text = replace(line, r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?", "<time>");
    let text = replace(&text, r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT", "<time>");
    let text =
        replace(&text, r#"(retry-after"?: ?|;t=|\bafter |"durationUntilReset":")\d+(\.\d+)?"#, "$1<seconds>");
    let is_id = |text: &str| {
        text.contains(|c: char| c.is_ascii_digit()) && text.contains(|c: char| c.is_alphabetic())
    };
    let ids = Regex::new(r"\b([0-9a-z]{32}|[0-9a-z]{16})\b").unwrap();
    let text = ids.replace_all(&text, |found: &Captures<'_>| match is_id(&found[0]) {
        true => "<id>".to_owned(),
        false => found[0].to_owned(),
    });
    text.trim_end().to_owned()
}

/// Whether a command printed what is documented; an error shows both.
pub(crate) fn compare(documented: &str, printed: &str) -> Result<(), String> {
    let lines = |text: &str| text.trim_end().lines().map(normalize).collect::<Vec<_>>();
    match is_match(&lines(documented), &lines(printed)) {
        true => Ok(()),
        false => Err(format!("the page shows\n{documented}\nbut the command prints\n{printed}")),
    }
}

fn is_match(documented: &[String], printed: &[String]) -> bool {
    match documented.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first == "..." => {
            (0..=printed.len()).any(|skip| is_match(rest, &printed[skip..]))
        }
        Some((first, rest)) => printed.first() == Some(first) && is_match(rest, &printed[1..]),
    }
}

#[test]
fn only_times_and_ids_may_differ() {
    let cases = [
        ("a\nb", "a\nb\n", true),
        ("a\nb", "a\nc", false),
        ("a\n...\nd", "a\nb\nc\nd", true),
        ("a\n...\nd", "a\nb\nc", false),
        ("a", "a\nb", false),
        ("retry-after: 8", "retry-after: 7\r", true),
        ("8 denied", "7 denied", false),
        ("time 2026-11-18T05:47:10.306411Z", "time 2027-01-02T03:04:05.1Z", true),
        ("tidegate-denial: 1m7pk3q32stsg89f", "tidegate-denial: 9m7pk3q32stsg89a", true),
        ("tidegate-denial: 1m7pk3q32stsg89f", "tidegate-denial: none", false),
        ("everything-elses", "everything-elsex", false),
    ];
    for (documented, printed, expected) in cases {
        assert_eq!(compare(documented, printed).is_ok(), expected, "{documented:?} and {printed:?}");
    }
}
