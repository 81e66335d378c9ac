//! Rules follow settings while they are in use.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use std::{
    error,
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};
use tidegate_limiter::{
    Clock, FailureMode, Store, StoreError,
    store::{StoreFuture, StoreReply, StoreRequest},
};
use tidegate_rule::{
    Mode, Rule, RuleConfig, RuleSettings, Rules, Settings, SettingsError, StoreAddress, StoreConnection,
};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// A store that is never available.
#[derive(Debug)]
struct UnavailableStore;

impl Store for UnavailableStore {
    fn execute(&self, _: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        Box::pin(async { Err(StoreError::Unavailable("no response".to_owned())) })
    }
}

fn unavailable_store() -> StoreAddress {
    StoreAddress::Instance(Arc::new(UnavailableStore))
}

#[track_caller]
fn rule_config(name: &'static str, quota: &str) -> RuleConfig {
    RuleConfig::new(name).quota(quota).unwrap()
}

fn settings() -> Settings {
    Settings::new().clock(Clock::manual().0)
}

/// The number of `calls` that are admitted.
fn admitted(rule: &Rule, calls: usize) -> usize {
    (0..calls).filter(|_| rule.admit_blocking("alice", 1).is_ok()).count()
}

/// Counts log events of one level.
struct EventCounter(Level, Arc<AtomicUsize>);

impl Subscriber for EventCounter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == self.0 && metadata.target().starts_with("tidegate")
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, _: &Event<'_>) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// The number of log events at a level while this runs.
fn count_events(level: Level, run: impl FnOnce()) -> usize {
    // The interest cache of callsites is global, so these tests run one after the other.
    static LOCK: Mutex<()> = Mutex::new(());
    let _guard = LOCK.lock();
    let count = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::with_default(EventCounter(level, count.clone()), || {
        tracing::callsite::rebuild_interest_cache();
        run();
    });
    count.load(Ordering::Relaxed)
}

#[test]
fn counters_survive_quota_change() {
    let rules = Rules::new();
    rules.apply(settings()).unwrap();
    let rule = rules.declare(rule_config("login", "5/min")).unwrap();
    assert_eq!(admitted(&rule, 9), 5);
    let steps = [
        ("8/min", 3),                // usage carries over
        ("4/min", 0),                // also to a smaller quota
        ("4/min sliding-window", 4), // another algorithm: separate counters
        ("6/min sliding-window", 2),
    ];
    for (quota, expected) in steps {
        rules.apply(settings().quota("login", quota).unwrap()).unwrap();
        assert_eq!(admitted(&rule, 9), expected, "{quota}");
    }
    // Without settings the declaration applies again, with its previous counters.
    rules.apply(settings()).unwrap();
    assert_eq!((rule.quotas()[0].to_string().as_str(), admitted(&rule, 9)), ("5/min", 0));
    let both = RuleSettings::new().quota("9/min").unwrap().quota("7/h").unwrap();
    rules.apply(settings().rule("login", both)).unwrap();
    assert_eq!(admitted(&rule, 9), 1, "eight of nine a minute were used before");
}

#[test]
fn invalid_settings_change_nothing() {
    let rules = Rules::new();
    let before = RuleSettings::new().quota("5/min").unwrap().message("before");
    rules.apply(settings().rule("first", before)).unwrap();
    let first = rules.declare(rule_config("first", "1/min")).unwrap();
    let _last = rules.declare(rule_config("last", "3 at once")).unwrap();
    assert_eq!(admitted(&first, 2), 2);
    let next = || settings().mode(Mode::Off).quota("first", "100/min").unwrap();
    let wrong = [
        next().quota("last", "7/min").unwrap(),
        next().rule("last", RuleSettings::new().store("nowhere")),
        next().store_url("redis://127.0.0.1"),
    ];
    for wrong in wrong {
        rules.apply(wrong).unwrap_err();
        let now = (first.quotas()[0].to_string(), first.mode(), first.message().unwrap().to_string());
        assert_eq!(now, ("5/min".to_owned(), Mode::Enforce, "before".to_owned()));
    }
    assert_eq!(admitted(&first, 9), 3);
}

