//! Sites in code: changes of settings under load, and log subscribers that call sites.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, ScopedJoinHandle},
    time::Duration,
};
use tidegate_core::{Micros, Percent};
use tidegate_limiter::{
    Clock, FailureMode, Store, StoreError,
    store::{StoreFuture, StoreReply, StoreRequest},
};
use tidegate_overload::{CallError, ErrorRateSettings, error_rate::KeyedErrorRate, retry::limit_time};
use tidegate_rule::{
    Limited, Mode, RuleSettings, Rules, Settings,
    site::{
        AdmitError, BreakerSettings, BreakerSite, BuildError, Capacity, LimitSite, RuleConfig, SettingError,
        config_for_function,
    },
};
use tracing::{Event, Metadata, Subscriber, span};

/// All sites share the settings of the program, so these tests run one after the other.
fn lock_global_rules() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    Rules::global().apply(Settings::new()).unwrap();
    guard
}

/// A subscriber that may call the site that is being logged: log exporters are often limited.
struct CallbackSubscriber(fn());

impl Subscriber for CallbackSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tidegate")
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, _: &Event<'_>) {
        self.0();
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[test]
fn log_subscriber_may_call_its_own_site() {
    fn without_quota() {
        static SITE: LimitSite = LimitSite::new(|| Ok(RuleConfig::new("numberless")));
        assert!(SITE.open().is_none());
    }
    fn broken() {
        static SITE: LimitSite = LimitSite::new(|| Err(BuildError::NoQuota));
        assert!(SITE.open().is_none());
    }
    fn broken_breaker() {
        fn declare() -> Result<(RuleConfig, BreakerSettings), SettingError> {
            BreakerSettings::builder()
                .half_open_calls(0)
                .build()
                .map(|settings| (RuleConfig::new("broken"), settings))
        }
        static SITE: BreakerSite = BreakerSite::new(declare);
        assert!(SITE.try_acquire().unwrap().is_none());
    }
    let _guard = lock_global_rules();
    for pass in [without_quota, broken, broken_breaker] {
        tracing::subscriber::with_default(CallbackSubscriber(pass), || {
            tracing::callsite::rebuild_interest_cache();
            pass();
        });
    }
}

/// If code declares no quota, settings may give a concurrency quota to calls that hold no slot, and a rate to
/// calls that release what they acquired.
#[test]
fn mismatched_quota_kind_is_logged_once() {
    static PERMIT_SITE: LimitSite = LimitSite::new(|| Ok(RuleConfig::new("acquired")));
    static ADMIT_SITE: LimitSite = LimitSite::new(|| Ok(RuleConfig::new("asked")));
    static RESERVE_SITE: LimitSite = LimitSite::new(|| Ok(RuleConfig::new("taken")));
    static WARNINGS: AtomicUsize = AtomicUsize::new(0);
    let _guard = lock_global_rules();
    let settings = Settings::new().quota("asked", "1 at once").unwrap().quota("taken", "1 at once").unwrap();
    Rules::global().apply(settings.quota("acquired", "1/h").unwrap()).unwrap();
    let count = || {
        WARNINGS.fetch_add(1, Ordering::Relaxed);
    };
    tracing::subscriber::with_default(CallbackSubscriber(count), || {
        tracing::callsite::rebuild_interest_cache();
        for _ in 0..3 {
            assert!(ADMIT_SITE.open().unwrap().admit("all", 1).is_ok());
            assert!(RESERVE_SITE.open().unwrap().reserve("all", 1).is_ok());
            assert!(PERMIT_SITE.open().unwrap().acquire("all").is_ok());
        }
    });
    assert_eq!(WARNINGS.load(Ordering::Relaxed), 3);
}

