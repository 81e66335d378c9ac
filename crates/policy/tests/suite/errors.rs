//! What a wrong file is told: each problem with its place, its line, and what to do about it.

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

/// A file with the mistake, and what is said of it.
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
    let places: Vec<_> = problems.iter().map(|problem| (problem.line(), problem.column())).collect();
    assert_eq!(places, [(Some(4), Some(5)), (Some(5), Some(14))]);
}

/// Every error: the file, and the first lines of what is said, without the excerpts. What can be read is put in force, as far as
/// that goes, and looked through; what is found wrong then is told, too. A first line of `%toml` or `%json` says the language.
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
    messages.extend(lint(&policy).iter().map(|advice| format!("advice: {advice}")));
    if messages.is_empty() {
        messages.push("no problem".to_owned());
    }
    messages
}

/// Texts that are no case of `errors.txt`, and where they are shown.
const TESTED_ELSEWHERE: [(&str, &str); 19] = [
    ("they are what they say", "a word to the linter"),
    ("they are those of the file", "a word to the linter"),
    ("dropping it releases the slots of the request", "a warning of the compiler"),
    ("whatever prints can be given, by reference or not", "a word to the linter"),
    (
        "it falls back to the upstream `{name}`, and a policy in front of a service has none",
        "the tests of layers",
    ),
    ("give the fallback a `body`, or use `status` or `redirect`", "the tests of layers"),
    ("`{}` cannot be read here", "a machine without memory"),
    ("write a simpler one, or free some memory", "a machine without memory"),
    ("it is larger than 64 MiB", "a file of that size"),
    ("give another `ban`", "what the engine would refuse without a fix of its own"),
    ("give other quotas", "what the engine would refuse without a fix of its own"),
    ("leave one of them out", "what the engine would refuse without a fix of its own"),
    ("bandwidth `{rate}`: {error}", "what the engine would refuse of a rate that was read"),
    ("list `{name}`: {}", "what the engine would refuse of a list that was read"),
    ("\n\nand {more} more", "the test of large files"),
    ("an unknown key", "beyond the thousand problems that are told"),
    ("policy rejected, keeping the previous one", "a log event"),
    ("no thread to watch the policy file; it is not reloaded", "a log event of a machine without threads"),
    ("another rule of the same name", "beyond the thousand problems that are told"),
];

/// A test shows every error message of the crate, so that somebody has read it.
#[test]
fn every_error_message_is_tested() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // `explain` reports no errors, and its page has a test of its own.
    error_texts::assert_all_tested(root, &["tests/errors.txt"], &TESTED_ELSEWHERE, &["explain.rs"], 250);
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

/// Small files must not unfold to large ones, and many mistakes must not take forever.
#[test]
fn large_files_and_many_problems_are_bounded() {
    let big = format!("templates: {{ t: {{ quota: 5/min, message: '{}' }} }}\nrules:\n", "x".repeat(500_000));
    let rules: String = (0..20_000).map(|i| format!("- {{name: r{i}, use: t}}\n")).collect();
    assert!(
        problems_of(&(big + &rules)).contains("templates that unfold to more than 16 MiB; use smaller ones")
    );

    let path = "/{a}".repeat(200);
    let message = problems_of(&format!("rules: [{{ name: a, quota: 5/min, match: {{ path: '{path}' }} }}]"));
    assert!(
        message.contains("1:50: a path of more than 128 segments; write `/**` for the rest of it"),
        "{message}"
    );

    let wrong: String = (0..30_000).map(|i| format!("- {{name: a, store: s{i}}}\n")).collect();
    let named: String = (0..15_000).map(|i| format!("  t{i}: memory\n")).collect();
    let problems = format!("stores:\n{named}rules:\n{wrong}").parse::<Policy>().unwrap_err();
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
            "include: [more/rules.toml, more/../lists.json]\nroutes: app\nrules: [{ name: a, quota: 1/s }]\n",
        ),
        (
            "etc/more/rules.toml",
            "include = '../lists.json'\n[upstreams]\napp = 'http://127.0.0.1:1'\n[[rules]]\nname = 'b'\nuse = 't'\nmatch.client = 'bad'\n",
        ),
        (
            "etc/lists.json",
            r#"{"lists": {"bad": {"files": "bad.txt"}}, "templates": {"t": {"quota": "2/s", "wait": "5s"}},
                "rules": {"name": "c", "deny": "bad"}}"#,
        ),
    ]);
    let policy = read(&disk).unwrap();
    let names: Vec<_> = policy.rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(policy.rules[1].wait.as_secs(), 5);
    // Paths are relative to the file that names them.
    assert_eq!(policy.lists["bad"].files, [Path::new("etc/bad.txt")]);
}

