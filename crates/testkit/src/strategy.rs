//! Random quotas of every algorithm, and random calls at their edge cases.
//!
//! Runs are repeatable: the same seed generates the same cases. Set `PROPTEST_RNG_SEED` for other cases, and
//! `PROPTEST_CASES` for their number.

use proptest::{
    prelude::*,
    strategy::Union,
    test_runner::{Config, RngAlgorithm, TestCaseResult, TestRng, TestRunner},
};
use std::{env, fmt, ops::Range};
use tidegate_core::{
    AlgorithmKind, CalendarPeriod, Decision, Demand, Micros, Quota, Rate, RateUnit, TimeZone,
    algorithm::{
        CalendarWindow, Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingStrict, SlidingWindow,
        Smooth, TokenBucket, Total, WarmUp, WindowStart,
    },
};

/// A quota, its period and the start of the call sequence.
#[derive(Clone, Copy, PartialEq)]
pub struct Sample {
    /// The quota.
    pub quota: Quota,
    /// The period of its rate; any period for a quota without a rate.
    pub period: Micros,
    /// The time of the first call.
    pub start: Micros,
}

/// One call.
#[derive(Clone, Copy)]
pub struct CallStep {
    /// The pause after the previous call.
    pub pause: CallPause,
    /// The cost.
    pub cost: CallCost,
    /// The longest wait.
    pub max_wait: MaxWait,
}

/// Short, because failure reports contain it.
impl fmt::Debug for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {}us", self.quota, self.start.get())
    }
}

impl fmt::Debug for CallStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pause, cost, max_wait } = self;
        f.write_fmt(format_args!("{pause:?}, {cost:?}, max_wait {max_wait:?}"))
    }
}

/// The time between two calls.
#[derive(Clone, Copy, Debug)]
pub enum CallPause {
    /// No pause.
    None,
    /// One microsecond.
    OneMicro,
    /// This number of twelfths of the period.
    PeriodTwelfths(u64),
    /// Exactly the wait of the last decision.
    LastWait,
    /// One microsecond less than the wait of the last decision.
    JustUnderLastWait,
    /// Until the next multiple of the period.
    ToBoundary,
    /// Exactly the reset time of the last decision.
    ToReset,
    /// This number of periods.
    Periods(u64),
}

/// The cost of a call.
#[derive(Clone, Copy, Debug)]
pub enum CallCost {
    /// Zero: a peek.
    Zero,
    /// Exactly this cost.
    Exact(u64),
    /// This number of eighths of the limit, at least one.
    LimitEighths(u64),
    /// The limit plus this number.
    OverLimit(u64),
}

/// The longest wait of a call.
#[derive(Clone, Copy, Debug)]
pub enum MaxWait {
    /// No wait.
    None,
    /// This number of half periods.
    HalfPeriods(u64),
    /// No limit.
    Unlimited,
}

