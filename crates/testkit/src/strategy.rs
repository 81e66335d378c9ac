//! Random quotas of every algorithm, and random callers that know where the edges are.
//!
//! Runs are repeatable: the same seed tells the same stories. Set `PROPTEST_RNG_SEED` for others, and
//! `PROPTEST_CASES` for more of them.

use proptest::{
    prelude::*,
    strategy::Union,
    test_runner::{Config, RngAlgorithm, TestCaseResult, TestRng, TestRunner},
};
use std::{env, fmt, ops::Range};
use tidegate_core::{
    AlgorithmKind, Decision, Demand, Micros, Quota, Rate, RateUnit,
    algorithm::{
        Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingStrict, SlidingWindow, Smooth, TokenBucket,
        WarmUp, WindowStart,
    },
};

/// A quota, its period (any, for one that has none) and the moment its story starts.
#[derive(Clone, Copy, PartialEq)]
pub struct Sample {
    /// The quota.
    pub quota: Quota,
    /// The period of its rate.
    pub period: Micros,
    /// When the first caller comes.
    pub start: Micros,
}

/// One caller: how long after the one before, for how much, and how patient.
#[derive(Clone, Copy)]
pub struct CallStep {
    /// How long after the caller before.
    pub pause: CallPause,
    /// For how much.
    pub cost: CallCost,
    /// How patient.
    pub max_wait: MaxWait,
}

/// Short, because it is read when a law is broken.
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

/// Time between two callers.
#[derive(Clone, Copy, Debug)]
pub enum CallPause {
    /// At the same moment.
    None,
    /// One microsecond.
    OneMicro,
    /// So many twelfths of the period.
    PeriodTwelfths(u64),
    /// Exactly as long as the last answer said to wait.
    LastWait,
    /// One microsecond less than that.
    JustUnderLastWait,
    /// Until a whole multiple of the period.
    ToBoundary,
    /// Exactly until the last answer said the key is forgotten.
    ToReset,
    /// So many whole periods.
    Periods(u64),
}

/// How much a caller asks for.
#[derive(Clone, Copy, Debug)]
pub enum CallCost {
    /// Nothing: a peek.
    Zero,
    /// Exactly this.
    Exact(u64),
    /// So many eighths of the limit, at least one.
    LimitEighths(u64),
    /// More than is ever granted at once, by this.
    OverLimit(u64),
}

/// How long a caller is willing to wait.
#[derive(Clone, Copy, Debug)]
pub enum MaxWait {
    /// Not at all.
    None,
    /// So many halves of the period.
    HalfPeriods(u64),
    /// As long as it takes.
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
    ];
    AlgorithmKind::names().zip(algorithms).collect()
}

/// Permits with a lease, whose period is the lease. Time gives them back, so they are no case of the laws that hold
/// for other permits; they have laws of their own.
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

