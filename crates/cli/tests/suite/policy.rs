//! `tidegate check` and `tidegate explain`, as people and pipelines call them.

#![allow(clippy::expect_used, reason = "this is how a test fails")]

use crate::program::{file, text, tidegate};
use std::path::Path;

const FINE: &str = "\
upstreams: { app: 'http://127.0.0.1:9000' }
routes: [{ upstream: app }]
rules:
  - { name: everybody, key: ip, quota: 100/min burst 20 }
  - { name: login, match: { method: POST, path: /login }, key: header x-user, quota: 5/min }
";

/// A cost that no burst grants.
const ODD: &str = "rules: [{ name: wide, key: ip, quota: 10/min, cost: 20 }]";

/// Three mistakes.
const WRONG: &str = "\
rules:
  - name: login
    key: ipp
    quota: 5/mim
    mod: shadow
";

#[test]
fn exit_codes_tell_a_pipeline_what_to_do() {
    let (fine, odd) = (file("fine.yaml", FINE), file("odd.yaml", ODD));
    let wrong = file("wrong.yaml", WRONG);
    let cases: [(&Path, &[&str], i32); 6] = [
        (&fine, &[], 0),
        (&fine, &["--strict"], 0),
        (&odd, &[], 0),
        (&odd, &["--strict"], 3),
        (&wrong, &[], 2),
        (Path::new("nowhere.yaml"), &[], 2),
    ];
    for (path, flags, code) in cases {
        let path = path.to_str().expect("a name in UTF-8");
        let output = tidegate(&[&["check", path], flags].concat());
        assert_eq!(output.status.code(), Some(code), "{path} {flags:?}: {}", text(&output.stderr));
    }
}

#[test]
fn check_tells_all_that_is_wrong_at_once() {
    let path = file("all-wrong.yaml", WRONG);
    let output = tidegate(&["check", path.to_str().expect("a name in UTF-8")]);
    let said = text(&output.stderr);
    for place in [
        ":3:10: unknown key `ipp`; did you mean `ip`?",
        ":4:14: unknown period `mim`",
        ":5:5: unknown key `mod`",
    ] {
        assert!(said.contains(place), "no word of {place}: {said}");
    }
}

#[test]
fn check_compiles_expressions() {
    let path = file("cel.yaml", "rules: [{ name: a, match: { when: 'request.(' }, quota: 1/s }]");
    let output = tidegate(&["check", path.to_str().expect("a name in UTF-8")]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains(":1:36: `request.(` is no expression"), "{said}");
}

