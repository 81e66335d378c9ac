//! Changes of a value of a rule leave the remaining text unchanged.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use proptest::{collection::vec, prelude::*, sample::Index};
use std::{collections::BTreeMap, io, path::Path};
use tidegate_core::Percent;
use tidegate_policy::{
    Policy, PolicyFormat,
    edit::{EditError, RuleEdit, RuleValue},
    model::RuleEnforcement,
};
use tidegate_rule::Mode;
use tidegate_testkit::strategy::runner_with_cases;

type TestFiles = BTreeMap<&'static str, Vec<u8>>;

fn edit(disk: &TestFiles, main: &str, rule: &str, key: &str, to: &str) -> Result<RuleEdit, EditError> {
    let files = |path: &Path| {
        let name = path.to_str().unwrap_or_default();
        disk.get(name).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    };
    RuleEdit::prepare(main, &files, rule, key, to)
}

/// The text with another value for rule `a`, or the error.
fn edit_key(name: &'static str, text: &str, key: &str, to: &str) -> String {
    match edit(&TestFiles::from([(name, text.as_bytes().to_vec())]), name, "a", key, to) {
        Ok(edit) => String::from_utf8(edit.new_content()).unwrap(),
        Err(error) => format!("error: {error}"),
    }
}

fn edit_mode(name: &'static str, text: &str, to: &str) -> String {
    edit_key(name, text, "mode", to)
}

