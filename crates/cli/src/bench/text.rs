//! The outcome of a load as text.

use super::{BenchOutcome, outcome::ExpectedCounts, run::MAX_QUEUED};
use crate::{
    simulate::time::format_rough,
    terminal::{Paint, Tone, sanitize},
};
use std::fmt::Write as _;
use tidegate_core::Micros;

/// Renders the report. Writing to a string does not fail.
pub(crate) fn render_text(outcome: &BenchOutcome, url: &str, paint: Paint) -> String {
    let mut text = format!(
        "{}: {} requests in {}, requested {}/s, reached {}/s\n",
        paint.tone(Tone::Strong, sanitize(url)),
        outcome.sent,
        format_rough(outcome.elapsed),
        format_rate(requested_rate(outcome)),
        format_rate(reached_rate(outcome))
    );
    let faint = |name: &str| paint.tone(Tone::Faint, format!("{name:<10}"));
    let statuses = outcome.statuses.iter().map(|(status, count)| format!("{status} × {count}"));
    let failures: u64 = outcome.failures.values().sum();
    let failed = (failures > 0).then(|| format!("none × {failures}"));
    let _ = writeln!(text, "{}{}", faint("responses"), statuses.chain(failed).collect::<Vec<_>>().join(", "));
    for (error, count) in &outcome.failures {
        let line = format!("{count} failed: {}", sanitize(error));
        let _ = writeln!(text, "{}{}", faint(""), paint.tone(Tone::Problem, line));
    }
    let times = [
        ("latency", &outcome.latency, "from the due time"),
        ("service", &outcome.service, "from the time of sending"),
    ];
    for (name, latency, start) in times.into_iter().filter(|(_, latency, _)| latency.count() > 0) {
        let at = |permille| format_rough(latency.permille(permille));
        let _ = writeln!(
            text,
            "{}p50 {}, p90 {}, p99 {}, p99.9 {}, max {}, {start}",
            faint(name),
            at(500),
            at(900),
            at(990),
            at(999),
            format_rough(latency.max())
        );
    }
    let _ = writeln!(text, "{}{}", faint("schedule"), describe_schedule(outcome));
    if outcome.unsent > 0 {
        let line = format!(
            "{} not sent: {MAX_QUEUED} were queued for {} connections; use more with --connections",
            outcome.unsent, outcome.max_in_flight
        );
        let _ = writeln!(text, "{}{}", faint(""), paint.tone(Tone::Problem, line));
    }
    if outcome.abandoned > 0 {
        let line = format!("{} due but not sent: the run was interrupted", outcome.abandoned);
        let _ = writeln!(text, "{}{}", faint(""), paint.tone(Tone::Problem, line));
    }
    let _ = writeln!(text, "{}{} admitted, {} denied", faint("decisions"), outcome.admitted, outcome.denied);
    if let Some(expected) = &outcome.expected {
        write_comparison(&mut text, outcome, expected, paint);
    }
    text
}

/// Describes how closely the run followed its schedule.
fn describe_schedule(outcome: &BenchOutcome) -> String {
    let max_in_flight = format!("at most {} in flight", outcome.max_in_flight);
    match outcome.late {
        0 => format!("all {} sent on time, {max_in_flight}", outcome.sent),
        late => format!(
            "{late} of {} sent more than 1ms late, at most {} late, {max_in_flight}",
            outcome.sent,
            format_rough(outcome.max_lateness)
        ),
    }
}

