//! Renders the view as text: rules, upstreams, stores, keys.

use super::{
    View, number,
    view::{RuleRow, array_items},
};
use crate::terminal::{Paint, Tone, sanitize};
use serde_json::Value;
use std::fmt::Write as _;

/// The size and the fixed texts of the output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    /// The number of columns.
    pub(crate) width: usize,
    /// The number of lines; `None` without a limit.
    pub(crate) height: Option<usize>,
    pub(crate) paint: Paint,
    /// The URL of the gateway.
    pub(crate) url: &'a str,
    /// The last line.
    pub(crate) footer: Option<&'a str>,
    /// The reason for missing updates.
    pub(crate) last_error: Option<&'a str>,
}

/// The widths of columns.
const NUMBER_WIDTH: usize = 7;
const MODE_WIDTH: usize = 8;
const MIN_NAME_WIDTH: usize = 12;
/// The minimum number of visible rules.
const MIN_RULES: usize = 3;

/// Renders all parts.
pub(crate) fn draw(view: &View, frame: &Frame<'_>) -> String {
    let mut above = summary_lines(view, frame);
    above.push(String::new());
    let footer = frame.footer.map(|footer| frame.paint.tone(Tone::Faint, truncate(footer, frame.width)));
    let footer: Vec<String> = footer.into_iter().collect();
    let rules = rule_table(view, frame, usize::MAX).len();
    let mut below = Vec::new();
    for detail in [Detail::All, Detail::WithoutKeys, Detail::Problems] {
        below = lines_below(view, frame, detail);
        below.extend(footer.iter().map(|_| String::new()));
        let all = above.len() + rules + below.len() + footer.len();
        if frame.height.is_none_or(|height| all <= height) {
            break;
        }
    }
    let max_lines = frame
        .height
        .map(|height| height.saturating_sub(above.len() + below.len() + footer.len()).max(MIN_RULES + 2));
    let mut lines = above;
    lines.extend(rule_table(view, frame, max_lines.unwrap_or(usize::MAX)));
    lines.extend(below);
    if let Some(height) = frame.height {
        lines.truncate(height.saturating_sub(footer.len()));
    }
    lines.extend(footer);
    lines.into_iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// What is shown below the rules. A small terminal shows less, so that all rules are visible.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Detail {
    All,
    WithoutKeys,
    /// Only servers and stores with a problem.
    Problems,
}

/// Upstreams, stores and keys, after an empty line each.
fn lines_below(view: &View, frame: &Frame<'_>, detail: Detail) -> Vec<String> {
    let keys = if detail == Detail::All { key_lines(view, frame) } else { Vec::new() };
    let mut lines = Vec::new();
    for part in [upstream_lines(view, frame, detail), store_lines(view, frame, detail), keys] {
        // Problems follow each other without empty lines.
        if !part.is_empty() && (lines.is_empty() || detail != Detail::Problems) {
            lines.push(String::new());
        }
        lines.extend(part);
    }
    lines
}

/// The gateway, and the totals of all requests.
fn summary_lines(view: &View, frame: &Frame<'_>) -> Vec<String> {
    let Frame { width, paint, url, .. } = *frame;
    let now = &view.current;
    let policy = &now["policy"];
    let file = policy["file"].as_str().map(|file| format!(" of {}", sanitize_cell(file))).unwrap_or_default();
    let version = |value: &Value| sanitize_cell(value.as_str().unwrap_or("?"));
    let name = format!("tidegate {}", version(&now["version"]));
    let rest = format!(
        " at {url}, up {}, policy {}{file}",
        number::format_age(now["uptime"].as_f64().unwrap_or(0.0)),
        version(&policy["version"]),
    );
    let mut lines = vec![format!(
        "{}{}",
        paint.tone(Tone::Strong, &name),
        truncate(&rest, width.saturating_sub(name.len()))
    )];
    let requests = |member: &'static str| match view.rate(|snapshot| &snapshot["requests"][member]) {
        Some(rate) => format!("{}/s", number::format_rate(rate)),
        None => number::format_count(now["requests"][member].as_u64().unwrap_or(0)),
    };
    let slowest = now["latency"]["decision"]["p99"].as_f64();
    let slowest = match (slowest, now["latency"]["decision"]["above-range"].as_u64()) {
        (Some(seconds), _) => Some(format!(", decision p99 {}", number::format_seconds(seconds))),
        (None, Some(1..)) => Some(", decision p99 above 60 s".to_owned()),
        _ => None,
    };
    lines.push(truncate(
        &format!(
            "requests {}, admitted {}, denied {}, in flight {}{}",
            requests("total"),
            requests("admitted"),
            requests("rejected"),
            now["requests"]["in-flight"].as_u64().unwrap_or(0),
            slowest.unwrap_or_default()
        ),
        width,
    ));
    lines.extend(load_line(now, frame));
    let rejected = policy["error"]
        .as_str()
        .map(|error| format!("policy rejected, the previous one is active: {}", sanitize_cell(error)));
    let last_error = frame.last_error.map(sanitize_cell);
    lines.extend(
        last_error.into_iter().chain(rejected).map(|text| paint.tone(Tone::Problem, truncate(&text, width))),
    );
    lines
}

