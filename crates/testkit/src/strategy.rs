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
pub struct Move {
    /// How long after the caller before.
    pub pause: Pause,
    /// For how much.
    pub cost: Cost,
    /// How patient.
    pub patience: Patience,
}

/// Short, because it is read when a law is broken.
impl fmt::Debug for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {}us", self.quota, self.start.get())
    }
}

impl fmt::Debug for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pause, cost, patience } = self;
        f.write_fmt(format_args!("{pause:?}, {cost:?}, patience {patience:?}"))
    }
}

/// Time between two callers.
#[derive(Clone, Copy, Debug)]
pub enum Pause {
    /// At the same moment.
    None,
    /// One microsecond.
    Tick,
    /// So many twelfths of the period.
    Twelfths(u64),
    /// Exactly as long as the last answer said to wait.
    AsTold,
    /// One microsecond less than that.
    JustUnder,
    /// Until a whole multiple of the period.
    ToBoundary,
    /// Exactly until the last answer said the key is forgotten.
    ToReset,
    /// So many whole periods.
    Periods(u64),
}

/// How much a caller asks for.
#[derive(Clone, Copy, Debug)]
pub enum Cost {
    /// Nothing: a peek.
    Nothing,
    /// Exactly this.
    Exactly(u64),
    /// So many eighths of the limit, at least one.
    Eighths(u64),
    /// More than is ever granted at once, by this.
    Over(u64),
}

/// How long a caller is willing to wait.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    /// Not at all.
    None,
    /// So many halves of the period.
    Halves(u64),
    /// As long as it takes.
    Endless,
}

/// A strategy for each algorithm, in the order of [`AlgorithmKind::names`].
pub fn every_algorithm() -> Vec<(&'static str, BoxedStrategy<Sample>)> {
    let burst = || prop_oneof![1_u64..=5, 1_u64..=1_000, 1_u64..=1_000_000_000];
    let queue = || prop_oneof![0_u64..=5, 0_u64..=1_000];
    let starts =
        prop_oneof![Just(WindowStart::Calendar), Just(WindowStart::Epoch), Just(WindowStart::FirstHit)];
    let algorithms = [
        of((rates(), burst()), |(rate, burst)| {
            Some(AlgorithmKind::TokenBucket(TokenBucket::new(rate, burst).ok()?))
        }),
        of((rates(), queue(), queue()), |(rate, a, b)| {
            Some(AlgorithmKind::LeakyBucket(LeakyBucket::new(rate, a.max(b), a.min(b)).ok()?))
        }),
        of((rates(), starts), |(rate, start)| {
            Some(AlgorithmKind::FixedWindow(FixedWindow::new(rate, start).ok()?))
        }),
        of((rates(),), |(rate,)| Some(AlgorithmKind::SlidingWindow(SlidingWindow::new(rate).ok()?))),
        of(even_parts(), |(rate, parts)| {
            Some(AlgorithmKind::SlidingStrict(SlidingStrict::new(rate, parts).ok()?))
        }),
        of((rates(), 1_u64..=64), |(rate, limit)| {
            let rate = Rate::new(rate.amount().min(limit), rate.period());
            Some(AlgorithmKind::SlidingLog(SlidingLog::new(rate).ok()?))
        }),
        of((rates(), proptest::option::of(burst())), |(rate, burst)| {
            let smooth = match burst {
                Some(burst) => Smooth::with_burst(rate, burst),
                None => Smooth::new(rate),
            };
            Some(AlgorithmKind::Smooth(smooth.ok()?))
        }),
        of((rates(), lengths(), cold_factors()), |(rate, length, cold)| {
            Some(AlgorithmKind::WarmUp(WarmUp::new(rate, length, cold).ok()?))
        }),
        of((rates(), burst()), |(_, limit)| Some(AlgorithmKind::Concurrency(Concurrency::new(limit).ok()?))),
    ];
    AlgorithmKind::names().zip(algorithms).collect()
}

/// Permits with a lease, whose period is the lease. Time gives them back, so they are no case of the laws that hold
/// for other permits; they have laws of their own.
pub fn leases() -> impl Strategy<Value = Sample> {
    let few = prop_oneof![1_u64..=5, 1_u64..=1_000];
    of((lengths().prop_map(|lease| Rate::new(1, lease)), few), |(rate, limit)| {
        Some(AlgorithmKind::Concurrency(Concurrency::with_lease(limit, rate.period()).ok()?))
    })
}

