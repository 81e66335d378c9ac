//! The problems of invalid files: each has a position, an excerpt and a fix.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::HashMap, io, path::Path, time::Duration};
use tidegate_policy::{
    Policy, PolicyFormat, compile, lint,
    model::{
        AdaptiveSpec, BreakerSpec, KeyPart, KeySpec, PathPattern, PrioritySpec, Quotas, RuleSpec, Segment,
        ValueGlobs,
    },
};
use tidegate_testkit::error_texts;

/// The problems of a policy, as text.
fn problems_of(text: &str) -> String {
    match Policy::parse(text, PolicyFormat::Yaml) {
        Ok(policy) => format!("no problem:\n{policy}"),
        Err(problems) => problems.to_string(),
    }
}

#[test]
fn problem_has_position_and_fix() {
    let text = "rules:\n  - name: login\n    key: ip\n    quta: 5/min\n    quota: 5/mni\n";
    let files = |_: &Path| Ok(text.as_bytes().to_vec());
    let problems = Policy::read("etc/policy.yaml", &files).unwrap_err();
    assert_eq!(
        problems.to_string(),
        "etc/policy.yaml:4:5: unknown key `quta` in rule `login`; did you mean `quota`?\n\
        \x20     quta: 5/min\n\
        \x20     ^^^^\n\
        \n\
        etc/policy.yaml:5:14: unknown period `mni`; use one of us, ms, s, min, h, d, w\n\
        \x20     quota: 5/mni\n\
        \x20              ^^^"
    );
    let positions: Vec<_> = problems.iter().map(|problem| (problem.line(), problem.column())).collect();
    assert_eq!(positions, [(Some(4), Some(5)), (Some(5), Some(14))]);
}

/// Every error: the policy, and the first line of each message, without the excerpts. A valid policy is compiled and linted,
/// and its messages are listed, too. A first line of `%toml` or `%json` selects the format.
#[test]
fn error_messages_match_errors_txt() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/errors.txt");
    error_texts::compare_cases(&path, all_messages);
}

fn all_messages(text: &str) -> Vec<String> {
    let (format, text) = match text.split_once('\n') {
        Some(("%toml", text)) => (PolicyFormat::Toml, text),
        Some(("%json", text)) => (PolicyFormat::Json, text),
        _ => (PolicyFormat::Yaml, text),
    };
    let policy = match Policy::parse(text, format) {
        Ok(policy) => policy,
        Err(problems) => {
            let lines = problems.iter().map(|problem| problem.to_string().lines().next().unwrap().to_owned());
            return lines.collect();
        }
    };
    let mut messages: Vec<_> = match compile::check(&policy) {
        Ok(()) => Vec::new(),
        Err(error) => error.problems().iter().map(|problem| format!("in force: {problem}")).collect(),
    };
    messages.extend(lint(&policy).iter().map(|warning| format!("advice: {warning}")));
    if messages.is_empty() {
        messages.push("no problem".to_owned());
    }
    messages
}

/// Texts that are not in `errors.txt`, and the reason.
const TESTED_ELSEWHERE: [(&str, &str); 22] = [
    ("the names are self-explanatory", "a reason for the linter"),
    ("the flags of the file format", "a reason for the linter"),
    ("dropping it releases the slots of the request", "a compiler warning"),
    ("callers pass values or references", "a reason for the linter"),
    ("fallback to upstream `{name}`, but a policy for a service has no upstreams", "the tests of layers"),
    ("fallback to cached responses, but only a gateway stores responses", "the tests of layers"),
    ("remove `cache`, or use `body`", "the tests of layers"),
    ("use a fallback with `body`, or `status` or `redirect`", "the tests of layers"),
    ("cannot parse `{}`: out of memory", "a machine without memory"),
    ("simplify it, or free some memory", "a machine without memory"),
    ("file larger than 64 MiB", "a file of that size"),
    ("change the `ban`", "an error of the engine without its own fix"),
    ("use other quotas", "an error of the engine without its own fix"),
    ("use another quota", "an error of the engine for a valid quota"),
    ("remove one of them", "an error of the engine without its own fix"),
    ("bandwidth `{rate}`: {error}", "an error of the engine for a valid rate"),
    ("list `{name}`: {}", "an error of the engine for a valid list"),
    ("\n\nand {more} more", "the test of large files"),
    ("unknown key", "beyond the thousand reported problems"),
    ("policy rejected, keeping the previous one", "a log event"),
    ("cannot watch the policy file; changes are not applied", "a log event"),
    ("duplicate rule name", "beyond the thousand reported problems"),
];