/// The load of the machine, and the features that are off; `None` if the policy uses neither.
fn load_line(now: &Value, frame: &Frame<'_>) -> Option<String> {
    let mut parts = Vec::new();
    let load = &now["load"];
    let level = load["level"].as_str();
    if let Some(level) = level {
        let percent =
            |value: &Value| value.as_f64().map_or("?".to_owned(), |percent| format!("{percent:.0} %"));
        let signals: Vec<String> = array_items(&load["signals"])
            .map(|signal| format!("{} {}", value_text(&signal["name"]), percent(&signal["percent"])))
            .collect();
        parts.push(format!(
            "load {} {} ({})",
            percent(&load["percent"]),
            sanitize_cell(level),
            signals.join(", ")
        ));
    }
    let off: Vec<String> = array_items(&now["features"])
        .filter(|feature| feature["on"] == false)
        .map(|feature| value_text(&feature["name"]))
        .collect();
    if !off.is_empty() {
        parts.push(format!("features off: {}", off.join(", ")));
    }
    let is_calm = off.is_empty() && !matches!(level, Some("busy" | "critical"));
    (!parts.is_empty()).then(|| health_line(frame, is_calm, &parts.join(", ")))
}

/// One line per rule, and another one for its state; at most `max_lines` lines.
fn rule_table(view: &View, frame: &Frame<'_>, max_lines: usize) -> Vec<String> {
    let Frame { width, paint, .. } = *frame;
    let rows = view.rows();
    let longest = rows.iter().map(|row| sanitize_cell(row.name).chars().count()).max().unwrap_or(0);
    let numbers = if has_totals(width) { 8 } else { 4 };
    let max_name = width.saturating_sub(MODE_WIDTH + numbers * NUMBER_WIDTH + 4);
    let name = longest.clamp(MIN_NAME_WIDTH, max_name.max(MIN_NAME_WIDTH));
    let group = 4 * NUMBER_WIDTH;
    let before = name + MODE_WIDTH + 1;
    let words: String =
        ["admit", "delay", "deny", "shadow"].iter().map(|word| format!("{word:>NUMBER_WIDTH$}")).collect();
    let mut head = format!("{:<before$}{:>group$}", "", "per second");
    let mut names = format!("{:<name$} {:<MODE_WIDTH$}{words}", "rule", "mode");
    if has_totals(width) {
        let _ = write!(head, "   {:>group$}", "total");
        let _ = write!(names, "   {words}");
    }
    let mut lines = vec![
        paint.tone(Tone::Faint, truncate(&head, width)),
        paint.tone(Tone::Faint, truncate(&names, width)),
    ];
    let mut shown = 0;
    for row in &rows {
        let of_row = rule_lines(row, name, frame);
        // Reserve a line for the number of hidden rules.
        let reserved = usize::from(shown + 1 < rows.len());
        if lines.len() + of_row.len() + reserved > max_lines {
            break;
        }
        lines.extend(of_row);
        shown += 1;
    }
    match rows.len() - shown {
        0 if rows.is_empty() => lines.push("the policy has no rules".to_owned()),
        0 => {}
        more => lines.push(paint.tone(Tone::Faint, format!("… and {more} more"))),
    }
    lines
}

/// Whether both rates and totals fit beside short names; otherwise only the rates are shown.
fn has_totals(width: usize) -> bool {
    MIN_NAME_WIDTH + MODE_WIDTH + 8 * NUMBER_WIDTH + 4 <= width
}