/// A strategy for each algorithm, in the order of [`AlgorithmKind::names`].
pub fn every_algorithm() -> Vec<(&'static str, BoxedStrategy<Sample>)> {
    let burst = || prop_oneof![1_u64..=5, 1_u64..=1_000, 1_u64..=1_000_000_000];
    let queue = || prop_oneof![0_u64..=5, 0_u64..=1_000];
    let starts =
        prop_oneof![Just(WindowStart::Calendar), Just(WindowStart::Epoch), Just(WindowStart::FirstHit)];
    let algorithms = [
        sample_strategy((rates(), burst()), |(rate, burst)| {
            Some(AlgorithmKind::TokenBucket(TokenBucket::new(rate, burst).ok()?))
        }),
        sample_strategy((rates(), queue(), queue()), |(rate, a, b)| {
            Some(AlgorithmKind::LeakyBucket(LeakyBucket::new(rate, a.max(b), a.min(b)).ok()?))
        }),
        sample_strategy((rates(), starts), |(rate, start)| {
            Some(AlgorithmKind::FixedWindow(FixedWindow::new(rate, start).ok()?))
        }),
        sample_strategy((rates(),), |(rate,)| {
            Some(AlgorithmKind::SlidingWindow(SlidingWindow::new(rate).ok()?))
        }),
        sample_strategy(divisible_rates(), |(rate, parts)| {
            Some(AlgorithmKind::SlidingStrict(SlidingStrict::new(rate, parts).ok()?))
        }),
        sample_strategy((rates(), 1_u64..=64), |(rate, limit)| {
            let rate = Rate::new(rate.amount().min(limit), rate.period());
            Some(AlgorithmKind::SlidingLog(SlidingLog::new(rate).ok()?))
        }),
        sample_strategy((rates(), proptest::option::of(burst())), |(rate, burst)| {
            let smooth = match burst {
                Some(burst) => Smooth::with_burst(rate, burst),
                None => Smooth::new(rate),
            };
            Some(AlgorithmKind::Smooth(smooth.ok()?))
        }),
        sample_strategy((rates(), durations(), cold_factors()), |(rate, length, cold)| {
            Some(AlgorithmKind::WarmUp(WarmUp::new(rate, length, cold).ok()?))
        }),
        sample_strategy((rates(), burst()), |(_, limit)| {
            Some(AlgorithmKind::Concurrency(Concurrency::new(limit).ok()?))
        }),
        sample_strategy((rates(), burst()), |(rate, limit)| {
            Some(AlgorithmKind::Total(Total::new(limit, rate.unit()).ok()?))
        }),
        sample_strategy((calendar_rates(), calendar_periods(), time_zones()), |(rate, period, zone)| {
            Some(AlgorithmKind::CalendarWindow(CalendarWindow::new(rate, period, zone).ok()?))
        }),
    ];
    AlgorithmKind::names().zip(algorithms).collect()
}

/// Amounts per day, with which a sequence of calls is in the range of time.
fn calendar_rates() -> impl Strategy<Value = Rate> {
    rates().prop_map(|rate| Rate::new(rate.amount(), Micros::from_secs(86_400)).with_unit(rate.unit()))
}

fn calendar_periods() -> impl Strategy<Value = CalendarPeriod> {
    prop_oneof![Just(CalendarPeriod::Day), Just(CalendarPeriod::Week), Just(CalendarPeriod::Month)]
}

/// Zones with and without changes of the clock, and one that skipped a day.
pub fn time_zones() -> impl Strategy<Value = TimeZone> {
    const NAMES: [&str; 7] = [
        "UTC",
        "Asia/Shanghai",
        "America/New_York",
        "Australia/Lord_Howe",
        "America/St_Johns",
        "Pacific/Apia",
        "Africa/Casablanca",
    ];
    proptest::sample::select(NAMES.to_vec()).prop_filter_map("unknown", |name| TimeZone::find(name).ok())
}

/// Permits with a lease, whose period is the lease. They expire by time, so the properties of other permits do not apply
/// to them.
pub fn leases() -> impl Strategy<Value = Sample> {
    let few = prop_oneof![1_u64..=5, 1_u64..=1_000];
    sample_strategy((durations().prop_map(|lease| Rate::new(1, lease)), few), |(rate, limit)| {
        Some(AlgorithmKind::Concurrency(Concurrency::with_lease(limit, rate.period()).ok()?))
    })
}

/// Any valid quota of any algorithm.
pub fn any_sample() -> impl Strategy<Value = Sample> {
    Union::new(every_algorithm().into_iter().map(|(_, strategy)| strategy))
}

/// Sets of quotas of one algorithm, one per process.
pub fn same_algorithm_fleets() -> impl Strategy<Value = Vec<Sample>> {
    Union::new(every_algorithm().into_iter().map(|(_, samples)| {
        // Often with the same period, so that windows are shared.
        let samples = (prop::collection::vec(samples, 2..5), any::<bool>());
        samples.prop_map(|(samples, is_one_period)| match is_one_period {
            true => with_same_period(samples),
            false => samples,
        })
    }))
}

