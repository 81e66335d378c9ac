//! Logs that are broken, mixed, out of order, empty, or without what is needed.

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
    let play = replay(log.as_bytes(), PER_IP_POLICY).unwrap();
    assert_eq!((play.log.lines, play.log.requests, play.log.broken), (8, 4, 3));
    assert_eq!(play.log.samples[0], ("log0".to_owned(), 3, "this is no line".to_owned()));
    let output = to_text(&ReplayReport { result: &play, policy: "p", baseline: None });
    assert!(output.contains("3 lines could not be read; the first is log0:3: this is no line"), "{output}");
}

#[test]
fn invalid_utf8_is_accepted() {
    let mut log = common_log(&[(0, "192.0.2.1", "GET /", 200)]).into_bytes();
    log.extend(b"192.0.2.1 - - [01/Feb/2024:12:00:01 +0000] \"GET /\xff\xfe HTTP/1.1\" 200 1\n");
    let play = replay(&log, PER_IP_POLICY).unwrap();
    assert_eq!((play.log.requests, play.log.broken), (2, 0));
}

#[test]
fn overlong_line_is_skipped() {
    let good = common_log(&[(0, "192.0.2.1", "GET /", 200)]);
    let log = format!("{good}{}\n{good}", "x".repeat(3 << 20));
    let play = replay(log.as_bytes(), PER_IP_POLICY).unwrap();
    assert_eq!((play.log.requests, play.log.broken), (2, 1));
}

#[test]
fn formats_may_be_mixed() {
    let log = format!(
        "{}{{\"time\": 1706788805, \"ip\": \"192.0.2.1\", \"method\": \"GET\", \"path\": \"/\"}}\n{}",
        common_log(&[(0, "192.0.2.1", "GET /", 200)]),
        common_log(&[(9, "192.0.2.1", "GET /", 200)])
    );
    let play = replay(log.as_bytes(), PER_IP_POLICY).unwrap();
    assert_eq!(play.log.formats, [("common".to_owned(), 2), ("json".to_owned(), 1)]);
    assert_eq!((play.stats.admitted, play.stats.denied), (2, 1));
}

#[test]
fn unknown_format_error_names_line_and_attempts() {
    let failure = replay(b"\nhello, world\nhello again\n", PER_IP_POLICY).unwrap_err().to_string();
    assert!(
        failure.starts_with("log0:2: this is in no format that was tried\n  hello, world\n"),
        "{failure}"
    );
    for tried in
        ["combined: no ", "common: no ", "vhost: no ", "envoy: no ", "json: it does not start with `{`"]
    {
        assert!(failure.contains(tried), "{tried}: {failure}");
    }
    let policy = parse_policy(PER_IP_POLICY);
    let one = LineFormats::single("combined", &[]).unwrap();
    let log = common_log(&[(0, "192.0.2.1", "GET /", 200)]);
    let failure = open_logs(&[log.as_bytes()], one, &policy).unwrap_err().to_string();
    assert!(failure.contains("combined: no %b where it should be"), "{failure}");
}

#[test]
fn empty_log_is_an_error() {
    for log in [&b""[..], b"\n\n"] {
        let failure = replay(log, PER_IP_POLICY).unwrap_err().to_string();
        assert_eq!(failure, "log0: there is no request in it; give a log with at least one");
    }
}

#[test]
fn log_without_key_is_an_error() {
    let log = common_log(&[(0, "192.0.2.1", "GET /", 200)]);
    let failure =
        replay(log.as_bytes(), "rules: [{ name: tenants, key: header x-tenant, quota: 1/h }]").unwrap_err();
    assert_eq!(
        failure.to_string(),
        "no request of the log has what rule `tenants` counts by (header x-tenant); have it logged, or say where it is \
         with --format or --field"
    );
    // One that is about no request has nothing to miss.
    let other = "rules: [{ name: tenants, match: { path: /other }, key: header x-tenant, quota: 1/h }]";
    let play = replay(log.as_bytes(), other).unwrap();
    let output = to_text(&ReplayReport { result: &play, policy: "p", baseline: None });
    assert!(output.contains("rule `tenants` was about no request of the log"), "{output}");
}

/// Within what is looked at together, lines are put in order; what comes from further back counts as of now.
#[test]
fn late_lines_are_reordered_or_clamped() {
    let visits: Vec<_> = [5, 3, 9, 1, 7].map(|at| (at, "192.0.2.1", "GET /", 200)).into();
    let play = replay(common_log(&visits).as_bytes(), "rules: [{ name: each, key: ip, quota: 1/s burst 1 }]")
        .unwrap();
    assert_eq!((play.log.reordered, play.log.late, play.stats.denied), (3, 0, 0));

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
    let play = replay(log.as_bytes(), "rules: [{ name: each, key: ip, quota: 1/s burst 1 }]").unwrap();
    assert_eq!(play.log.late, 1);
    assert!(
        play.log.max_lateness > Micros::from_secs(3_600) && play.log.max_lateness < Micros::from_secs(40_000)
    );
    assert_eq!(play.stats.denied, 0);
    let output = to_text(&ReplayReport { result: &play, policy: "p", baseline: None });
    assert!(output.contains("1 line stood too far behind later ones, by up to "), "{output}");
}

/// What is in a log reaches neither a page nor a terminal as anything but text.
#[test]
fn reports_escape_log_text() {
    let log = r#"{"time": 1706788800, "path": "/", "user": "<script>alert(1)</script>\u001b[31m"}"#;
    let log = format!("{log}\n{log}\n");
    let policy = parse_policy("user: header x-user\nrules: [{ name: '<b>', key: user, quota: 1/h }]");
    let opened = open_logs(&[log.as_bytes()], builtin_formats(), &policy).unwrap();
    let play = replay_log(opened, (&policy, Path::new("")), None, |_| {}).unwrap();
    let report = ReplayReport { result: &play, policy: "p", baseline: None };
    let page = to_html(&report);
    assert!(page.contains("&lt;script&gt;") && !page.contains("<script") && !page.contains("<b>"), "{page}");
    for fetching in ["http:", "https:", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(fetching), "nothing is fetched: {page}");
    }
    assert!(!page.contains('\u{1b}') && !to_text(&report).contains('\u{1b}'));
    let value = to_json(&report);
    assert_eq!(value["policy"]["rules"][0]["denied"], 1);
    assert_eq!(value["policy"]["rules"][0]["keys"][0]["share"], 1.0);
}

/// Some of the lines have no address: they share one bucket, and that is told.
#[test]
fn requests_without_key_are_noted() {
    let line = |host: &str| format!("{host} - - [01/Feb/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n");
    let log = ["a.example", "b.example", "192.0.2.1", "c.example"].map(line).concat();
    let play =
        replay(log.as_bytes(), "rules: [{ name: each, key: ip, quota: 1/d }, { name: all, quota: 9/d }]");
    let play = play.unwrap();
    assert_eq!((play.stats.admitted, play.stats.denied), (2, 2));
    let note = "3 of the 4 requests of rule `each` have no ip, and were counted together";
    assert_eq!(play.notes, [note]);
}