fn write_comparison(text: &mut String, outcome: &BenchOutcome, expected: &ExpectedCounts, paint: Paint) {
    let faint = |name: &str| paint.tone(Tone::Faint, format!("{name:<10}"));
    let difference = outcome.difference().unwrap_or(0);
    let verdict = match difference {
        0 => paint.tone(Tone::Admitted, "no difference"),
        1 => paint.tone(Tone::Problem, "1 request differs"),
        count => paint.tone(Tone::Problem, format!("{count} requests differ")),
    };
    let _ = writeln!(
        text,
        "{}{} admitted, {} denied: {verdict}",
        faint("expected"),
        expected.admitted,
        expected.denied
    );
    let reported = expected
        .rules
        .iter()
        .filter(|(name, denied)| *denied > 0 || outcome.denied_by_rule.contains_key(name));
    for (name, denied) in reported {
        let denied_count = outcome.denied_by_rule.get(name).copied().unwrap_or(0);
        let _ =
            writeln!(text, "{}rule {}: {denied_count} denied, {denied} expected", faint(""), sanitize(name));
    }
    let (keys, count) = outcome.differing_keys();
    for key in &keys {
        let _ =
            writeln!(text, "{}{}: {} admitted, {} expected", faint(""), key.key, key.admitted, key.expected);
    }
    if count > keys.len() {
        let _ = writeln!(text, "{}and {} more keys", faint(""), count - keys.len());
    }
    for note in &expected.notes {
        let _ = writeln!(text, "{}{}", faint("note"), sanitize(note));
    }
}

/// The rate of the schedule.
pub(super) fn requested_rate(outcome: &BenchOutcome) -> f64 {
    per_second(outcome.due, outcome.schedule_length)
}

/// The rate of responses.
pub(super) fn reached_rate(outcome: &BenchOutcome) -> f64 {
    per_second(outcome.latency.count(), outcome.elapsed)
}

fn per_second(count: u64, time: Micros) -> f64 {
    count as f64 * 1e6 / time.max(Micros::new(1)).get() as f64
}

/// One decimal, and separators of thousands: `20,000.0`.
fn format_rate(rate: f64) -> String {
    let text = format!("{rate:.1}");
    let (whole, decimal) = text.split_once('.').unwrap_or((&text, "0"));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{grouped}.{decimal}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_lists_differences() {
        let mut outcome = BenchOutcome {
            due: 20,
            sent: 20,
            elapsed: Micros::from_secs(2),
            schedule_length: Micros::from_millis(1),
            max_in_flight: 3,
            ..BenchOutcome::default()
        };
        outcome.statuses = [(200, 11), (429, 8)].into();
        outcome.failures = [("connection refused".to_owned(), 1)].into();
        (outcome.admitted, outcome.denied, outcome.late, outcome.max_lateness) =
            (11, 8, 2, Micros::from_millis(5));
        outcome.denied_by_rule = [("login\u{1b}".to_owned(), 8)].into();
        (0..19).for_each(|_| outcome.latency.record(Micros::from_millis(2)));
        (0..19).for_each(|_| outcome.service.record(Micros::from_millis(1)));
        outcome.unsent = 4;
        outcome.expected = Some(ExpectedCounts {
            admitted: 10,
            denied: 10,
            rules: vec![("other".to_owned(), 0), ("login\u{1b}".to_owned(), 10)],
            keys: vec![(5, 5), (6, 5)],
            notes: vec!["something".to_owned()],
        });
        assert_eq!(
            render_text(&outcome, "http://a/", Paint::Plain),
            "\
http://a/: 20 requests in 2s, requested 20,000.0/s, reached 9.5/s
responses 200 × 11, 429 × 8, none × 1
          1 failed: connection refused
latency   p50 2ms, p90 2ms, p99 2ms, p99.9 2ms, max 2ms, from the due time
service   p50 1ms, p90 1ms, p99 1ms, p99.9 1ms, max 1ms, from the time of sending
schedule  2 of 20 sent more than 1ms late, at most 5ms late, at most 3 in flight
          4 not sent: 100000 were queued for 3 connections; use more with --connections
decisions 11 admitted, 8 denied
expected  10 admitted, 10 denied: 1 request differs
          rule login\u{fffd}: 8 denied, 10 expected
          key-1: 6 admitted, 5 expected
note      something
"
        );
    }
}