#[test]
fn mode_edit_keeps_formatting() {
    let cases = [
        // Replaces the existing value, and keeps its quotes and comments.
        (
            "p.yaml",
            "rules:\n  - name: a\n    mode: shadow   # since May\n    quota: 5/min\n",
            "enforce 25%",
            "rules:\n  - name: a\n    mode: enforce 25%   # since May\n    quota: 5/min\n",
        ),
        (
            "p.yaml",
            "rules: [ { name: a, mode: 'off', quota: 5/min }, {name: b, quota: 1/s} ] # all\n",
            "enforce",
            "rules: [ { name: a, mode: 'enforce', quota: 5/min }, {name: b, quota: 1/s} ] # all\n",
        ),
        (
            "p.yaml",
            "rules:\n  - name: 'a' # ours\n    mode:   'shadow'  # Ann's\r\n    quota: 5/min\n",
            "enforce",
            "rules:\n  - name: 'a' # ours\n    mode:   'enforce'  # Ann's\r\n    quota: 5/min\n",
        ),
        (
            "p.yaml",
            "rules:\n  - name: a\n    mode: \"shadow\" # \"for now\"\n    quota: 5/min\n",
            "enforce",
            "rules:\n  - name: a\n    mode: \"enforce\" # \"for now\"\n    quota: 5/min\n",
        ),
        (
            "p.toml",
            "[[rules]]\nname = 'a'\nquota = '5/min'\nmode = \'\'\'shadow\'\'\'\n",
            "off",
            "[[rules]]\nname = 'a'\nquota = '5/min'\nmode = 'off'\n",
        ),
        (
            "p.yaml",
            "rules:\n- quota: 5/min\n  mode: \"enforce 10%\"\n  name: a",
            "shadow",
            "rules:\n- quota: 5/min\n  mode: \"shadow\"\n  name: a",
        ),
        (
            "p.yaml",
            "rules:\n  - name: a\n    quota: 5/min\n    mode: >-\n      shadow\n",
            "off",
            "rules:\n  - name: a\n    quota: 5/min\n    mode: >-\n      off\n",
        ),
        (
            "p.toml",
            "[[rules]]\nname = 'a'\nquota = '5/min'\nmode = 'shadow' # since May\n",
            "off",
            "[[rules]]\nname = 'a'\nquota = '5/min'\nmode = 'off' # since May\n",
        ),
        (
            "p.json",
            r#"{"rules": [{"name": "a", "quota": "5/min", "mode": "shadow"}]}"#,
            "enforce 0.5%",
            r#"{"rules": [{"name": "a", "quota": "5/min", "mode": "enforce 0.5%"}]}"#,
        ),
        // Inserts the mode after the name.
        (
            "p.yaml",
            "# mine\nrules:\n  - name: a # first\n    # how much\n    quota: 5/min\n  - name: b\n    quota: 1/s\n",
            "shadow",
            "# mine\nrules:\n  - name: a # first\n    mode: shadow\n    # how much\n    quota: 5/min\n  - name: b\n    quota: 1/s\n",
        ),
        (
            "p.yaml",
            "rules:\n  - quota: 5/min\n    name: a",
            "off",
            "rules:\n  - quota: 5/min\n    name: a\n    mode: off",
        ),
        (
            "p.yaml",
            "rules:\r\n  - name: a\r\n    quota: 5/min\r\n",
            "off",
            "rules:\r\n  - name: a\r\n    mode: off\r\n    quota: 5/min\r\n",
        ),
        (
            "p.yaml",
            "rules: [{ name: a, quota: 5/min }]",
            "shadow",
            "rules: [{ name: a, mode: shadow, quota: 5/min }]",
        ),
        (
            "p.yaml",
            "rules: {name: \"a\", quota: 5/min}",
            "off",
            "rules: {name: \"a\", mode: off, quota: 5/min}",
        ),
        (
            "p.yaml",
            "rules: [{\"name\":\"a\",\"quota\":\"5/min\"}]",
            "off",
            "rules: [{\"name\":\"a\",\"mode\":\"off\",\"quota\":\"5/min\"}]",
        ),
        (
            "p.yaml",
            "rules:\n  - {\n    name: a, # first\n    quota: 5/min # much\n  }\n",
            "enforce 1%",
            "rules:\n  - {\n    name: a, # first\n    mode: enforce 1%,\n    quota: 5/min # much\n  }\n",
        ),
        (
            "p.yaml",
            "rules:\n  - {\n    quota: 5/min,\n    name: a\n  }\n",
            "off",
            "rules:\n  - {\n    quota: 5/min,\n    name: a,\n    mode: off\n  }\n",
        ),
        (
            "p.yaml",
            "templates: { t: { mode: shadow, quota: 5/min } }\nrules: [{ name: a, use: t }, { name: b, use: t }]",
            "enforce",
            "templates: { t: { mode: shadow, quota: 5/min } }\nrules: [{ name: a, mode: enforce, use: t }, { name: b, use: t }]",
        ),
        (
            "p.yaml",
            "rules:\n  - &first\n    name: a\n    quota: &q 5/min\n  - { name: b, quota: *q }\n",
            "off",
            "rules:\n  - &first\n    name: a\n    mode: off\n    quota: &q 5/min\n  - { name: b, quota: *q }\n",
        ),
        (
            "p.yaml",
            "rules:\n  - { name: b, quota: 1/s, mode: &m shadow }\n  - { name: a, quota: 5/min, mode: *m }\n",
            "off",
            "rules:\n  - { name: b, quota: 1/s, mode: &m shadow }\n  - { name: a, quota: 5/min, mode: off }\n",
        ),
        (
            "p.yaml",
            "\u{feff}user: header x-u # naïve\nrules:\n  - name: a\n    quota: 5/min\n",
            "off",
            "\u{feff}user: header x-u # naïve\nrules:\n  - name: a\n    mode: off\n    quota: 5/min\n",
        ),
        (
            "p.toml",
            "# mine\n[[rules]]\n  name = \"a\" # first\n  quota = \"5/min\"\n  [rules.match]\n  path = \"/a\"\n\n[[rules]]\nname = \"b\"\nquota = \"1/s\"\n",
            "shadow",
            "# mine\n[[rules]]\n  name = \"a\" # first\n  mode = \"shadow\"\n  quota = \"5/min\"\n  [rules.match]\n  path = \"/a\"\n\n[[rules]]\nname = \"b\"\nquota = \"1/s\"\n",
        ),
        (
            "p.toml",
            "rules = [{ name = 'a', quota = '5/min' }]",
            "enforce 50%",
            "rules = [{ name = 'a', mode = 'enforce 50%', quota = '5/min' }]",
        ),
        (
            "p.toml",
            "[[rules]]\nname=\"a\"\nquota=\"5/min\"",
            "off",
            "[[rules]]\nname=\"a\"\nmode=\"off\"\nquota=\"5/min\"",
        ),
        (
            "p.json",
            "{\n  \"rules\": [\n    {\n      \"name\": \"a\",\n      \"quota\": \"5/min\"\n    }\n  ]\n}\n",
            "shadow",
            "{\n  \"rules\": [\n    {\n      \"name\": \"a\",\n      \"mode\": \"shadow\",\n      \"quota\": \"5/min\"\n    }\n  ]\n}\n",
        ),
        (
            "p.json",
            r#"{"rules":[{"quota":"5/min","name":"a"}]}"#,
            "off",
            r#"{"rules":[{"quota":"5/min","name":"a","mode":"off"}]}"#,
        ),
    ];
    for (name, before, to, after) in cases {
        assert_eq!(edit_mode(name, before, to), after, "{before}");
    }
}

