//! The policy file of a program. The tests run one at a time, because the rules are global.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::{
    env, fs,
    path::PathBuf,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tempfile::TempDir;
use tidegate::{
    CallError, CallOutcome, Limited, RuleConfig, Rules, breaker, concurrency, limit, overload::Rejection,
    rule::Mode,
};
use tidegate_testkit::servers::wait_until;

static TEST_LOCK: Mutex<()> = Mutex::new(());

/// A policy file with an exclusive lock.
struct TestFile {
    _lock: MutexGuard<'static, ()>,
    _folder: TempDir,
    path: PathBuf,
}

impl TestFile {
    fn new() -> Self {
        let turn = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        Self { _lock: turn, _folder: folder, path }
    }

    fn write(&self, text: &str) {
        fs::write(&self.path, text).unwrap();
    }

    /// Sets the memory use of the machine. Replaces the file as a whole: a monitor reads it at any time.
    fn write_load(&self, percent: u64) {
        let text = format!("MemTotal: 100 kB\nMemAvailable: {} kB\n", 100 - percent);
        let next = self.path.with_file_name("next");
        fs::write(&next, text).unwrap();
        fs::rename(next, self.path.with_file_name("meminfo")).unwrap();
    }

    fn init(&self, text: &str) -> Result<(), String> {
        self.write(text);
        tidegate::init(&self.path).map_err(|problems| problems.to_string())
    }
}

fn passed_of_nine<T, E>(mut call: impl FnMut() -> Result<T, E>) -> usize {
    (0..9).filter(|_| call().is_ok()).count()
}

#[test]
fn file_overrides_code_and_is_reloaded() {
    let file = TestFile::new();
    // Without a file, the limits are in memory, as declared in code.
    let login = Rules::global().declare(RuleConfig::new("login").quota("3 per 52w").unwrap()).unwrap();
    let admitted = || passed_of_nine(|| login.admit_blocking("alice", 1));
    assert_eq!(admitted(), 3);

    file.init("rules: [{ name: login, quota: 6 per 52w }]").unwrap();
    assert_eq!(admitted(), 3, "the counters stay");
    let status = tidegate::policy::policy_status();
    assert_eq!((status.path.as_deref(), status.error), (Some(&*file.path), None));

    file.write("rules: [{ name: login, mode: off }]");
    tidegate::policy::reload().unwrap();
    assert_eq!((login.mode(), admitted()), (Mode::Off, 9));

    file.write("rules: [{ name: login, mode: on }]");
    let problems = tidegate::policy::reload().unwrap_err().to_string();
    assert!(problems.contains(":1:30: unknown mode `on`"), "{problems}");
    let status = tidegate::policy::policy_status();
    assert_eq!((login.mode(), status.error), (Mode::Off, Some(problems)));

    // An invalid file is an error, and nothing changes.
    let wrong = if cfg!(feature = "redis") { "http://db" } else { "redis://db" };
    assert!(file.init(&format!("store: {wrong}")).unwrap_err().contains(":1:8: "));
    assert_eq!(login.mode(), Mode::Off);

    // A change is detected without a call of `reload`.
    file.init("rules: [{ name: login, mode: off }]").unwrap();
    file.write("rules: [{ name: login, quota: 8 per 52w }]");
    wait_until("the change is detected", || {
        (login.mode() == Mode::Enforce).then_some(()).ok_or_else(String::new)
    })
    .unwrap();
    assert_eq!(admitted(), 2);
}

#[limit("1 per 52w", rule = "orders")]
fn order() -> Result<(), Limited> {
    Ok(())
}

#[limit(rule = "numbers in the file")]
fn numbers_in_the_file() -> Result<(), Limited> {
    Ok(())
}

#[concurrency(1, rule = "slots")]
fn slots(depth: u32) -> Result<(), Limited> {
    if depth == 0 { Ok(()) } else { slots(depth - 1) }
}

#[breaker(window_size = 100, rule = "fragile")]
fn fragile() -> Result<(), FragileError> {
    Err(FragileError::Inner)
}

#[derive(Debug, PartialEq)]
enum FragileError {
    Inner,
    Rejected,
}

impl From<Limited> for FragileError {
    fn from(_: Limited) -> Self {
        Self::Rejected
    }
}

#[limit("1000 per 52w", rule = "recommendations")]
fn recommendations() -> Result<(), Limited> {
    Ok(())
}

#[concurrency(9, rule = "reports")]
fn reports() -> Result<(), Limited> {
    Ok(())
}