fn with_same_period(samples: Vec<Sample>) -> Vec<Sample> {
    let like_first = |sample: &Sample| with_limit(&samples[0], sample.quota.limit().min(100_000));
    let alike: Vec<_> = samples.iter().filter_map(like_first).collect();
    if alike.len() > 1 { alike } else { samples }
}

/// The same quota with another limit.
pub fn with_limit(first: &Sample, limit: u64) -> Option<Sample> {
    let text = first.quota.to_string();
    let (_, rest) = text.split_once(['/', ' '])?;
    let separator = if text.contains('/') { "/" } else { " " };
    let quota: Quota = format!("{limit}{separator}{rest}").parse().ok()?;
    Some(Sample { quota, ..*first })
}

/// Sets of quotas of any algorithms, one per process.
pub fn mixed_fleets() -> impl Strategy<Value = Vec<Sample>> {
    prop::collection::vec(any_sample(), 2..5).prop_filter("permits do not count tokens", |all| {
        !all.iter().any(|it| matches!(it.quota.kind(), AlgorithmKind::Concurrency(_)))
    })
}

/// Any rate: tiny, common, odd, and as large as network bandwidths.
pub fn rates() -> impl Strategy<Value = Rate> {
    let rate = |(amount, period)| Rate::new(amount, period);
    prop_oneof![
        3 => (1_u64..=12, (1_u64..=60).prop_map(Micros::new)).prop_map(rate),
        3 => (1_u64..=100, periods()).prop_map(rate),
        2 => (1_u64..=10_000, (1_u64..=10_000_000).prop_map(Micros::new)).prop_map(rate),
        1 => (1_u64..=10_000_000_000, Just(Micros::from_secs(1))).prop_map(rate),
        1 => (1_u64..=12_500, Just(Micros::from_secs(1)))
            .prop_map(|(megabytes, second)| Rate::new(megabytes * 1_000_000, second).with_unit(RateUnit::Bytes)),
    ]
}

/// Calls that do not wait.
pub fn call_steps() -> impl Strategy<Value = Vec<CallStep>> {
    step_sequence(pauses().boxed(), Just(MaxWait::None).boxed(), 1..40)
}

/// A few calls with short pauses, some of which wait: earlier charges are still counted.
pub fn few_call_steps() -> impl Strategy<Value = Vec<CallStep>> {
    step_sequence(short_pauses().boxed(), max_waits().boxed(), 0..6)
}

/// Many calls with short pauses, some of which wait: most find a queue.
pub fn crowded_call_steps() -> impl Strategy<Value = Vec<CallStep>> {
    step_sequence(short_pauses().boxed(), max_waits().boxed(), 1..40)
}

/// Calls, some of which wait.
pub fn waiting_call_steps() -> impl Strategy<Value = Vec<CallStep>> {
    step_sequence(pauses().boxed(), max_waits().boxed(), 1..40)
}

/// Any longest wait.
pub fn max_waits() -> impl Strategy<Value = MaxWait> {
    prop_oneof![
        2 => Just(MaxWait::None),
        2 => (1_u64..=6).prop_map(MaxWait::HalfPeriods),
        1 => Just(MaxWait::Unlimited),
    ]
}

/// Checks a property of every algorithm with `PROPTEST_CASES` random cases each.
///
/// # Panics
///
/// Panics if the property fails, with the shortest failing case.
pub fn check_property<S: Strategy>(inputs: S, property: impl Fn(Sample, S::Value) -> TestCaseResult) {
    for (name, samples) in every_algorithm() {
        run_property(name, &(samples, &inputs), |(sample, steps)| property(sample, steps));
    }
}

/// Checks a property of every algorithm with pairs of its quotas.
///
/// # Panics
///
/// Panics if the property fails, with the shortest failing case.
pub fn check_property_pairs<S: Strategy>(
    inputs: S,
    property: impl Fn(Sample, Sample, S::Value) -> TestCaseResult,
) {
    for (name, samples) in every_algorithm() {
        run_property(name, &(samples.clone(), samples, &inputs), |(old, new, steps)| {
            property(old, new, steps)
        });
    }
}

