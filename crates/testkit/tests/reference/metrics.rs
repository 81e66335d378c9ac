//! `docs/metrics.md` lists the metric families of `crates/observe/src/metrics.rs`. A test of the gateway compares the page with the
//! metrics of a running gateway.

use crate::{assert_current, root};
use std::{collections::BTreeMap, fmt::Write as _, fs};
use tidegate_testkit::error_texts::string_literals;

const HEADER: &str = "# Metrics

This page lists the metrics of the gateway: at `GET /metrics` of the [admin API](admin-api.md), in the Prometheus text format, and exported by
OTLP with `metrics` in the policy. It is generated from the source; `TIDEGATE_BLESS=1 cargo test -p tidegate-testkit --test reference` writes
it. [operating.md](operating.md) has alerts, and [envoy.md](envoy.md#statistics) lists the metrics of the rate limit service.

The values of labels are names in the policy or the words in this table; never a key. Times are in seconds. The buckets of requests, waits
and upstreams are from 100 µs to 60 s. A metric of a part that the policy does not have, such as a breaker, has no samples.
";

#[test]
fn metrics_page_is_current() {
    let folder = root().join("crates/observe/src");
    let source = fs::read_to_string(folder.join("metrics.rs")).unwrap();
    let constants = fs::read_to_string(folder.join("shard.rs")).unwrap();
    let mut page = HEADER.to_owned();
    page.push_str("\n| name | type | labels | meaning |\n|---|---|---|---|\n");
    let mut count = 0;
    for function in source.split("\n    fn ").skip(1) {
        for (at, kind) in families(function) {
            let literals = string_literals(&function[at..]);
            let (name, help) = (&literals[0].text, &literals[1].text);
            assert!(name.starts_with("tidegate_") && help.ends_with('.'), "{name}: {help}");
            let labels: Vec<_> = labels(function, at, &constants)
                .into_iter()
                .map(|(label, values)| match values.is_empty() {
                    true => format!("`{label}`"),
                    false => format!("`{label}`: {}", values.join(", ")),
                })
                .collect();
            writeln!(page, "| `{name}` | {kind} | {} | {help} |", labels.join("; ")).unwrap();
            count += 1;
        }
    }
    assert_eq!(count, source.matches("MetricFamily::").count() - source.matches("MetricFamily::{").count());
    assert_current("metrics.md", &page);
}

/// The positions of the families that a function declares, and their types.
fn families(function: &str) -> Vec<(usize, &'static str)> {
    let kinds = ["counter", "gauge", "histogram"];
    let mut found: Vec<_> = kinds
        .into_iter()
        .flat_map(|kind| {
            let call = format!("MetricFamily::{kind}(");
            function.match_indices(&call).map(|(at, _)| (at, kind)).collect::<Vec<_>>()
        })
        .collect();
    found.sort_unstable();
    found
}

/// The labels of the family that is declared at a position, each with its values if they are constant.
fn labels(function: &str, at: usize, constants: &str) -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::new();
    let before = function[..at].trim_end();
    // `let mut VARIABLE = MetricFamily::…;` with `VARIABLE.add(LABELS, …)`, or `MetricFamily::….with_sample(LABELS, …)`.
    let variable = before.strip_suffix('=').map(|text| text.trim_end().rsplit(' ').next().unwrap());
    let rest = &function[at..];
    let calls: Vec<&str> = match variable {
        Some(variable) => {
            let added = [format!(" {variable}.add("), format!("&mut {variable}, ")];
            added.iter().flat_map(|call| function.split(call.as_str()).skip(1)).collect()
        }
        None => {
            let end = rest["MetricFamily".len()..]
                .find("MetricFamily::")
                .map_or(rest.len(), |end| end + "MetricFamily".len());
            rest[..end].split(".with_sample(").skip(1).collect()
        }
    };
    assert!(!calls.is_empty(), "no samples: {}", &rest[..60]);
    for call in calls {
        let list = call.trim_start().trim_start_matches('&');
        let list = match list.strip_prefix('[') {
            Some(inner) => &inner[..inner.find(']').map_or(0, |end| end_of_list(inner, end))],
            None => list.split([',', ')']).next().unwrap_or_default(),
        };
        for known in ["name", "labels"] {
            if list.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == known)
                && !list.contains('(')
                || list.contains(&format!("{known}["))
                || list.starts_with(&format!("{known},"))
            {
                let declared = function.split(&format!("let {known} = ")).nth(1).unwrap_or_default();
                let declared = declared.split(";\n").next().unwrap_or_default();
                add_tuples(&mut all, declared, function, constants);
                if declared.contains("name[0]") {
                    let declared = function.split("let name = ").nth(1).unwrap_or_default();
                    add_tuples(
                        &mut all,
                        declared.split(";\n").next().unwrap_or_default(),
                        function,
                        constants,
                    );
                }
            }
        }
        add_tuples(&mut all, list, function, constants);
    }
    if variable == Some("breakers") {
        all.insert("state".to_owned(), Vec::new());
    }
    all
}

/// The end of a list whose first `]` may belong to an index.
fn end_of_list(inner: &str, first: usize) -> usize {
    let mut end = first;
    while inner[..end].matches('[').count() > inner[..end].matches(']').count() {
        end += 1 + inner[end + 1..].find(']').unwrap();
    }
    end
}

/// Adds the labels of `("label", value)`.
fn add_tuples(all: &mut BTreeMap<String, Vec<String>>, list: &str, function: &str, constants: &str) {
    for tuple in list.split("(\"").skip(1) {
        let Some((label, value)) = tuple.split_once("\",") else { continue };
        let value = value.split(')').next().unwrap_or_default().trim();
        let values: &mut Vec<String> = all.entry(label.to_owned()).or_default();
        let words = match value.strip_prefix('"') {
            Some(word) => vec![word.trim_end_matches('"').to_owned()],
            None => loop_words(value, function, constants),
        };
        for word in words.into_iter().map(|word| format!("`{word}`")) {
            if !values.contains(&word) {
                values.push(word);
            }
        }
    }
}

/// The words over which a loop variable runs; none if they are not constant.
fn loop_words(variable: &str, function: &str, constants: &str) -> Vec<String> {
    let Some(range) =
        function.split(&format!("for ({variable}, ")).nth(1).and_then(|rest| rest.split_once(" in "))
    else {
        return Vec::new();
    };
    let range = range.1.split(" {").next().unwrap_or_default();
    let list = match range.starts_with('[') {
        true => range.split(']').next().unwrap_or_default().to_owned(),
        false => {
            let name: String = range.chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect();
            let declared = format!("const {name}: [&str;");
            let Some(rest) = constants.split(&declared).nth(1).filter(|_| !name.is_empty()) else {
                return Vec::new();
            };
            rest.split(';').next().unwrap_or_default().to_owned()
        }
    };
    string_literals(&list).into_iter().map(|literal| literal.text).collect()
}