#[test]
fn attributes_follow_features_and_load() {
    let file = TestFile::new();
    let folder = file.path.parent().unwrap().display().to_string();
    file.write_load(10);
    let policy = format!(
        "load: {{ signals: [memory], proc: {folder}, cgroup: {folder}/none, interval: 1ms, cooldown: 1ms }}
features: {{ similar: manual }}
rules:
  - {{ name: recommendations, feature: similar }}
  - {{ name: reports, shed: 80% }}
"
    );
    file.init(&policy).unwrap();
    assert!(recommendations().is_ok() && reports().is_ok());

    tidegate::policy::features().turn_off("similar").unwrap();
    let limited = recommendations().unwrap_err();
    assert!(matches!(limited.cause(), CallError::GuardRejected(Rejection::FeatureOff)), "{limited}");
    file.init(&policy).unwrap();
    assert!(recommendations().is_err(), "the override stays after a reload");
    tidegate::policy::features().clear_override("similar").unwrap();
    assert!(recommendations().is_ok());

    file.write_load(99);
    wait_until("calls are shed", || reports().err().ok_or("admitted".to_owned())).unwrap();
    file.write_load(10);
    wait_until("calls are admitted", || reports().map_err(|limited| limited.to_string())).unwrap();
    file.init("rules: []").unwrap();
}

#[limit("10 per 52w", rule = "scaled")]
fn scaled() -> Result<(), Limited> {
    Ok(())
}

#[test]
fn quota_of_attribute_follows_load() {
    let file = TestFile::new();
    let folder = file.path.parent().unwrap().display().to_string();
    let policy = |quota: &str| {
        format!(
            "load: {{ signals: [memory], proc: {folder}, cgroup: {folder}/none, interval: 20ms, cooldown: 1s }}
rules: [{{ name: scaled, quota: {quota}, scale: {{ high: 80%, low: 50%, min: x0.5, interval: 20ms }} }}]"
        )
    };
    let quota = || {
        let rules = Rules::global().list();
        rules.iter().find(|rule| rule.name() == "scaled").unwrap().quotas()[0].to_string()
    };
    let wait_for = |expected: &str| {
        wait_until(expected, || if quota() == expected { Ok(()) } else { Err(quota()) }).unwrap();
    };
    file.write_load(95);
    // Before its first call, the attribute has no rule.
    file.init(&policy("100 per 52w")).unwrap();
    scaled().unwrap();
    wait_for("50 per 52w");
    file.write_load(65);
    file.init(&policy("100 per 52w")).unwrap();
    assert_eq!(quota(), "50 per 52w", "a reload keeps the factor");
    file.init(&policy("1000 per 52w")).unwrap();
    assert_eq!(quota(), "500 per 52w", "a reload applies the factor to a changed quota");
    assert!(file.init(&policy("1000 per 52w, key: header x-tenant")).is_err());
    assert_eq!(quota(), "500 per 52w", "a rejected file changes nothing");
    file.write_load(10);
    wait_for("1000 per 52w");
    file.init("rules: []").unwrap();
    assert_eq!(quota(), "10 per 52w", "that of the code");
}

#[limit("1 per 52w", rule = "flaky", key = name)]
fn flaky(name: &str, result: Result<(), ()>) -> Result<(), FragileError> {
    let _ = name;
    result.map_err(|()| FragileError::Inner)
}

#[limit("1 per 52w", rule = "flaky async")]
async fn flaky_async(result: Result<(), ()>) -> Result<(), FragileError> {
    result.map_err(|()| FragileError::Inner)
}

/// The quota is reserved while the breaker is checked.
#[limit("1 per 52w", rule = "flaky reserved")]
#[breaker(window_size = 1000, rule = "flaky breaker")]
fn flaky_reserved(result: Result<(), ()>) -> Result<(), FragileError> {
    result.map_err(|()| FragileError::Inner)
}

#[concurrency(1, rule = "flaky slots")]
fn flaky_slots(depth: u32) -> Result<(), FragileError> {
    if depth == 0 { Err(FragileError::Inner) } else { flaky_slots(depth - 1) }
}

#[limit("1 per 52w", rule = "flaky number", on_limit = fallback_number,
    classify = |number| if *number == 0 { CallOutcome::Failure } else { CallOutcome::Success })]
fn flaky_number(number: u32) -> u32 {
    number
}

fn fallback_number(_: u32) -> u32 {
    99
}

#[limit("100 per 52w", rule = "without outcome", on_limit = fallback_number)]
fn without_outcome(number: u32) -> u32 {
    number
}

