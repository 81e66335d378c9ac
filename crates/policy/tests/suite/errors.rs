//! What a wrong file is told: each problem with its place, its line, and what to do about it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::HashMap, env, fmt::Write as _, fs, io, path::Path};
use tidegate_policy::{Format, Policy};

/// A file with the mistake, and what is said of it.
fn tell(text: &str) -> String {
    match Policy::parse(text, Format::Yaml) {
        Ok(policy) => format!("no problem:\n{policy}"),
        Err(problems) => problems.to_string(),
    }
}

#[test]
fn a_problem_names_its_place_and_its_fix() {
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

/// Every error: the file, and the first lines of what is said, without the excerpts. Set `TIDEGATE_BLESS` to write it anew,
/// and read what has changed.
#[test]
fn every_error_has_its_text() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/errors.txt");
    let told = fs::read_to_string(&path).unwrap();
    let mut found = String::new();
    for case in told.split("\n\n").filter(|case| !case.trim().is_empty()) {
        let file: Vec<_> = case.lines().filter(|line| !line.starts_with("=> ")).collect();
        let text = file.join("\n");
        writeln!(found, "{text}").unwrap();
        match Policy::parse(&text, Format::Yaml) {
            Ok(_) => writeln!(found, "=> no problem").unwrap(),
            Err(problems) => {
                for problem in &problems {
                    writeln!(found, "=> {}", problem.to_string().lines().next().unwrap()).unwrap();
                }
            }
        }
        writeln!(found).unwrap();
    }
    let (found, expected) = (found.trim_end(), told.trim_end());
    if env::var_os("TIDEGATE_BLESS").is_some() {
        return fs::write(path, format!("{found}\n")).unwrap();
    }
    for (expected, found) in expected.split("\n\n").zip(found.split("\n\n")) {
        assert_eq!(found, expected);
    }
    assert_eq!(found, expected);
}

#[test]
fn the_same_mistake_is_pointed_at_in_every_language() {
    let cases = [
        (Format::Yaml, "rules:\n  - name: a\n    quota: '5/parsec'\n", 3, 15),
        (Format::Toml, "[[rules]]\nname = 'a'\nquota = \"5/parsec\"\n", 3, 12),
        (Format::Json, "{\"rules\":\n [{\"name\": \"a\",\n \"quota\": \"5/parsec\"}]}", 3, 14),
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
fn no_secret_is_told() {
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
    ];
    for text in cases {
        let told = tell(text);
        assert!(!told.contains("hunter2") && !told.starts_with("no problem"), "{told}");
    }
    let policy: Policy = "store: redis://:hunter2@db\nstores: { a: redis://:hunter2@db }\n".parse().unwrap();
    assert!(!format!("{policy:?}").contains("hunter2"));
}

/// Small files must not unfold to large ones, and many mistakes must not take forever.
#[test]
fn large_files_have_an_end() {
    let big = format!("templates: {{ t: {{ quota: 5/min, message: '{}' }} }}\nrules:\n", "x".repeat(500_000));
    let rules: String = (0..20_000).map(|i| format!("- {{name: r{i}, use: t}}\n")).collect();
    assert!(tell(&(big + &rules)).contains("templates that unfold to more than 16 MiB; use smaller ones"));

    let path = "/{a}".repeat(200);
    let told = tell(&format!("rules: [{{ name: a, quota: 5/min, match: {{ path: '{path}' }} }}]"));
    assert!(
        told.contains("1:50: a path of more than 128 segments; write `/**` for the rest of it"),
        "{told}"
    );

    let wrong: String = (0..30_000).map(|i| format!("- {{name: a, store: s{i}}}\n")).collect();
    let named: String = (0..15_000).map(|i| format!("  t{i}: memory\n")).collect();
    let problems = format!("stores:\n{named}rules:\n{wrong}").parse::<Policy>().unwrap_err();
    assert!(problems.count() > 50_000, "{}", problems.count());
    assert_eq!(problems.iter().count(), 1_000);
    assert!(problems.to_string().contains("\n\nand "));
}

type Disk = HashMap<&'static str, &'static str>;

fn read(disk: &Disk) -> Result<Policy, String> {
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
    let disk = Disk::from([
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
fn what_is_wrong_with_includes() {
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
             etc/c.yaml:2:1: while parsing a node, did not find expected node content; write YAML, with texts in quotes where they have signs in them",
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
fn a_template_says_what_a_rule_leaves_open() {
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