#[test]
fn errors_name_the_rule() {
    let rules = Rules::new();
    let tiers = ["1/s".parse().unwrap(), "2/s".parse().unwrap()];
    let _rule = rules.declare(RuleConfig::new("api").tiers(tiers)).unwrap();
    let tiers = |first: &str, second: &str| RuleSettings::new().quota(first).unwrap().quota(second).unwrap();
    let table = [
        (
            settings().rule("api", tiers("1/s", "1/s sliding-log")),
            "rule `api`: tiers `1/s` and `1/s sliding-log`",
        ),
        (
            settings().quota("api", "1/s").unwrap(),
            "rule `api`: 1 quotas for a rule of 2 tiers; give one for each",
        ),
        (settings().rule("api", RuleSettings::new().store("a")), "rule `api`: unknown store `a`; define it"),
    ];
    for (settings, start) in table {
        let error = rules.apply(settings).unwrap_err().to_string();
        assert!(error.starts_with(start), "{error}");
    }
    assert!(rules.apply(settings().rule("api", tiers("5/s", "9/s"))).is_ok());
}

#[test]
fn failure_mode_change_applies_at_once() {
    let rules = Rules::new();
    let rule = rules.declare(rule_config("login", "4/min")).unwrap();
    let store: Arc<dyn Store> = Arc::new(UnavailableStore);
    let with_failure_mode = |failure_mode| settings().store(store.clone()).failure_mode(failure_mode);
    let table = [
        (FailureMode::Closed, 0),
        (FailureMode::Open, 9),
        (FailureMode::Local { nodes: 2 }, 2),
        (FailureMode::Closed, 0),
    ];
    for (failure_mode, expected) in table {
        rules.apply(with_failure_mode(failure_mode)).unwrap();
        assert_eq!(admitted(&rule, 9), expected, "{failure_mode:?}");
    }
    rules
        .apply(
            with_failure_mode(FailureMode::Closed)
                .rule("login", RuleSettings::new().failure_mode(FailureMode::Open)),
        )
        .unwrap();
    assert_eq!(admitted(&rule, 9), 9, "a rule may have its own failure mode");
    // The same settings again keep the limiter and its counters.
    rules.apply(with_failure_mode(FailureMode::Local { nodes: 1 })).unwrap();
    assert_eq!(admitted(&rule, 9), 4);
    rules.apply(with_failure_mode(FailureMode::Local { nodes: 1 }).mode(Mode::Enforce)).unwrap();
    assert_eq!(admitted(&rule, 9), 0);
}

#[test]
fn apply_reuses_store_connections() {
    static CONNECTED: AtomicU64 = AtomicU64::new(0);
    fn connect(_: &StoreConnection<'_>) -> Result<Arc<dyn Store>, Box<dyn error::Error + Send + Sync>> {
        CONNECTED.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(UnavailableStore))
    }
    let rules = Rules::new();
    assert!(matches!(rules.apply(settings().store_url("a://b")), Err(SettingsError::NoConnector)));
    rules.set_connect(connect);
    let _rule = rules.declare(rule_config("login", "4/min")).unwrap();
    let of = || settings().store_url("a://b").prefix("shop");
    let table = [
        (of(), 1),
        (of(), 1),
        (of().mode(Mode::Shadow).quota("login", "5/min").unwrap(), 1),
        (of().named_store("same", "a://b".into()), 1),
        (Settings::new().prefix("shop").named_store("renamed", "a://b".into()), 1),
        (of().named_store("other", "a://c".into()), 2),
        (of().prefix("other"), 3),
        (of().prefix("other").deadline(Duration::from_secs(1)), 4),
        (settings(), 4),
        (of(), 5),
    ];
    for (settings, expected) in table {
        rules.apply(settings).unwrap();
        assert_eq!(CONNECTED.load(Ordering::Relaxed), expected);
    }
}

