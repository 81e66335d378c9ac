//! `tidegate check` and `tidegate explain`.

#![allow(clippy::expect_used, reason = "this is how a test fails")]

use crate::common::{run_tidegate, utf8_text, write_file};
use std::path::Path;

const VALID_POLICY: &str = "\
upstreams: { app: 'http://127.0.0.1:9000' }
routes: [{ upstream: app }]
rules:
  - { name: everybody, key: ip, quota: 100/min burst 20 }
  - { name: login, match: { method: POST, path: /login }, key: header x-user, quota: 5/min }
";

/// A cost above the burst.
const POLICY_WITH_WARNING: &str = "rules: [{ name: wide, key: ip, quota: 10/min, cost: 20 }]";

/// Three errors.
const INVALID_POLICY: &str = "\
rules:
  - name: login
    key: ipp
    quota: 5/mim
    mod: shadow
";

#[test]
fn check_exit_codes_reflect_result() {
    let (fine, odd) = (write_file("fine.yaml", VALID_POLICY), write_file("odd.yaml", POLICY_WITH_WARNING));
    let wrong = write_file("wrong.yaml", INVALID_POLICY);
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
        let output = run_tidegate(&[&["check", path], flags].concat());
        assert_eq!(output.status.code(), Some(code), "{path} {flags:?}: {}", utf8_text(&output.stderr));
    }
}

#[test]
fn check_reports_all_errors() {
    let path = write_file("all-wrong.yaml", INVALID_POLICY);
    let output = run_tidegate(&["check", path.to_str().expect("a name in UTF-8")]);
    let text = utf8_text(&output.stderr);
    for place in [
        ":3:10: unknown key `ipp`; did you mean `ip`?",
        ":4:14: unknown period `mim`",
        ":5:5: unknown key `mod`",
    ] {
        assert!(text.contains(place), "{place} is missing: {text}");
    }
}

#[test]
fn check_compiles_expressions() {
    let path = write_file("cel.yaml", "rules: [{ name: a, match: { when: 'request.(' }, quota: 1/s }]");
    let output = run_tidegate(&["check", path.to_str().expect("a name in UTF-8")]);
    assert_eq!(output.status.code(), Some(2));
    let text = utf8_text(&output.stderr);
    assert!(text.contains(":1:36: invalid expression `request.(`"), "{text}");
}

#[test]
fn explain_shows_rules_keys_and_outcome() {
    let path = write_file("explained.yaml", VALID_POLICY);
    let path = path.to_str().expect("a name in UTF-8");
    let output =
        run_tidegate(&["explain", path, "POST /login", "--ip", "203.0.113.7", "--header", "X-User: alice"]);
    assert!(output.status.success(), "{}", utf8_text(&output.stderr));
    let text = utf8_text(&output.stdout);
    for word in
        ["forwarded to `app`", "203.0.113.7", "key      alice", "120 in any 1min", "429, retry-after: 12"]
    {
        assert!(text.contains(word), "{word} is missing: {text}");
    }
    let output = run_tidegate(&["explain", path, "/"]);
    assert!(
        utf8_text(&output.stdout).contains("rule `login` does not apply"),
        "{}",
        utf8_text(&output.stdout)
    );
}

