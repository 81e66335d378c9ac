//! Descriptions of scenarios, derived from their parameters.

use super::figure::Figure;
use crate::simulate::{chart::INDENT, time::format_rough};
use tidegate_core::{Micros, Percent};
use tidegate_simulation::{Clients, Scenario, guard_presets};

/// Describes what changes in a scenario.
pub(crate) fn describe_scenario(scenario: &Scenario) -> String {
    let Scenario {
        name,
        demand,
        changed_demand,
        change_start: begins,
        change_end: ends,
        backend,
        changed_backend: changed,
        ..
    } = scenario;
    let mut events = Vec::new();
    if demand != changed_demand {
        events.push(format!("requests go from {demand} to {changed_demand} × the backend's capacity"));
    }
    if changed.slowdown > backend.slowdown {
        let times = changed.slowdown / backend.slowdown;
        events.push(format!("the backend is {times} times as slow"));
    }
    if changed.failure_rate != Percent::ZERO {
        let percent = f64::from(changed.failure_rate.millionths()) / 1e4;
        events.push(format!("{percent}% of calls fail"));
    }
    if events.is_empty() {
        return format!("{name}: no change");
    }
    format!("{name}: {} from {} to {}", events.join(" and "), format_rough(*begins), format_rough(*ends))
}

/// Describes the clients and the backend.
pub(crate) fn describe_clients(scenario: &Scenario) -> String {
    let Clients { timeout, retries, backoff } = scenario.clients;
    let retry = match (retries, backoff) {
        (0, _) => "never retry".into(),
        (retries, Micros::ZERO) => format!("retry up to {retries} times without backoff"),
        (retries, backoff) => {
            format!("retry up to {retries} times, with exponential backoff from {backoff}")
        }
    };
    let (workers, service) = (scenario.backend.workers, scenario.backend.service_time);
    let capacity = scenario.backend.capacity();
    format!(
        "clients time out after {timeout} and {retry}; the backend has {workers} workers and takes {service} \
         per call: at best {capacity:.0}/s"
    )
}

/// Explains the figures and controllers, in at most `width` columns.
pub(crate) fn figure_notes(figures: &[Figure], width: usize) -> Vec<String> {
    let figures = figures.iter().map(|figure| (figure.name(), figure.meaning()));
    let controllers = guard_presets().iter().map(|preset| (preset.name, preset.description));
    let longest = Figure::ALL
        .iter()
        .map(|figure| figure.name().len())
        .chain(guard_presets().iter().map(|preset| preset.name.len()));
    let longest = longest.max().unwrap_or(0);
    let before = INDENT.len() + longest + 2;
    let note = |(name, text): (&str, &str)| {
        let mut name = name;
        let line = |line: String| format!("{INDENT}{:longest$}  {line}", std::mem::take(&mut name));
        wrap(text, width.saturating_sub(before)).into_iter().map(line).collect::<Vec<_>>()
    };
    let mut lines: Vec<_> = figures.chain(controllers).flat_map(note).collect();
    let windows_note = "Every controller is updated after each call here; the libraries of aimd, vegas and gradient2 often \
               aggregate calls in windows first, and so react later and more smoothly.";
    lines.push(String::new());
    lines.extend(
        wrap(windows_note, width.saturating_sub(INDENT.len())).iter().map(|line| format!("{INDENT}{line}")),
    );
    lines
}

/// Wraps `text` to `width` columns; longer words are not broken.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_name_the_change() {
        let titles: Vec<_> = Scenario::all().iter().map(describe_scenario).collect();
        let expected = [
            "surge-1.4: requests go from 0.7 to 1.4 × the backend's capacity from 1s to 3s",
            "surge-10: requests go from 0.7 to 10 × the backend's capacity from 1s to 3s",
            "slow-backend: the backend is 5 times as slow from 1s to 3s",
            "failing-backend: 90% of calls fail from 1s to 3s",
            "retry-storm: the backend is 50 times as slow from 1s to 1.2s",
            "healthy: no change",
        ];
        assert_eq!(titles, expected);
        let storm = describe_clients(&Scenario::retry_storm());
        assert!(
            storm.starts_with("clients time out after 100ms and retry up to 5 times without backoff;"),
            "{storm}"
        );
    }

    #[test]
    fn wrap_breaks_between_words() {
        assert_eq!(wrap("a bc def ghijklm n", 4), ["a bc", "def", "ghijklm", "n"]);
        assert_eq!(wrap("", 0), [""]);
    }
}