#[allow(clippy::panic, reason = "tests fail by panicking")]
fn run_property<S: Strategy>(name: &str, inputs: &S, property: impl Fn(S::Value) -> TestCaseResult) {
    if let Err(failure) = runner().run(inputs, property) {
        panic!("{name} violates the property: {failure}");
    }
}

/// A runner with the same cases in every run.
pub fn runner() -> TestRunner {
    runner_with_cases(Config::default().cases)
}

/// A runner with the same cases in every run and this number of cases, for slow properties.
pub fn runner_with_cases(cases: u32) -> TestRunner {
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&seed().to_le_bytes());
    let config = Config { failure_persistence: None, cases, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// The seed of random cases: `PROPTEST_RNG_SEED`, or zero.
pub fn seed() -> u64 {
    env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0)
}

/// The clock of a call sequence, with the times of the last decision.
#[derive(Clone, Copy, Debug)]
pub struct CallClock {
    /// The time.
    pub now: Micros,
    period: Micros,
    wait: Micros,
    reset: Micros,
}

/// The clock stops here, within the range of exact times.
const MAX_TIME: u64 = 1 << 52;

impl CallClock {
    /// Creates a clock at the start of the sample.
    pub fn new(sample: &Sample) -> Self {
        Self { now: sample.start, period: sample.period, wait: Micros::ZERO, reset: Micros::ZERO }
    }

    /// Advances the time by a pause.
    pub fn advance(&mut self, pause: CallPause) {
        let period = self.period.get();
        let length = match pause {
            CallPause::None => 0,
            CallPause::OneMicro => 1,
            CallPause::PeriodTwelfths(count) => period * count / 12,
            CallPause::LastWait => self.wait.get(),
            CallPause::JustUnderLastWait => self.wait.get().saturating_sub(1),
            CallPause::ToBoundary => period - self.now.get() % period,
            CallPause::ToReset => self.reset.get(),
            CallPause::Periods(count) => period * count,
        };
        self.now = if self.now.get() + length > MAX_TIME {
            self.now
        } else {
            self.now.saturating_add(Micros::new(length))
        };
    }

    /// Records the wait and the reset time of a decision.
    pub fn record(&mut self, decision: &Decision) {
        self.wait = decision.wait();
        self.reset = decision.reset_after();
    }
}

impl CallStep {
    /// The demand of this call on a quota.
    pub fn demand(&self, sample: &Sample) -> Demand {
        let max_wait = match self.max_wait {
            MaxWait::None => Micros::ZERO,
            MaxWait::HalfPeriods(count) => Micros::new(sample.period.get() * count / 2),
            MaxWait::Unlimited => Micros::MAX,
        };
        Demand::with_max_wait(self.cost.resolve(sample.quota.limit()), max_wait)
    }
}

impl CallCost {
    /// The cost under a quota with this limit.
    pub fn resolve(self, limit: u64) -> u64 {
        match self {
            Self::Zero => 0,
            Self::Exact(cost) => cost,
            Self::LimitEighths(eighths) => (limit.saturating_mul(eighths) / 8).max(1),
            Self::OverLimit(more) => limit.saturating_add(more),
        }
    }
}

/// Any pause.
pub fn pauses() -> impl Strategy<Value = CallPause> {
    prop_oneof![
        4 => Just(CallPause::None),
        1 => Just(CallPause::OneMicro),
        3 => (1_u64..=14).prop_map(CallPause::PeriodTwelfths),
        2 => Just(CallPause::LastWait),
        1 => Just(CallPause::JustUnderLastWait),
        1 => Just(CallPause::ToBoundary),
        1 => Just(CallPause::ToReset),
        1 => (1_u64..=20).prop_map(CallPause::Periods),
    ]
}