fn rule_lines(row: &RuleRow<'_>, name: usize, frame: &Frame<'_>) -> Vec<String> {
    let Frame { width, paint, .. } = *frame;
    let mode = row.rule["mode"].as_str().unwrap_or("?");
    let mut line = format!(
        "{:<name$} {:<MODE_WIDTH$}",
        truncate(&sanitize_cell(row.name), name),
        truncate(&sanitize_cell(mode), MODE_WIDTH - 1)
    );
    let tones = [Tone::Admitted, Tone::Delayed, Tone::Problem, Tone::Delayed];
    let rates = row.rates.map(|rates| rates.map(number::format_rate));
    let rates = rates.unwrap_or_else(|| ["-"; 4].map(str::to_owned));
    let counts = row.counts.map(number::format_count);
    let groups = [("", rates), ("   ", counts)].into_iter().take(if has_totals(width) { 2 } else { 1 });
    for (between, cells) in groups {
        line.push_str(between);
        for (text, tone) in cells.iter().zip(tones) {
            let tone = if matches!(text.as_str(), "0" | "-") { Tone::Faint } else { tone };
            line.push_str(&paint.tone(tone, format!("{text:>NUMBER_WIDTH$}")));
        }
    }
    let state = rule_state(row);
    match state.is_empty() {
        true => vec![line],
        false => {
            vec![line, paint.tone(Tone::Delayed, truncate(&format!("  {}", state.join(", ")), width))]
        }
    }
}

/// The state of a rule besides its counts.
fn rule_state(row: &RuleRow<'_>) -> Vec<String> {
    let rule = row.rule;
    let positive = |value: &Value| value.as_u64().filter(|number| *number > 0);
    let mut state = Vec::new();
    state.extend(rule["percent"].as_f64().map(|percent| format!("for {percent} % of keys")));
    state.extend(positive(&rule["queue"]["waiting"]).map(|waiting| format!("{waiting} waiting")));
    let breaker = rule["breaker"]["state"].as_str().filter(|state| *state != "closed");
    state.extend(breaker.map(|state| format!("breaker {}", sanitize_cell(state))));
    let adaptive = &rule["adaptive"];
    let adaptive = adaptive["in-flight"].as_u64().zip(adaptive["limit"].as_u64());
    state.extend(adaptive.map(|(flight, limit)| format!("{flight} of {limit} in flight")));
    let shed = array_items(&rule["shedding"]).map(value_text).collect::<Vec<_>>().join(", ");
    state.extend((!shed.is_empty()).then(|| format!("sheds {shed}")));
    let scale = rule["scale"].as_f64().filter(|factor| *factor < 1.0);
    state.extend(scale.map(|factor| format!("quotas x{}", (factor * 1e3).round() / 1e3)));
    state.extend(positive(&rule["while-failing"]["failing"]).map(|keys| format!("{keys} failing keys")));
    state.extend(
        (row.degraded >= 0.05).then(|| format!("{}/s without the store", number::format_rate(row.degraded))),
    );
    let overflowed = positive(&rule["table"]["overflowed"]);
    state.extend(overflowed.map(|keys| format!("{} keys overflowed", number::format_count(keys))));
    state.extend(positive(&rule["bans"]).map(|bans| format!("{bans} banned")));
    state
}

fn upstream_lines(view: &View, frame: &Frame<'_>, detail: Detail) -> Vec<String> {
    let mut lines = Vec::new();
    for upstream in array_items(&view.current["upstreams"]) {
        for server in array_items(&upstream["servers"]) {
            let health = server["health"].as_str().unwrap_or("?");
            let breaker = &server["breaker"];
            let breaker = breaker["state"].as_str().or(breaker.as_str()).filter(|state| *state != "closed");
            let breaker =
                breaker.map(|state| format!(", breaker {}", sanitize_cell(state))).unwrap_or_default();
            let flight = server["in-flight"].as_u64().unwrap_or(0);
            let (name, address) = (value_text(&upstream["name"]), value_text(&server["address"]));
            let is_healthy = health == "healthy" && breaker.is_empty();
            if is_healthy && detail == Detail::Problems {
                continue;
            }
            let line =
                format!("upstream {name} {address}: {}, {flight} in flight{breaker}", sanitize_cell(health));
            lines.push(health_line(frame, is_healthy, &line));
        }
    }
    lines
}

