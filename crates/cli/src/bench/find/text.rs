//! The result of a search as text: one row for each rate, with a bar of its latency.

use super::{FindOutcome, LoadStep, MissedTarget, format_share};
use crate::{
    simulate::time::format_rough,
    terminal::{Paint, Tone, sanitize},
};
use std::fmt::Write as _;
use tidegate_core::Micros;

/// The columns of a bar. The target is in the middle.
const BAR_WIDTH: u64 = 30;

/// Renders the report. Writing to a string does not fail.
pub(crate) fn render_text(outcome: &FindOutcome, paint: Paint) -> String {
    let target = outcome.target;
    let mut text = format!(
        "{}: p99 of at most {}, errors of at most {}\n\n",
        paint.tone(Tone::Strong, sanitize(&outcome.url)),
        format_rough(target.max_latency),
        target.max_errors
    );
    let header = format!("{:>10} {:>10} {:>8} {:>8} {:>7}", "rate", "reached", "p50", "p99", "errors");
    let _ = writeln!(text, "{}", paint.tone(Tone::Faint, header));
    for step in outcome.steps_by_rate() {
        let row = format!(
            "{:>10} {:>10} {:>8} {:>8} {:>7}",
            format!("{}/s", step.rate),
            format!("{:.0}/s", step.reached_rate),
            format_rough(step.p50),
            format_rough(step.p99),
            format_share(step.errors)
        );
        let tone = if step.missed.is_some() { Tone::Problem } else { Tone::Admitted };
        let bar = paint.tone(tone, latency_bar(step.p99, target.max_latency));
        let _ = writeln!(text, "{row}  {bar} {}", paint.tone(tone, describe_step(step)));
    }
    text.push('\n');
    let faint = |name: &str| paint.tone(Tone::Faint, format!("{name:<10}"));
    for (name, line) in describe_result(outcome) {
        let _ = writeln!(text, "{}{line}", faint(name));
    }
    text
}

/// A bar of the latency; `│` marks the target.
fn latency_bar(latency: Micros, target: Micros) -> String {
    let middle = BAR_WIDTH / 2;
    let length = (u128::from(latency.get()) * u128::from(middle) / u128::from(target.get().max(1)))
        .min(u128::from(BAR_WIDTH)) as u64;
    (0..BAR_WIDTH)
        .map(|column| match column {
            column if column < length => '█',
            column if column == middle => '│',
            _ => ' ',
        })
        .collect()
}

fn describe_step(step: &LoadStep) -> String {
    match step.missed {
        None => "within the target".to_owned(),
        Some(MissedTarget::Latency) => "latency above the target".to_owned(),
        Some(MissedTarget::Errors) => "errors above the target".to_owned(),
        Some(MissedTarget::Denied) => format!("{} denied", format_share(step.denied)),
    }
}

/// The lines below the table.
fn describe_result(outcome: &FindOutcome) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    let missed = outcome.first_missed();
    match (outcome.knee, missed) {
        (Some(knee), _) if outcome.is_max_rate => {
            lines.push(("knee", format!("above {knee}/s, the maximum rate; raise it with --max-rate")));
        }
        (Some(knee), Some(missed)) => {
            lines.push(("knee", format!("{knee}/s; {}/s misses the target", missed.rate)));
        }
        (Some(knee), None) => lines.push(("knee", format!("{knee}/s"))),
        (None, _) => lines.push(("knee", "not found".to_owned())),
    }
    if let Some((rate, burst)) = outcome.quota() {
        lines.push(("quota", format!("{rate}/s burst {burst}, {} below the knee", outcome.headroom)));
    }
    if outcome.denied_step().is_some() {
        let note = "a rate limit denied requests, so the load did not reach the server; send it to the server itself";
        lines.push(("note", note.to_owned()));
    } else if missed.is_some_and(|step| step.used_all_connections) {
        let note = "all connections were busy when the target was missed; compare with more --connections";
        lines.push(("note", note.to_owned()));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{outcome, step},
        *,
    };

    #[test]
    fn report_shows_rates_in_order_with_the_knee() {
        assert_eq!(
            render_text(&outcome(), Paint::Plain),
            "\
http://127.0.0.1:8080/a: p99 of at most 200ms, errors of at most 0%

      rate    reached      p50      p99  errors
     100/s      100/s      5ms     10ms      0%                 │               within the target
     200/s      200/s     20ms     40ms      0%  ███            │               within the target
     282/s      282/s    150ms    300ms      0%  ██████████████████████         latency above the target
     400/s      400/s    450ms    900ms   25.0%  ██████████████████████████████ errors above the target

knee      200/s; 282/s misses the target
quota     160/s burst 32, 20% below the knee
note      all connections were busy when the target was missed; compare with more --connections
"
        );
    }

    #[test]
    fn report_explains_why_there_is_no_knee() {
        let limited = LoadStep { missed: Some(MissedTarget::Denied), denied: 0.4, ..step(100, 10, 0.0) };
        let denied = FindOutcome { steps: vec![limited], knee: None, ..outcome() };
        let text = render_text(&denied, Paint::Plain);
        assert!(text.contains("40.0% denied\n"), "{text}");
        assert!(text.ends_with("send it to the server itself\n"), "{text}");
        let fast =
            FindOutcome { steps: vec![step(100, 10, 0.0)], knee: Some(100), is_max_rate: true, ..outcome() };
        assert!(render_text(&fast, Paint::Plain).contains("above 100/s, the maximum rate"));
    }
}