#[test]
fn edit_changes_numbers_in_their_notation() {
    let cases = [
        (
            "p.yaml",
            "rules:\n  - name: a\n    quota: 5/min   # as agreed\n",
            "quota",
            "200/min burst 20",
            "rules:\n  - name: a\n    quota: 200/min burst 20   # as agreed\n",
        ),
        (
            "p.yaml",
            "rules: [{ name: a, quotas: [5/min, '100/h'] }]",
            "quotas.1",
            "200/h",
            "rules: [{ name: a, quotas: [5/min, '200/h'] }]",
        ),
        (
            "p.yaml",
            "rules:\n- name: a\n  tiers:\n    key: header x-plan\n    quotas: { gold: 9/s, v1.2: 5/s }\n    default: 1/s\n",
            "tiers.quotas.v1.2",
            "6/s",
            "rules:\n- name: a\n  tiers:\n    key: header x-plan\n    quotas: { gold: 9/s, v1.2: 6/s }\n    default: 1/s\n",
        ),
        (
            "p.json",
            r#"{"rules":[{"name":"a","quota":"5/min","capacity":1000}]}"#,
            "capacity",
            "2000",
            r#"{"rules":[{"name":"a","quota":"5/min","capacity":2000}]}"#,
        ),
        (
            "p.json",
            r#"{"rules":[{"name":"a","quota":"5/min","capacity":1000}]}"#,
            "capacity",
            "16MB",
            r#"{"rules":[{"name":"a","quota":"5/min","capacity":"16MB"}]}"#,
        ),
        (
            "p.toml",
            "[[rules]]\nname = 'a'\nquota = '5/min'\n[rules.queue]\nmax = 10\n",
            "queue.max",
            "20",
            "[[rules]]\nname = 'a'\nquota = '5/min'\n[rules.queue]\nmax = 20\n",
        ),
        (
            "p.toml",
            "[[rules]]\nname = 'a'\nquota = '5/min'\n",
            "capacity",
            "2000",
            "[[rules]]\nname = 'a'\ncapacity = 2000\nquota = '5/min'\n",
        ),
        // The value of the rule replaces that of its template.
        (
            "p.yaml",
            "templates: { t: { quota: 5/min } }\nrules: [{ name: a, use: t }, { name: b, use: t }]",
            "quota",
            "6/min",
            "templates: { t: { quota: 5/min } }\nrules: [{ name: a, quota: 6/min, use: t }, { name: b, use: t }]",
        ),
        (
            "p.yaml",
            "rules: [{ name: b, quota: &q 5/min }, { name: a, quota: *q }]",
            "quota",
            "6/min",
            "rules: [{ name: b, quota: &q 5/min }, { name: a, quota: 6/min }]",
        ),
    ];
    for (name, before, key, to, after) in cases {
        assert_eq!(edit_key(name, before, key, to), after, "{before}");
    }
    // A capacity is a number of keys, or a size in quotes: digits in quotes are bytes.
    let with_capacity = |name, capacity: &str| match name {
        "p.toml" => format!("[[rules]]\nname = 'a'\nquota = '5/min'\ncapacity = {capacity} # of May\n"),
        "p.json" => format!(r#"{{"rules":[{{"name":"a","quota":"5/min","capacity":{capacity}}}]}}"#),
        _ => format!("rules:\n  - name: a\n    quota: 5/min\n    capacity: {capacity} # of May\n"),
    };
    for (name, before, to, after) in [
        ("p.yaml", "\"16MB\"", "100000", "100000"),
        ("p.yaml", "'16MB'", "100000", "100000"),
        ("p.yaml", "16MB", "100000", "100000"),
        ("p.toml", "'16MB'", "100000", "100000"),
        ("p.toml", "\"16MB\"", "100000", "100000"),
        ("p.json", "\"16MB\"", "100000", "100000"),
        ("p.yaml", "'16MB'", "32MB", "'32MB'"),
        ("p.toml", "100000", "16MB", "\"16MB\""),
        ("p.json", "100000", "16MB", "\"16MB\""),
        // The unit stays that of the value that an operator has read.
        ("p.yaml", "'100000'", "200000", "'200000'"),
        ("p.json", "\"100000\"", "200000", "\"200000\""),
        // A number may have another notation than its value.
        ("p.toml", "1_000", "2000", "2000"),
        ("p.toml", "0xfff", "2000", "2000"),
    ] {
        let [before, after] = [before, after].map(|capacity| with_capacity(name, capacity));
        let format = PolicyFormat::from_path(Path::new(name)).unwrap();
        assert!(Policy::parse(&before, format).is_ok(), "{before}");
        assert_eq!(edit_key(name, before.leak(), "capacity", to), after, "{name} {to}");
    }
    // Digits that are no number in this format are not written as a text.
    for text in [
        with_capacity("p.json", "1000"),
        with_capacity("p.json", "\"16MB\""),
        "{\"rules\":[{\"name\":\"a\",\"quota\":\"5/min\"}]}".to_owned(),
    ] {
        let message = edit_key("p.json", text.leak(), "capacity", "0100000");
        assert!(
            message.contains("cannot change `capacity` of rule `a` here without other changes"),
            "{message}"
        );
    }
    let edited = |text: &'static str, key, to| {
        edit(&TestFiles::from([("p.yaml", text.as_bytes().to_vec())]), "p.yaml", "a", key, to).unwrap()
    };
    let template = "templates: { t: { quota: 5/min } }\nrules: [{ name: a, use: t }]";
    let unchanged = edited(template, "quota", "5/min");
    assert_eq!((unchanged.old_value.as_deref(), unchanged.splice), (Some("5/min"), None));
    let added = edited("rules: [{ name: a, quota: 5/min }]", "wait", "2s");
    assert_eq!((added.old_value, added.splice.unwrap().inserted.as_str()), (None, ", wait: 2s"));
}