#[test]
fn explain_tells_rules_keys_and_answers() {
    let path = file("explained.yaml", FINE);
    let path = path.to_str().expect("a name in UTF-8");
    let output =
        tidegate(&["explain", path, "POST /login", "--ip", "203.0.113.7", "--header", "X-User: alice"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for word in ["goes to `app`", "203.0.113.7", "key      alice", "120 in any 1min", "429, retry-after: 12"]
    {
        assert!(said.contains(word), "no word of {word}: {said}");
    }
    let output = tidegate(&["explain", path, "/"]);
    assert!(text(&output.stdout).contains("rule `login` does not apply"), "{}", text(&output.stdout));
}

#[test]
fn explain_says_how_a_request_is_written() {
    let path = file("unexplained.yaml", FINE);
    let path = path.to_str().expect("a name in UTF-8");
    for (args, word) in [
        (["explain", path, "POST"].as_slice(), "GET /path"),
        (&["explain", path, "/", "--ip", "here"], "--ip"),
        (&["explain", path, "/", "--header", "x-plan"], "x-plan: gold"),
    ] {
        let output = tidegate(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(word), "{}", text(&output.stderr));
    }
}

/// What `check` and `serve` both refuse, and where.
const REFUSED: [(&str, &str); 8] = [
    ("store: redsi://127.0.0.1\nrules: []", ":1:8: "),
    ("store: redis://127.0.0.1:abc\nrules: []", ":1:8: "),
    ("store: redis://:$TIDEGATE_NO_SUCH_VARIABLE@db\nrules: []", ":1:8: "),
    ("rules: []\nadmin: { listen: 127.0.0.1:18471, token: $TIDEGATE_NO_SUCH_VARIABLE }", ":2:42: "),
    (
        "listen: 127.0.0.1:18471\nadmin: 127.0.0.1:18471",
        ":2:8: `127.0.0.1:18471` is taken: `listen` listens on",
    ),
    ("listen: { address: 127.0.0.1:18471, tls: { certificate: nowhere.pem, key: nowhere.key } }", ":1:57: "),
    ("lists: { bad: { files: nowhere.txt } }\nrules: [{ name: a, deny: bad }]", ":1:15: list `bad`: "),
    ("log: { format: json, file: nowhere/access.log }", ":1:28: cannot write the log to "),
];

#[test]
fn check_reports_what_serve_refuses() {
    for (number, (policy, place)) in REFUSED.iter().enumerate() {
        let path = file(&format!("refused-{number}.yaml"), policy);
        let path = path.to_str().expect("a name in UTF-8");
        let checked = tidegate(&["check", path]);
        let said = text(&checked.stderr);
        assert_eq!(checked.status.code(), Some(2), "{policy}: {said}{}", text(&checked.stdout));
        assert!(said.contains(place), "no word of {place}: {said}");
        assert!(said.contains("; ") && said.lines().count() >= 3, "place, line and caret: {said}");
        let served = tidegate(&["serve", path]);
        assert_eq!(served.status.code(), Some(2), "{policy}: {}", text(&served.stderr));
    }
}

#[test]
fn check_reports_what_forwards_nothing() {
    let cases = [
        ("", "the policy is empty"),
        (
            "rules: [{ name: a, key: ip, quota: 5/min }]",
            "1:8: no route: a gateway answers every request with 404",
        ),
        (
            "listen: 127.0.0.1:18472\nupstreams: { app: 'http://127.0.0.1:18472' }\nroutes: app",
            "127.0.0.1:18472 is this gateway itself",
        ),
    ];
    for (number, (policy, expected)) in cases.into_iter().enumerate() {
        let path = file(&format!("nothing-{number}.yaml"), policy);
        let path = path.to_str().expect("a name in UTF-8");
        let checked = tidegate(&["check", path]);
        assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stderr));
        assert!(text(&checked.stdout).contains(expected), "{}", text(&checked.stdout));
        assert_eq!(tidegate(&["check", "--strict", path]).status.code(), Some(3));
    }
}

#[test]
fn advice_has_line_caret_and_rule() {
    let policy = "upstreams: { app: 'http://127.0.0.1:9000' }\nroutes: app\nrules:\n  - name: login\n    quota: 5/min\n    \
                  priority: high\n";
    let path = file("advised.yaml", policy);
    let output = tidegate(&["check", path.to_str().expect("a name in UTF-8")]);
    let said = text(&output.stdout);
    let expected = "advised.yaml:6:15: rule `login`: `priority` has no effect on a plain quota; ";
    assert!(said.contains(expected), "{said}");
    assert!(said.contains("\n      priority: high\n                ^^^^\n"), "{said}");
}

#[test]
fn explain_evaluates_lists() {
    let policy = "upstreams: { app: 'http://127.0.0.1:9000' }\nroutes: app\nlists: { office: [192.0.2.0/24] }\nrules:\n  \
                  - { name: closed, match: { path: /internal/** }, deny: all, allow: office }\n";
    let path = file("closed.yaml", policy);
    let explain = |ip: &str| {
        let output =
            tidegate(&["explain", path.to_str().expect("a name in UTF-8"), "/internal/x", "--ip", ip]);
        text(&output.stdout)
    };
    let (office, stranger) = (explain("192.0.2.1"), explain("203.0.113.7"));
    assert!(office.contains("goes to `app`") && office.contains("allowed"), "{office}");
    assert!(stranger.contains("refused by rule `closed`, since the client is denied: 403"), "{stranger}");
}