#[test]
fn quota_of_attribute_applies_while_calls_fail() {
    let file = TestFile::new();
    let rule = |name: &str| {
        let quota = if name == "flaky slots" { "1 at once" } else { "1 per 52w" };
        format!(
            "{{ name: {name}, quota: {quota}, while-failing: {{ min-calls: 2, failure-rate: 50%, window-size: 1h }} }}"
        )
    };
    let names = ["flaky", "flaky async", "flaky reserved", "flaky slots", "flaky number"];
    let policy = format!("rules: [{}]", names.map(rule).join(", "));
    file.init(&policy).unwrap();
    let (inner, rejected) = (Err(FragileError::Inner), Err(FragileError::Rejected));

    // Three failures are more than two calls, and the quota then admits one.
    (0..4).for_each(|_| assert_eq!(flaky("a", Err(())), inner));
    assert_eq!(flaky("a", Err(())), rejected);
    (0..9).for_each(|_| assert_eq!(flaky("b", Ok(())), Ok(()), "calls of this key do not fail"));
    file.init(&policy).unwrap();
    assert_eq!(flaky("a", Err(())), rejected, "a reload keeps the error rate");

    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    (0..4).for_each(|_| assert_eq!(runtime.block_on(flaky_async(Err(()))), inner));
    assert_eq!(runtime.block_on(flaky_async(Err(()))), rejected);
    (0..4).for_each(|_| assert_eq!(flaky_reserved(Err(())), inner));
    assert_eq!(flaky_reserved(Err(())), rejected);
    // Recursion holds a slot while the inner call needs one.
    assert_eq!(flaky_slots(2), inner, "without failures there is no limit");
    assert_eq!(flaky_slots(1), rejected);
    assert_eq!([0, 0, 0, 0, 0].map(flaky_number), [0, 0, 0, 0, 99]);

    assert_eq!(without_outcome(1), 1);
    let error = file.init(&format!("rules: [{}]", rule("without outcome"))).unwrap_err();
    assert!(error.contains("`while-failing` needs the outcomes of calls"), "{error}");
    file.init("rules: []").unwrap();
    assert_eq!(flaky("c", Err(())), inner);
    assert_eq!(flaky("c", Err(())), rejected, "without the policy, the quota always applies");
}

#[test]
fn attributes_follow_the_file() {
    let file = TestFile::new();
    file.init(
        "rules:
  - { name: orders, quota: 4 per 52w, message: enough }
  - { name: numbers in the file, quota: 2 per 52w }
  - { name: slots, quota: 3 at once }
  - { name: fragile, breaker: { window-size: 2 } }
  - { name: of the gateway, key: header x-tenant, quota: 1/s }
",
    )
    .unwrap();
    assert_eq!((passed_of_nine(order), passed_of_nine(numbers_in_the_file)), (4, 2));
    assert_eq!(order().unwrap_err().to_string(), "enough");
    assert!(slots(2).is_ok() && slots(3).is_err());
    let calls = || [fragile(), fragile(), fragile()].map(Result::unwrap_err);
    assert_eq!(calls(), [FragileError::Inner, FragileError::Inner, FragileError::Rejected]);

    file.init(
        "rules: [{ name: orders, quota: 6 per 52w }, { name: fragile, breaker: { window-size: 2 }, mode: shadow }]",
    )
    .unwrap();
    assert_eq!(
        (passed_of_nine(order), passed_of_nine(numbers_in_the_file)),
        (2, 9),
        "without its rule, the attribute is as declared"
    );
    assert!(slots(0).is_ok() && slots(1).is_err());
    assert_eq!(calls(), [FragileError::Inner, FragileError::Inner, FragileError::Inner]);
    file.init("rules: [{ name: fragile, breaker: { window-size: 2 } }]").unwrap();
    assert_eq!(fragile(), Err(FragileError::Rejected), "reloading the same breaker keeps its state");
    file.init("rules: []").unwrap();
    assert_eq!(
        calls(),
        [FragileError::Inner, FragileError::Inner, FragileError::Inner],
        "the breaker of the code starts closed"
    );

    let error = file.init("rules: [{ name: orders, key: header x-tenant, quota: 1/s }]").unwrap_err();
    assert!(error.contains(":1:30: rule `orders`: this key needs an HTTP request"), "{error}");
    let error = file.init("rules: [{ name: orders, key: ip, quota: 1/s }]").unwrap_err();
    assert!(error.contains("the attribute counts all calls together"), "{error}");
}

/// Runs a test in a separate process, with `TIDEGATE_POLICY` set to a file.
fn run_under_variable(test: &str, text: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    fs::write(&path, text).unwrap();
    let program = env::current_exe().unwrap();
    let output = Command::new(program)
        .args(["--exact", test, "--ignored"])
        .env("TIDEGATE_POLICY", path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn environment_variable_selects_policy_file() {
    run_under_variable("attribute_loads_the_file", "rules: [{ name: orders, quota: 5 per 52w }]");
    run_under_variable("attribute_stays_as_declared", "rules: [{ name: orders, quota: 5 per parsec }]");
}

#[test]
#[ignore = "another test runs it with a variable set"]
fn attribute_loads_the_file() {
    assert_eq!(passed_of_nine(order), 5);
    assert_eq!(tidegate::policy::policy_status().applied, 1);
}

#[test]
#[ignore = "another test runs it with a variable set"]
fn attribute_stays_as_declared() {
    assert_eq!(passed_of_nine(order), 1);
    assert!(tidegate::policy::policy_status().error.unwrap().contains("parsec"));
}