/// Every error message of the crate occurs in a test.
#[test]
fn every_error_message_is_tested() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // `explain` reports no errors, and has its own tests. Errors of overrides are responses of the admin API, whose tests cover them.
    error_texts::assert_all_tested(
        root,
        &["tests/errors.txt"],
        &TESTED_ELSEWHERE,
        &["explain/mod.rs", "explain/text.rs", "compile/overrides.rs", "overrides.rs"],
        250,
    );
}

#[test]
fn error_position_is_exact_in_every_format() {
    let cases = [
        (PolicyFormat::Yaml, "rules:\n  - name: a\n    quota: '5/parsec'\n", 3, 15),
        (PolicyFormat::Toml, "[[rules]]\nname = 'a'\nquota = \"5/parsec\"\n", 3, 12),
        (PolicyFormat::Json, "{\"rules\":\n [{\"name\": \"a\",\n \"quota\": \"5/parsec\"}]}", 3, 14),
    ];
    for (format, text, line, column) in cases {
        let problems = Policy::parse(text, format).unwrap_err();
        let problem = problems.iter().next().unwrap();
        assert_eq!((problem.line(), problem.column()), (Some(line), Some(column)), "{problems}");
        assert_eq!(problem.problem(), "unknown period `parsec`");
        assert!(problem.to_string().ends_with("^^^^^^"), "{problem}");
    }
}

#[test]
fn problems_redact_secrets() {
    let cases = [
        "store: 'not redis :hunter2'\nrulse: []\n",
        "sotre: redis://:hunter2@db\n",
        "stores: { redis://:hunter2@db: a }\n",
        "stores: [redis://:hunter2@db]\n",
        "rules: [{ name: a, quota: 'redis://:hunter2@db' }]\n",
        "password: hunter2\n",
        "upstreams: { a: 'http://me:hunter2@app' }\n",
        "rules: [{ name: a, quota: 5/min, store: 'redis://:hunter2@db' }]\n",
        "redis://:hunter2@db: 5\n",
        "admin: { token: hunter2 }\n",
        "decisions: { listen: 127.0.0.1:1, tokens: { name: web, token: hunter2 } }\n",
    ];
    for text in cases {
        let message = problems_of(text);
        assert!(!message.contains("hunter2") && !message.starts_with("no problem"), "{message}");
    }
    let policy: Policy = "store: redis://:hunter2@db\nstores: { a: redis://:hunter2@db }\n".parse().unwrap();
    assert!(!format!("{policy:?}").contains("hunter2"));
}

/// A small file must not expand to a huge policy, and reporting many problems must not take long.
#[test]
fn large_files_and_many_problems_are_bounded() {
    let big = format!("templates: {{ t: {{ quota: 5/min, message: '{}' }} }}\nrules:\n", "x".repeat(500_000));
    let rules: String = (0..20_000).map(|i| format!("- {{name: r{i}, use: t}}\n")).collect();
    assert!(
        problems_of(&(big + &rules)).contains("templates expand to more than 16 MiB; use smaller templates")
    );

    let path = "/{a}".repeat(200);
    let message = problems_of(&format!("rules: [{{ name: a, quota: 5/min, match: {{ path: '{path}' }} }}]"));
    assert!(
        message.contains("1:50: path with more than 128 segments; shorten it, and end it with `/**`"),
        "{message}"
    );

    let invalid: String = (0..30_000).map(|i| format!("- {{name: a, store: s{i}}}\n")).collect();
    let named: String = (0..15_000).map(|i| format!("  t{i}: memory\n")).collect();
    let problems = format!("stores:\n{named}rules:\n{invalid}").parse::<Policy>().unwrap_err();
    assert!(problems.count() > 50_000, "{}", problems.count());
    assert_eq!(problems.iter().count(), 1_000);
    assert!(problems.to_string().contains("\n\nand "));
}

