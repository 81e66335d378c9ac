//! The losses and errors of an import, with their positions and messages.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::import::import_text;
use std::path::Path;
use tidegate_import::LossKind;
use tidegate_testkit::error_texts;

/// `tests/losses.txt`: configurations with the reported messages. A loss has its line, an error its line and column.
#[test]
fn loss_messages_match_fixture() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/losses.txt");
    error_texts::compare_cases(&path, describe_losses);
}

/// A test shows every error message of the crate, so that each one is reviewed.
#[test]
fn every_message_is_tested() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    error_texts::assert_all_tested(root, &["tests/losses.txt", "tests/imports.txt"], &[], &[], 100);
}

fn describe_losses(text: &str) -> Vec<String> {
    let short = |text: String| text.strip_prefix("nginx.conf:").map(str::to_owned).unwrap_or(text);
    match import_text(text) {
        Ok(imported) if imported.losses.is_empty() => vec!["nothing is lost".to_owned()],
        Ok(imported) => imported
            .losses
            .iter()
            .map(|loss| match loss.kind {
                LossKind::Protection => format!("protection {}", short(loss.to_string())),
                LossKind::Cosmetic => short(loss.to_string()),
            })
            .collect(),
        Err(problems) => {
            let first = |text: String| text.lines().next().unwrap_or_default().to_owned();
            problems.iter().map(|problem| format!("error {}", short(first(problem.to_string())))).collect()
        }
    }
}

/// Configurations that are too large for the fixture, with one expected message each.
#[test]
fn exceeded_budgets_are_reported() {
    let many = |count: usize, each: &dyn Fn(usize) -> String| (0..count).map(each).collect::<String>();
    let zones = |zone: &str, count| many(count, &|n| format!("{zone} $host zone=z{n}:1m;\n"));
    let limits = many(101, &|n| format!("limit_req zone=z{n};\n"));
    let connections = many(101, &|n| format!("limit_conn z{n} 5;\n"));
    // The locations alternate between two zones.
    let nested = many(70, &|n| {
        let limit = if n % 2 == 0 { "limit_req zone=z0;" } else { "limit_req zone=z1;" };
        format!("location {}/ {{ {limit} }}\n", "/a".repeat(n + 1))
    });
    let ways = many(1_001, &|n| format!("location /{n} {{ limit_req zone=z0 burst={}; }}\n", n + 1));
    let cases = [
        (
            many(2_001, &|n| format!("server {{ server_name n{n}; }}\n")),
            "2001: `server`: too many servers; the remaining ones are not imported",
        ),
        (
            many(11, &|s| format!("server {{ server_name {}; }}\n", many(1_000, &|n| format!(" n{s}-{n}")))),
            ": too many server names; the remaining ones are not imported",
        ),
        (
            format!("server {{\n{}}}", many(5_001, &|n| format!("location /{n}/ {{ }}\n"))),
            "5002: `location /5000/`: too many locations; the remaining ones are not imported",
        ),
        (
            format!("server {{\n{}}}", many(10_001, &|n| format!("deny 10.{}.{}.0/24;\n", n / 256, n % 256))),
            "error 10002:1: too many `allow` and `deny` entries; move the networks into a list of the policy",
        ),
        (
            format!("server {{\n{}}}", many(51, &|n| format!("location ~ ^/{n}/ {{ }}\n"))),
            "52: `location ~ ^/50/`: more than 50 locations with regular expressions; its directives are not imported",
        ),
        (
            format!("{}{limits}", zones("limit_req_zone", 101)),
            "error 202:1: more than 100 limits on one level; remove some of them",
        ),
        (
            format!("{}{connections}server {{ }}", zones("limit_conn_zone", 101)),
            "error 202:1: more than 100 limits on one level; remove some of them",
        ),
        (
            format!("{}server {{\n{ways}}}", zones("limit_req_zone", 1)),
            "error 1003:18: too many different limits; import a part of the configuration",
        ),
        (
            format!("{}server {{\n{nested}}}", zones("limit_req_zone", 2)),
            "error 1:1: the resulting policy is invalid: more than 64 levels deep; import a part of the configuration and write the remaining policy manually",
        ),
    ];
    for (text, expected) in cases {
        let messages = describe_losses(&text);
        assert!(
            messages.iter().any(|message| message.ends_with(expected)),
            "{expected}: {:?}",
            &messages[..messages.len().min(5)]
        );
    }
}
