//! A monitor that is read by hand or by itself, and the limits and features that follow it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

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
    Lever, LoadLevel, LoadLevels, LoadMonitor, Scale, Scaled, Schedule, Switch, Switchboard,
    load::{Denials, Follower, Load, Probe, Scalable},
};

/// A signal that a test sets: percent, or none.
#[derive(Clone, Default)]
struct Dial(Arc<AtomicU64>);

const NO_SIGNAL: u64 = u64::MAX;

impl Dial {
    fn at(percent: u64) -> Self {
        Self(Arc::new(AtomicU64::new(percent)))
    }

    fn set(&self, percent: u64) {
        self.0.store(percent, Ordering::SeqCst);
    }
}

impl Probe for Dial {
    fn read(&mut self, _now: Micros) -> Option<Percent> {
        match self.0.load(Ordering::SeqCst) {
            NO_SIGNAL => None,
            percent => Some(Percent::from_ratio(percent, 100)),
        }
    }
}

/// A monitor of one dial, without smoothing to speak of.
fn watch(dial: &Dial) -> (LoadMonitor, ManualClock) {
    let (clock, hand) = Clock::manual();
    let builder = LoadMonitor::builder().clock(clock).half_life(Duration::from_millis(1));
    (builder.probe("dial", dial.clone()).build().unwrap(), hand)
}

fn step(monitor: &LoadMonitor, hand: &ManualClock, seconds: u64) {
    hand.advance(Duration::from_secs(seconds));
    monitor.sample_once();
}

fn percent(percent: u64) -> Option<Percent> {
    Some(Percent::from_ratio(percent, 100))
}

#[test]
fn the_fullest_signal_is_the_load_and_each_is_smoothed() {
    let (clock, hand) = Clock::manual();
    let (one, other) = (Dial::at(40), Dial::at(10));
    let monitor = LoadMonitor::builder()
        .clock(clock)
        .half_life(Duration::from_secs(1))
        .probe("one", one.clone())
        .probe_full_at("other", Percent::from_ratio(20, 100), other.clone())
        .build()
        .unwrap();
    assert_eq!(monitor.load(), Load::default());
    monitor.sample_once();
    assert_eq!(monitor.load(), Load { share: percent(50), level: LoadLevel::Normal });
    assert_eq!(monitor.signals().collect::<Vec<_>>(), [("one", percent(40)), ("other", percent(50))]);
    one.set(100);
    step(&monitor, &hand, 1);
    assert_eq!(monitor.load().share, percent(70));
    // What falls away is left out, and comes back with what it remembers.
    one.set(NO_SIGNAL);
    step(&monitor, &hand, 1);
    assert_eq!(monitor.signals().collect::<Vec<_>>(), [("one", None), ("other", percent(50))]);
    assert_eq!(monitor.load().share, percent(50));
    other.set(NO_SIGNAL);
    step(&monitor, &hand, 1);
    assert_eq!(monitor.load().share, None);
    assert!(format!("{monitor:?}").contains("other"));
}

#[test]
fn a_high_level_does_not_stay_for_ever_without_a_signal() {
    let dial = Dial::at(95);
    let (monitor, hand) = watch(&dial);
    monitor.sample_once();
    assert_eq!(monitor.load().level, LoadLevel::Critical);
    dial.set(NO_SIGNAL);
    for level in [LoadLevel::Critical, LoadLevel::Busy, LoadLevel::Normal, LoadLevel::Relaxed] {
        step(&monitor, &hand, 5);
        assert_eq!(monitor.load().level, level);
    }
}

#[test]
fn a_probe_or_a_follower_that_panics_stops_nobody_else() {
    struct Grumpy;
    impl Follower for Grumpy {
        fn follow(&self, _now: Micros, _load: Load) {
            panic!("not today");
        }
    }
    let (clock, _hand) = Clock::manual();
    let broken = |_now: Micros| -> Option<Percent> { panic!("broken") };
    let builder = LoadMonitor::builder().clock(clock).probe("broken", broken);
    let monitor = builder.probe("dial", Dial::at(30)).build().unwrap();
    let (grumpy, board) = (Arc::new(Grumpy), board());
    monitor.tell(&grumpy);
    board.follow(&monitor);
    for _ in 0..3 {
        monitor.sample_once();
        assert_eq!(monitor.signals().collect::<Vec<_>>(), [("broken", None), ("dial", percent(30))]);
    }
}