/// Every call of the second site is rejected, by every method, and the error is logged once. The first site
/// is not affected.
#[test]
fn conflicting_quotas_of_one_rule_are_rejected() {
    static FIRST: LimitSite = LimitSite::new(|| RuleConfig::new("contested").quota("2/h"));
    static SECOND: LimitSite = LimitSite::new(|| RuleConfig::new("contested").quota("9/h"));
    static SHADOW: LimitSite =
        LimitSite::new(|| Ok(RuleConfig::new("contested").quota("9/h")?.mode(Mode::Shadow)));
    static REPORTED: AtomicUsize = AtomicUsize::new(0);
    let _guard = lock_global_rules();
    let count = || {
        REPORTED.fetch_add(1, Ordering::Relaxed);
    };
    fn into_limited<T>(error: AdmitError<T>) -> Limited {
        match error {
            AdmitError::Limited(limited) => limited,
            AdmitError::Pending(_) => panic!("there is nothing to wait for"),
        }
    }
    tracing::subscriber::with_default(CallbackSubscriber(count), || {
        tracing::callsite::rebuild_interest_cache();
        assert!(FIRST.open().unwrap().admit("all", 1).is_ok());
        let opened = SECOND.open().unwrap();
        let rejections = [
            opened.admit("all", 1).map_err(into_limited).unwrap_err(),
            opened.admit_blocking("all", 1).unwrap_err(),
            opened.reserve("all", 1).map_err(into_limited).unwrap_err(),
            opened.reserve_blocking("all", 1).unwrap_err(),
            opened.acquire("all").map_err(into_limited).map(drop).unwrap_err(),
            opened.acquire_blocking("all").map(drop).unwrap_err(),
        ];
        for limited in rejections {
            assert!(matches!(limited.cause(), CallError::Misconfigured(_)), "{limited}");
            let text = limited.to_string();
            let named = ["`contested`", "`2/h", "`9/h", "sites.rs", "give one of them another name"];
            assert!(named.iter().all(|part| text.contains(part)), "{text}");
            assert!(
                !limited.client_message().contains("sites.rs"),
                "the message for clients contains no paths: {}",
                limited.client_message()
            );
        }
        assert_eq!(REPORTED.load(Ordering::Relaxed), 1);
        assert!(SHADOW.open().is_none(), "an attribute in shadow mode rejects nothing");
    });
    assert_eq!(REPORTED.load(Ordering::Relaxed), 2);
    assert!(FIRST.open().unwrap().admit("all", 1).is_ok(), "the second site charged nothing");
    for mode in [Mode::Shadow, Mode::Off] {
        let settings = Settings::new().rule("contested", RuleSettings::new().mode(mode));
        Rules::global().apply(settings).unwrap();
        assert!(SECOND.open().is_none(), "{mode:?}");
    }
    Rules::global().apply(Settings::new()).unwrap();
    assert!(SECOND.open().unwrap().admit_blocking("all", 1).is_err());
}

#[test]
fn conflicting_breakers_of_one_name_are_rejected() {
    fn breaker(probes: u32) -> Result<(RuleConfig, BreakerSettings), SettingError> {
        let settings = BreakerSettings::builder().half_open_calls(probes).build()?;
        Ok((RuleConfig::new("contested breaker"), settings))
    }
    static FIRST: BreakerSite = BreakerSite::new(|| breaker(1));
    static SAME: BreakerSite = BreakerSite::new(|| breaker(1));
    static SECOND: BreakerSite = BreakerSite::new(|| breaker(2));
    let _guard = lock_global_rules();
    assert!(FIRST.try_acquire().unwrap().is_some());
    assert!(SAME.try_acquire().unwrap().is_some());
    let limited = SECOND.try_acquire().map(|_| ()).unwrap_err();
    assert!(matches!(limited.cause(), CallError::Misconfigured(_)), "{limited}");
    assert!(limited.to_string().contains("`contested breaker`"), "{limited}");
    let settings = Settings::new().rule("contested breaker", RuleSettings::new().mode(Mode::Shadow));
    Rules::global().apply(settings).unwrap();
    assert!(SECOND.try_acquire().unwrap().is_none());
}

/// A site without quotas uses those of another one, whichever is called first.
#[test]
fn reference_to_a_rule_of_a_function_is_no_conflict_in_either_order() {
    fn declare<T>(within: T) -> Result<RuleConfig, BuildError> {
        config_for_function(within, "").quota("1/h")
    }
    mod early {
        pub(super) fn marker() {}
    }
    mod late {
        pub(super) fn marker() {}
    }
    static EARLY: LimitSite = LimitSite::new(|| declare(early::marker));
    static LATE: LimitSite = LimitSite::new(|| declare(late::marker));
    static EARLY_REFERENCE: LimitSite = LimitSite::new(|| Ok(RuleConfig::new(EARLY_NAME)));
    static LATE_REFERENCE: LimitSite = LimitSite::new(|| Ok(RuleConfig::new(LATE_NAME)));
    const EARLY_NAME: &str = "reference_to_a_rule_of_a_function_is_no_conflict_in_either_order::early";
    const LATE_NAME: &str = "reference_to_a_rule_of_a_function_is_no_conflict_in_either_order::late";
    let _guard = lock_global_rules();
    for sites in [[&EARLY_REFERENCE, &EARLY], [&LATE, &LATE_REFERENCE]] {
        for site in sites {
            site.open();
        }
        let admitted = sites.map(|site| site.open().unwrap().admit_blocking("all", 1).is_ok());
        assert_eq!(admitted, [true, false], "one counter for both");
    }
}

/// A store that always fails.
#[derive(Debug)]
struct FailingStore;