#[test]
fn include_errors_have_position_and_fix() {
    let cases: &[(&[(&str, &str)], &str)] = &[
        (
            &[],
            "etc/policy.yaml: `etc/policy.yaml` cannot be read: entity not found; name a file that is there and may be read",
        ),
        (
            &[("etc/policy.yaml", "include: [a.yaml, b.txt, 5, 'c.yaml']\n"), ("etc/c.yaml", "rules: [\n")],
            "etc/policy.yaml:1:11: `etc/a.yaml` cannot be read: entity not found; name a file that is there and may be read\n\
             etc/policy.yaml:1:19: `etc/b.txt` is neither YAML nor TOML nor JSON; give it a name that ends with .yaml, .toml or .json\n\
             etc/policy.yaml:1:26: the name of a file is needed here, not a number; write it as in `more.yaml`\n\
             etc/c.yaml:1:8: `[` is not closed; close it with `]`",
        ),
        (
            &[("etc/policy.yaml", "include: a.yaml\n"), ("etc/a.yaml", "include: ./policy.yaml\n")],
            "etc/a.yaml:1:10: `etc/policy.yaml` includes itself, through `etc/a.yaml`; leave it out",
        ),
        (
            &[("etc/policy.yaml", "include: policy.yaml\n")],
            "etc/policy.yaml:1:10: `etc/policy.yaml` includes itself; leave it out",
        ),
        (
            &[
                (
                    "etc/policy.yaml",
                    "include: a.yaml\nstore: memory\nstores:\n  x: memory\nrules:\n  - { name: r, quota: 1/s }\n",
                ),
                ("etc/a.yaml", "store: memory\nstores:\n  x: memory\n"),
            ],
            "etc/a.yaml:1:1: `store` is said in two files; leave one out; the first is at etc/policy.yaml:2:1\n\
             etc/a.yaml:3:3: `x` is defined twice in `stores`; leave one out; the first is at etc/policy.yaml:4:3",
        ),
        (
            &[
                ("etc/policy.yaml", "include: a.yaml\nrules:\n  - { name: r, quota: 1/s }\n"),
                ("etc/a.yaml", "rules:\n  - { name: r, quota: 1/s }\n"),
            ],
            "etc/a.yaml:2:13: two rules are called `r`; give one of them another name; the first is at etc/policy.yaml:3:13",
        ),
        (
            &[("etc/policy.yaml", "include: a.yaml\n"), ("etc/a.yaml", "- 1\n")],
            "etc/a.yaml:1:1: a policy is a map, not a list; write a key and a value for each thing it says",
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
    assert!(problems.to_string().contains("more than 64 files; include fewer"));
}

#[test]
fn template_fills_missing_keys_of_rule() {
    let policy: Policy = "
templates:
  api: { key: ip, quotas: [5/min, 100/h], match: { path: '/users/{id}' }, wait: 1s, on-limit: drop }
rules:
  - { name: as-it-is, use: api }
  - { name: other-quota, use: api, quota: 1/s, key: capture id }
  - { name: tiers, use: api, tiers: { by: header x-plan, each: { gold: 9/s }, else: 1/s } }
"
    .parse()
    .unwrap();
    let plain: Policy = "
rules:
  - { name: as-it-is, key: ip, quotas: [5/min, 100/h], match: { path: '/users/{id}' }, wait: 1s, on-limit: drop }
  - { name: other-quota, key: capture id, quota: 1/s, match: { path: '/users/{id}' }, wait: 1s, on-limit: drop }
  - name: tiers
    key: ip
    tiers: { by: header x-plan, each: { gold: 9/s }, else: 1/s }
    match: { path: '/users/{id}' }
    wait: 1s
    on-limit: drop
"
    .parse()
    .unwrap();
    assert_eq!(policy, plain);
}

/// What no file can say, and a program that makes policies can.
#[test]
fn invalid_policy_built_in_code_is_reported() {
    let rule = |make: fn(&mut RuleSpec)| {
        let mut rule = RuleSpec::new("a");
        rule.quotas = Quotas::All(vec!["5/min".parse().unwrap()]);
        make(&mut rule);
        let policy =
            Policy { user: Some(KeySpec::Part(KeyPart::User)), rules: vec![rule], ..Policy::default() };
        let advice = lint(&policy).into_iter().map(|advice| advice.to_string());
        let error = compile::check(&policy).err().map(|error| error.to_string());
        error.into_iter().chain(advice).collect::<Vec<_>>().join("\n")
    };
    let cases = [
        (
            rule(|rule| rule.priority = Some(PrioritySpec::Fixed("urgent".to_owned()))),
            "rule `a`: unknown priority `urgent`; use one of critical, high, normal, low\n\
             rule `a`: `priority` has no effect on a plain quota; use `adaptive`, or a number at once with `wait` and `queue: { order: \
             priority }` (without-effect)",
        ),
        (
            rule(|rule| {
                let slow_rate = "50%".parse().ok();
                rule.breaker = Some(BreakerSpec { slow_call_rate: slow_rate, ..BreakerSpec::default() });
            }),
            "rule `a`: a rate of slow calls, and nothing is slow; say from when: `slow: 1s`",
        ),
        (
            rule(|rule| rule.key = KeySpec::Part(KeyPart::User)),
            "rule `a`: `user` says that the user is the user; name a header or a cookie there",
        ),
        (
            rule(|rule| {
                let target = Duration::from_secs(1);
                rule.adaptive = Some(AdaptiveSpec { target, min: None, max: Some(1 << 40) });
            }),
            "rule `a`: 1099511627776 in flight; give a smaller number",
        ),
        (
            rule(|rule| _ = rule.matching.headers.insert("x-plan".to_owned(), ValueGlobs(Vec::new()))),
            "rule `a`: `x-plan` has no value that would do; write `*` for any value (never-matches)",
        ),
        (
            rule(|rule| {
                let segments = vec![Segment::Text("..".to_owned())];
                rule.matching.paths = vec![PathPattern { segments, tail: None }];
            }),
            "rule `a`: paths are compared without `.` and `..`; write the path without them (never-matches)",
        ),
        (
            rule(|rule| rule.key = KeySpec::Part(KeyPart::Route)),
            "rule `a`: it has no path that could be its `route`; give it a path, or use `path` (key-not-carried)",
        ),
    ];
    for (told, expected) in cases {
        assert_eq!(told, expected);
    }
}

/// What is too large to be written down here.
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
            "1:50: an expression that is nested too deep; write a simpler one",
        ),
        (when(&"1+".repeat(501)), "1:50: an expression of 1002 bytes; write one of 1000 bytes at most"),
        (
            format!("rules: [{{ name: {}, quota: 5/min }}]", "a".repeat(300)),
            "1:17: a name of more than 256 characters; write a shorter one",
        ),
        (bomb, "aliases that unfold to more than 16 MiB; write less, or use `templates`"),
        (anchors, "anchors of more than 16 MiB; write less"),
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
    assert!(read(vec![b' '; (1 << 20) + 1]).ends_with("split it with `include`, each file up to 1 MiB"));
    assert!(read(b"rules: \xff".to_vec()).ends_with("save the file as UTF-8"));
}