/// Any valid quota of any algorithm.
pub fn any_sample() -> impl Strategy<Value = Sample> {
    Union::new(every_algorithm().into_iter().map(|(_, strategy)| strategy))
}

/// Fleets whose nodes have quotas of one algorithm.
pub fn alike() -> impl Strategy<Value = Vec<Sample>> {
    Union::new(every_algorithm().into_iter().map(|(_, samples)| {
        // Often of one period, so that windows are shared.
        let samples = (prop::collection::vec(samples, 2..5), any::<bool>());
        samples.prop_map(|(samples, is_one_period)| match is_one_period {
            true => of_one_period(samples),
            false => samples,
        })
    }))
}

fn of_one_period(samples: Vec<Sample>) -> Vec<Sample> {
    let like_first = |sample: &Sample| of_limit(&samples[0], sample.quota.limit().min(100_000));
    let alike: Vec<_> = samples.iter().filter_map(like_first).collect();
    if alike.len() > 1 { alike } else { samples }
}

/// The same quota with another limit.
pub fn of_limit(first: &Sample, limit: u64) -> Option<Sample> {
    let text = first.quota.to_string();
    let (_, rest) = text.split_once(['/', ' '])?;
    let separator = if text.contains('/') { "/" } else { " " };
    let quota: Quota = format!("{limit}{separator}{rest}").parse().ok()?;
    Some(Sample { quota, ..*first })
}

/// Fleets whose nodes have any quotas.
pub fn unlike() -> impl Strategy<Value = Vec<Sample>> {
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
pub fn moves() -> impl Strategy<Value = Vec<Move>> {
    story(pauses().boxed(), Just(Patience::None).boxed(), 1..40)
}

/// A few callers, of whom some will wait, close together: what was charged before them is not forgotten yet.
pub fn few_moves() -> impl Strategy<Value = Vec<Move>> {
    story(short_pauses().boxed(), patience().boxed(), 0..6)
}

/// Many callers close together, of whom some will wait: most find a queue.
pub fn crowds() -> impl Strategy<Value = Vec<Move>> {
    story(short_pauses().boxed(), patience().boxed(), 1..40)
}

/// Callers of whom some will wait.
pub fn patient_moves() -> impl Strategy<Value = Vec<Move>> {
    story(pauses().boxed(), patience().boxed(), 1..40)
}

/// Any patience.
pub fn patience() -> impl Strategy<Value = Patience> {
    prop_oneof![
        2 => Just(Patience::None),
        2 => (1_u64..=6).prop_map(Patience::Halves),
        1 => Just(Patience::Endless),
    ]
}

/// Holds a law against every algorithm, on as many random stories each as `PROPTEST_CASES` says.
///
/// # Panics
///
/// When the law is broken, with the shortest story that breaks it.
pub fn hold<S: Strategy>(stories: S, law: impl Fn(Sample, S::Value) -> TestCaseResult) {
    for (name, samples) in every_algorithm() {
        check(name, &(samples, &stories), |(sample, story)| law(sample, story));
    }
}

/// Holds a law against every algorithm, on pairs of quotas that both use it.
///
/// # Panics
///
/// When the law is broken, with the shortest story that breaks it.
pub fn hold_pairs<S: Strategy>(stories: S, law: impl Fn(Sample, Sample, S::Value) -> TestCaseResult) {
    for (name, samples) in every_algorithm() {
        check(name, &(samples.clone(), samples, &stories), |(old, new, story)| law(old, new, story));
    }
}

#[allow(clippy::panic, reason = "this is how a test fails")]
fn check<S: Strategy>(name: &str, stories: &S, law: impl Fn(S::Value) -> TestCaseResult) {
    if let Err(broken) = runner().run(stories, law) {
        panic!("{name} breaks the law: {broken}");
    }
}

/// A runner whose stories are the same in every run.
pub fn runner() -> TestRunner {
    runner_of(Config::default().cases)
}

/// The same for so many stories, where each takes longer.
pub fn runner_of(cases: u32) -> TestRunner {
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
pub struct Moment {
    /// The time.
    pub now: Micros,
    period: Micros,
    wait: Micros,
    reset: Micros,
}

/// Stories end before time does.
const LATEST: u64 = 1 << 52;

impl Moment {
    /// The start of a story.
    pub fn start_of(sample: &Sample) -> Self {
        Self { now: sample.start, period: sample.period, wait: Micros::ZERO, reset: Micros::ZERO }
    }

    /// Lets time pass.
    pub fn pass(&mut self, pause: Pause) {
        let period = self.period.get();
        let length = match pause {
            Pause::None => 0,
            Pause::Tick => 1,
            Pause::Twelfths(count) => period * count / 12,
            Pause::AsTold => self.wait.get(),
            Pause::JustUnder => self.wait.get().saturating_sub(1),
            Pause::ToBoundary => period - self.now.get() % period,
            Pause::ToReset => self.reset.get(),
            Pause::Periods(count) => period * count,
        };
        self.now =
            if self.now.get() + length > LATEST { self.now } else { self.now.plus(Micros::new(length)) };
    }

    /// Remembers what an answer said of the time.
    pub fn hear(&mut self, decision: &Decision) {
        self.wait = decision.wait();
        self.reset = decision.reset_after();
    }
}

impl Move {
    /// What the caller asks of a quota.
    pub fn demand(&self, sample: &Sample) -> Demand {
        let patience = match self.patience {
            Patience::None => Micros::ZERO,
            Patience::Halves(count) => Micros::new(sample.period.get() * count / 2),
            Patience::Endless => Micros::MAX,
        };
        Demand::with_max_wait(self.cost.under(sample.quota.limit()), patience)
    }
}

impl Cost {
    /// The cost under a quota that grants `limit` at once.
    pub fn under(self, limit: u64) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Exactly(cost) => cost,
            Self::Eighths(eighths) => (limit.saturating_mul(eighths) / 8).max(1),
            Self::Over(more) => limit.saturating_add(more),
        }
    }
}

