//! Logs that are broken, mixed, out of order, empty, or without the key of a rule.

use crate::support::{builtin_formats, common_log, open_logs, parse_policy, replay};
use std::{fmt::Write as _, path::Path};
use tidegate_core::Micros;
use tidegate_replay::{
    log::LineFormats,
    replay_log,
    report::{ReplayReport, to_html, to_json, to_text},
};

const PER_IP_POLICY: &str = "rules: [{ name: each, key: ip, quota: 2/h }]";

#[test]
fn broken_lines_are_counted_and_shown() {
    let good = common_log(&[(0, "192.0.2.1", "GET /", 200), (1, "192.0.2.1", "GET /", 200)]);
    let log = format!(
        "{good}this is no line\n\n\u{0}\u{1}\u{2}\n192.0.2.1 - - [yesterday] \"GET / HTTP/1.1\" 200 1\n{good}"
    );
    let result = replay(log.as_bytes(), PER_IP_POLICY).unwrap();
    assert_eq!((result.log.lines, result.log.requests, result.log.broken), (8, 4, 3));
    assert_eq!(result.log.samples[0], ("log0".to_owned(), 3, "this is no line".to_owned()));
    let output = to_text(&ReplayReport { result: &result, policy: "p", baseline: None });
    assert!(output.contains("3 lines could not be read; first: log0:3: this is no line"), "{output}");
}

#[test]
fn invalid_utf8_is_accepted() {
    let mut log = common_log(&[(0, "192.0.2.1", "GET /", 200)]).into_bytes();
    log.extend(b"192.0.2.1 - - [01/Feb/2024:12:00:01 +0000] \"GET /\xff\xfe HTTP/1.1\" 200 1\n");
    let result = replay(&log, PER_IP_POLICY).unwrap();
    assert_eq!((result.log.requests, result.log.broken), (2, 0));
}

#[test]
fn overlong_line_is_skipped() {
    let good = common_log(&[(0, "192.0.2.1", "GET /", 200)]);
    let log = format!("{good}{}\n{good}", "x".repeat(3 << 20));
    let result = replay(log.as_bytes(), PER_IP_POLICY).unwrap();
    assert_eq!((result.log.requests, result.log.broken), (2, 1));
}

#[test]
fn formats_may_be_mixed() {
    let log = format!(
        "{}{{\"time\": 1706788805, \"ip\": \"192.0.2.1\", \"method\": \"GET\", \"path\": \"/\"}}\n{}",
        common_log(&[(0, "192.0.2.1", "GET /", 200)]),
        common_log(&[(9, "192.0.2.1", "GET /", 200)])
    );
    let result = replay(log.as_bytes(), PER_IP_POLICY).unwrap();
    assert_eq!(result.log.formats, [("common".to_owned(), 2), ("json".to_owned(), 1)]);
    assert_eq!((result.stats.admitted, result.stats.denied), (2, 1));
}

#[test]
fn unknown_format_error_names_line_and_attempts() {
    let failure = replay(b"\nhello, world\nhello again\n", PER_IP_POLICY).unwrap_err().to_string();
    assert!(failure.starts_with("log0:2: unknown log format\n  hello, world\n"), "{failure}");
    for tried in [
        "combined: expected ",
        "common: expected ",
        "vhost: expected ",
        "envoy: expected ",
        "json: the line does not start with `{`",
    ] {
        assert!(failure.contains(tried), "{tried}: {failure}");
    }
    let policy = parse_policy(PER_IP_POLICY);
    let one = LineFormats::single("combined", &[]).unwrap();
    let log = common_log(&[(0, "192.0.2.1", "GET /", 200)]);
    let failure = open_logs(&[log.as_bytes()], one, &policy).unwrap_err().to_string();
    assert!(failure.contains("combined: expected %b"), "{failure}");
}

#[test]
fn empty_log_is_an_error() {
    for log in [&b""[..], b"\n\n"] {
        let failure = replay(log, PER_IP_POLICY).unwrap_err().to_string();
        assert_eq!(failure, "log0: no requests found; use a log with at least one request");
    }
}

