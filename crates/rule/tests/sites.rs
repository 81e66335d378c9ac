//! Places in the code: while their settings change, and while somebody listens to what is told of them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, ScopedJoinHandle},
};
use tidegate_limiter::{
    FailureMode, Store, StoreError,
    store::{StoreFuture, StoreReply, StoreRequest},
};
use tidegate_overload::Cause;
use tidegate_rule::{
    Limited, Mode, RuleSettings, Rules, Settings,
    site::{
        BreakerSettings, BreakerSite, BuildError, Capacity, Declaration, LimitSite, SettingError, Stopped,
        declaration_of,
    },
};
use tracing::{Event, Metadata, Subscriber, span};

/// All places share the settings of the program: one story after the other.
fn story() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let story = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    Rules::global().apply(Settings::new()).unwrap();
    story
}

/// Whoever listens may pass the very place that is told of: where lines are sent is often limited.
struct Listener(fn());

impl Subscriber for Listener {
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
fn listeners_may_pass_the_place_they_are_told_of() {
    fn numberless() {
        static SITE: LimitSite = LimitSite::new(|| Ok(Declaration::of("numberless")));
        assert!(SITE.open().is_none());
    }
    fn broken() {
        static SITE: LimitSite = LimitSite::new(|| Err(BuildError::NoQuota));
        assert!(SITE.open().is_none());
    }
    fn broken_breaker() {
        fn declare() -> Result<(Declaration, BreakerSettings), SettingError> {
            BreakerSettings::builder().probes(0).build().map(|settings| (Declaration::of("broken"), settings))
        }
        static SITE: BreakerSite = BreakerSite::new(declare);
        assert!(SITE.try_pass().unwrap().is_none());
    }
    let _story = story();
    for pass in [numberless, broken, broken_breaker] {
        tracing::subscriber::with_default(Listener(pass), || {
            tracing::callsite::rebuild_interest_cache();
            pass();
        });
    }
}

/// Where code has no numbers, settings may give a number at once to those who hold nothing, and a rate to those who give
/// back what they took.
#[test]
fn what_nobody_could_have_meant_is_told_of() {
    static HELD: LimitSite = LimitSite::new(|| Ok(Declaration::of("held")));
    static ASKED: LimitSite = LimitSite::new(|| Ok(Declaration::of("asked")));
    static TAKEN: LimitSite = LimitSite::new(|| Ok(Declaration::of("taken")));
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    let _story = story();
    let settings = Settings::new().quota("asked", "1 at once").unwrap().quota("taken", "1 at once").unwrap();
    Rules::global().apply(settings.quota("held", "1/h").unwrap()).unwrap();
    let count = || {
        TOLD.fetch_add(1, Ordering::Relaxed);
    };
    tracing::subscriber::with_default(Listener(count), || {
        tracing::callsite::rebuild_interest_cache();
        for _ in 0..3 {
            assert!(ASKED.open().unwrap().ask("all", 1).is_ok());
            assert!(TAKEN.open().unwrap().take("all", 1).is_ok());
            assert!(HELD.open().unwrap().hold("all").is_ok());
        }
    });
    assert_eq!(TOLD.load(Ordering::Relaxed), 3);
}

/// Every call of the second place is refused, by every verb, and the error is logged once. The first place goes on.
#[test]
fn conflicting_quotas_of_one_rule_are_refused() {
    static FIRST: LimitSite = LimitSite::new(|| Declaration::of("contested").quota("2/h"));
    static SECOND: LimitSite = LimitSite::new(|| Declaration::of("contested").quota("9/h"));
    static SHADOW: LimitSite =
        LimitSite::new(|| Ok(Declaration::of("contested").quota("9/h")?.mode(Mode::Shadow)));
    static REPORTED: AtomicUsize = AtomicUsize::new(0);
    let _story = story();
    let count = || {
        REPORTED.fetch_add(1, Ordering::Relaxed);
    };
    fn refused<T>(stopped: Stopped<T>) -> Limited {
        match stopped {
            Stopped::Refused(limited) => limited,
            Stopped::Waiting(_) => panic!("there is nothing to wait for"),
        }
    }
    tracing::subscriber::with_default(Listener(count), || {
        tracing::callsite::rebuild_interest_cache();
        assert!(FIRST.open().unwrap().ask("all", 1).is_ok());
        let opened = SECOND.open().unwrap();
        let refusals = [
            opened.ask("all", 1).map_err(refused).unwrap_err(),
            opened.ask_blocking("all", 1).unwrap_err(),
            opened.take("all", 1).map_err(refused).unwrap_err(),
            opened.take_blocking("all", 1).unwrap_err(),
            opened.hold("all").map_err(refused).map(drop).unwrap_err(),
            opened.hold_blocking("all").map(drop).unwrap_err(),
        ];
        for limited in refusals {
            assert!(matches!(limited.cause(), Cause::Misconfigured(_)), "{limited}");
            let text = limited.to_string();
            let named = ["`contested`", "`2/h", "`9/h", "sites.rs", "give one of them another name"];
            assert!(named.iter().all(|part| text.contains(part)), "{text}");
            assert!(!limited.told().contains("sites.rs"), "clients do not read paths: {}", limited.told());
        }
        assert_eq!(REPORTED.load(Ordering::Relaxed), 1);
        assert!(SHADOW.open().is_none(), "an attribute in shadow mode refuses nothing");
    });
    assert_eq!(REPORTED.load(Ordering::Relaxed), 2);
    assert!(FIRST.open().unwrap().ask("all", 1).is_ok(), "the second place took nothing");
    for mode in [Mode::Shadow, Mode::Off] {
        let settings = Settings::new().rule("contested", RuleSettings::new().mode(mode));
        Rules::global().apply(settings).unwrap();
        assert!(SECOND.open().is_none(), "{mode:?}");
    }
    Rules::global().apply(Settings::new()).unwrap();
    assert!(SECOND.open().unwrap().ask_blocking("all", 1).is_err());
}

#[test]
fn conflicting_breakers_of_one_name_are_refused() {
    fn breaker(probes: u32) -> Result<(Declaration, BreakerSettings), SettingError> {
        let settings = BreakerSettings::builder().probes(probes).build()?;
        Ok((Declaration::of("contested breaker"), settings))
    }
    static FIRST: BreakerSite = BreakerSite::new(|| breaker(1));
    static SAME: BreakerSite = BreakerSite::new(|| breaker(1));
    static SECOND: BreakerSite = BreakerSite::new(|| breaker(2));
    let _story = story();
    assert!(FIRST.try_pass().unwrap().is_some());
    assert!(SAME.try_pass().unwrap().is_some());
    let limited = SECOND.try_pass().map(|_| ()).unwrap_err();
    assert!(matches!(limited.cause(), Cause::Misconfigured(_)), "{limited}");
    assert!(limited.to_string().contains("`contested breaker`"), "{limited}");
    let settings = Settings::new().rule("contested breaker", RuleSettings::new().mode(Mode::Shadow));
    Rules::global().apply(settings).unwrap();
    assert!(SECOND.try_pass().unwrap().is_none());
}

/// A place without numbers takes those of another, whichever is called first.
#[test]
fn reference_to_a_rule_of_a_function_is_no_conflict_in_either_order() {
    fn declare<T>(within: T) -> Result<Declaration, BuildError> {
        declaration_of(within, "").quota("1/h")
    }
    mod early {
        pub(super) fn within() {}
    }
    mod late {
        pub(super) fn within() {}
    }
    static EARLY: LimitSite = LimitSite::new(|| declare(early::within));
    static LATE: LimitSite = LimitSite::new(|| declare(late::within));
    static OF_EARLY: LimitSite = LimitSite::new(|| Ok(Declaration::of(EARLY_NAME)));
    static OF_LATE: LimitSite = LimitSite::new(|| Ok(Declaration::of(LATE_NAME)));
    const EARLY_NAME: &str = "reference_to_a_rule_of_a_function_is_no_conflict_in_either_order::early";
    const LATE_NAME: &str = "reference_to_a_rule_of_a_function_is_no_conflict_in_either_order::late";
    let _story = story();
    for sites in [[&OF_EARLY, &EARLY], [&LATE, &OF_LATE]] {
        for site in sites {
            site.open();
        }
        let admitted = sites.map(|site| site.open().unwrap().ask_blocking("all", 1).is_ok());
        assert_eq!(admitted, [true, false], "one counter for both");
    }
}

/// A store that never answers.
#[derive(Debug)]
struct Away;

impl Store for Away {
    fn execute(&self, _: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        Box::pin(async { Err(StoreError::Unavailable("not here".to_owned())) })
    }
}

/// Calls from four threads while settings change, a thousand times, with a call between any two.
fn hammer(call: impl Fn() + Sync, settings: impl Fn(usize) -> Settings) {
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

/// To change a quota is to look at all places of a table: here there are few.
fn small(name: &'static str, quota: &str) -> Result<Declaration, BuildError> {
    Ok(Declaration::of(name).quota(quota)?.capacity(Capacity::Keys(16)))
}

fn ask(site: &LimitSite, is_kept: bool) -> Result<(), Limited> {
    let Some(opened) = site.open() else { return Ok(()) };
    match is_kept {
        true => opened.ask_blocking("all", 1),
        false => opened.take_blocking("all", 1).map(drop),
    }
}

#[test]
fn other_numbers_under_fire_never_add_up() {
    static SITE: LimitSite = LimitSite::new(|| small("numbers", "50 per 52w"));
    let _story = story();
    let admitted = AtomicUsize::new(0);
    let quotas = ["40 per 52w", "10 per 52w", "100 per 52w", "60 per 52w burst 100"];
    hammer(
        || {
            let _ = ask(&SITE, false);
            admitted.fetch_add(usize::from(ask(&SITE, true).is_ok()), Ordering::Relaxed);
        },
        |step| Settings::new().quota("numbers", quotas[step % quotas.len()]).unwrap(),
    );
    assert!(admitted.load(Ordering::Relaxed) <= 100, "{admitted:?}");
}

#[test]
fn other_numbers_at_once_under_fire_never_add_up() {
    static SITE: LimitSite = LimitSite::new(|| small("slots", "3 at once"));
    let _story = story();
    let (in_flight, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let quotas = ["1 at once", "3 at once", "2 at once"];
    hammer(
        || {
            if let Ok(_held) = SITE.open().unwrap().hold_blocking("all") {
                most.fetch_max(in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::yield_now();
                in_flight.fetch_sub(1, Ordering::SeqCst);
            }
        },
        |step| Settings::new().quota("slots", quotas[step % quotas.len()]).unwrap(),
    );
    let most = most.load(Ordering::Relaxed);
    assert!((1..=3).contains(&most), "{most}");
}

/// Everything that can change changes: nobody panics or hangs, and in the end it is as it was declared.
#[test]
fn a_place_that_is_all_the_time_something_else() {
    static SITE: LimitSite =
        LimitSite::new(|| Ok(Declaration::of("anything").quota("50 per 52w")?.capacity(Capacity::Keys(16))));
    let _story = story();
    let store: Arc<dyn Store> = Arc::new(Away);
    let quotas = [
        "5/s",
        "10 per 52w sliding-log",
        "7/min fixed-window",
        "9/h sliding-window",
        "3/s leaky-bucket queue 2",
    ];
    let modes = [Mode::Enforce, Mode::Shadow, Mode::Off];
    let outages = [FailureMode::Open, FailureMode::Closed, FailureMode::Local { nodes: 2 }];
    hammer(
        || {
            let _ = (ask(&SITE, true), ask(&SITE, false));
            let _held = SITE.open().map(|opened| opened.hold_blocking("all"));
        },
        |step| {
            let rule = RuleSettings::new().quota(quotas[step % quotas.len()]).unwrap();
            let rule = rule.mode(modes[step % modes.len()]).on_outage(outages[step / 2 % outages.len()]);
            let settings = Settings::new().rule("anything", rule);
            if step % 7 < 3 { settings.store(store.clone()) } else { settings }
        },
    );
    Rules::global().apply(Settings::new().quota("anything", "4 per 51w").unwrap()).unwrap();
    assert_eq!((0..10).filter(|_| ask(&SITE, true).is_ok()).count(), 4);
}