#[test]
fn rules_use_named_stores() {
    let rules = Rules::new();
    let by_code = rules.declare(rule_config("by-code", "4/min").store("sessions")).unwrap();
    let by_settings = rules.declare(rule_config("by-settings", "4/min")).unwrap();
    let other = rules.declare(rule_config("other", "4/min")).unwrap();
    let named = |address| {
        let rule_settings = RuleSettings::new().store("sessions");
        settings()
            .failure_mode(FailureMode::Closed)
            .named_store("sessions", address)
            .rule("by-settings", rule_settings)
    };
    let all = || [&by_code, &by_settings, &other].map(|rule| admitted(rule, 9));
    rules.apply(named(unavailable_store())).unwrap();
    assert_eq!(all(), [0, 0, 4]);
    // Memory can be a named store too, beside an unavailable default store.
    rules.apply(named(StoreAddress::Memory).store(Arc::new(UnavailableStore))).unwrap();
    assert_eq!(all(), [4, 4, 0]);
    // An unknown store falls back to the default one, which is logged once.
    let warned = count_events(Level::WARN, || {
        rules.apply(settings().store(Arc::new(UnavailableStore)).failure_mode(FailureMode::Open)).unwrap();
        rules.apply(settings()).unwrap();
    });
    assert_eq!((warned, all()), (1, [4, 4, 4]));
}

#[test]
fn conflicting_quotas_error_names_both_locations() {
    let rules = Rules::new();
    let (first, line) = (rules.declare(rule_config("login", "5/min")).unwrap(), line!());
    for _ in 0..3 {
        // The same quota, or only the name, is no conflict.
        rules.declare(rule_config("login", "5/min")).unwrap();
        rules.declare(RuleConfig::new("login")).unwrap();
    }
    for quota in ["6/min", "7/min"] {
        let error = rules.declare(rule_config("login", quota)).unwrap_err().to_string();
        let second = format!("declared as `{quota}` at {}:{}", file!(), line!() - 1);
        assert!(error.contains(&second), "{error}");
        assert!(error.contains(&format!("as `5/min` at {}:{line}", file!())), "{error}");
        assert!(error.contains("another name"), "{error}");
    }
    assert_eq!((first.quotas().len(), admitted(&first, 9)), (1, 5));
}

#[test]
fn second_declaration_may_add_quotas() {
    let rules = Rules::new();
    let by_name = rules.declare(RuleConfig::new("login")).unwrap();
    assert_eq!(admitted(&by_name, 9), 9, "a rule without a quota limits nothing");
    let _numbers = rules.declare(rule_config("login", "5/min")).unwrap();
    assert_eq!(admitted(&by_name, 9), 5);
    // From then on this declaration counts as the first one.
    rules.apply(Settings::new().mode(Mode::Enforce)).unwrap();
    assert_eq!((by_name.quotas().len(), admitted(&by_name, 9)), (1, 0));
}

#[test]
fn modes_enforce_shadow_and_off() {
    let rules = Rules::new();
    rules.apply(settings()).unwrap();
    let rule = rules.declare(rule_config("login", "4/min")).unwrap();
    let table = [(Mode::Off, 9), (Mode::Shadow, 9), (Mode::Enforce, 0)];
    for (mode, expected) in table {
        rules.apply(settings().mode(mode)).unwrap();
        assert_eq!(admitted(&rule, 9), expected, "{mode}: calls in shadow mode are counted");
    }
    let own = RuleSettings::new().mode(Mode::Off);
    rules.apply(settings().mode(Mode::Enforce).rule("login", own)).unwrap();
    assert_eq!(admitted(&rule, 9), 9);
}