impl Store for FailingStore {
    fn execute(&self, _: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        Box::pin(async { Err(StoreError::Unavailable("not here".to_owned())) })
    }
}

/// Settings with which the quotas of a rule apply after two calls of which one failed.
fn while_failing(clock: &Clock) -> RuleSettings {
    let settings = ErrorRateSettings::builder().request_threshold(1).error_threshold(Percent::ZERO);
    let rates = KeyedErrorRate::with_clock(settings.build().unwrap(), 100, clock.clone());
    let mut settings = RuleSettings::new();
    settings.while_failing = Some(Arc::new(rates));
    settings
}

#[test]
fn while_failing_does_not_depend_on_the_function_called_first() {
    static UNRECORDED: LimitSite = LimitSite::new(|| small_rule("recorded-later", "1/h"));
    static RECORDED: LimitSite = LimitSite::new(|| Ok(small_rule("recorded-later", "1/h")?.with_outcomes()));
    static RECORDED_FIRST: LimitSite =
        LimitSite::new(|| Ok(RuleConfig::new("recorded-first").with_outcomes()));
    static UNRECORDED_LAST: LimitSite = LimitSite::new(|| small_rule("recorded-first", "1/h"));
    let _guard = lock_global_rules();
    let (clock, _) = Clock::manual();
    let settings = Settings::new().clock(clock.clone());
    let settings = settings.rule("recorded-later", while_failing(&clock));
    let settings = settings.rule("recorded-first", while_failing(&clock));
    Rules::global().apply(settings.clone()).unwrap();
    for (first, second) in [(&UNRECORDED, &RECORDED), (&RECORDED_FIRST, &UNRECORDED_LAST)] {
        let _declared = first.open();
        // No call has failed, so no quota applies.
        for _ in 0..5 {
            call_site(second, true).unwrap();
            call_site(first, true).unwrap();
        }
    }
    Rules::global().apply(settings).unwrap();
}

/// Waits for a call until its time limit of a minute.
async fn wait_in_vain<T>(clock: &Clock, call: Result<T, AdmitError<T>>) {
    let Err(error) = call else { panic!("the call does not wait") };
    let waited = limit_time::<_, ()>(Micros::from_secs(60), clock, error.resolve()).await;
    assert!(matches!(waited, Err(CallError::TimeLimitExceeded(_))));
}

#[test]
fn call_that_only_waits_records_no_failure() {
    static RATE: LimitSite = LimitSite::new(|| waiting_rule("waiting-rate", "1 per 52w"));
    static SLOTS: LimitSite = LimitSite::new(|| waiting_rule("waiting-slots", "1 at once"));
    fn waiting_rule(name: &'static str, quota: &str) -> Result<RuleConfig, BuildError> {
        Ok(small_rule(name, quota)?.with_outcomes().wait(Duration::from_secs(53 * 7 * 86_400)))
    }
    let _guard = lock_global_rules();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
        let clock = Clock::tokio();
        let (rate, slots) = (while_failing(&clock), while_failing(&clock));
        let [rate_errors, slot_errors] = [&rate, &slots].map(|rule| rule.while_failing.clone().unwrap());
        let settings = Settings::new().clock(clock.clone());
        Rules::global().apply(settings.rule("waiting-rate", rate).rule("waiting-slots", slots)).unwrap();
        let fail = |errors: &Arc<KeyedErrorRate>| (0..2).for_each(|_| errors.start_call("key").fail());
        // Whether a call has failed in the last ten seconds; more calls without an outcome make two.
        let has_failed = |errors: &Arc<KeyedErrorRate>| {
            (0..2).for_each(|_| errors.start_call("key").ignore());
            errors.is_exceeded("key")
        };
        let admit = || RATE.open().unwrap().admit("key", 1);

        fail(&rate_errors);
        let Err(first) = admit() else { panic!("the quota does not apply") };
        drop(first.resolve().await.unwrap());
        wait_in_vain(&clock, admit()).await;
        assert!(!has_failed(&rate_errors), "admit");
        fail(&rate_errors);
        wait_in_vain(&clock, RATE.open().unwrap().reserve("key", 1)).await;
        assert!(!has_failed(&rate_errors), "reserve");

        fail(&slot_errors);
        let Err(first) = SLOTS.open().unwrap().acquire("key") else { panic!("the quota does not apply") };
        let _permit = first.resolve().await.unwrap();
        wait_in_vain(&clock, SLOTS.open().unwrap().acquire("key")).await;
        assert!(!has_failed(&slot_errors), "acquire");

        // A call that has started is recorded.
        let Ok(started) = admit() else { panic!("the quota applies") };
        let call = async move {
            let _started = started;
            std::future::pending::<()>().await;
        };
        limit_time::<_, ()>(Micros::from_secs(60), &clock, call).await.unwrap_err();
        assert!(has_failed(&rate_errors));
    });
}