#[test]
fn rejected_edit_names_the_reason() {
    let text = "rules:\n  - { name: a, quota: &q 5/min, queue: 10 }\n  - { name: b, tiers: { key: ip, quotas: { x: 1/s }, default: *q } }\n";
    for (key, to, expected) in [
        ("match", "/x", "`match` cannot be set; use one of mode, quota, quotas, tiers,"),
        ("quoat", "1/s", "`quoat` cannot be set; did you mean `quota`?"),
        ("", "1/s", "`` cannot be set; use one of"),
        ("queue.max", "5", "rule `a` has no `queue.max`; it has quota, queue; add others to the file"),
        ("queue.", "5", "rule `a` has no `queue.`; did you mean `queue`?"),
        (
            "quota",
            "9/min",
            "p.yaml:2:5: cannot change `quota` of rule `a` here without other changes; write `quota: 9/min` manually",
        ),
        ("queue", "-1", "p.yaml:2:40: "),
        ("wait", "2s\n    mode: off", "`wait` has a control character; remove it"),
        ("wait", "2s, mode: off", "p.yaml:"),
        ("wait", "\"", "p.yaml:"),
    ] {
        let message = edit_key("p.yaml", text, key, to);
        let message = message.strip_prefix("error: ").unwrap_or_else(|| panic!("{key} {message}"));
        assert!(message.starts_with(expected), "{key} {to}\n{message}");
    }
    let message = edit_key("p.yaml", text, "match", "/x");
    assert!(message.ends_with("while-failing, or edit the file"), "{message}");
    let template =
        "templates: { t: { queue: { max: 5 } } }\nrules: [{ name: a, use: t, deny: 192.0.2.0/24 }]";
    assert_eq!(
        edit_key("p.yaml", template, "queue.max", "6"),
        "error: `queue.max` of rule `a` is in its template, which other rules may use; change it in the file"
    );
    assert_eq!(
        edit_key("p.yaml", "rules: [{ name: a, deny: 192.0.2.0/24 }]", "queue.max", "6"),
        "error: rule `a` has no `queue.max`; add it to the file"
    );
    // A value of the rule would drop all values of the template.
    for (template, key, to, replaced) in [
        ("tiers: { key: ip, quotas: { x: 1/s }, default: 2/s }", "quota", "5/min", "tiers"),
        ("quotas: [5/min, 100/h]", "quota", "5/min", "quotas"),
        ("quotas: [5/min, 100/h]", "quotas", "5/min", "quotas"),
        ("quota: 5/min", "quotas", "5/min", "quota"),
        ("quota: 5/min, wait: 1s, queue: { max: 5 }", "queue", "10", "queue"),
    ] {
        let text = format!("templates: {{ t: {{ {template} }} }}\nrules: [{{ name: a, use: t }}]");
        assert!(Policy::parse(&text, PolicyFormat::Yaml).is_ok(), "{text}");
        assert_eq!(
            edit_key("p.yaml", text.leak(), key, to),
            format!(
                "error: `{key}` of rule `a` would replace `{replaced}` of its template, with all values in it; change it in the \
                 file"
            )
        );
    }
    // Each value has one key.
    let list = "rules: [{ name: a, quotas: [5/min, 100/h] }]";
    for key in ["quotas.+0", "quotas.00", "quotas.2", "quotas."] {
        let message = edit_key("p.yaml", list, key, "6/min");
        assert!(message.starts_with("error: rule `a` has no `quotas."), "{key} {message}");
    }
    let tiers = "rules: [{ name: a, tiers: { key: ip, quotas: { x: 1/s }, default: 2/s } }]";
    let message = edit_key("p.yaml", tiers, "tiers.key", "path");
    assert_eq!(
        message,
        "error: `tiers.key` cannot be set; use one of mode, quota, quotas, tiers, cost, settle, bandwidth, adaptive, breaker, ban, wait, \
         queue, capacity, prefetch, priority, schedule, scale, shed, while-failing, or edit the file"
    );
    // A long key or value is not repeated.
    let long = "x".repeat(100_000);
    for key in [long.clone(), format!("quota.{long}"), format!("wait.{long}")] {
        assert!(edit_key("p.yaml", list, &key, "6/min").len() < 1_000, "{}", &key[..10]);
    }
    assert!(edit_key("p.yaml", list, "wait", &format!("{long}\"\n")).len() < 1_000);
    let message = edit_key("p.yaml", "rules:\n  - name: a\n    quota: 5/min\n", "quota", "5/mni");
    assert!(message.starts_with("error: p.yaml:3:14: "), "{message}");
    let message = edit_key("p.yaml", "rules:\n  - name: a\n    quota: 5/min\n", "quotas", "5/min");
    assert!(message.contains("quota"), "{message}");
}

