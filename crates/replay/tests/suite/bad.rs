//! Logs that are broken, mixed, out of order, empty, or without what is needed.

use crate::play::{common, known, logs, played, policy};
use std::{fmt::Write as _, path::Path};
use tidegate_core::Micros;
use tidegate_replay::{
    log::Formats,
    play,
    report::{Report, html, json, text},
};

const EACH: &str = "rules: [{ name: each, key: ip, quota: 2/h }]";

#[test]
fn broken_lines_are_counted_and_shown() {
    let good = common(&[(0, "192.0.2.1", "GET /", 200), (1, "192.0.2.1", "GET /", 200)]);
    let log = format!(
        "{good}this is no line\n\n\u{0}\u{1}\u{2}\n192.0.2.1 - - [yesterday] \"GET / HTTP/1.1\" 200 1\n{good}"
    );
    let play = played(log.as_bytes(), EACH).unwrap();
    assert_eq!((play.log.lines, play.log.requests, play.log.broken), (8, 4, 3));
    assert_eq!(play.log.samples[0], ("log0".to_owned(), 3, "this is no line".to_owned()));
    let said = text(&Report { play: &play, policy: "p", against: None });
    assert!(said.contains("3 lines could not be read; the first is log0:3: this is no line"), "{said}");
}

#[test]
fn bytes_that_are_no_text_do_not_stop_anything() {
    let mut log = common(&[(0, "192.0.2.1", "GET /", 200)]).into_bytes();
    log.extend(b"192.0.2.1 - - [01/Feb/2024:12:00:01 +0000] \"GET /\xff\xfe HTTP/1.1\" 200 1\n");
    let play = played(&log, EACH).unwrap();
    assert_eq!((play.log.requests, play.log.broken), (2, 0));
}

#[test]
fn a_line_without_an_end_is_passed_over() {
    let good = common(&[(0, "192.0.2.1", "GET /", 200)]);
    let log = format!("{good}{}\n{good}", "x".repeat(3 << 20));
    let play = played(log.as_bytes(), EACH).unwrap();
    assert_eq!((play.log.requests, play.log.broken), (2, 1));
}

#[test]
fn formats_may_be_mixed() {
    let log = format!(
        "{}{{\"time\": 1706788805, \"ip\": \"192.0.2.1\", \"method\": \"GET\", \"path\": \"/\"}}\n{}",
        common(&[(0, "192.0.2.1", "GET /", 200)]),
        common(&[(9, "192.0.2.1", "GET /", 200)])
    );
    let play = played(log.as_bytes(), EACH).unwrap();
    assert_eq!(play.log.formats, [("common".to_owned(), 2), ("json".to_owned(), 1)]);
    assert_eq!((play.tally.admitted, play.tally.denied), (2, 1));
}

#[test]
fn an_unknown_format_says_which_line_and_what_was_tried() {
    let failure = played(b"\nhello, world\nhello again\n", EACH).unwrap_err().to_string();
    assert!(
        failure.starts_with("log0:2: this is in no format that was tried\n  hello, world\n"),
        "{failure}"
    );
    for tried in
        ["combined: no ", "common: no ", "vhost: no ", "envoy: no ", "json: it does not start with `{`"]
    {
        assert!(failure.contains(tried), "{tried}: {failure}");
    }
    let policy = policy(EACH);
    let one = Formats::one("combined", &[]).unwrap();
    let log = common(&[(0, "192.0.2.1", "GET /", 200)]);
    let failure = logs(&[log.as_bytes()], one, &policy).unwrap_err().to_string();
    assert!(failure.contains("combined: no %b where it should be"), "{failure}");
}

#[test]
fn an_empty_log_says_so() {
    for log in [&b""[..], b"\n\n"] {
        let failure = played(log, EACH).unwrap_err().to_string();
        assert_eq!(failure, "log0: there is no request in it; give a log with at least one");
    }
}

#[test]
fn a_log_without_the_key_says_so() {
    let log = common(&[(0, "192.0.2.1", "GET /", 200)]);
    let failure =
        played(log.as_bytes(), "rules: [{ name: tenants, key: header x-tenant, quota: 1/h }]").unwrap_err();
    assert_eq!(
        failure.to_string(),
        "no request of the log has what rule `tenants` counts by (header x-tenant); have it logged, or say where it is \
         with --format or --field"
    );
    // One that is about no request has nothing to miss.
    let other = "rules: [{ name: tenants, match: { path: /other }, key: header x-tenant, quota: 1/h }]";
    let play = played(log.as_bytes(), other).unwrap();
    let said = text(&Report { play: &play, policy: "p", against: None });
    assert!(said.contains("rule `tenants` was about no request of the log"), "{said}");
}

/// Within what is looked at together, lines are put in order; what comes from further back counts as of now.
#[test]
fn time_that_goes_back_is_put_in_order_or_stands() {
    let visits: Vec<_> = [5, 3, 9, 1, 7].map(|at| (at, "192.0.2.1", "GET /", 200)).into();
    let play =
        played(common(&visits).as_bytes(), "rules: [{ name: each, key: ip, quota: 1/s burst 1 }]").unwrap();
    assert_eq!((play.log.reordered, play.log.late, play.tally.denied), (3, 0, 0));

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
    let play = played(log.as_bytes(), "rules: [{ name: each, key: ip, quota: 1/s burst 1 }]").unwrap();
    assert_eq!(play.log.late, 1);
    assert!(play.log.latest > Micros::from_secs(3_600) && play.log.latest < Micros::from_secs(40_000));
    assert_eq!(play.tally.denied, 0);
    let said = text(&Report { play: &play, policy: "p", against: None });
    assert!(said.contains("1 line stood too far behind later ones, by up to "), "{said}");
}

/// What is in a log reaches neither a page nor a terminal as anything but text.
#[test]
fn reports_hold_text_only() {
    let log = r#"{"time": 1706788800, "path": "/", "user": "<script>alert(1)</script>\u001b[31m"}"#;
    let log = format!("{log}\n{log}\n");
    let policy = policy("user: header x-user\nrules: [{ name: '<b>', key: user, quota: 1/h }]");
    let opened = logs(&[log.as_bytes()], known(), &policy).unwrap();
    let play = play(opened, (&policy, Path::new("")), None, |_| {}).unwrap();
    let report = Report { play: &play, policy: "p", against: None };
    let page = html(&report);
    assert!(page.contains("&lt;script&gt;") && !page.contains("<script") && !page.contains("<b>"), "{page}");
    for fetching in ["http:", "https:", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(fetching), "nothing is fetched: {page}");
    }
    assert!(!page.contains('\u{1b}') && !text(&report).contains('\u{1b}'));
    let value = json(&report);
    assert_eq!(value["policy"]["rules"][0]["denied"], 1);
    assert_eq!(value["policy"]["rules"][0]["keys"][0]["share"], 1.0);
}

/// Some of the lines have no address: they share one bucket, and that is told.
#[test]
fn requests_without_the_key_are_told() {
    let line = |host: &str| format!("{host} - - [01/Feb/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n");
    let log = ["a.example", "b.example", "192.0.2.1", "c.example"].map(line).concat();
    let play =
        played(log.as_bytes(), "rules: [{ name: each, key: ip, quota: 1/d }, { name: all, quota: 9/d }]");
    let play = play.unwrap();
    assert_eq!((play.tally.admitted, play.tally.denied), (2, 2));
    let note = "3 of the 4 requests of rule `each` have no ip, and were counted together";
    assert_eq!(play.notes, [note]);
}