fn store_lines(view: &View, frame: &Frame<'_>, detail: Detail) -> Vec<String> {
    let store = |store: &Value| {
        let health = store["health"].as_str().unwrap_or("?");
        let error = store["last-error"]
            .as_str()
            .map(|error| format!(" ({})", sanitize_cell(error)))
            .unwrap_or_default();
        let latency = store["latency"]["p99"].as_f64();
        let latency = latency.map(|seconds| format!(", p99 {}", number::format_seconds(seconds)));
        let line = format!(
            "store {}: {}{error}, {} calls, {} failed{}",
            value_text(&store["name"]),
            sanitize_cell(health),
            number::format_count(store["calls"].as_u64().unwrap_or(0)),
            number::format_count(store["failures"].as_u64().unwrap_or(0)),
            latency.unwrap_or_default()
        );
        health_line(frame, health == "available", &line)
    };
    let is_shown = |store: &&Value| detail != Detail::Problems || store["health"] != "available";
    array_items(&view.current["stores"]).filter(is_shown).map(store).collect()
}

fn key_lines(view: &View, frame: &Frame<'_>) -> Vec<String> {
    let most = array_items(&view.keys["keys"]).map(|key| {
        let share = key["share"].as_f64().unwrap_or(0.0) * 100.0;
        let count = number::format_count(key["count"].as_u64().unwrap_or(0));
        truncate(
            &format!(
                "{count:>NUMBER_WIDTH$} {share:>4.0} %  {}  {}",
                value_text(&key["rule"]),
                value_text(&key["key"])
            ),
            frame.width,
        )
    });
    let mut lines: Vec<String> = most.collect();
    if !lines.is_empty() {
        lines.insert(0, frame.paint.tone(Tone::Faint, " denied  share  rule and key"));
    }
    lines
}

fn health_line(frame: &Frame<'_>, is_healthy: bool, line: &str) -> String {
    let tone = if is_healthy { Tone::Normal } else { Tone::Problem };
    frame.paint.tone(tone, truncate(line, frame.width))
}

fn value_text(value: &Value) -> String {
    sanitize_cell(value.as_str().unwrap_or("?"))
}

/// Sanitizes untrusted text to one line.
fn sanitize_cell(text: &str) -> String {
    sanitize(text).replace('\n', "\u{fffd}")
}

