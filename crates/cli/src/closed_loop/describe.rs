//! Scenes in words, read off what they are made of.

use super::figure::Figure;
use crate::simulate::{chart::INDENT, time::format_rough};
use tidegate_core::{Micros, Percent};
use tidegate_simulation::{Clients, Scenario, guard_presets};

/// What happens in a scene.
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
        return format!("{name}: nothing happens");
    }
    format!("{name}: {} from {} to {}", events.join(" and "), format_rough(*begins), format_rough(*ends))
}

/// What clients and the backend are like.
pub(crate) fn describe_clients(scenario: &Scenario) -> String {
    let Clients { timeout: patience, retries, backoff } = scenario.clients;
    let retry = match (retries, backoff) {
        (0, _) => "never try again".into(),
        (retries, Micros::ZERO) => format!("try again up to {retries} times at once"),
        (retries, backoff) => {
            format!("try again up to {retries} times, after {backoff} and twice as long each time")
        }
    };
    let (workers, service) = (scenario.backend.workers, scenario.backend.service_time);
    let capacity = scenario.backend.capacity();
    format!(
        "clients wait {patience} for an answer and {retry}; the backend has {workers} workers and takes {service} \
         a call: at best {capacity:.0}/s"
    )
}

/// What figures and names mean, in at most `width` columns.
pub(crate) fn figure_notes(figures: &[Figure], width: usize) -> Vec<String> {
    let figures = figures.iter().map(|figure| (figure.name(), figure.meaning()));
    let actors = guard_presets().iter().map(|actor| (actor.name, actor.description));
    let longest = Figure::ALL
        .iter()
        .map(|figure| figure.name().len())
        .chain(guard_presets().iter().map(|a| a.name.len()));
    let longest = longest.max().unwrap_or(0);
    let before = INDENT.len() + longest + 2;
    let note = |(name, text): (&str, &str)| {
        let mut name = name;
        let line = |line: String| format!("{INDENT}{:longest$}  {line}", std::mem::take(&mut name));
        wrap(text, width.saturating_sub(before)).into_iter().map(line).collect::<Vec<_>>()
    };
    let mut lines: Vec<_> = figures.chain(actors).flat_map(note).collect();
    let windows_note = "Every guard hears of each call here; the libraries that aimd, vegas and gradient2 come from often \
               gather calls into windows first, and so react later and more calmly.";
    lines.push(String::new());
    lines.extend(
        wrap(windows_note, width.saturating_sub(INDENT.len())).iter().map(|line| format!("{INDENT}{line}")),
    );
    lines
}

/// `text` in lines of at most `width` columns, but for words that are longer.
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
            "healthy: nothing happens",
        ];
        assert_eq!(titles, expected);
        let storm = describe_clients(&Scenario::retry_storm());
        assert!(
            storm.starts_with("clients wait 100ms for an answer and try again up to 5 times at once;"),
            "{storm}"
        );
    }

    #[test]
    fn wrap_breaks_between_words() {
        assert_eq!(wrap("a bc def ghijklm n", 4), ["a bc", "def", "ghijklm", "n"]);
        assert_eq!(wrap("", 0), [""]);
    }
}