#[test]
fn explain_reads_the_body() {
    let policy = "rules: [{ name: tokens, key: body /model, missing: skip, quota: 100/min,\n  \
        cost: { from: body /max_tokens, default: 7, max: 100 }, settle: { from: openai, max-debt: 5 } }]";
    let path = write_file("explained-body.yaml", policy);
    let path = path.to_str().expect("a name in UTF-8");
    for (body, expected) in [
        (r#"{"model": "small", "max_tokens": 30}"#, ["key      small", "cost     30"]),
        (r#"{"model": "small"}"#, ["key      small", "cost     7"]),
        ("no JSON", ["key      missing: the rule is skipped", "cost     7"]),
    ] {
        let output = run_tidegate(&["explain", path, "POST /", "--body", body]);
        let text = utf8_text(&output.stdout);
        for expected in expected {
            assert!(text.contains(expected), "{expected} is missing: {text}");
        }
        assert!(text.contains("settle   the tokens that the response reports, at most 5 above"), "{text}");
    }
}

#[test]
fn explain_shows_rules_of_a_descriptor() {
    let policy = "envoy: 127.0.0.1:8081\nrules: [{ name: shop, match: { descriptor: { domain: shop } }, key: ip, quota: 5/min }]";
    let path = write_file("explained-descriptor.yaml", policy);
    let path = path.to_str().expect("a name in UTF-8");
    let entries = ["--descriptor", "domain=shop", "--descriptor", "remote_address=203.0.113.7"];
    let output = run_tidegate(&[["explain", path].as_slice(), &entries].concat());
    assert!(output.status.success(), "{}", utf8_text(&output.stderr));
    let text = utf8_text(&output.stdout);
    let expected = "descriptor domain=shop remote_address=203.0.113.7\n  allowed\nrule `shop` applies\n  key      203.0.113.7\n";
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn explain_rejects_invalid_request_line() {
    let path = write_file("unexplained.yaml", VALID_POLICY);
    let path = path.to_str().expect("a name in UTF-8");
    for (args, word) in [
        (["explain", path, "POST"].as_slice(), "GET /path"),
        (&["explain", path, "/", "--ip", "here"], "--ip"),
        (&["explain", path, "/", "--header", "x-plan"], "x-plan: gold"),
        (&["explain", path, "--descriptor", "user"], "user=ann"),
        (&["explain", path, "/", "--descriptor", "user=ann"], "cannot be used with"),
        (&["explain", path], "required"),
    ] {
        let output = run_tidegate(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(utf8_text(&output.stderr).contains(word), "{}", utf8_text(&output.stderr));
    }
}

/// Policies that `check` and `serve` both reject, with the positions.
const REFUSED_POLICIES: [(&str, &str); 8] = [
    ("store: redsi://127.0.0.1\nrules: []", ":1:8: "),
    ("store: redis://127.0.0.1:abc\nrules: []", ":1:8: "),
    ("store: redis://:$TIDEGATE_NO_SUCH_VARIABLE@db\nrules: []", ":1:8: "),
    ("rules: []\nadmin: { listen: 127.0.0.1:18471, token: $TIDEGATE_NO_SUCH_VARIABLE }", ":2:42: "),
    (
        "listen: 127.0.0.1:18471\nadmin: 127.0.0.1:18471",
        ":2:8: `127.0.0.1:18471` is in use: `listen` listens on",
    ),
    ("listen: { address: 127.0.0.1:18471, tls: { certificate: nowhere.pem, key: nowhere.key } }", ":1:57: "),
    ("lists: { bad: { files: nowhere.txt } }\nrules: [{ name: a, deny: bad }]", ":1:15: list `bad`: "),
    ("log: { format: json, file: nowhere/access.log }", ":1:28: cannot write the log to "),
];

#[test]
fn check_reports_what_serve_rejects() {
    for (number, (policy, place)) in REFUSED_POLICIES.iter().enumerate() {
        let path = write_file(&format!("refused-{number}.yaml"), policy);
        let path = path.to_str().expect("a name in UTF-8");
        let checked = run_tidegate(&["check", path]);
        let text = utf8_text(&checked.stderr);
        assert_eq!(checked.status.code(), Some(2), "{policy}: {text}{}", utf8_text(&checked.stdout));
        assert!(text.contains(place), "{place} is missing: {text}");
        assert!(text.contains("; ") && text.lines().count() >= 3, "place, line and caret: {text}");
        let served = run_tidegate(&["serve", path]);
        assert_eq!(served.status.code(), Some(2), "{policy}: {}", utf8_text(&served.stderr));
    }
}

#[test]
fn check_warns_about_unreachable_upstreams() {
    let cases = [
        ("", "the policy is empty"),
        ("rules: [{ name: a, key: ip, quota: 5/min }]", "1:8: no route: every request gets a 404"),
        (
            "listen: 127.0.0.1:18472\nupstreams: { app: 'http://127.0.0.1:18472' }\nroutes: app",
            "127.0.0.1:18472 is this gateway: requests would loop",
        ),
    ];
    for (number, (policy, expected)) in cases.into_iter().enumerate() {
        let path = write_file(&format!("nothing-{number}.yaml"), policy);
        let path = path.to_str().expect("a name in UTF-8");
        let checked = run_tidegate(&["check", path]);
        assert_eq!(checked.status.code(), Some(0), "{}", utf8_text(&checked.stderr));
        assert!(utf8_text(&checked.stdout).contains(expected), "{}", utf8_text(&checked.stdout));
        assert_eq!(run_tidegate(&["check", "--strict", path]).status.code(), Some(3));
    }
}

#[test]
fn warning_has_line_caret_and_rule() {
    let policy = "upstreams: { app: 'http://127.0.0.1:9000' }\nroutes: app\nrules:\n  - name: login\n    quota: 5/min\n    \
                  priority: high\n";
    let path = write_file("advised.yaml", policy);
    let output = run_tidegate(&["check", path.to_str().expect("a name in UTF-8")]);
    let text = utf8_text(&output.stdout);
    let expected = "advised.yaml:6:15: rule `login`: `priority` has no effect: all requests of the rule have the same one; ";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("\n      priority: high\n                ^^^^\n"), "{text}");
}

#[test]
fn explain_evaluates_lists() {
    let policy = "upstreams: { app: 'http://127.0.0.1:9000' }\nroutes: app\nlists: { internal: [192.0.2.0/24] }\nrules:\n  \
                  - { name: closed, match: { path: /internal/** }, deny: all, allow: internal }\n";
    let path = write_file("closed.yaml", policy);
    let explain = |ip: &str| {
        let output =
            run_tidegate(&["explain", path.to_str().expect("a name in UTF-8"), "/internal/x", "--ip", ip]);
        utf8_text(&output.stdout)
    };
    let (internal, other) = (explain("192.0.2.1"), explain("203.0.113.7"));
    assert!(internal.contains("forwarded to `app`") && internal.contains("allowed"), "{internal}");
    assert!(other.contains("rejected by rule `closed` (client denied): 403"), "{other}");
}
