//! Places in the code: while their settings change, and while somebody listens to what is told of them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, ScopedJoinHandle},
};
use tidegate_engine::{
    Outage, Store, StoreError,
    store::{Pending, Reply, Request},
};
use tidegate_rule::{
    Limited, Mode, RuleSettings, Rules, Settings,
    site::{BreakerSettings, BreakerSite, BuildError, Capacity, Declaration, LimitSite, SettingError},
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

/// Attributes meet when their functions are first called: both places stay limited, and the error is logged.
#[test]
fn conflicting_attributes_are_reported_and_stay_limited() {
    static FIRST: LimitSite = LimitSite::new(|| Declaration::of("contested").quota("1/h"));
    static SECOND: LimitSite = LimitSite::new(|| Declaration::of("contested").quota("9/h"));
    static REPORTED: AtomicUsize = AtomicUsize::new(0);
    let _story = story();
    let count = || {
        REPORTED.fetch_add(1, Ordering::Relaxed);
    };
    tracing::subscriber::with_default(Listener(count), || {
        tracing::callsite::rebuild_interest_cache();
        assert!(FIRST.open().unwrap().ask("all", 1).is_ok());
        for _ in 0..3 {
            assert!(SECOND.open().unwrap().ask("all", 1).is_err());
        }
    });
    assert_eq!(REPORTED.load(Ordering::Relaxed), 1);
}

/// A store that never answers.
#[derive(Debug)]
struct Away;

impl Store for Away {
    fn perform(&self, _: Request) -> Pending<Result<Reply, StoreError>> {
        Box::pin(async { Err(StoreError::Away("not here".to_owned())) })
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
    let outages = [Outage::Open, Outage::Closed, Outage::Local { nodes: 2 }];
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