type TestFiles = HashMap<&'static str, &'static str>;

fn read(disk: &TestFiles) -> Result<Policy, String> {
    let files = |path: &Path| match disk.get(path.to_str().unwrap()) {
        Some(text) => Ok(text.as_bytes().to_vec()),
        None => Err(io::ErrorKind::NotFound.into()),
    };
    Policy::read("etc/policy.yaml", &files).map_err(|problems| {
        let lines = problems.iter().map(|problem| problem.to_string().lines().next().unwrap().to_owned());
        lines.collect::<Vec<_>>().join("\n")
    })
}

#[test]
fn files_include_others() {
    let disk = TestFiles::from([
        (
            "etc/policy.yaml",
            "include: [more/rules.toml, more/../lists.json]\nroutes: app\nfeatures: { chat: {} }\n\
             rules: [{ name: a, quota: 1/s }]\n",
        ),
        (
            "etc/more/rules.toml",
            "include = '../lists.json'\n[upstreams]\napp = 'http://127.0.0.1:1'\n[[rules]]\nname = 'b'\nuse = 't'\nmatch.client = 'bad'\n",
        ),
        (
            "etc/lists.json",
            r#"{"lists": {"bad": {"files": "bad.txt"}}, "templates": {"t": {"quota": "2/s", "wait": "5s"}},
                "rules": {"name": "c", "deny": "bad"}, "features": {"export": {}}}"#,
        ),
    ]);
    let policy = read(&disk).unwrap();
    let names: Vec<_> = policy.rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(policy.rules[1].wait.as_secs(), 5);
    let features: Vec<_> = policy.features.iter().map(|feature| feature.name.as_str()).collect();
    assert_eq!(features, ["chat", "export"]);
    // Paths are relative to the file that contains them.
    assert_eq!(policy.lists["bad"].files, [Path::new("etc/bad.txt")]);
}

#[test]
fn include_errors_have_position_and_fix() {
    let cases: &[(&[(&str, &str)], &str)] = &[
        (
            &[],
            "etc/policy.yaml: cannot read `etc/policy.yaml`: entity not found; check the path and its permissions",
        ),
        (
            &[("etc/policy.yaml", "include: [a.yaml, b.txt, 5, 'c.yaml']\n"), ("etc/c.yaml", "rules: [\n")],
            "etc/policy.yaml:1:11: cannot read `etc/a.yaml`: entity not found; check the path and its permissions\n\
             etc/policy.yaml:1:19: unknown file format of `etc/b.txt`; use the extension .yaml, .toml or .json\n\
             etc/policy.yaml:1:26: expected a file name, found a number; write a path, as in `more.yaml`\n\
             etc/c.yaml:1:8: `[` is not closed; close it with `]`",
        ),
        (
            &[("etc/policy.yaml", "include: a.yaml\n"), ("etc/a.yaml", "include: ./policy.yaml\n")],
            "etc/a.yaml:1:10: `etc/policy.yaml` includes itself, through `etc/a.yaml`; remove it",
        ),
        (
            &[("etc/policy.yaml", "include: policy.yaml\n")],
            "etc/policy.yaml:1:10: `etc/policy.yaml` includes itself; remove it",
        ),
        (
            &[
                (
                    "etc/policy.yaml",
                    "include: a.yaml\nstore: memory\nstores:\n  x: memory\nrules:\n  - { name: r, quota: 1/s }\n",
                ),
                ("etc/a.yaml", "store: memory\nstores:\n  x: memory\n"),
            ],
            "etc/a.yaml:1:1: duplicate key `store` in two files; remove one of them; the first is at etc/policy.yaml:2:1\n\
             etc/a.yaml:3:3: duplicate name `x` in `stores`; remove one of them; the first is at etc/policy.yaml:4:3",
        ),
        (
            &[
                ("etc/policy.yaml", "include: a.yaml\nrules:\n  - { name: r, quota: 1/s }\n"),
                ("etc/a.yaml", "rules:\n  - { name: r, quota: 1/s }\n"),
            ],
            "etc/a.yaml:2:13: duplicate rule name `r`; rename one of them; the first is at etc/policy.yaml:3:13",
        ),
        (
            &[("etc/policy.yaml", "include: a.yaml\n"), ("etc/a.yaml", "- 1\n")],
            "etc/a.yaml:1:1: a policy must be a map, not a list; write it as `key: value` pairs",
        ),
    ];
    for (files, expected) in cases {
        assert_eq!(read(&files.iter().copied().collect()).unwrap_err(), *expected);
    }
    let many: Vec<String> = (0..100).map(|i| format!("f{i}.yaml")).collect();
    let files = |path: &Path| match path.to_str() {
        Some("policy.yaml") => Ok(format!("include: [{}]\n", many.join(", ")).into_bytes()),
        _ => Ok(Vec::new()),
    };
    let problems = Policy::read("policy.yaml", &files).unwrap_err();
    assert!(problems.to_string().contains("more than 64 included files; include fewer"));
}