#[test]
fn values_of_a_rule_are_listed() {
    let text = "templates: { t: { quota: 9/s, wait: 1s, breaker: { failure-rate: 50% } } }\nrules:\n  - name: a\n    use: t\n    \
                match: { path: /x }\n    tiers: { key: header x-plan, quotas: { gold: 9/s }, default: 1/s }\n    queue: 10\n    mode: off\n";
    let files = |_: &Path| Ok(text.as_bytes().to_vec());
    let values = RuleValue::read_all("p.yaml", &files, "a").unwrap();
    let values: Vec<String> = values.iter().map(|value| format!("{}={}", value.key, value.value)).collect();
    assert_eq!(values, ["tiers.quotas.gold=9/s", "tiers.default=1/s", "wait=1s", "queue=10"]);
    // Each of them can be set.
    let disk = TestFiles::from([("p.yaml", text.as_bytes().to_vec())]);
    for value in &values {
        let (key, value) = value.split_once('=').unwrap();
        assert_eq!(edit(&disk, "p.yaml", "a", key, value).unwrap().splice, None, "{key}");
    }
    let error = RuleValue::read_all("p.yaml", &files, "b").unwrap_err();
    assert_eq!(error.to_string(), "unknown rule `b`; did you mean `a`?");
}

#[test]
fn edit_to_current_mode_changes_nothing() {
    for (text, to) in [
        ("rules: [{ name: a, quota: 5/min }]", "enforce"),
        ("rules: [{ name: a, quota: 5/min, mode: shadow }]", "shadow"),
    ] {
        assert_eq!(edit_mode("p.yaml", text, to), text);
    }
}

