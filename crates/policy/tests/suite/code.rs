//! Policy files for rules declared in code: what they replace, which are rejected, and what a reload keeps.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::{fs, path::PathBuf, time::Duration};
use tempfile::TempDir;
use tidegate_core::Quota;
use tidegate_limiter::Clock;
use tidegate_policy::{
    Problem, Problems, WatchedPolicyFile,
    compile::{Compiler, LivePolicy},
};
use tidegate_rule::{Mode, Rule, RuleConfig, Rules, site::SiteKey};
use tidegate_testkit::servers::wait_until;

/// A policy file in its own directory.
struct TestFile {
    _folder: TempDir,
    path: PathBuf,
}

impl TestFile {
    fn new(text: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("policy.yaml");
        let file = Self { _folder: folder, path };
        file.write(text);
        file
    }

    fn write(&self, text: impl AsRef<[u8]>) {
        fs::write(&self.path, text).unwrap();
    }

    fn apply(&self, rules: &Rules) -> Result<(), Problems> {
        WatchedPolicyFile::new(&self.path).load(|policy| Compiler::new(rules.clone()).apply(policy))
    }

    /// The problems that `apply` reports, without the folder.
    fn problems(&self, rules: &Rules) -> String {
        self.apply(rules).unwrap_err().to_string().replace(self.path.to_str().unwrap(), "policy.yaml")
    }
}

fn declare(name: &'static str, quota: &str) -> RuleConfig {
    RuleConfig::new(name).quota(quota).unwrap()
}