#[test]
fn log_without_key_is_an_error() {
    let log = common_log(&[(0, "192.0.2.1", "GET /", 200)]);
    let failure =
        replay(log.as_bytes(), "rules: [{ name: tenants, key: header x-tenant, quota: 1/h }]").unwrap_err();
    assert_eq!(
        failure.to_string(),
        "no request in the log has the key of rule `tenants` (header x-tenant); log it, or name its field with --format or \
         --field"
    );
    // A rule that matches no request is no error.
    let other = "rules: [{ name: tenants, match: { path: /other }, key: header x-tenant, quota: 1/h }]";
    let result = replay(log.as_bytes(), other).unwrap();
    let output = to_text(&ReplayReport { result: &result, policy: "p", baseline: None });
    assert!(output.contains("rule `tenants` matched no request"), "{output}");
}

/// Lines within the lookahead are sorted; later ones are replayed at the time of the line before.
#[test]
fn late_lines_are_reordered_or_clamped() {
    let requests: Vec<_> = [5, 3, 9, 1, 7].map(|at| (at, "192.0.2.1", "GET /", 200)).into();
    let result =
        replay(common_log(&requests).as_bytes(), "rules: [{ name: each, key: ip, quota: 1/s burst 1 }]")
            .unwrap();
    assert_eq!((result.log.reordered, result.log.late, result.stats.denied), (3, 0, 0));

    let mut log = String::new();
    for at in 0..40_000_u64 {
        let (minute, second) = (at / 60 % 60, at % 60);
        let hour = at / 3_600;
        let _ = writeln!(
            log,
            "192.0.2.1 - - [01/Feb/2024:{hour:02}:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 1"
        );
    }
    log += "192.0.2.9 - - [01/Feb/2024:00:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n";
    let result = replay(log.as_bytes(), "rules: [{ name: each, key: ip, quota: 1/s burst 1 }]").unwrap();
    assert_eq!(result.log.late, 1);
    assert!(
        result.log.max_lateness > Micros::from_secs(3_600)
            && result.log.max_lateness < Micros::from_secs(40_000)
    );
    assert_eq!(result.stats.denied, 0);
    let output = to_text(&ReplayReport { result: &result, policy: "p", baseline: None });
    assert!(output.contains("1 line out of order by up to "), "{output}");
}

/// Text of a log is escaped in HTML and on the terminal.
#[test]
fn reports_escape_log_text() {
    let log = r#"{"time": 1706788800, "path": "/", "user": "<script>alert(1)</script>\u001b[31m"}"#;
    let log = format!("{log}\n{log}\n");
    let policy = parse_policy("user: header x-user\nrules: [{ name: '<b>', key: user, quota: 1/h }]");
    let opened = open_logs(&[log.as_bytes()], builtin_formats(), &policy).unwrap();
    let result = replay_log(opened, (&policy, Path::new("")), None, |_| {}).unwrap();
    let report = ReplayReport { result: &result, policy: "p", baseline: None };
    let page = to_html(&report);
    assert!(page.contains("&lt;script&gt;") && !page.contains("<script") && !page.contains("<b>"), "{page}");
    for fetching in ["http:", "https:", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(fetching), "the page must not fetch anything: {page}");
    }
    assert!(!page.contains('\u{1b}') && !to_text(&report).contains('\u{1b}'));
    let value = to_json(&report);
    assert_eq!(value["policy"]["rules"][0]["denied"], 1);
    assert_eq!(value["policy"]["rules"][0]["keys"][0]["share"], 1.0);
}

/// Lines without an address share one counter, and a note reports that.
#[test]
fn requests_without_key_are_noted() {
    let line = |host: &str| format!("{host} - - [01/Feb/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n");
    let log = ["a.example", "b.example", "192.0.2.1", "c.example"].map(line).concat();
    let result =
        replay(log.as_bytes(), "rules: [{ name: each, key: ip, quota: 1/d }, { name: all, quota: 9/d }]");
    let result = result.unwrap();
    assert_eq!((result.stats.admitted, result.stats.denied), (2, 2));
    let note = "3 of 4 requests of rule `each` have no ip; they are counted together";
    assert_eq!(result.notes, [note]);
}