#[test]
fn unsupported_edit_reports_reason() {
    let cases = [
        (
            "rules:\n  - { name: a, quota: 5/min, mode: &m shadow }\n  - { name: b, quota: 1/s, mode: *m }\n",
            "p.yaml:2:5: cannot change `mode` of rule `a` here without other changes; write `mode: off` manually",
        ),
        ("rules: [{ quota: 5/min }]", "p.yaml:1:9: rule without a name; add one, as in `name: login`"),
        ("rules: [{ name: aa, quota: 5/min }]", "unknown rule `a`; did you mean `aa`?"),
        ("rules: []", "unknown rule `a`; use the name of a rule in the policy"),
    ];
    for (text, expected) in cases {
        let message = edit_mode("p.yaml", text, "off");
        let message = message.strip_prefix("error: ").unwrap_or_else(|| panic!("{message}"));
        assert_eq!(message.lines().next(), Some(expected), "{text}");
    }
}

#[test]
fn edit_changes_the_file_with_the_rule() {
    let disk = TestFiles::from([
        ("etc/p.yaml", b"include: [more/a.toml, b.json]\nrules: { name: c, quota: 1/s }\n".to_vec()),
        ("etc/more/a.toml", b"[[rules]]\nname = 'a'\nquota = '5/min'\n".to_vec()),
        ("etc/b.json", br#"{"rules": {"name": "b", "quota": "1/s"}}"#.to_vec()),
    ]);
    for (rule, file, after) in [
        ("a", "etc/more/a.toml", "[[rules]]\nname = 'a'\nmode = 'shadow'\nquota = '5/min'\n"),
        ("b", "etc/b.json", r#"{"rules": {"name": "b", "mode": "shadow", "quota": "1/s"}}"#),
        ("c", "etc/p.yaml", "include: [more/a.toml, b.json]\nrules: { name: c, mode: shadow, quota: 1/s }\n"),
    ] {
        let edit = edit(&disk, "etc/p.yaml", rule, "mode", "shadow").unwrap();
        assert_eq!(edit.file, Path::new(file));
        assert_eq!(String::from_utf8(edit.new_content()).unwrap(), after);
        assert_eq!(edit.splice.unwrap().inverse().apply(after.as_bytes()).unwrap(), edit.old_content);
    }
}

#[test]
fn percentage_requires_enforce_mode() {
    let of = |mode, percent| match RuleEnforcement::new(mode, percent) {
        Ok(enforcement) => enforcement.to_string(),
        Err(error) => error.to_string(),
    };
    assert_eq!(of(Mode::Enforce, None), "enforce");
    assert_eq!(of(Mode::Enforce, Some(100.0)), "enforce");
    assert_eq!(of(Mode::Enforce, Some(12.5)), "enforce 12.5%");
    assert_eq!(of(Mode::Shadow, None), "shadow");
    assert_eq!(
        of(Mode::Enforce, Some(0.0)),
        "enforced for 0 % of the keys; use `shadow`, or a larger percentage"
    );
    assert_eq!(
        of(Mode::Enforce, Some(120.0)),
        "a percentage of 120 is out of range; give a number from 0 to 100"
    );
    assert_eq!(
        of(Mode::Shadow, Some(5.0)),
        "percentage of keys in mode `shadow`; remove it, or use `enforce`, which leaves the other keys in shadow mode"
    );
    let error = "shadwo".parse::<RuleEnforcement>().unwrap_err().to_string();
    assert_eq!(error, "unknown mode `shadwo`; use one of enforce, shadow, off");
}

fn modes() -> impl Strategy<Value = RuleEnforcement> {
    prop_oneof![
        prop::sample::select(vec![Mode::Enforce, Mode::Shadow, Mode::Off]).prop_map(RuleEnforcement::All),
        (1_u32..1_000_000)
            .prop_map(|millionths| RuleEnforcement::Percent(Percent::from_millionths(millionths))),
    ]
}

/// Adds comments to some lines, if they do not change the policy.
fn add_comments(text: String, format: PolicyFormat, places: &[Index]) -> String {
    if format == PolicyFormat::Json {
        return text;
    }
    let expected = Policy::parse(&text, format).unwrap();
    let mut text = text;
    for place in places {
        let lines: Vec<&str> = text.lines().collect();
        let place = place.index(lines.len());
        let remark = format!("{}   # mode: off, name: a {place}", lines[place]);
        let line = |(at, line): (usize, &&str)| format!("{}\n", if at == place { &remark } else { *line });
        let tried: String = lines.iter().enumerate().map(line).collect();
        if Policy::parse(&tried, format).is_ok_and(|policy| policy == expected) {
            text = tried;
        }
    }
    text
}

fn file_name(format: PolicyFormat) -> &'static str {
    match format {
        PolicyFormat::Yaml => "p.yaml",
        PolicyFormat::Toml => "p.toml",
        PolicyFormat::Json => "p.json",
    }
}

#[test]
fn edit_changes_only_the_mode() {
    let property =
        |(policy, format, places, which, to): (Policy, PolicyFormat, Vec<Index>, Index, RuleEnforcement)| {
            if policy.rules.is_empty() {
                return Ok(());
            }
            let text = add_comments(policy.print(format), format, &places);
            let place = which.index(policy.rules.len());
            let name = file_name(format);
            let disk = TestFiles::from([(name, text.clone().into_bytes())]);
            let edit = match edit(&disk, name, &policy.rules[place].name, "mode", &to.to_string()) {
                Ok(edit) => edit,
                Err(error) => return Err(TestCaseError::fail(format!("{error}\n{text}"))),
            };
            let mut expected = policy.clone();
            expected.rules[place].enforcement = to;
            let after = String::from_utf8(edit.new_content()).unwrap();
            prop_assert_eq!(Policy::parse(&after, format).unwrap(), expected, "{}", after);
            // Every line is unchanged, except for the one with the mode.
            let removed: Vec<&str> = text.lines().filter(|line| !after.contains(*line)).collect();
            prop_assert!(removed.len() <= 1, "{removed:?}\n{text}\n{after}");
            prop_assert_eq!(text.matches("# mode: off").count(), after.matches("# mode: off").count());
            let back = edit.splice.map_or(after.clone().into_bytes(), |splice| {
                splice.inverse().apply(after.as_bytes()).unwrap()
            });
            prop_assert_eq!(String::from_utf8(back).unwrap(), text);
            Ok(())
        };
    let formats = prop::sample::select(PolicyFormat::ALL.to_vec());
    let cases = (crate::strategies::policies(), formats, vec(any::<Index>(), 0..6), any::<Index>(), modes());
    runner_with_cases(100).run(&cases, property).unwrap();
}

/// Values of several kinds. Most of them are valid for some keys.
const NUMBERS: [&str; 14] = [
    "7/min",
    "3/s burst 9",
    "90/h sliding-window",
    "4 at once",
    "250ms",
    "3s",
    "17%",
    "41",
    "3",
    "2000000",
    "16MB",
    "70kB/s",
    "2.5",
    "low",
];

/// Each listed value of a rule can be set, and only it changes; setting the old value restores the policy, and the inverse the text.
#[test]
fn edit_changes_only_the_number() {
    let set = std::cell::Cell::new([0_u32; 3]);
    let property =
        |(policy, format, places, which, numbers): (Policy, PolicyFormat, Vec<Index>, Index, Vec<Index>)| {
            if policy.rules.is_empty() {
                return Ok(());
            }
            let text = add_comments(policy.print(format), format, &places);
            let (name, rule) = (file_name(format), &policy.rules[which.index(policy.rules.len())].name);
            let read = |text: &str| {
                let files = |_: &Path| Ok(text.as_bytes().to_vec());
                RuleValue::read_all(name, &files, rule).unwrap()
            };
            let set_to = |text: &str, key: &str, value: &str| {
                edit(&TestFiles::from([(name, text.as_bytes().to_vec())]), name, rule, key, value)
            };
            let values = read(&text);
            for RuleValue { key, value: old } in &values {
                // Other texts, such as expressions, may need escapes.
                if !old
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, ' ' | '.' | '/' | '%' | '-' | '_'))
                {
                    continue;
                }
                let same = match set_to(&text, key, old) {
                    Ok(edit) => edit,
                    Err(error) => return Err(TestCaseError::fail(format!("{key}={old}: {error}\n{text}"))),
                };
                prop_assert_eq!(&same.splice, &None, "{} {}\n{}", key, old, text);
                for number in &numbers {
                    let to = NUMBERS[number.index(NUMBERS.len())];
                    let Ok(edit) = set_to(&text, key, to) else { continue };
                    prop_assert_eq!(edit.old_value.as_deref(), Some(old.as_str()));
                    let after = String::from_utf8(edit.new_content()).unwrap();
                    prop_assert_eq!(&Policy::parse(&after, format).unwrap(), &edit.new_policy);
                    let Some(splice) = edit.splice else {
                        prop_assert_eq!(&edit.new_policy, &policy, "{} {}\n{}", key, to, text);
                        continue;
                    };
                    let expected: Vec<RuleValue> = values
                        .iter()
                        .map(|value| match value.key == *key {
                            true => RuleValue { key: key.clone(), value: to.to_owned() },
                            false => value.clone(),
                        })
                        .collect();
                    prop_assert_eq!(read(&after), expected, "{}", after);
                    let others = |policy: &Policy| {
                        let mut policy = policy.clone();
                        policy.rules.retain(|known| known.name != *rule);
                        policy
                    };
                    prop_assert_eq!(others(&edit.new_policy), others(&policy));
                    prop_assert_eq!(
                        text.matches("# mode: off").count(),
                        after.matches("# mode: off").count()
                    );
                    let back = set_to(&after, key, old).unwrap();
                    prop_assert_eq!(&back.new_policy, &policy, "{} {} {}\n{}", key, old, to, text);
                    let inverse = splice.inverse().apply(after.as_bytes()).unwrap();
                    prop_assert_eq!(String::from_utf8(inverse).unwrap(), text.clone());
                    let mut counts = set.get();
                    counts[PolicyFormat::ALL.iter().position(|known| *known == format).unwrap()] += 1;
                    set.set(counts);
                }
            }
            Ok(())
        };
    let formats = prop::sample::select(PolicyFormat::ALL.to_vec());
    let cases = (
        crate::strategies::policies(),
        formats,
        vec(any::<Index>(), 0..6),
        any::<Index>(),
        vec(any::<Index>(), 5),
    );
    runner_with_cases(16).run(&cases, property).unwrap();
    assert!(set.get().iter().all(|count| *count > 2), "too few values were set: {set:?}");
}
