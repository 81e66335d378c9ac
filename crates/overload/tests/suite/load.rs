//! A monitor that is sampled manually or by its thread, and the limits and features that follow it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};
use tidegate_core::{CarryOver, Micros, Percent, Ratio};
use tidegate_limiter::{BuildError, Clock, DirectLimiter, Limiter, ManualClock};
use tidegate_overload::{
    FeatureConfig, FeatureOverride, Features, LoadLevel, LoadLevels, LoadMonitor, ScalePolicy, ScaledLimit,
    Schedule,
    load::{DenialLoad, LoadObserver, LoadReading, LoadSource, Scalable},
};

/// A signal that a test sets: a percentage, or no signal.
#[derive(Clone, Default)]
struct TestSignal(Arc<AtomicU64>);

const NO_SIGNAL: u64 = u64::MAX;

impl TestSignal {
    fn new(percent: u64) -> Self {
        Self(Arc::new(AtomicU64::new(percent)))
    }

    fn set(&self, percent: u64) {
        self.0.store(percent, Ordering::SeqCst);
    }
}

impl LoadSource for TestSignal {
    fn read(&mut self, _now: Micros) -> Option<Percent> {
        match self.0.load(Ordering::SeqCst) {
            NO_SIGNAL => None,
            percent => Some(Percent::from_ratio(percent, 100)),
        }
    }
}

/// A monitor of one signal, practically without smoothing.
fn monitor_signal(signal: &TestSignal) -> (LoadMonitor, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    let builder = LoadMonitor::builder().clock(clock).half_life(Duration::from_millis(1));
    (builder.source("signal", signal.clone()).build().unwrap(), manual_clock)
}

fn advance_and_sample(monitor: &LoadMonitor, manual_clock: &ManualClock, seconds: u64) {
    manual_clock.advance(Duration::from_secs(seconds));
    monitor.sample_once();
}

fn percent(percent: u64) -> Option<Percent> {
    Some(Percent::from_ratio(percent, 100))
}

#[test]
fn observers_are_notified_again_without_a_reading() {
    #[derive(Default)]
    struct Recorder(Mutex<Vec<(Micros, Option<Percent>)>>);
    impl LoadObserver for Recorder {
        fn on_load(&self, now: Micros, load: LoadReading) {
            self.0.lock().unwrap().push((now, load.share));
        }
    }

    let signal = TestSignal::new(40);
    let (monitor, manual_clock) = monitor_signal(&signal);
    let recorder = Arc::new(Recorder::default());
    monitor.subscribe(&recorder);
    monitor.sample_once();
    signal.set(90);
    manual_clock.advance(Duration::from_secs(1));
    monitor.notify_observers();
    let notified = recorder.0.lock().unwrap().clone();
    let (first, second) = (notified[0], notified[1]);
    assert_eq!((first.1, second.1), (percent(40), percent(40)));
    assert_eq!(second.0.saturating_sub(first.0), Micros::from_secs(1));
}

#[test]
fn load_is_highest_smoothed_signal() {
    let (clock, manual_clock) = Clock::manual();
    let (one, other) = (TestSignal::new(40), TestSignal::new(10));
    let monitor = LoadMonitor::builder()
        .clock(clock)
        .half_life(Duration::from_secs(1))
        .source("one", one.clone())
        .source_with_saturation("other", Percent::from_ratio(20, 100), other.clone())
        .build()
        .unwrap();
    assert_eq!(monitor.load(), LoadReading::default());
    monitor.sample_once();
    assert_eq!(monitor.load(), LoadReading { share: percent(50), level: LoadLevel::Normal });
    assert_eq!(monitor.signals().collect::<Vec<_>>(), [("one", percent(40)), ("other", percent(50))]);
    one.set(100);
    advance_and_sample(&monitor, &manual_clock, 1);
    assert_eq!(monitor.load().share, percent(70));
    // A missing signal is left out, and resumes from its last average.
    one.set(NO_SIGNAL);
    advance_and_sample(&monitor, &manual_clock, 1);
    assert_eq!(monitor.signals().collect::<Vec<_>>(), [("one", None), ("other", percent(50))]);
    assert_eq!(monitor.load().share, percent(50));
    other.set(NO_SIGNAL);
    advance_and_sample(&monitor, &manual_clock, 1);
    assert_eq!(monitor.load().share, None);
    assert!(format!("{monitor:?}").contains("other"));
}