/// Truncates text to the width.
fn truncate(text: &str, width: usize) -> String {
    match text.chars().count() > width {
        true => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn snapshot(uptime: f64, part: u64) -> Value {
        let counts = |admitted: u64, denied: u64| json!({ "admitted": admitted * part, "delayed": 0, "denied": denied * part, "shadow-denied": 2, "degraded": 0 });
        json!({
            "version": "0.1.0", "uptime": uptime, "observe": {},
            "policy": { "version": "9f0c5d1e2a3b4c5d", "file": "policy.yaml", "error": null },
            "requests": { "total": 1000 * part, "admitted": 900 * part, "rejected": 100 * part, "in-flight": 3 },
            "latency": { "decision": { "p99": 0.000_002 } },
            "load": { "percent": 83.24, "level": "busy", "signals": [
                { "name": "memory", "percent": 83.24 }, { "name": "cpu", "percent": null } ] },
            "features": [
                { "name": "search", "on": true, "override": "automatic", "cause": null },
                { "name": "similar", "on": false, "override": "automatic", "cause": "load" } ],
            "rules": [
                { "name": "everybody", "mode": "enforce", "percent": null, "counts": counts(890, 0), "queue": null,
                  "breaker": null, "adaptive": null, "table": { "overflowed": 0 }, "bans": 0 },
                { "name": "log\u{1b}[2J\nin", "mode": "shadow", "percent": 25.0, "counts": counts(10, 100),
                  "queue": { "waiting": 4 }, "breaker": { "state": "open" }, "adaptive": { "limit": 20, "in-flight": 3 },
                  "table": { "overflowed": 7 }, "bans": 1 },
                { "name": "search", "mode": "enforce", "percent": null, "counts": counts(0, 0), "shedding": ["low"],
                  "scale": 0.512, "while-failing": { "keys": 9, "failing": 2 } },
            ],
            "upstreams": [ { "name": "app", "servers": [
                { "address": "127.0.0.1:9000", "health": "healthy", "in-flight": 3, "breaker": null },
                { "address": "127.0.0.1:9001", "health": "down", "in-flight": 0, "breaker": null } ] } ],
            "stores": [ { "name": "default", "health": "unavailable", "last-error": "no answer",
                "calls": 12_345, "failures": 5, "latency": { "p99": null } } ],
        })
    }

    fn view() -> View {
        let mut view = View::default();
        view.add(snapshot(10.0, 1), None);
        let keys = json!({ "keys": [ { "rule": "login", "key": "192.0.2.7\u{7}", "count": 81_200, "share": 0.41 } ] });
        view.add(snapshot(12.0, 2), Some(keys));
        view
    }

    const FRAME: Frame<'_> = Frame {
        width: 80,
        height: None,
        paint: Paint::Plain,
        url: "http://127.0.0.1:9091",
        footer: Some("q: quit"),
        last_error: None,
    };

    #[test]
    fn table_shows_everything_without_control_characters() {
        let drawn = draw(&view(), &FRAME);
        assert_eq!(
            drawn,
            "\
tidegate 0.1.0 at http://127.0.0.1:9091, up 12 s, policy 9f0c5d1e2a3b4c5d of po…
requests 500/s, admitted 450/s, denied 50/s, in flight 3, decision p99 2 µs
load 83 % busy (memory 83 %, cpu ?), features off: similar

                                       per second                          total
rule         mode      admit  delay   deny shadow     admit  delay   deny shadow
everybody    enforce     445      0      0      0      1780      0      0      2
log�[2J�in   shadow      5.0      0     50      0        20      0    200      2
  for 25 % of keys, 4 waiting, breaker open, 3 of 20 in flight, 7 keys overflow…
search       enforce       0      0      0      0         0      0      0      2
  sheds low, quotas x0.512, 2 failing keys

upstream app 127.0.0.1:9000: healthy, 3 in flight
upstream app 127.0.0.1:9001: down, 0 in flight

store default: unavailable (no answer), 12.3k calls, 5 failed

 denied  share  rule and key
  81.2k   41 %  login  192.0.2.7�

q: quit
"
        );
        let painted = draw(&view(), &Frame { paint: Paint::Ansi, ..FRAME });
        assert!(painted.contains("\x1b[1;31m     50\x1b[0m"), "{painted}");
        assert!(!painted.contains("\x1b[2J") && !painted.contains('\u{7}'));
    }

    #[test]
    fn small_terminal_shows_all_rules_and_problems() {
        let mut view = view();
        let mut nine = snapshot(13.0, 3);
        let rule = nine["rules"][0].clone();
        nine["rules"] = (0..9).map(|_| rule.clone()).collect();
        view.add(nine, None);
        let drawn = draw(&view, &Frame { width: 70, height: Some(20), ..FRAME });
        assert_eq!(drawn.lines().filter(|line| line.starts_with("everybody ")).count(), 9, "{drawn}");
        assert!(
            drawn.lines().count() <= 20 && drawn.lines().all(|line| line.chars().count() <= 70),
            "{drawn}"
        );
        assert!(
            drawn.contains("127.0.0.1:9001: down") && drawn.contains("store default: unavailable"),
            "{drawn}"
        );
        assert!(!drawn.contains("127.0.0.1:9000: healthy") && !drawn.contains("rule and key"), "{drawn}");
        assert!(drawn.contains("per second") && !drawn.contains("total"), "{drawn}");
    }

    #[test]
    fn table_fits_the_terminal() {
        let mut view = view();
        let mut many = snapshot(13.0, 3);
        let rule = many["rules"][0].clone();
        many["rules"] = (0..50).map(|_| rule.clone()).collect();
        view.add(many, None);
        for (width, height) in [(80, 24), (40, 30), (200, 60), (80, 16)] {
            let drawn = draw(&view, &Frame { width, height: Some(height), ..FRAME });
            assert_eq!(drawn.lines().count(), height.min(64), "{width} by {height}: {drawn}");
            assert!(drawn.contains(" more\n") && drawn.contains("q: quit"), "{drawn}");
        }
        let tiny = draw(&view, &Frame { width: 10, height: Some(4), ..FRAME });
        assert_eq!(tiny.lines().count(), 4);
        let drawn = draw(&view, &Frame { last_error: Some("connection closed"), ..FRAME });
        assert!(drawn.contains("\nconnection closed\n"), "{drawn}");
    }
}