#[test]
fn template_fills_missing_keys_of_rule() {
    let policy: Policy = "
templates:
  api: { key: ip, quotas: [5/min, 100/h], match: { path: '/users/{id}' }, wait: 1s, on-limit: drop }
rules:
  - { name: as-it-is, use: api }
  - { name: other-quota, use: api, quota: 1/s, key: capture id }
  - { name: tiers, use: api, tiers: { key: header x-plan, quotas: { gold: 9/s }, default: 1/s } }
"
    .parse()
    .unwrap();
    let plain: Policy = "
rules:
  - { name: as-it-is, key: ip, quotas: [5/min, 100/h], match: { path: '/users/{id}' }, wait: 1s, on-limit: drop }
  - { name: other-quota, key: capture id, quota: 1/s, match: { path: '/users/{id}' }, wait: 1s, on-limit: drop }
  - name: tiers
    key: ip
    tiers: { key: header x-plan, quotas: { gold: 9/s }, default: 1/s }
    match: { path: '/users/{id}' }
    wait: 1s
    on-limit: drop
"
    .parse()
    .unwrap();
    assert_eq!(policy, plain);
}

/// Policies that a file cannot express, but a program can build.
#[test]
fn invalid_policy_built_in_code_is_reported() {
    let rule = |make: fn(&mut RuleSpec)| {
        let mut rule = RuleSpec::new("a");
        rule.quotas = Quotas::All(vec!["5/min".parse().unwrap()]);
        make(&mut rule);
        let policy =
            Policy { user: Some(KeySpec::Part(KeyPart::User)), rules: vec![rule], ..Policy::default() };
        let warnings = lint(&policy).into_iter().map(|warning| warning.to_string());
        let error = compile::check(&policy).err().map(|error| error.to_string());
        error.into_iter().chain(warnings).collect::<Vec<_>>().join("\n")
    };
    let cases = [
        (
            rule(|rule| rule.priority = Some(PrioritySpec::Fixed("urgent".to_owned()))),
            "rule `a`: unknown priority `urgent`; use one of critical, high, normal, low\n\
             rule `a`: `priority` has no effect: all requests of the rule have the same one; take it from the request, as in `{ key: header x-priority, \
             default: low }` (without-effect)",
        ),
        (
            rule(|rule| {
                let slow_rate = "50%".parse().ok();
                rule.breaker = Some(BreakerSpec { slow_call_rate: slow_rate, ..BreakerSpec::default() });
            }),
            "rule `a`: `slow-call-rate` without `slow-call-duration`; add the duration from which a call is slow, as in `slow-call-duration: 1s`",
        ),
        (
            rule(|rule| rule.key = KeySpec::Part(KeyPart::User)),
            "rule `a`: `user` refers to itself; use a header or a cookie",
        ),
        (
            rule(|rule| {
                let target = Duration::from_secs(1);
                rule.adaptive = Some(AdaptiveSpec { target, min: None, max: Some(1 << 40) });
            }),
            "rule `a`: number out of range: 1099511627776; use a smaller number",
        ),
        (
            rule(|rule| _ = rule.matching.headers.insert("x-plan".to_owned(), ValueGlobs(Vec::new()))),
            "rule `a`: `x-plan` has an empty list of values; write `*` for any value (never-matches)",
        ),
        (
            rule(|rule| {
                let segments = vec![Segment::Text("..".to_owned())];
                rule.matching.paths = vec![PathPattern { segments, tail: None }];
            }),
            "rule `a`: request paths never contain `.` or `..` after normalization; remove them from the path (never-matches)",
        ),
        (
            rule(|rule| rule.key = KeySpec::Part(KeyPart::Route)),
            "rule `a`: `route` needs a path in `match`; add a path, or use `path` (key-not-carried)",
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected);
    }
}