#[test]
fn level_falls_without_signal() {
    let signal = TestSignal::new(95);
    let (monitor, manual_clock) = monitor_signal(&signal);
    monitor.sample_once();
    assert_eq!(monitor.load().level, LoadLevel::Critical);
    signal.set(NO_SIGNAL);
    for level in [LoadLevel::Critical, LoadLevel::Busy, LoadLevel::Normal, LoadLevel::Relaxed] {
        advance_and_sample(&monitor, &manual_clock, 5);
        assert_eq!(monitor.load().level, level);
    }
}

#[test]
fn panicking_source_or_observer_stops_no_other() {
    struct PanickingObserver;
    impl LoadObserver for PanickingObserver {
        fn on_load(&self, _now: Micros, _load: LoadReading) {
            panic!("not today");
        }
    }
    let (clock, _manual_clock) = Clock::manual();
    let broken = |_now: Micros| -> Option<Percent> { panic!("broken") };
    let builder = LoadMonitor::builder().clock(clock).source("broken", broken);
    let monitor = builder.source("signal", TestSignal::new(30)).build().unwrap();
    let (observer, features) = (Arc::new(PanickingObserver), two_features());
    monitor.subscribe(&observer);
    features.follow(&monitor);
    for _ in 0..3 {
        monitor.sample_once();
        assert_eq!(monitor.signals().collect::<Vec<_>>(), [("broken", None), ("signal", percent(30))]);
    }
}

/// The monitor may have the last reference to an observer while it notifies it.
#[test]
fn observer_panicking_on_drop_stops_no_other() {
    struct PanicOnDropObserver(Mutex<Option<Arc<Self>>>);
    impl LoadObserver for PanicOnDropObserver {
        fn on_load(&self, _now: Micros, _load: LoadReading) {
            drop(self.0.lock().unwrap().take());
        }
    }
    impl Drop for PanicOnDropObserver {
        fn drop(&mut self) {
            panic!("not like this");
        }
    }
    let (monitor, _manual_clock) = monitor_signal(&TestSignal::new(90));
    let observer = Arc::new(PanicOnDropObserver(Mutex::new(None)));
    monitor.subscribe(&observer);
    let own = observer.clone();
    *own.0.lock().unwrap() = Some(observer);
    drop(own);
    let throttle = Arc::new(DirectLimiter::new("100/s").unwrap());
    let _scaled = ScaledLimit::builder(throttle.clone())
        .with_load_policy(ScalePolicy::default())
        .start(&monitor)
        .unwrap();
    monitor.sample_once();
    assert_eq!(throttle.quota().to_string(), "80/s");
}

#[test]
fn rejects_invalid_settings() {
    let builder = LoadMonitor::builder;
    let source = || TestSignal::new(0);
    assert!(builder().interval(Duration::ZERO).build().is_err());
    assert!(builder().half_life(Duration::ZERO).build().is_err());
    assert!(builder().source("a", source()).source("a", source()).build().is_err());
    assert!(builder().source_with_saturation("a", Percent::ZERO, source()).build().is_err());
    assert!(builder().interval(Duration::MAX).start().is_err());
    assert!(builder().start_on_tokio().is_err(), "there is no runtime here");
}