/// Fleets whose nodes have quotas of one algorithm.
pub fn same_algorithm_fleets() -> impl Strategy<Value = Vec<Sample>> {
    Union::new(every_algorithm().into_iter().map(|(_, samples)| {
        // Often of one period, so that windows are shared.
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

/// Fleets whose nodes have any quotas.
pub fn mixed_fleets() -> impl Strategy<Value = Vec<Sample>> {
    prop::collection::vec(any_sample(), 2..5).prop_filter("permits count something else", |all| {
        !all.iter().any(|it| matches!(it.quota.kind(), AlgorithmKind::Concurrency(_)))
    })
}

/// Any rate: tiny, everyday, odd, and as large as networks are fast.
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

/// Callers who will not wait.
pub fn call_steps() -> impl Strategy<Value = Vec<CallStep>> {
    step_sequence(pauses().boxed(), Just(MaxWait::None).boxed(), 1..40)
}

/// A few callers, of whom some will wait, close together: what was charged before them is not forgotten yet.
pub fn few_call_steps() -> impl Strategy<Value = Vec<CallStep>> {
    step_sequence(short_pauses().boxed(), max_waits().boxed(), 0..6)
}

/// Many callers close together, of whom some will wait: most find a queue.
pub fn crowded_call_steps() -> impl Strategy<Value = Vec<CallStep>> {
    step_sequence(short_pauses().boxed(), max_waits().boxed(), 1..40)
}

/// Callers of whom some will wait.
pub fn waiting_call_steps() -> impl Strategy<Value = Vec<CallStep>> {
    step_sequence(pauses().boxed(), max_waits().boxed(), 1..40)
}

/// Any patience.
pub fn max_waits() -> impl Strategy<Value = MaxWait> {
    prop_oneof![
        2 => Just(MaxWait::None),
        2 => (1_u64..=6).prop_map(MaxWait::HalfPeriods),
        1 => Just(MaxWait::Unlimited),
    ]
}

/// Holds a law against every algorithm, on as many random stories each as `PROPTEST_CASES` says.
///
/// # Panics
///
/// When the law is broken, with the shortest story that breaks it.
pub fn check_property<S: Strategy>(inputs: S, property: impl Fn(Sample, S::Value) -> TestCaseResult) {
    for (name, samples) in every_algorithm() {
        run_property(name, &(samples, &inputs), |(sample, steps)| property(sample, steps));
    }
}

/// Holds a law against every algorithm, on pairs of quotas that both use it.
///
/// # Panics
///
/// When the law is broken, with the shortest story that breaks it.
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

#[allow(clippy::panic, reason = "this is how a test fails")]
fn run_property<S: Strategy>(name: &str, inputs: &S, property: impl Fn(S::Value) -> TestCaseResult) {
    if let Err(broken) = runner().run(inputs, property) {
        panic!("{name} breaks the property: {broken}");
    }
}

/// A runner whose stories are the same in every run.
pub fn runner() -> TestRunner {
    runner_with_cases(Config::default().cases)
}

/// The same for so many stories, where each takes longer.
pub fn runner_with_cases(cases: u32) -> TestRunner {
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&seed().to_le_bytes());
    let config = Config { failure_persistence: None, cases, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// What stories are drawn by: zero, or what `PROPTEST_RNG_SEED` says.
pub fn seed() -> u64 {
    env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0)
}

/// Where a story stands: the time, and what the last answer said of it.
#[derive(Clone, Copy, Debug)]
pub struct CallClock {
    /// The time.
    pub now: Micros,
    period: Micros,
    wait: Micros,
    reset: Micros,
}

/// Stories end before time does.
const MAX_TIME: u64 = 1 << 52;

impl CallClock {
    /// The start of a story.
    pub fn new(sample: &Sample) -> Self {
        Self { now: sample.start, period: sample.period, wait: Micros::ZERO, reset: Micros::ZERO }
    }

    /// Lets time pass.
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
        self.now =
            if self.now.get() + length > MAX_TIME { self.now } else { self.now.plus(Micros::new(length)) };
    }

    /// Remembers what an answer said of the time.
    pub fn record(&mut self, decision: &Decision) {
        self.wait = decision.wait();
        self.reset = decision.reset_after();
    }
}

impl CallStep {
    /// What the caller asks of a quota.
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
    /// The cost under a quota that grants `limit` at once.
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

/// Pauses in which little of what was charged comes back.
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
    callers: Range<usize>,
) -> impl Strategy<Value = Vec<CallStep>> {
    let caller = (pauses, costs(), max_wait);
    let caller = caller.prop_map(|(pause, cost, max_wait)| CallStep { pause, cost, max_wait });
    proptest::collection::vec(caller, callers)
}

/// Rates whose period can be cut into so many parts.
fn divisible_rates() -> impl Strategy<Value = (Rate, u64)> {
    (rates(), 1_u64..=12).prop_map(|(rate, parts)| {
        let period = rate.period().get().div_ceil(parts) * parts;
        (Rate::new(rate.amount(), Micros::new(period)), parts)
    })
}

/// Periods that people write.
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

/// Stories start at the origin, soon after it, or today.
fn starts() -> impl Strategy<Value = Micros> {
    prop_oneof![Just(0), 0_u64..=10_000_000, 1_700_000_000_000_000_u64..=1_800_000_000_000_000]
        .prop_map(Micros::new)
}

/// The samples of one algorithm, whose rate is the first of its numbers.
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

/// Numbers of which the first is a rate.
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