#[test]
fn permits_under_each_mode() {
    let rules = Rules::new();
    let rule = rules.declare(rule_config("jobs", "2 at once")).unwrap();
    let acquire =
        |calls: usize| (0..calls).filter_map(|_| rule.acquire_blocking("alice").ok()).collect::<Vec<_>>();
    assert_eq!(acquire(5).len(), 2);
    assert_eq!(acquire(5).len(), 2, "the slots are released");
    rules.apply(settings().mode(Mode::Shadow)).unwrap();
    let in_shadow = acquire(5);
    assert_eq!(in_shadow.len(), 5);
    // Slots that were acquired in shadow mode still count.
    rules.apply(settings()).unwrap();
    assert_eq!(acquire(5).len(), 0);
    drop(in_shadow);
    assert_eq!(acquire(5).len(), 2);
    // Slots stay acquired while a rule is off, and count again afterwards.
    let before = acquire(1);
    rules.apply(settings().mode(Mode::Off)).unwrap();
    let uncounted = acquire(5);
    rules.apply(settings()).unwrap();
    assert_eq!((uncounted.len(), acquire(5).len()), (5, 1));
    drop(before);
    assert_eq!(acquire(5).len(), 2);
}

/// A call that holds no slot does not acquire one; it is admitted while one is free, and a warning is logged.
#[test]
fn admit_does_not_take_concurrency_slots() {
    let rules = Rules::new();
    let rule = rules.declare(rule_config("jobs", "2 at once")).unwrap();
    let warned = count_events(Level::WARN, || assert_eq!(admitted(&rule, 9), 9));
    assert_eq!(warned, 1);
    let _both = [rule.acquire_blocking("alice").unwrap(), rule.acquire_blocking("alice").unwrap()];
    assert_eq!(admitted(&rule, 9), 0);
}

#[test]
fn concurrent_calls_stay_within_quota() {
    let rules = Rules::new();
    // The wait is too short for new tokens, and too long to expire while the threads run.
    for (name, by) in [("quick", Duration::ZERO), ("slow", Duration::from_secs(3_600))] {
        let rule = rules.declare(rule_config(name, "10 per 52w").wait(by)).unwrap();
        let barrier = Barrier::new(100);
        let admitted = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|| {
                    barrier.wait();
                    admitted.fetch_add(usize::from(rule.admit_blocking("all", 1).is_ok()), Ordering::Relaxed);
                });
            }
        });
        assert_eq!(admitted.into_inner(), 10, "{name}");
    }
}

/// A log subscriber may be limited itself, by a rule that is declared there first.
#[test]
fn log_subscriber_may_declare_rules() {
    struct DeclaringSubscriber(Rules);
    impl Subscriber for DeclaringSubscriber {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target().starts_with("tidegate")
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, _: &Event<'_>) {
            let _ = self.0.declare(rule_config("lines", "10/s")).unwrap().admit_blocking("", 1);
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }
    let rules = Rules::new();
    tracing::subscriber::with_default(DeclaringSubscriber(rules.clone()), || {
        tracing::callsite::rebuild_interest_cache();
        let _without_numbers = rules.declare(RuleConfig::new("login")).unwrap();
        let _unknown_store = rules.declare(rule_config("search", "1/s").store("nowhere")).unwrap();
        rules.apply(settings()).unwrap();
    });
}

/// From memory to a store during calls: no call fails, and no more are admitted than both quotas together.
#[test]
fn quota_changes_under_load_keep_bound() {
    let rules = Rules::new();
    let rule = rules.declare(rule_config("login", "100 per 52w")).unwrap();
    let (is_over, admitted) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    admitted.fetch_add(usize::from(rule.admit_blocking("all", 1).is_ok()), Ordering::Relaxed);
                }
            });
        }
        let store: Arc<dyn Store> = Arc::new(UnavailableStore);
        while admitted.load(Ordering::Relaxed) < 100 {
            thread::yield_now();
        }
        // The store is unavailable, so the local share counts: also in memory, but separately.
        rules.apply(Settings::new().store(store).failure_mode(FailureMode::Local { nodes: 1 })).unwrap();
        while admitted.load(Ordering::Relaxed) < 200 {
            thread::yield_now();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(admitted.into_inner(), 200);
}