/// Sends an event for each reading, and one when it is dropped.
struct EventLoadSource(mpsc::Sender<&'static str>);

impl LoadSource for EventLoadSource {
    fn read(&mut self, _now: Micros) -> Option<Percent> {
        let _result = self.0.send("read");
        percent(10)
    }
}

impl Drop for EventLoadSource {
    fn drop(&mut self) {
        let _result = self.0.send("dropped");
    }
}

/// Advances the clock until the next event. The thread reads it after a sample, so one step may be too early.
fn next_event(manual_clock: &ManualClock, events: &mpsc::Receiver<&'static str>) -> Option<&'static str> {
    (0..10_000).find_map(|_| {
        manual_clock.advance(Duration::from_millis(250));
        events.recv_timeout(Duration::from_millis(5)).ok()
    })
}

#[test]
fn monitor_thread_samples_by_clock_and_stops_with_last_handle() {
    let (clock, manual_clock) = Clock::manual();
    let (sender, events) = mpsc::channel();
    let monitor =
        LoadMonitor::builder().clock(clock).source("events", EventLoadSource(sender)).start().unwrap();
    let other = monitor.clone();
    for _ in 0..4 {
        assert_eq!(next_event(&manual_clock, &events), Some("read"));
    }
    drop(monitor);
    for _ in 0..4 {
        assert_eq!(next_event(&manual_clock, &events), Some("read"), "one handle is left");
    }
    assert_eq!(other.load().share, percent(10));
    drop(other);
    assert_eq!(events.iter().find(|event| *event == "dropped"), Some("dropped"));
}

#[tokio::test]
async fn monitor_task_samples_by_clock_and_stops_with_last_handle() {
    let (clock, manual_clock) = Clock::manual();
    let (sender, events) = mpsc::channel();
    let monitor = LoadMonitor::builder()
        .clock(clock)
        .source("events", EventLoadSource(sender))
        .start_on_tokio()
        .unwrap();
    for _ in 0..3 {
        while events.try_recv() != Ok("read") {
            tokio::task::yield_now().await;
        }
        assert_eq!(monitor.load().share, percent(10));
        manual_clock.advance(Duration::from_millis(250));
    }
    drop(monitor);
    while events.try_recv() != Ok("dropped") {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn event_loop_lag_is_reported() {
    use tidegate_overload::load::EventLoopLag;
    let mut lag = EventLoopLag::watch_with_clock(Duration::from_millis(100), Clock::tokio()).unwrap();
    assert_eq!(lag.read(Micros::ZERO), None, "the task has not run yet");
    tokio::task::yield_now().await;
    assert_eq!(lag.read(Micros::ZERO), percent(0));
    // The loop is blocked for 90 ms; the task was due after 50.
    tokio::time::advance(Duration::from_millis(90)).await;
    let share = lag.read(Micros::ZERO).unwrap();
    assert!(share >= Percent::from_ratio(39, 100) && share <= Percent::from_ratio(42, 100), "{share}");
    assert!(EventLoopLag::watch(Duration::ZERO).is_err());
}

#[test]
fn event_loop_lag_ends_with_runtime() {
    use tidegate_overload::load::EventLoopLag;
    assert!(EventLoopLag::watch(Duration::from_millis(100)).is_err());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let mut lag = runtime.block_on(async {
        let lag = EventLoopLag::watch(Duration::from_millis(100)).unwrap();
        tokio::task::yield_now().await;
        lag
    });
    assert!(lag.read(Micros::ZERO).is_some());
    drop(runtime);
    assert_eq!(lag.read(Micros::ZERO), None, "the task ended with its runtime");
}

#[test]
fn throttle_scales_down_and_up_with_load() {
    let signal = TestSignal::new(90);
    let (monitor, manual_clock) = monitor_signal(&signal);
    let clock = Clock::manual().0;
    let throttle = Arc::new(DirectLimiter::builder().clock(clock).build("100/s").unwrap());
    let scaled = ScaledLimit::builder(throttle.clone())
        .with_load_policy(ScalePolicy::default())
        .start(&monitor)
        .unwrap();
    let quota = || throttle.quota().to_string();
    assert_eq!(quota(), "100/s");
    monitor.sample_once();
    assert_eq!((quota().as_str(), scaled.factor().to_string().as_str()), ("80/s", "x0.8"));
    advance_and_sample(&monitor, &manual_clock, 1);
    assert_eq!(quota(), "80/s", "one step in five seconds");
    advance_and_sample(&monitor, &manual_clock, 5);
    assert_eq!(quota(), "64/s");
    signal.set(10);
    for _ in 0..5 {
        advance_and_sample(&monitor, &manual_clock, 5);
    }
    assert_eq!(quota(), "100/s", "the limit is not used up, so it does not grow");
    throttle.check_cost(100);
    for expected in ["110/s", "121/s"] {
        advance_and_sample(&monitor, &manual_clock, 5);
        assert_eq!(quota(), expected);
    }
    assert_eq!(scaled.last_error(), None);
    drop(scaled);
    assert_eq!(quota(), "100/s");
    signal.set(90);
    advance_and_sample(&monitor, &manual_clock, 5);
    assert_eq!(quota(), "100/s", "the limit no longer follows the load");
}

#[test]
fn limiter_grows_only_while_calls_are_denied() {
    let signal = TestSignal::new(10);
    let (monitor, manual_clock) = monitor_signal(&signal);
    let limiter = Arc::new(Limiter::new("10/min").unwrap());
    let denials = DenialLoad::new();
    let scaled = ScaledLimit::builder(limiter.clone())
        .with_load_policy(ScalePolicy::default())
        .with_usage_source(denials.clone());
    let scaled = scaled.start(&monitor).unwrap();
    let amount = || limiter.quotas()[0].rate().unwrap().amount();
    for _ in 0..3 {
        denials.record(limiter.check_cost("alice", 0));
        advance_and_sample(&monitor, &manual_clock, 5);
    }
    assert_eq!(amount(), 10);
    for _ in 0..3 {
        assert!(!denials.record(limiter.check_cost("alice", 1_000)).is_allowed());
        advance_and_sample(&monitor, &manual_clock, 5);
    }
    assert_eq!((amount(), scaled.factor()), (13, Ratio::new(1_331, 1_000).unwrap()));
    for _ in 0..4 {
        advance_and_sample(&monitor, &manual_clock, 5);
    }
    assert_eq!(amount(), 10, "the limit returns when there are no denials");
}

#[test]
fn schedule_applies_at_start_and_multiplies_with_load() {
    let signal = TestSignal::new(60);
    let (monitor, manual_clock) = monitor_signal(&signal);
    let throttle = Arc::new(DirectLimiter::new("100/s").unwrap());
    let schedule: Schedule = "00:00-01:00 x2; 02:00-03:00 x0.5".parse().unwrap();
    let scaled = ScaledLimit::builder(throttle.clone())
        .with_schedule(schedule.clone())
        .with_load_policy(ScalePolicy::default());
    let scaled = scaled.start(&monitor).unwrap();
    let quota = || throttle.quota().to_string();
    assert_eq!(quota(), "200/s");
    signal.set(90);
    monitor.sample_once();
    assert_eq!(quota(), "160/s");
    signal.set(60);
    advance_and_sample(&monitor, &manual_clock, 3_600);
    assert_eq!(quota(), "80/s");
    advance_and_sample(&monitor, &manual_clock, 3_600);
    assert_eq!((quota().as_str(), scaled.factor().to_string().as_str()), ("40/s", "x0.4"));
    scaled.set_base_limit("10/s".parse().unwrap()).unwrap();
    assert_eq!(quota(), "4/s");
    drop(scaled);
    assert_eq!(quota(), "10/s");

    let only_time = ScaledLimit::builder(throttle.clone()).with_schedule(schedule).start(&monitor).unwrap();
    assert_eq!((quota().as_str(), only_time.factor().to_string().as_str()), ("5/s", "x0.5"));
}

#[tokio::test]
async fn shared_limiter_follows_schedule() {
    let (monitor, manual_clock) = monitor_signal(&TestSignal::new(90));
    let (limiter_clock, _manual_limiter_clock) = Clock::manual();
    let limiter = Arc::new(Limiter::builder().clock(limiter_clock).build("100/min").unwrap());
    let schedule: Schedule = "00:00-01:00 x2".parse().unwrap();
    let scaled = ScaledLimit::builder(limiter.clone()).with_schedule(schedule).start(&monitor).unwrap();
    assert_eq!(limiter.check("alice").remaining(), 199);
    advance_and_sample(&monitor, &manual_clock, 3_600);
    assert_eq!((limiter.quotas()[0].limit(), scaled.factor()), (100, Ratio::ONE));
    assert_eq!(limiter.check("alice").remaining(), 98, "what was used stays used");
}

#[test]
fn unscalable_limit_is_rejected() {
    let (monitor, _manual_clock) = monitor_signal(&TestSignal::new(0));
    let huge = Arc::new(DirectLimiter::new("9000000000000000 at once").unwrap());
    assert!(
        ScaledLimit::builder(huge.clone()).with_load_policy(ScalePolicy::default()).start(&monitor).is_err()
    );
    let log = Arc::new(Limiter::new("100/min sliding-log").unwrap());
    let total = Arc::new(DirectLimiter::new("5 total").unwrap());
    let scaled = ScaledLimit::builder(total).with_load_policy(ScalePolicy::default()).start(&monitor);
    assert_eq!(
        scaled.unwrap_err(),
        BuildError::unsupported_quota(&"5 total".parse().unwrap(), "a rate, as in `10/s`")
    );
    let grows = ScaledLimit::builder(log.clone()).with_load_policy(ScalePolicy::default()).start(&monitor);
    assert!(
        matches!(grows, Err(BuildError::IncompatibleQuota { .. })),
        "the log has no room for more entries"
    );
    let shrinks = ScalePolicy::default().factor_range("x0.1".parse().unwrap(), Ratio::ONE).unwrap();
    let scaled = ScaledLimit::builder(log).with_load_policy(shrinks).start(&monitor).unwrap();
    assert!(
        scaled.set_base_limit(vec!["9000/min sliding-window".parse().unwrap()]).is_err(),
        "another algorithm"
    );
}

/// A limit that fails a number of changes.
#[derive(Default)]
struct TestLimit {
    size: AtomicU64,
    failures: AtomicU64,
    attempts: AtomicU64,
}

impl Scalable for TestLimit {
    type Limit = u64;

    fn limit(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }

    fn scale(limit: &u64, factor: Ratio) -> Result<u64, BuildError> {
        Ok(factor.apply(*limit).max(1))
    }

    fn set_limit(&self, limit: &u64) -> Result<(), BuildError> {
        self.attempts.fetch_add(1, Ordering::SeqCst);
        if self.failures.load(Ordering::SeqCst) > 0 {
            self.failures.fetch_sub(1, Ordering::SeqCst);
            return Err(BuildError::ZeroCapacity);
        }
        self.size.store(*limit, Ordering::SeqCst);
        Ok(())
    }
}

#[test]
fn rejected_resize_is_not_retried_every_sample() {
    let signal = TestSignal::new(90);
    let (monitor, manual_clock) = monitor_signal(&signal);
    let target =
        Arc::new(TestLimit { size: AtomicU64::new(50), failures: AtomicU64::new(1), ..TestLimit::default() });
    let scaled = ScaledLimit::builder(target.clone())
        .with_load_policy(ScalePolicy::default())
        .start(&monitor)
        .unwrap();
    for _ in 0..10 {
        monitor.sample_once();
    }
    assert_eq!(
        (target.limit(), target.attempts.load(Ordering::SeqCst)),
        (50, 1),
        "tried once, not ten times"
    );
    assert_eq!((scaled.last_error(), scaled.factor()), (Some(BuildError::ZeroCapacity), Ratio::ONE));
    advance_and_sample(&monitor, &manual_clock, 5);
    assert_eq!((target.limit(), scaled.last_error()), (32, None));
}

fn two_features() -> Features {
    let features = [
        FeatureConfig::disabled_at("search", LoadLevel::Critical),
        FeatureConfig::disabled_at("ads", LoadLevel::Busy),
    ];
    Features::new(features, Duration::from_secs(10)).unwrap()
}

#[test]
fn features_disable_by_load_and_recover_in_order() {
    let signal = TestSignal::new(95);
    let (clock, manual_clock) = Clock::manual();
    let levels = LoadLevels::default().dwell(Micros::from_secs(1));
    let builder = LoadMonitor::builder().clock(clock).half_life(Duration::from_millis(1)).levels(levels);
    let monitor = builder.source("signal", signal.clone()).build().unwrap();
    let features = two_features();
    features.follow(&monitor);
    let (search, ads) = (features.feature("search").unwrap(), features.feature("ads").unwrap());
    let on = || (search.is_on(), ads.is_on());
    assert_eq!(on(), (true, true));
    monitor.sample_once();
    assert_eq!(on(), (false, false));
    signal.set(0);
    let mut changes = Vec::new();
    for second in 1..30 {
        advance_and_sample(&monitor, &manual_clock, 1);
        if changes.last().is_none_or(|(_, last)| *last != on()) {
            changes.push((second, on()));
        }
    }
    assert_eq!(changes, [(1, (false, false)), (10, (true, false)), (20, (true, true))]);

    features.turn_off("search").unwrap();
    assert_eq!(on(), (false, true));
    let list = features.list();
    let list: Vec<_> = list
        .iter()
        .map(|status| (status.feature.name(), status.feature.is_on(), status.manual_override))
        .collect();
    assert_eq!(list, [("search", false, FeatureOverride::Off), ("ads", true, FeatureOverride::Automatic)]);
    features.observe(Micros::from_secs(100), LoadLevel::Critical);
    features.turn_on("ads").unwrap();
    assert_eq!(on(), (false, true), "the override wins");
    features.clear_override("ads").unwrap();
    assert_eq!(on(), (false, false));
    assert_eq!(features.feature("serch").unwrap_err().fix(), "did you mean `search`?");
    assert!(
        features.turn_on("serch").is_err()
            && features.turn_off("").is_err()
            && features.clear_override("x").is_err()
    );
}

/// Readers, overrides and levels in parallel: the flags show the final state of the set.
#[test]
fn features_are_shared_between_threads() {
    let features = two_features();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let features = features.clone();
            scope.spawn(move || {
                let ads = features.feature("ads").unwrap();
                for round in 0..2_000_u64 {
                    match (thread + round) % 4 {
                        0 => features.turn_off("ads").unwrap(),
                        1 => features.turn_on("ads").unwrap(),
                        2 => features.observe(Micros::from_secs(round), LoadLevel::Busy),
                        _ => assert!(!ads.name().is_empty() || ads.is_on()),
                    }
                }
            });
        }
    });
    features.turn_off("ads").unwrap();
    assert!(!features.feature("ads").unwrap().is_on() && features.feature("search").unwrap().is_on());
}

/// A sample in progress on the monitor's thread must not change the limit after the drop.
#[test]
fn drop_restores_limit_during_sample() {
    let (monitor, _manual_clock) = monitor_signal(&TestSignal::new(90));
    let throttle = Arc::new(DirectLimiter::new("100/s").unwrap());
    let (reads, reading) = mpsc::channel();
    let (resume, may_resume) = mpsc::channel();
    let used = move |_now| {
        reads.send(()).unwrap();
        may_resume.recv().unwrap()
    };
    let builder = ScaledLimit::builder(throttle.clone())
        .with_load_policy(ScalePolicy::default())
        .with_usage_source(used);
    let scaled = builder.start(&monitor).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| monitor.sample_once());
        reading.recv().unwrap();
        assert_eq!(scaled.factor(), Ratio::ONE, "the factor can be read meanwhile");
        drop(scaled);
        throttle.change("50/s", CarryOver::Keep).unwrap();
        resume.send(percent(0)).unwrap();
    });
    assert_eq!(throttle.quota().to_string(), "50/s");
}

/// Dropped observers are removed, however many there were.
#[test]
fn dropped_observers_are_removed() {
    let (monitor, _manual_clock) = monitor_signal(&TestSignal::new(10));
    let throttle = Arc::new(DirectLimiter::new("100/s").unwrap());
    for _ in 0..100 {
        let scaled = ScaledLimit::builder(throttle.clone())
            .with_load_policy(ScalePolicy::default())
            .start(&monitor)
            .unwrap();
        monitor.sample_once();
        drop(scaled);
    }
    assert_eq!(Arc::strong_count(&throttle), 1);
}