/// Input that is too large for `errors.txt`.
#[test]
fn oversized_input_is_rejected() {
    let when = |text: &str| format!("rules: [{{ name: a, quota: 5/min, match: {{ when: '{text}' }} }}]");
    let bomb: String = (1..12).fold("z0: &z0 [x, x, x, x, x, x, x, x]\n".to_owned(), |text, at| {
        let many = format!("*z{}, ", at - 1).repeat(8);
        format!("{text}z{at}: &z{at} [{many}]\n")
    });
    let opened: String = (0..30).map(|at| format!("&z{at} [")).collect();
    let anchors = format!("x: {opened}{}{}", "y".repeat(900_000), "]".repeat(30));
    let cases = [
        (
            when(&format!("{}1{}", "[".repeat(70), "]".repeat(70))),
            "1:50: expression nested too deeply; simplify it",
        ),
        (when(&"1+".repeat(501)), "1:50: expression of 1002 bytes; shorten it to 1000 bytes"),
        (
            format!("rules: [{{ name: {}, quota: 5/min }}]", "a".repeat(300)),
            "1:17: name longer than 256 characters; shorten it",
        ),
        (bomb, "aliases expand to more than 16 MiB; use fewer aliases, or `templates`"),
        (anchors, "anchors larger than 16 MiB; use smaller ones"),
    ];
    for (text, expected) in cases {
        let message = problems_of(&text);
        let first = message.lines().next().unwrap();
        assert!(first.ends_with(expected), "{first}");
    }
    let read = |bytes: Vec<u8>| {
        let files = move |_: &Path| Ok(bytes.clone());
        let message = Policy::read("p.yaml", &files).unwrap_err().to_string();
        message.lines().next().unwrap().to_owned()
    };
    assert!(read(vec![b' '; (1 << 20) + 1]).ends_with("split it into files of up to 1 MiB with `include`"));
    assert!(read(b"rules: \xff".to_vec()).ends_with("save the file as UTF-8"));
}

/// `explain` reports why a rule does not apply.
#[test]
fn explain_reports_mismatch_reason() {
    let cases = [
        ("method: POST", "method does not match"),
        ("path: /b", "path does not match"),
        ("host: b.test", "host does not match"),
        ("client: 10.0.0.0/8", "client address does not match"),
        ("not: { path: /a }", "excluded by its `not`"),
        ("any: [{ path: /b }, { method: POST }]", "no item of its `any` matches"),
        ("when: request.size > 5", "its `when` is false"),
    ];
    for (matching, expected) in cases {
        let policy: Policy =
            format!("rules: [{{ name: a, quota: 5/min, match: {{ {matching} }} }}]").parse().unwrap();
        let request = crate::requests::PolicyTestRequest::new("GET a.test/a");
        let explained = tidegate_policy::explain(&policy, &request, Path::new("")).unwrap().to_string();
        assert!(explained.contains(expected), "{explained}");
    }
}

/// Values of a file may contain control characters, which would manipulate a terminal or split a log line.
#[test]
fn problems_escape_control_characters() {
    for (format, text, expected) in [
        (
            PolicyFormat::Json,
            r#"{"rules": [{"name": "a", "quota": "1/s", "i\n-all\u001b[2J": 1}]}"#,
            r"`i\n-all\u{1b}[2J`",
        ),
        (PolicyFormat::Yaml, "rules: [{ name: a, quota: 1/s, \"x\\ey\": 1 }]", r"`x\u{1b}y`"),
    ] {
        let problems = Policy::parse(text, format).unwrap_err();
        let problem = problems.iter().next().unwrap();
        assert!(problem.problem().contains(expected), "{problem}");
        assert!(!problems.to_string().replace('\n', "").contains(char::is_control), "{problems}");
    }
}