/// Calls from four threads during a thousand changes of settings, with a call between any two of them.
fn call_while_applying(call: impl Fn() + Sync, settings: impl Fn(usize) -> Settings) {
    let (calls, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let keep_calling = || {
        while !is_over.load(Ordering::Relaxed) {
            call();
            calls.fetch_add(1, Ordering::Relaxed);
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        let callers: Vec<_> = (0..4).map(|_| scope.spawn(keep_calling)).collect();
        let outcome = (0..1_000).try_for_each(|step| {
            let before = calls.load(Ordering::Relaxed);
            while calls.load(Ordering::Relaxed) == before
                && !callers.iter().any(ScopedJoinHandle::is_finished)
            {
                thread::yield_now();
            }
            Rules::global().apply(settings(step))
        });
        is_over.store(true, Ordering::Relaxed);
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        outcome.unwrap();
    });
}

/// A change of quota scans the whole table, so it is small here.
fn small_rule(name: &'static str, quota: &str) -> Result<RuleConfig, BuildError> {
    Ok(RuleConfig::new(name).quota(quota)?.capacity(Capacity::Keys(16)))
}

fn call_site(site: &LimitSite, is_charged: bool) -> Result<(), Limited> {
    let Some(opened) = site.open() else { return Ok(()) };
    match is_charged {
        true => opened.admit_blocking("all", 1).map(drop),
        false => opened.reserve_blocking("all", 1).map(drop),
    }
}

#[test]
fn rate_changes_under_load_never_add_up() {
    static SITE: LimitSite = LimitSite::new(|| small_rule("numbers", "50 per 52w"));
    let _guard = lock_global_rules();
    let admitted = AtomicUsize::new(0);
    let quotas = ["40 per 52w", "10 per 52w", "100 per 52w", "60 per 52w burst 100"];
    call_while_applying(
        || {
            let _ = call_site(&SITE, false);
            admitted.fetch_add(usize::from(call_site(&SITE, true).is_ok()), Ordering::Relaxed);
        },
        |step| Settings::new().quota("numbers", quotas[step % quotas.len()]).unwrap(),
    );
    assert!(admitted.load(Ordering::Relaxed) <= 100, "{admitted:?}");
}

#[test]
fn concurrency_changes_under_load_never_add_up() {
    static SITE: LimitSite = LimitSite::new(|| small_rule("slots", "3 at once"));
    let _guard = lock_global_rules();
    let (in_flight, max) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let quotas = ["1 at once", "3 at once", "2 at once"];
    call_while_applying(
        || {
            if let Ok(_permit) = SITE.open().unwrap().acquire_blocking("all") {
                max.fetch_max(in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::yield_now();
                in_flight.fetch_sub(1, Ordering::SeqCst);
            }
        },
        |step| Settings::new().quota("slots", quotas[step % quotas.len()]).unwrap(),
    );
    let max = max.load(Ordering::Relaxed);
    assert!((1..=3).contains(&max), "{max}");
}

/// All settings change: no call panics or hangs, and the final settings apply.
#[test]
fn any_change_under_load_ends_consistent() {
    static SITE: LimitSite =
        LimitSite::new(|| Ok(RuleConfig::new("anything").quota("50 per 52w")?.capacity(Capacity::Keys(16))));
    let _guard = lock_global_rules();
    let store: Arc<dyn Store> = Arc::new(FailingStore);
    let quotas = [
        "5/s",
        "10 per 52w sliding-log",
        "7/min fixed-window",
        "9/h sliding-window",
        "3/s leaky-bucket queue 2",
    ];
    let modes = [Mode::Enforce, Mode::Shadow, Mode::Off];
    let failure_modes = [FailureMode::Open, FailureMode::Closed, FailureMode::Local { nodes: 2 }];
    call_while_applying(
        || {
            let _ = (call_site(&SITE, true), call_site(&SITE, false));
            let _permit = SITE.open().map(|opened| opened.acquire_blocking("all"));
        },
        |step| {
            let rule = RuleSettings::new().quota(quotas[step % quotas.len()]).unwrap();
            let rule = rule
                .mode(modes[step % modes.len()])
                .failure_mode(failure_modes[step / 2 % failure_modes.len()]);
            let settings = Settings::new().rule("anything", rule);
            if step % 7 < 3 { settings.store(store.clone()) } else { settings }
        },
    );
    Rules::global().apply(Settings::new().quota("anything", "4 per 51w").unwrap()).unwrap();
    assert_eq!((0..10).filter(|_| call_site(&SITE, true).is_ok()).count(), 4);
}
