//! Formats numbers in few columns.

/// A count: `9999`, `12.3k`, `4.56M`.
pub(super) fn format_count(number: u64) -> String {
    match number {
        0..10_000 => number.to_string(),
        _ => format_short(number as f64),
    }
}

/// A rate per second: `0.5`, `12`, `12.3k`.
pub(super) fn format_rate(rate: f64) -> String {
    match rate {
        rate if rate < 0.05 => "0".to_owned(),
        rate if rate < 9.95 => format!("{rate:.1}"),
        rate if rate < 9_999.5 => format!("{rate:.0}"),
        rate => format_short(rate),
    }
}

/// A duration: `85 µs`, `1.2 ms`, `3.0 s`.
pub(super) fn format_seconds(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 0.000_999_5 => format!("{:.0} µs", seconds * 1e6),
        seconds if seconds < 0.009_995 => format!("{:.1} ms", seconds * 1e3),
        seconds if seconds < 0.999_5 => format!("{:.0} ms", seconds * 1e3),
        seconds => format!("{seconds:.1} s"),
    }
}

/// An age: `12 s`, `3 min`, `5 h`, `2 d`.
pub(super) fn format_age(seconds: f64) -> String {
    match seconds as u64 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// Three digits and a unit prefix.
fn format_short(number: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    // A value that rounds up to 1000 uses the next unit.
    let (unit, name) = units.into_iter().find(|(unit, _)| number >= unit * 0.999_5).unwrap_or((1e3, "k"));
    let value = number / unit;
    match value {
        value if value < 9.995 => format!("{value:.2}{name}"),
        value if value < 99.95 => format!("{value:.1}{name}"),
        value => format!("{value:.0}{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        for (number, text) in [
            (0, "0"),
            (9_999, "9999"),
            (10_000, "10.0k"),
            (999_900, "1.00M"),
            (4_560_000, "4.56M"),
            (123_456_789_012, "123G"),
        ] {
            assert_eq!(format_count(number), text);
        }
        for (rate, text) in [(0.0, "0"), (0.5, "0.5"), (9.96, "10"), (1_234.4, "1234"), (12_345.0, "12.3k")] {
            assert_eq!(format_rate(rate), text);
        }
        for (seconds, text) in [(0.000_002, "2 µs"), (0.001_2, "1.2 ms"), (0.25, "250 ms"), (2.0, "2.0 s")] {
            assert_eq!(format_seconds(seconds), text);
        }
        assert_eq!(
            (format_age(119.9), format_age(7_199.0), format_age(86_400.0)),
            ("119 s".into(), "119 min".into(), "24 h".into())
        );
    }
}