/// The last to hold a follower may be the monitor, while it tells it something.
#[test]
fn a_follower_that_panics_at_its_end_stops_nobody_else() {
    struct Leaver(Mutex<Option<Arc<Self>>>);
    impl Follower for Leaver {
        fn follow(&self, _now: Micros, _load: Load) {
            drop(self.0.lock().unwrap().take());
        }
    }
    impl Drop for Leaver {
        fn drop(&mut self) {
            panic!("not like this");
        }
    }
    let (monitor, _hand) = watch(&Dial::at(90));
    let leaver = Arc::new(Leaver(Mutex::new(None)));
    monitor.tell(&leaver);
    let own = leaver.clone();
    *own.0.lock().unwrap() = Some(leaver);
    drop(own);
    let throttle = Arc::new(DirectLimiter::new("100/s").unwrap());
    let _scaled = Scaled::builder(throttle.clone()).by_load(Scale::default()).follow(&monitor).unwrap();
    monitor.sample_once();
    assert_eq!(throttle.quota().to_string(), "80/s");
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let builder = LoadMonitor::builder;
    let probe = || Dial::at(0);
    assert!(builder().interval(Duration::ZERO).build().is_err());
    assert!(builder().half_life(Duration::ZERO).build().is_err());
    assert!(builder().probe("a", probe()).probe("a", probe()).build().is_err());
    assert!(builder().probe_full_at("a", Percent::ZERO, probe()).build().is_err());
    assert!(builder().interval(Duration::MAX).start().is_err());
    assert!(builder().start_on_tokio().is_err(), "there is no runtime here");
}