/// Any pause.
pub fn pauses() -> impl Strategy<Value = Pause> {
    prop_oneof![
        4 => Just(Pause::None),
        1 => Just(Pause::Tick),
        3 => (1_u64..=14).prop_map(Pause::Twelfths),
        2 => Just(Pause::AsTold),
        1 => Just(Pause::JustUnder),
        1 => Just(Pause::ToBoundary),
        1 => Just(Pause::ToReset),
        1 => (1_u64..=20).prop_map(Pause::Periods),
    ]
}

/// Pauses in which little of what was charged comes back.
pub fn short_pauses() -> impl Strategy<Value = Pause> {
    prop_oneof![
        6 => Just(Pause::None),
        1 => Just(Pause::Tick),
        2 => (1_u64..=4).prop_map(Pause::Twelfths),
        1 => Just(Pause::AsTold),
        1 => Just(Pause::JustUnder),
    ]
}

/// Any cost.
pub fn costs() -> impl Strategy<Value = Cost> {
    prop_oneof![
        1 => Just(Cost::Nothing),
        5 => (1_u64..=3).prop_map(Cost::Exactly),
        5 => (1_u64..=8).prop_map(Cost::Eighths),
        1 => (1_u64..=2).prop_map(Cost::Over),
    ]
}

fn story(
    pauses: BoxedStrategy<Pause>,
    patience: BoxedStrategy<Patience>,
    callers: Range<usize>,
) -> impl Strategy<Value = Vec<Move>> {
    let caller = (pauses, costs(), patience);
    let caller = caller.prop_map(|(pause, cost, patience)| Move { pause, cost, patience });
    proptest::collection::vec(caller, callers)
}

/// Rates whose period can be cut into so many parts.
fn even_parts() -> impl Strategy<Value = (Rate, u64)> {
    (rates(), 1_u64..=12).prop_map(|(rate, parts)| {
        let period = rate.period().get().div_ceil(parts) * parts;
        (Rate::new(rate.amount(), Micros::new(period)), parts)
    })
}

/// Periods that people write.
fn periods() -> impl Strategy<Value = Micros> {
    const WRITTEN: [u64; 8] =
        [1_000, 1_000_000, 10_000_000, 60_000_000, 3_600_000_000, 86_400_000_000, 604_800_000_000, 7];
    proptest::sample::select(WRITTEN.to_vec()).prop_map(Micros::new)
}

fn lengths() -> impl Strategy<Value = Micros> {
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
fn of<S>(
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
    fn there_is_a_strategy_for_every_algorithm() {
        assert!(every_algorithm().iter().map(|(name, _)| *name).eq(AlgorithmKind::names()));
        hold(Just(()), |sample, ()| {
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