/// Pauses in which few tokens are refilled.
pub fn short_pauses() -> impl Strategy<Value = CallPause> {
    prop_oneof![
        6 => Just(CallPause::None),
        1 => Just(CallPause::OneMicro),
        2 => (1_u64..=4).prop_map(CallPause::PeriodTwelfths),
        1 => Just(CallPause::LastWait),
        1 => Just(CallPause::JustUnderLastWait),
    ]
}

/// Any cost.
pub fn costs() -> impl Strategy<Value = CallCost> {
    prop_oneof![
        1 => Just(CallCost::Zero),
        5 => (1_u64..=3).prop_map(CallCost::Exact),
        5 => (1_u64..=8).prop_map(CallCost::LimitEighths),
        1 => (1_u64..=2).prop_map(CallCost::OverLimit),
    ]
}

fn step_sequence(
    pauses: BoxedStrategy<CallPause>,
    max_wait: BoxedStrategy<MaxWait>,
    count: Range<usize>,
) -> impl Strategy<Value = Vec<CallStep>> {
    let step = (pauses, costs(), max_wait);
    let step = step.prop_map(|(pause, cost, max_wait)| CallStep { pause, cost, max_wait });
    proptest::collection::vec(step, count)
}

/// Rates with a number of parts that divides their period.
fn divisible_rates() -> impl Strategy<Value = (Rate, u64)> {
    (rates(), 1_u64..=12).prop_map(|(rate, parts)| {
        let period = rate.period().get().div_ceil(parts) * parts;
        (Rate::new(rate.amount(), Micros::new(period)), parts)
    })
}

/// Common periods.
fn periods() -> impl Strategy<Value = Micros> {
    const COMMON_PERIODS: [u64; 8] =
        [1_000, 1_000_000, 10_000_000, 60_000_000, 3_600_000_000, 86_400_000_000, 604_800_000_000, 7];
    proptest::sample::select(COMMON_PERIODS.to_vec()).prop_map(Micros::new)
}

fn durations() -> impl Strategy<Value = Micros> {
    prop_oneof![periods(), (1_u64..=10_000_000).prop_map(Micros::new)]
}

fn cold_factors() -> impl Strategy<Value = f64> {
    prop_oneof![Just(1.0), Just(3.0), Just(10.0), 1.0..100.0_f64]
}

/// Start times at zero, soon after it, or near the present.
fn starts() -> impl Strategy<Value = Micros> {
    prop_oneof![Just(0), 0_u64..=10_000_000, 1_700_000_000_000_000_u64..=1_800_000_000_000_000]
        .prop_map(Micros::new)
}

/// The samples of one algorithm; the rate is the first of its numbers.
fn sample_strategy<S>(
    numbers: S,
    build: impl Fn(S::Value) -> Option<AlgorithmKind> + Clone + 'static,
) -> BoxedStrategy<Sample>
where
    S: Strategy + 'static,
    S::Value: HasRate + Clone,
{
    (numbers, starts())
        .prop_filter_map("not exact", move |(numbers, start)| {
            let period = numbers.period();
            Some(Sample { quota: build(numbers)?.into(), period, start })
        })
        .boxed()
}

/// A tuple that starts with a rate.
trait HasRate {
    fn period(&self) -> Micros;
}

impl HasRate for (Rate,) {
    fn period(&self) -> Micros {
        self.0.period()
    }
}

impl<A> HasRate for (Rate, A) {
    fn period(&self) -> Micros {
        self.0.period()
    }
}

impl<A, B> HasRate for (Rate, A, B) {
    fn period(&self) -> Micros {
        self.0.period()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_has_a_strategy() {
        assert!(every_algorithm().iter().map(|(name, _)| *name).eq(AlgorithmKind::names()));
        check_property(Just(()), |sample, ()| {
            prop_assert!(sample.quota.limit() > 0);
            Ok(())
        });
        for (name, samples) in every_algorithm() {
            let kind_is_right = |sample: Sample| {
                prop_assert_eq!(sample.quota.kind().name(), name);
                Ok(())
            };
            assert_eq!(runner().run(&samples, kind_is_right), Ok(()));
        }
    }
}