/// Why a rule says nothing to a request, in the words of `explain`.
#[test]
fn explain_reports_mismatch_reason() {
    let cases = [
        ("method: POST", "it is about other methods"),
        ("path: /b", "it is about other paths"),
        ("host: b.test", "it is about other hosts"),
        ("client: 10.0.0.0/8", "it is about clients from elsewhere"),
        ("not: { path: /a }", "its `not` leaves this out"),
        ("any: [{ path: /b }, { method: POST }]", "it is none of those that its `any` names"),
        ("when: request.size > 5", "its `when` is not true"),
    ];
    for (said, told) in cases {
        let policy: Policy =
            format!("rules: [{{ name: a, quota: 5/min, match: {{ {said} }} }}]").parse().unwrap();
        let request = crate::requests::PolicyTestRequest::new("GET a.test/a");
        let explained = tidegate_policy::explain(&policy, &request, Path::new("")).unwrap().to_string();
        assert!(explained.contains(told), "{explained}");
    }
}

/// Words of a file may have signs in them that a terminal obeys, or that make two lines of one in a log.
#[test]
fn problems_escape_control_characters() {
    for (format, text, wanted) in [
        (
            PolicyFormat::Json,
            r#"{"rules": [{"name": "a", "quota": "1/s", "i\n-all\u001b[2J": 1}]}"#,
            r"`i\n-all\u{1b}[2J`",
        ),
        (PolicyFormat::Yaml, "rules: [{ name: a, quota: 1/s, \"x\\ey\": 1 }]", r"`x\u{1b}y`"),
    ] {
        let problems = Policy::parse(text, format).unwrap_err();
        let problem = problems.iter().next().unwrap();
        assert!(problem.problem().contains(wanted), "{problem}");
        assert!(!problems.to_string().replace('\n', "").contains(char::is_control), "{problems}");
    }
}