fn quotas(rule: &Rule) -> String {
    rule.quotas().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[test]
fn file_replaces_what_code_declares() {
    let file = TestFile::new(
        "
store: memory
prefix: shop
deadline: 20ms
failure-mode: local 4
stores: { sessions: memory }
rules:
  - { name: signup, quota: 3/h }
  - { name: login, quotas: [5/min, 20/h], store: sessions, failure-mode: closed, wait: 50ms, message: slow down }
  - { name: 'api::search', quota: 7/s burst 9, mode: shadow }
  - { name: 'orders::create', mode: off }
  - { name: of-the-gateway, match: { path: /a }, key: header x-tenant, quota: 1/s, charge: { if-status: 401 } }
",
    );
    let rules = Rules::new();
    let login = rules.declare(declare("login", "1/s").quota("2/s").unwrap()).unwrap();
    let create = rules.declare(declare("orders::create", "1/h")).unwrap();
    file.apply(&rules).unwrap();
    assert_eq!(quotas(&login), "5/min, 20/h");
    assert_eq!((login.mode(), login.wait()), (Mode::Enforce, Duration::from_millis(50)));
    assert_eq!(login.message().as_deref(), Some("slow down"));
    assert_eq!(
        (quotas(&create).as_str(), create.mode()),
        ("1/h", Mode::Off),
        "without a quota that of the code stays"
    );
    // Rules that code declares later, with a quota or without.
    assert_eq!(quotas(&rules.declare(RuleConfig::new("signup")).unwrap()), "3/h");
    let search = rules.declare(declare("api::search", "1/s")).unwrap();
    assert_eq!((search.mode(), quotas(&search).as_str()), (Mode::Shadow, "7/s burst 9"));

    // Rules that the file no longer contains are as declared.
    file.write("rules: []");
    file.apply(&rules).unwrap();
    assert_eq!((quotas(&login).as_str(), login.wait(), login.message()), ("1/s, 2/s", Duration::ZERO, None));
    assert_eq!(create.mode(), Mode::Enforce);
}

#[test]
fn invalid_files_are_rejected_with_position_and_fix() {
    let rules = Rules::new();
    let table = [
        (
            "rules: [{ name: login, quota: 5/min, mode: of }]",
            "policy.yaml:1:44: unknown mode `of`; did you mean `off`?",
        ),
        ("rules:\n  - name: login\n    quota: 10/parsec", "policy.yaml:3:15: unknown period `parsec`; "),
        (
            "on_outage: open",
            "policy.yaml:1:1: unknown key `on_outage` in the policy; it is now `failure-mode`",
        ),
        (
            "rules: [{ name: login, match: { path: /login }, mode: enforce }]",
            "policy.yaml:1:9: rule `login` has no limit; add one of quota, ",
        ),
        ("rules: [{ name: login }]", "policy.yaml:1:9: rule `login` has no limit; add one of quota, "),
        (
            "store: redis://:$TIDEGATE_NO_SUCH_VARIABLE@db",
            "policy.yaml:1:8: the variable TIDEGATE_NO_SUCH_VARIABLE is not set; set ",
        ),
        ("store: redis://db", "policy.yaml:1:8: no connector for store addresses; "),
    ];
    for (text, expected) in table {
        let file = TestFile::new(text);
        let problems = file.problems(&rules);
        assert!(problems.starts_with(expected), "{text}\n--- is\n{problems}\n--- not\n{expected}");
    }
    let file = TestFile::new(
        "rulse: []\nrules:\n  - { name: a, quota: 5/mni }\n  - { name: b, quota: 5/s, mode: x }\n",
    );
    let lines: Vec<_> = file.apply(&rules).unwrap_err().iter().map(Problem::line).collect();
    assert_eq!(lines, [Some(1), Some(3), Some(4)], "all problems, in order");
    fs::remove_file(&file.path).unwrap();
    assert!(file.problems(&rules).starts_with("policy.yaml:"), "{}", file.problems(&rules));
}

/// A mismatch with the code is found when the policy is applied, and has a position, too.
#[test]
fn rules_incompatible_with_code_are_rejected_with_position() {
    let rules = Rules::new();
    let tiers: [Quota; 2] = ["1/s".parse().unwrap(), "2/s".parse().unwrap()];
    let _api = rules.declare(RuleConfig::new("api").tiers(tiers)).unwrap();
    let jobs = rules.declare(declare("jobs", "3 at once")).unwrap();
    let _all = rules.declare(declare("all", "3/s").key(SiteKey::All)).unwrap();
    let _by_ip = rules.declare(declare("by ip", "3/s").key(SiteKey::Ip)).unwrap();
    let requests =
        "needs an HTTP request, which a rule declared in code does not have; move it to another rule";
    // The rule, the value at the position, and the problem.
    let table = [
        (
            "{ name: api, quotas: [1/s] }",
            "[1/s]",
            "rule `api`: 1 quotas for a rule of 2 tiers; give one".to_owned(),
        ),
        (
            "{ name: api, quotas: [1/s, 1/s sliding-log] }",
            "[1/s, 1/s sliding-log]",
            "rule `api`: tiers `1/s` and `1/s sliding-log` use different algorithms".to_owned(),
        ),
        (
            "{ name: jobs, quota: 3/s }",
            "3/s",
            "rule `jobs`: `3/s` counts calls, but the rule (`3 at once`) counts those in flight; give"
                .to_owned(),
        ),
        (
            "{ name: jobs, quota: 3 at once, key: header x-tenant }",
            "header x-tenant",
            "rule `jobs`: this key needs an HTTP request, which a rule declared in code does not have; \
             use `ip` or `user`, or remove `key` and provide the key in code"
                .to_owned(),
        ),
        (
            "{ name: jobs, quota: 3 at once, key: ip/56 }",
            "ip/56",
            "rule `jobs`: this key needs an HTTP request".to_owned(),
        ),
        (
            "{ name: all, quota: 3/s, key: ip }",
            "ip }",
            "rule `all`: the policy counts by `ip`, but the attribute counts all calls together; leave"
                .to_owned(),
        ),
        (
            "{ name: by ip, quota: 3/s, key: ip, mode: enforce 10% }",
            "enforce 10%",
            "rule `by ip`: percentage of keys is not supported for a rule declared in code; \
             use `enforce`, `shadow` or `off`"
                .to_owned(),
        ),
        (
            "{ name: by ip, quota: 3/s, cost: 2 }",
            "2 }",
            "rule `by ip`: `cost` needs an HTTP request, which a rule declared in code does not have; move"
                .to_owned(),
        ),
        (
            "{ name: by ip, tiers: { key: header x-plan, quotas: { gold: 5/h }, default: 1/h } }",
            "{ key",
            format!("rule `by ip`: `tiers` {requests}"),
        ),
        (
            "{ name: by ip, quota: 3/s, schedule: '09:00-18:00 x2' }",
            "'09",
            format!("rule `by ip`: `schedule` {requests}"),
        ),
        ("{ name: by ip, quota: 3/s, deny: 10.0.0.0/8 }", "10.", format!("rule `by ip`: `deny` {requests}")),
        (
            "{ name: by ip, quota: 3/s, on-limit: drop }",
            "drop",
            format!("rule `by ip`: `on-limit` {requests}"),
        ),
    ];
    for (rule, pointed, problem) in table {
        let problems = TestFile::new(&format!("rules:\n  - {rule}\n")).problems(&rules);
        let expected = format!("policy.yaml:2:{}: {problem}", rule.find(pointed).unwrap() + 5);
        assert!(problems.starts_with(&expected), "{rule}\n--- is\n{problems}\n--- not\n{expected}");
    }
    assert_eq!(quotas(&jobs), "3 at once");
    let fine =
        "rules: [{ name: by ip, key: ip, quota: 4/s, match: { path: /a } }, { name: all, quota: 4/s }]";
    TestFile::new(fine).apply(&rules).unwrap();
}

#[test]
fn incompatible_rule_declared_later_keeps_its_declaration() {
    let rules = Rules::new();
    let file = TestFile::new(
        "rules: [{ name: login, key: header x-user, quota: 5/min }, { name: jobs, quota: 1/s }]",
    );
    file.apply(&rules).unwrap();
    let login = rules.declare(declare("login", "2/min").key(SiteKey::All)).unwrap();
    let jobs = rules.declare(declare("jobs", "3 at once")).unwrap();
    assert_eq!((quotas(&login).as_str(), quotas(&jobs).as_str()), ("2/min", "3 at once"));
}

#[test]
fn reload_keeps_counters_and_rejected_file_keeps_the_policy() {
    let file = TestFile::new("rules: [{ name: login, quota: 5/min }]");
    let rules = Rules::new();
    let login = rules.declare(declare("login", "1/min")).unwrap();
    let compiler = Compiler::new(rules.clone()).clock(Clock::manual().0);
    let mut policy = WatchedPolicyFile::new(&file.path);
    let load = |policy: &mut WatchedPolicyFile| policy.load(|policy| compiler.apply(policy));
    load(&mut policy).unwrap();
    for _ in 0..5 {
        login.admit_blocking("alice", 1).unwrap();
    }
    assert!(!policy.has_changed());

    file.write("rules: [{ name: login, quota: 8/min }]");
    assert!(!policy.has_changed(), "it may still be written");
    assert!(policy.has_changed());
    load(&mut policy).unwrap();
    assert_eq!(quotas(&login), "8/min");
    let left = (0..10).filter(|_| login.admit_blocking("alice", 1).is_ok()).count();
    assert_eq!(left, 3, "usage is carried over");

    file.write("rules: [{ name: login, quota: 8/mni }]");
    let problems = load(&mut policy).unwrap_err().to_string();
    assert!(problems.contains(":1:33: unknown period `mni`"), "{problems}");
    assert_eq!(
        (policy.applied_count(), policy.error(), quotas(&login).as_str()),
        (2, Some(&*problems), "8/min")
    );
    assert!(!policy.has_changed() && !policy.has_changed(), "the same mistake is reported once");

    fs::remove_file(&file.path).unwrap();
    assert!(!policy.has_changed() && policy.has_changed());
    load(&mut policy).unwrap_err();
    assert!(!policy.has_changed() && !policy.has_changed());

    // Editors and Kubernetes replace the file.
    let other = file.path.with_extension("new");
    fs::write(&other, "rules: [{ name: login, quota: 9/min }]").unwrap();
    fs::rename(&other, &file.path).unwrap();
    assert!(!policy.has_changed() && policy.has_changed());
    load(&mut policy).unwrap();
    assert_eq!((policy.applied_count(), policy.error(), quotas(&login).as_str()), (3, None, "9/min"));
}

#[test]
fn included_files_and_lists_are_watched() {
    let file = TestFile::new("include: [more.yaml]\nlists: { internal: { files: [internal.txt] } }\n");
    let folder = file.path.parent().unwrap();
    fs::write(folder.join("more.yaml"), "rules: [{ name: a, quota: 1/s }]").unwrap();
    fs::write(folder.join("internal.txt"), "192.0.2.0/24\n").unwrap();
    let mut policy = WatchedPolicyFile::new(&file.path);
    for name in ["more.yaml", "internal.txt"] {
        policy.load(|_| Ok(())).unwrap();
        assert!(!policy.has_changed());
        let text = fs::read_to_string(folder.join(name)).unwrap();
        fs::write(folder.join(name), text + "\n# more\n").unwrap();
        assert!(!policy.has_changed() && policy.has_changed(), "{name}");
    }
}

/// The thread that watches the file ends with the policy.
#[test]
fn live_policy_follows_its_file() {
    let file = TestFile::new("rules: [{ name: login, quota: 5/min }]");
    let live = LivePolicy::from_file(&file.path, Compiler::new(Rules::new())).unwrap();
    let quota = || live.current().views().map(|rule| rule.quotas()[0].to_string()).collect::<String>();
    for text in ["6/min", "7/min"] {
        file.write(format!("rules: [{{ name: login, quota: {text} }}]"));
        wait_until("the new quota is in force", || (quota() == text).then_some(()).ok_or_else(quota))
            .unwrap();
    }
    let fallback = "upstreams: { a: 'http://127.0.0.1:1' }\nrules: [{ name: login, quota: 1/s, on-limit: { fallback: { upstream: a } } }]";
    file.write(fallback);
    let error = LivePolicy::from_file(&file.path, Compiler::new(Rules::new())).unwrap_err().to_string();
    assert!(error.contains(":2:9: rule `login`: fallback to upstream `a`"), "{error}");
}

/// One file for code and for a gateway: rules for requests do not affect rules in code.
#[test]
fn gateway_policy_applies_to_code_without_its_rules() {
    let text = "
upstreams: { app: 'http://127.0.0.1:9000' }
routes: [{ upstream: app }]
listen: 127.0.0.1:8080
failure-mode: closed
rules:
  - { name: everybody, key: header x-tenant, quota: 1/s, on-limit: drop }
  - { name: shop, deny: 10.0.0.0/8 }
  - { name: fragile, breaker: { window-size: 3 } }
";
    let rules = Rules::new();
    let _mine = rules.declare(declare("mine", "1/s")).unwrap();
    Compiler::new(rules).apply(&text.parse().unwrap()).unwrap();
}