/// Tells of every reading, and of its own end.
struct Witness(mpsc::Sender<&'static str>);

impl Probe for Witness {
    fn read(&mut self, _now: Micros) -> Option<Percent> {
        let _nobody_listens = self.0.send("read");
        percent(10)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let _nobody_listens = self.0.send("dropped");
    }
}

/// Moves the clock until the next event. The thread looks at it after a reading, so one move may come too early.
fn next_event(hand: &ManualClock, events: &mpsc::Receiver<&'static str>) -> Option<&'static str> {
    (0..10_000).find_map(|_| {
        hand.advance(Duration::from_millis(250));
        events.recv_timeout(Duration::from_millis(5)).ok()
    })
}

#[test]
fn the_thread_reads_by_the_clock_and_ends_with_the_last_handle() {
    let (clock, hand) = Clock::manual();
    let (sender, events) = mpsc::channel();
    let monitor = LoadMonitor::builder().clock(clock).probe("witness", Witness(sender)).start().unwrap();
    let other = monitor.clone();
    for _ in 0..4 {
        assert_eq!(next_event(&hand, &events), Some("read"));
    }
    drop(monitor);
    for _ in 0..4 {
        assert_eq!(next_event(&hand, &events), Some("read"), "one handle is left");
    }
    assert_eq!(other.load().share, percent(10));
    drop(other);
    assert_eq!(events.iter().find(|event| *event == "dropped"), Some("dropped"));
}

#[tokio::test]
async fn the_task_reads_by_the_clock_and_ends_with_the_last_handle() {
    let (clock, hand) = Clock::manual();
    let (sender, events) = mpsc::channel();
    let monitor =
        LoadMonitor::builder().clock(clock).probe("witness", Witness(sender)).start_on_tokio().unwrap();
    for _ in 0..3 {
        while events.try_recv() != Ok("read") {
            tokio::task::yield_now().await;
        }
        assert_eq!(monitor.load().share, percent(10));
        hand.advance(Duration::from_millis(250));
    }
    drop(monitor);
    while events.try_recv() != Ok("dropped") {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lag_of_the_event_loop_is_a_signal() {
    use tidegate_overload::load::EventLoopLag;
    let mut lag = EventLoopLag::watch_by(Duration::from_millis(100), Clock::tokio()).unwrap();
    assert_eq!(lag.read(Micros::ZERO), None, "the task has not run yet");
    tokio::task::yield_now().await;
    assert_eq!(lag.read(Micros::ZERO), percent(0));
    // The loop is held for 90 ms; the task was due after 50.
    tokio::time::advance(Duration::from_millis(90)).await;
    let share = lag.read(Micros::ZERO).unwrap();
    assert!(share >= Percent::from_ratio(39, 100) && share <= Percent::from_ratio(42, 100), "{share}");
    assert!(EventLoopLag::watch(Duration::ZERO).is_err());
}

#[test]
fn a_lag_without_a_runtime_is_no_lag() {
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
fn a_throttle_follows_the_load_in_both_directions() {
    let dial = Dial::at(90);
    let (monitor, hand) = watch(&dial);
    let clock = Clock::manual().0;
    let throttle = Arc::new(DirectLimiter::builder().clock(clock).build("100/s").unwrap());
    let scaled = Scaled::builder(throttle.clone()).by_load(Scale::default()).follow(&monitor).unwrap();
    let quota = || throttle.quota().to_string();
    assert_eq!(quota(), "100/s");
    monitor.sample_once();
    assert_eq!((quota().as_str(), scaled.factor().to_string().as_str()), ("80/s", "x0.8"));
    step(&monitor, &hand, 1);
    assert_eq!(quota(), "80/s", "one step in five seconds");
    step(&monitor, &hand, 5);
    assert_eq!(quota(), "64/s");
    dial.set(10);
    for _ in 0..5 {
        step(&monitor, &hand, 5);
    }
    assert_eq!(quota(), "100/s", "nobody uses it up, so it does not grow");
    throttle.check_cost(100);
    for expected in ["110/s", "121/s"] {
        step(&monitor, &hand, 5);
        assert_eq!(quota(), expected);
    }
    assert_eq!(scaled.failure(), None);
    drop(scaled);
    assert_eq!(quota(), "100/s");
    dial.set(90);
    step(&monitor, &hand, 5);
    assert_eq!(quota(), "100/s", "nobody follows any more");
}

#[test]
fn a_limiter_grows_only_while_somebody_is_denied() {
    let dial = Dial::at(10);
    let (monitor, hand) = watch(&dial);
    let limiter = Arc::new(Limiter::new("10/min").unwrap());
    let denials = Denials::new();
    let scaled = Scaled::builder(limiter.clone()).by_load(Scale::default()).used_by(denials.clone());
    let scaled = scaled.follow(&monitor).unwrap();
    let amount = || limiter.quotas()[0].rate().unwrap().amount();
    for _ in 0..3 {
        denials.note(limiter.check_cost("alice", 0));
        step(&monitor, &hand, 5);
    }
    assert_eq!(amount(), 10);
    for _ in 0..3 {
        assert!(!denials.note(limiter.check_cost("alice", 1_000)).is_allowed());
        step(&monitor, &hand, 5);
    }
    assert_eq!((amount(), scaled.factor()), (13, Ratio::new(1_331, 1_000).unwrap()));
    for _ in 0..4 {
        step(&monitor, &hand, 5);
    }
    assert_eq!(amount(), 10, "and comes back when nobody is");
}

#[test]
fn a_schedule_holds_from_the_start_and_multiplies_with_the_load() {
    let dial = Dial::at(60);
    let (monitor, hand) = watch(&dial);
    let throttle = Arc::new(DirectLimiter::new("100/s").unwrap());
    let schedule: Schedule = "00:00-01:00 x2; 02:00-03:00 x0.5".parse().unwrap();
    let scaled = Scaled::builder(throttle.clone()).by_schedule(schedule.clone()).by_load(Scale::default());
    let scaled = scaled.follow(&monitor).unwrap();
    let quota = || throttle.quota().to_string();
    assert_eq!(quota(), "200/s");
    dial.set(90);
    monitor.sample_once();
    assert_eq!(quota(), "160/s");
    dial.set(60);
    step(&monitor, &hand, 3_600);
    assert_eq!(quota(), "80/s");
    step(&monitor, &hand, 3_600);
    assert_eq!((quota().as_str(), scaled.factor().to_string().as_str()), ("40/s", "x0.4"));
    scaled.declare("10/s".parse().unwrap()).unwrap();
    assert_eq!(quota(), "4/s");
    drop(scaled);
    assert_eq!(quota(), "10/s");

    let only_time = Scaled::builder(throttle.clone()).by_schedule(schedule).follow(&monitor).unwrap();
    assert_eq!((quota().as_str(), only_time.factor().to_string().as_str()), ("5/s", "x0.5"));
}

#[tokio::test]
async fn a_shared_limiter_follows_the_time_of_day() {
    let (monitor, hand) = watch(&Dial::at(90));
    let limiter = Arc::new(Limiter::builder().build("100/min").unwrap());
    let schedule: Schedule = "00:00-01:00 x2".parse().unwrap();
    let scaled = Scaled::builder(limiter.clone()).by_schedule(schedule).follow(&monitor).unwrap();
    assert_eq!(limiter.check("alice").remaining(), 199);
    step(&monitor, &hand, 3_600);
    assert_eq!((limiter.quotas()[0].limit(), scaled.factor()), (100, Ratio::ONE));
    assert_eq!(limiter.check("alice").remaining(), 98, "what was used stays used");
}

#[test]
fn a_limit_that_could_not_follow_is_refused_at_once() {
    let (monitor, _hand) = watch(&Dial::at(0));
    let huge = Arc::new(DirectLimiter::new("9000000000000000 at once").unwrap());
    assert!(Scaled::builder(huge.clone()).by_load(Scale::default()).follow(&monitor).is_err());
    let log = Arc::new(Limiter::new("100/min sliding-log").unwrap());
    let grows = Scaled::builder(log.clone()).by_load(Scale::default()).follow(&monitor);
    assert!(matches!(grows, Err(BuildError::IncompatibleQuota { .. })), "a log has room for no more");
    let shrinks = Scale::default().between("x0.1".parse().unwrap(), Ratio::ONE).unwrap();
    let scaled = Scaled::builder(log).by_load(shrinks).follow(&monitor).unwrap();
    assert!(scaled.declare(vec!["9000/min sliding-window".parse().unwrap()]).is_err(), "of another kind");
}

/// Anything with a number that can be set: here one that refuses, once, to be smaller than it is.
#[derive(Default)]
struct Gate {
    size: AtomicU64,
    refusals: AtomicU64,
    attempts: AtomicU64,
}

impl Scalable for Gate {
    type Limit = u64;

    fn limit(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }

    fn scale(limit: &u64, factor: Ratio) -> Result<u64, BuildError> {
        Ok(factor.apply(*limit).max(1))
    }

    fn set_limit(&self, limit: &u64) -> Result<(), BuildError> {
        self.attempts.fetch_add(1, Ordering::SeqCst);
        if self.refusals.load(Ordering::SeqCst) > 0 {
            self.refusals.fetch_sub(1, Ordering::SeqCst);
            return Err(BuildError::ZeroCapacity);
        }
        self.size.store(*limit, Ordering::SeqCst);
        Ok(())
    }
}

#[test]
fn anything_that_can_be_resized_can_follow_and_a_refusal_is_no_loop() {
    let dial = Dial::at(90);
    let (monitor, hand) = watch(&dial);
    let gate = Arc::new(Gate { size: AtomicU64::new(50), refusals: AtomicU64::new(1), ..Gate::default() });
    let scaled = Scaled::builder(gate.clone()).by_load(Scale::default()).follow(&monitor).unwrap();
    for _ in 0..10 {
        monitor.sample_once();
    }
    assert_eq!((gate.limit(), gate.attempts.load(Ordering::SeqCst)), (50, 1), "tried once, not ten times");
    assert_eq!((scaled.failure(), scaled.factor()), (Some(BuildError::ZeroCapacity), Ratio::ONE));
    step(&monitor, &hand, 5);
    assert_eq!((gate.limit(), scaled.failure()), (32, None));
}

fn board() -> Switchboard {
    let features = [Switch::off_at("search", LoadLevel::Critical), Switch::off_at("ads", LoadLevel::Busy)];
    Switchboard::new(features, Duration::from_secs(10)).unwrap()
}

#[test]
fn features_go_off_by_load_and_come_back_in_order() {
    let dial = Dial::at(95);
    let (clock, hand) = Clock::manual();
    let levels = LoadLevels::default().dwell(Micros::from_secs(1));
    let builder = LoadMonitor::builder().clock(clock).half_life(Duration::from_millis(1)).levels(levels);
    let monitor = builder.probe("dial", dial.clone()).build().unwrap();
    let board = board();
    board.follow(&monitor);
    let (search, ads) = (board.feature("search").unwrap(), board.feature("ads").unwrap());
    let on = || (search.is_on(), ads.is_on());
    assert_eq!(on(), (true, true));
    monitor.sample_once();
    assert_eq!(on(), (false, false));
    dial.set(0);
    let mut story = Vec::new();
    for second in 1..30 {
        step(&monitor, &hand, 1);
        if story.last().is_none_or(|(_, last)| *last != on()) {
            story.push((second, on()));
        }
    }
    assert_eq!(story, [(1, (false, false)), (10, (true, false)), (20, (true, true))]);

    board.turn_off("search").unwrap();
    assert_eq!(on(), (false, true));
    let list = board.list();
    let list: Vec<_> =
        list.iter().map(|(feature, lever)| (feature.name(), feature.is_on(), *lever)).collect();
    assert_eq!(list, [("search", false, Lever::Off), ("ads", true, Lever::Automatic)]);
    board.observe(Micros::from_secs(100), LoadLevel::Critical);
    board.turn_on("ads").unwrap();
    assert_eq!(on(), (false, true), "what the hand says wins");
    board.automatic("ads").unwrap();
    assert_eq!(on(), (false, false));
    assert_eq!(board.feature("serch").unwrap_err().fix(), "did you mean `search`?");
    assert!(board.turn_on("serch").is_err() && board.turn_off("").is_err() && board.automatic("x").is_err());
}

/// Readers, hands and levels at once: what is shown is what the board has in the end.
#[test]
fn a_board_is_the_same_for_all_threads() {
    let board = board();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let board = board.clone();
            scope.spawn(move || {
                let ads = board.feature("ads").unwrap();
                for round in 0..2_000_u64 {
                    match (thread + round) % 4 {
                        0 => board.turn_off("ads").unwrap(),
                        1 => board.turn_on("ads").unwrap(),
                        2 => board.observe(Micros::from_secs(round), LoadLevel::Busy),
                        _ => assert!(!ads.name().is_empty() || ads.is_on()),
                    }
                }
            });
        }
    });
    board.turn_off("ads").unwrap();
    assert!(!board.feature("ads").unwrap().is_on() && board.feature("search").unwrap().is_on());
}

/// The monitor's thread may be in the middle of a reading: what it had in mind must not come after the drop.
#[test]
fn a_drop_is_the_last_word_though_a_reading_is_under_way() {
    let (monitor, _hand) = watch(&Dial::at(90));
    let throttle = Arc::new(DirectLimiter::new("100/s").unwrap());
    let (reads, reading) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let used = move |_now| {
        reads.send(()).unwrap();
        may_go_on.recv().unwrap()
    };
    go_on.send(percent(0)).unwrap();
    let builder = Scaled::builder(throttle.clone()).by_load(Scale::default()).used_by(used);
    let scaled = builder.follow(&monitor).unwrap();
    reading.recv().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| monitor.sample_once());
        reading.recv().unwrap();
        assert_eq!(scaled.factor(), Ratio::ONE, "answers meanwhile");
        drop(scaled);
        throttle.change("50/s", CarryOver::Keep).unwrap();
        go_on.send(percent(0)).unwrap();
    });
    assert_eq!(throttle.quota().to_string(), "50/s");
}

/// Followers that are gone take no room, however many there were.
#[test]
fn followers_that_are_gone_are_forgotten() {
    let (monitor, _hand) = watch(&Dial::at(10));
    let throttle = Arc::new(DirectLimiter::new("100/s").unwrap());
    for _ in 0..100 {
        let scaled = Scaled::builder(throttle.clone()).by_load(Scale::default()).follow(&monitor).unwrap();
        monitor.sample_once();
        drop(scaled);
    }
    assert_eq!(Arc::strong_count(&throttle), 1);
}
