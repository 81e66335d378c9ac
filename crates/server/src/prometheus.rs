//! The text format of Prometheus.

use std::fmt::{Display, Write as _};

/// Explains a metric in a sentence; comes before its type.
pub(crate) fn help(out: &mut String, name: &str, text: &str) {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    let _ = writeln!(out, "# HELP {name} {text}");
}

/// Says what the lines that follow are.
pub(crate) fn header(out: &mut String, name: &str, kind: &str) {
    // Writing to a text does not fail.
    let _ = writeln!(out, "# TYPE {name} {kind}");
}

/// One number, under its name and labels.
pub(crate) fn line(out: &mut String, name: &str, labels: &[(&str, &str)], value: &dyn Display) {
    out.push_str(name);
    for (place, (label, text)) in labels.iter().enumerate() {
        out.push(if place == 0 { '{' } else { ',' });
        let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(out, "{label}=\"{text}\"");
    }
    let end = if labels.is_empty() { "" } else { "}" };
    let _ = writeln!(out, "{end} {value}");
}

/// Microseconds, written as seconds.
pub(crate) fn seconds(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_are_written_as_seconds() {
        for (micros, expected) in [(0, "0"), (100, "0.0001"), (1_000_000, "1"), (1_500_000, "1.5")] {
            assert_eq!(seconds(micros), expected);
        }
    }

    #[test]
    fn no_label_can_end_its_line() {
        let mut out = String::new();
        line(&mut out, "a", &[("rule", "x\"}\n\\")], &1);
        assert_eq!(out, "a{rule=\"x\\\"}\\n\\\\\"} 1\n");
    }
}
