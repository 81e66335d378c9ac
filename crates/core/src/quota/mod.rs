//! Quotas: a rate or a concurrency limit, and the algorithm that counts it.

mod error;
mod parse;
mod rate;

pub use error::QuotaError;
pub use parse::QuotaReader;
pub use rate::{Rate, RateUnit};

use crate::{
    Fnv,
    algorithm::{
        Algorithm as _, AlgorithmKind, CalendarWindow, ChargeResult, Concurrency, Demand, FixedWindow,
        LeakyBucket, Receipt, SlidingLog, SlidingStrict, SlidingWindow, Smooth, TokenBucket, Total, WarmUp,
        WindowStart,
    },
    bound::Bound,
    ratio::Ratio,
    state::AlgorithmState,
    time_zone::{CalendarPeriod, TimeZone},
    units::Micros,
};
use core::{
    fmt::{self, Write as _},
    str::FromStr,
    time::Duration,
};

/// A limit and the algorithm that counts it. A value of this type is always valid.
///
/// As text; [`Display`](fmt::Display) prints the same text:
///
/// ```
/// use tidegate_core::Quota;
///
/// for text in ["100/min burst 20", "5 per 10s", "1.5MB/s", "3 at once", "1000 total", "9/month fixed-window in UTC", "10/s warm-up 4s cold 3"] {
///     assert_eq!(text.parse::<Quota>()?.to_string(), text);
/// }
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
///
/// In code:
///
/// ```
/// use tidegate_core::Quota;
///
/// let quota = Quota::per_minute(100).token_bucket(20)?;
/// assert_eq!(quota, "100/min burst 20".parse()?);
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quota {
    kind: AlgorithmKind,
}

impl Quota {
    /// How long the used tokens of a total are stored after another quota has replaced it: thirty days. A total that
    /// returns within this time finds them.
    pub const REPLACED_TOTAL_RETENTION: Micros = Micros::from_secs(30 * 86_400);

    /// A rate of `amount` per second.
    pub const fn per_second(amount: u64) -> Rate {
        Rate::new(amount, Micros::from_secs(1))
    }

    /// A rate of `amount` per minute.
    pub const fn per_minute(amount: u64) -> Rate {
        Rate::new(amount, Micros::from_secs(60))
    }

    /// A rate of `amount` per hour.
    pub const fn per_hour(amount: u64) -> Rate {
        Rate::new(amount, Micros::from_secs(3_600))
    }

    /// A rate of `amount` per day.
    pub const fn per_day(amount: u64) -> Rate {
        Rate::new(amount, Micros::from_secs(86_400))
    }

    /// A rate of `amount` per `period`; `Quota::amount_per_period(5, ten_seconds)` is `5 per 10s`.
    pub fn amount_per_period(amount: u64, period: Duration) -> Rate {
        Rate::new(amount, Micros::from(period))
    }

    /// A rate of `bytes` per second.
    pub const fn bytes_per_second(bytes: u64) -> Rate {
        Rate::new(bytes, Micros::from_secs(1)).with_unit(RateUnit::Bytes)
    }

    /// At most `limit` in flight at the same time.
    pub fn concurrency(limit: u64) -> Result<Self, QuotaError> {
        Concurrency::new(limit).map(|it| Self { kind: AlgorithmKind::Concurrency(it) })
    }

    /// At most `limit` in flight at the same time; a permit expires if it is not renewed for `lease`.
    pub fn concurrency_with_lease(limit: u64, lease: Duration) -> Result<Self, QuotaError> {
        Concurrency::with_lease(limit, lease.into()).map(|it| Self { kind: AlgorithmKind::Concurrency(it) })
    }

    /// A stock of `limit` that never refills.
    ///
    /// ```
    /// use tidegate_core::Quota;
    ///
    /// assert_eq!(Quota::total(1_000)?, "1000 total".parse()?);
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn total(limit: u64) -> Result<Self, QuotaError> {
        Self::total_with_unit(limit, RateUnit::Requests)
    }

    pub(crate) fn total_with_unit(limit: u64, unit: RateUnit) -> Result<Self, QuotaError> {
        Total::new(limit, unit).map(|it| Self { kind: AlgorithmKind::Total(it) })
    }

    /// The algorithm with its parameters.
    #[inline]
    pub fn kind(&self) -> &AlgorithmKind {
        &self.kind
    }

    /// Divides the quota among `nodes` processes, with at least one token each.
    ///
    /// If every process enforces its part locally, all of them together admit about as much as this quota.
    #[must_use]
    pub fn per_node(&self, nodes: u64) -> Self {
        let nodes = nodes.max(1);
        let part = |amount: u64| (amount / nodes).max(1);
        // A slower rate is exact; a smaller amount would be rounded.
        let slower = |rate: Rate| {
            let period = Micros::new(rate.period().get().saturating_mul(nodes));
            Rate::new(rate.amount(), period).with_unit(rate.unit())
        };
        let fewer = |rate: Rate| Rate::new(part(rate.amount()), rate.period()).with_unit(rate.unit());
        let Some(rate) = self.rate() else {
            return self.with_limit_without_rate(part(self.limit())).unwrap_or(*self);
        };
        let shared = match self.kind {
            AlgorithmKind::TokenBucket(it) => {
                slower(rate).token_bucket_like(it, part(self.limit()), it.initial() / nodes)
            }
            AlgorithmKind::LeakyBucket(it) => {
                let (queue, delay) = (it.queue() / nodes, it.delay() / nodes);
                slower(rate).leaky_bucket_with_delay(queue, delay)
            }
            AlgorithmKind::FixedWindow(it) => {
                FixedWindow::new(fewer(rate), it.start()).map(|it| AlgorithmKind::FixedWindow(it).into())
            }
            AlgorithmKind::CalendarWindow(it) => fewer(rate).calendar_window(it.period(), it.zone()),
            AlgorithmKind::SlidingWindow(_) => fewer(rate).sliding_window(),
            AlgorithmKind::SlidingStrict(it) => fewer(rate).sliding_strict(it.parts()),
            AlgorithmKind::SlidingLog(_) => fewer(rate).sliding_log(),
            AlgorithmKind::Smooth(_) => slower(rate).smooth_with_burst(part(self.limit())),
            AlgorithmKind::WarmUp(it) => slower(rate).warm_up(it.warm_up().to_duration(), it.cold_factor()),
            AlgorithmKind::Concurrency(_) | AlgorithmKind::Total(_) => return *self,
        };
        shared.unwrap_or(*self)
    }

    /// Multiplies the amount, the burst and the queue by `ratio`, each rounded down to at least one where one is
    /// required. The algorithm, the period and all other times do not change.
    ///
    /// # Errors
    ///
    /// The result is too large to be counted exactly.
    ///
    /// ```
    /// use tidegate_core::Quota;
    ///
    /// let quota = Quota::per_minute(100).token_bucket(20)?;
    /// assert_eq!(quota.scale("x0.5".parse()?)?, "50/min burst 10".parse()?);
    /// assert_eq!(quota.scale("x0.001".parse()?)?, "1/min burst 1".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scale(&self, ratio: Ratio) -> Result<Self, QuotaError> {
        if ratio == Ratio::ONE {
            return Ok(*self);
        }
        let times = |amount: u64| ratio.apply(amount).max(1);
        let Some(rate) = self.rate() else { return self.with_limit_without_rate(times(self.limit())) };
        let rate = Rate::new(times(rate.amount()), rate.period()).with_unit(rate.unit());
        match self.kind {
            AlgorithmKind::TokenBucket(it) => {
                rate.token_bucket_like(it, times(self.limit()), ratio.apply(it.initial()))
            }
            AlgorithmKind::Concurrency(_) | AlgorithmKind::Total(_) => Ok(*self),
            AlgorithmKind::LeakyBucket(it) => {
                rate.leaky_bucket_with_delay(ratio.apply(it.queue()), ratio.apply(it.delay()))
            }
            AlgorithmKind::FixedWindow(it) => {
                FixedWindow::new(rate, it.start()).map(|it| AlgorithmKind::FixedWindow(it).into())
            }
            AlgorithmKind::CalendarWindow(it) => rate.calendar_window(it.period(), it.zone()),
            AlgorithmKind::SlidingWindow(_) => rate.sliding_window(),
            AlgorithmKind::SlidingStrict(it) => rate.sliding_strict(it.parts()),
            AlgorithmKind::SlidingLog(_) => rate.sliding_log(),
            AlgorithmKind::Smooth(it) => match it.burst() {
                Some(burst) => rate.smooth_with_burst(times(burst)),
                None => rate.smooth(),
            },
            AlgorithmKind::WarmUp(it) => rate.warm_up(it.warm_up().to_duration(), it.cold_factor()),
        }
    }

    /// The same quota with another limit, if it has no rate.
    fn with_limit_without_rate(&self, limit: u64) -> Result<Self, QuotaError> {
        match self.kind {
            AlgorithmKind::Concurrency(it) => match it.lease() {
                Some(lease) => Self::concurrency_with_lease(limit, lease.to_duration()),
                None => Self::concurrency(limit),
            },
            AlgorithmKind::Total(it) => Self::total_with_unit(limit, it.unit()),
            _ => Ok(*self),
        }
    }

    /// Whether the quota limits calls in flight.
    pub fn is_concurrency(&self) -> bool {
        matches!(self.kind, AlgorithmKind::Concurrency(_))
    }

    /// Whether the quota is a stock that never refills.
    pub fn is_total(&self) -> bool {
        matches!(self.kind, AlgorithmKind::Total(_))
    }

    /// A short identifier that is the same in every process: a hash of the text of the quota.
    pub fn tag(&self) -> u16 {
        let mut hash = Fnv::default();
        // Hashing does not fail.
        let _ = write!(hash, "{self}");
        let hash = hash.finish();
        (hash ^ hash >> 16 ^ hash >> 32 ^ hash >> 48) as u16
    }

    /// The rate of the quota; `None` for a concurrency limit and a total.
    pub fn rate(&self) -> Option<Rate> {
        self.kind.rate()
    }

    /// The most that is granted at once.
    pub fn limit(&self) -> u64 {
        self.kind.limit()
    }

    /// The most that the quota admits in a window, in the worst case.
    pub fn bound(&self) -> Bound {
        self.kind.bound()
    }

    /// The number of 64-bit words of state per key.
    pub fn state_len(&self) -> usize {
        self.kind.state_len()
    }

    /// Decides a demand at `now` on `state`.
    ///
    /// ```
    /// use tidegate_core::{Demand, Micros, Outcome, Quota, Retry};
    ///
    /// let quota = Quota::per_second(10).token_bucket(1)?;
    /// let mut state = [0; 2]; // an unused key
    /// let state = state.as_mut_slice();
    /// let check = |state: &mut [u64], ms| quota.decide(state, Micros::from_millis(ms), Demand::new(1)).decision;
    ///
    /// assert_eq!(check(state, 0).outcome(), Outcome::Allow);
    /// assert_eq!(check(state, 30).outcome(), Outcome::Deny(Retry::After(Micros::from_millis(70))));
    /// assert_eq!(check(state, 100).outcome(), Outcome::Allow);
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    #[inline]
    pub fn decide<W: AlgorithmState + ?Sized>(
        &self,
        state: &mut W,
        now: Micros,
        demand: Demand,
    ) -> ChargeResult {
        self.kind.decide(state, now, demand)
    }

    /// Refunds up to `cost` of the charge that `receipt` records.
    pub fn refund<W: AlgorithmState + ?Sized>(
        &self,
        state: &mut W,
        now: Micros,
        receipt: Receipt,
        cost: u64,
    ) {
        self.kind.refund(state, now, receipt, cost);
    }

    /// Whether this quota can read a state that `other` wrote; see [`AlgorithmKind::shares_state`].
    pub fn shares_state(&self, other: &Self) -> bool {
        self.kind.shares_state(&other.kind)
    }

    /// Converts a state that `writer` wrote to this quota.
    pub fn convert_state<W: AlgorithmState + ?Sized>(&self, writer: &Self, state: &mut W, now: Micros) {
        self.kind.convert_state(&writer.kind, state, now);
    }

    /// Decides a demand on a state that `writer` wrote; see [`AlgorithmKind::decide_converted`].
    pub fn decide_converted<W: AlgorithmState + ?Sized>(
        &self,
        writer: &Self,
        state: &mut W,
        now: Micros,
        demand: Demand,
    ) -> ChargeResult {
        self.kind.decide_converted(&writer.kind, state, now, demand)
    }

    /// Extends the lease of the permit that `receipt` records; `None` when it has expired.
    pub fn renew<W: AlgorithmState + ?Sized>(
        &self,
        state: &mut W,
        now: Micros,
        receipt: Receipt,
    ) -> Option<Receipt> {
        self.kind.renew(state, now, receipt)
    }

    /// Starts a key at its first check, on a state that `writer` wrote; see [`AlgorithmKind::begin`].
    pub fn begin<W: AlgorithmState + ?Sized>(&self, writer: &Self, state: &mut W, now: Micros) -> bool {
        self.kind.begin(&writer.kind, state, now)
    }

    /// How long a state is stored after its reset; see [`crate::Algorithm::retention`].
    pub fn retention(&self) -> Micros {
        self.kind.retention()
    }

    /// The time until a state is equivalent to that of an unused key.
    pub fn forgotten_after<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros) -> Micros {
        self.kind.forgotten_after(state, now)
    }

    /// The time for which a state is stored when other quotas have replaced this one: until it is forgotten, at most
    /// [`Quota::REPLACED_TOTAL_RETENTION`] for a total.
    pub fn stored_after_replacement<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros) -> Micros {
        let forgotten_after = self.forgotten_after(state, now);
        if self.is_total() { forgotten_after.min(Self::REPLACED_TOTAL_RETENTION) } else { forgotten_after }
    }

    /// Writes the state of a limiter that is created at `now`; see [`crate::Algorithm::create`].
    pub fn create<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros) {
        self.kind.create(state, now);
    }
}

/// Selects the algorithm that counts a rate.
impl Rate {
    /// A token bucket whose burst is the amount of one period.
    pub fn quota(self) -> Result<Quota, QuotaError> {
        self.token_bucket(self.amount())
    }

    /// A token bucket with a capacity of `tokens`.
    pub fn token_bucket(self, tokens: u64) -> Result<Quota, QuotaError> {
        TokenBucket::new(self, tokens).map(|it| Quota { kind: AlgorithmKind::TokenBucket(it) })
    }

    /// A token bucket with a capacity of `tokens`, of which a new key has `initial`.
    ///
    /// ```
    /// use tidegate_core::Quota;
    ///
    /// let quota = Quota::per_minute(100).token_bucket_with_initial(20, 0)?;
    /// assert_eq!(quota, "100/min burst 20 initial 0".parse()?);
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn token_bucket_with_initial(self, tokens: u64, initial: u64) -> Result<Quota, QuotaError> {
        TokenBucket::with_initial(self, tokens, initial)
            .map(|it| Quota { kind: AlgorithmKind::TokenBucket(it) })
    }

    /// A token bucket with initial tokens only if `other` has less than its burst.
    fn token_bucket_like(self, other: TokenBucket, tokens: u64, initial: u64) -> Result<Quota, QuotaError> {
        let is_full = other.initial() == other.limit();
        self.token_bucket_with_initial(tokens, if is_full { tokens } else { initial.min(tokens) })
    }

    /// A leaky bucket as a queue: one call at a time, and up to `queue` more wait.
    pub fn leaky_bucket(self, queue: u64) -> Result<Quota, QuotaError> {
        self.leaky_bucket_with_delay(queue, 0)
    }

    /// A leaky bucket as a queue, in which the first `without_delay` calls do not wait.
    pub fn leaky_bucket_with_delay(self, queue: u64, without_delay: u64) -> Result<Quota, QuotaError> {
        LeakyBucket::new(self, queue, without_delay).map(|it| Quota { kind: AlgorithmKind::LeakyBucket(it) })
    }

    /// A fixed window that follows the calendar, in UTC.
    pub fn fixed_window(self) -> Result<Quota, QuotaError> {
        FixedWindow::new(self, WindowStart::Calendar).map(|it| Quota { kind: AlgorithmKind::FixedWindow(it) })
    }

    /// A fixed window that is a day, a week or a month of the calendar in a time zone; the period of the rate is not used.
    ///
    /// ```
    /// use tidegate_core::{CalendarPeriod, Quota, TimeZone};
    ///
    /// let zone = TimeZone::find("Asia/Shanghai")?;
    /// let quota = Quota::per_day(10_000).calendar_window(CalendarPeriod::Day, zone)?;
    /// assert_eq!(quota, "10000/day fixed-window in Asia/Shanghai".parse()?);
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn calendar_window(self, period: CalendarPeriod, zone: TimeZone) -> Result<Quota, QuotaError> {
        CalendarWindow::new(self, period, zone).map(|it| Quota { kind: AlgorithmKind::CalendarWindow(it) })
    }

    /// A fixed window at multiples of the period since 1970. It differs from the calendar for weeks, which start
    /// on Thursday.
    pub fn fixed_window_from_epoch(self) -> Result<Quota, QuotaError> {
        FixedWindow::new(self, WindowStart::Epoch).map(|it| Quota { kind: AlgorithmKind::FixedWindow(it) })
    }

    /// A fixed window that starts with the first hit.
    pub fn fixed_window_from_first_hit(self) -> Result<Quota, QuotaError> {
        FixedWindow::new(self, WindowStart::FirstHit).map(|it| Quota { kind: AlgorithmKind::FixedWindow(it) })
    }

    /// A sliding window: the current count plus the weighted count of the previous window.
    pub fn sliding_window(self) -> Result<Quota, QuotaError> {
        SlidingWindow::new(self).map(|it| Quota { kind: AlgorithmKind::SlidingWindow(it) })
    }

    /// A strict sliding window: never more than the limit in any window, in `parts + 1` counters.
    pub fn sliding_strict(self, parts: u64) -> Result<Quota, QuotaError> {
        SlidingStrict::new(self, parts).map(|it| Quota { kind: AlgorithmKind::SlidingStrict(it) })
    }

    /// A sliding log: never more than the limit in any window, in one word per token of the limit.
    pub fn sliding_log(self) -> Result<Quota, QuotaError> {
        SlidingLog::new(self).map(|it| Quota { kind: AlgorithmKind::SlidingLog(it) })
    }

    /// Guava's `SmoothBursty`: even spacing, with one second of permits stored.
    pub fn smooth(self) -> Result<Quota, QuotaError> {
        Smooth::new(self).map(|it| Quota { kind: AlgorithmKind::Smooth(it) })
    }

    /// Guava's `SmoothBursty` with up to `permits` stored.
    pub fn smooth_with_burst(self, permits: u64) -> Result<Quota, QuotaError> {
        Smooth::with_burst(self, permits).map(|it| Quota { kind: AlgorithmKind::Smooth(it) })
    }

    /// Guava's `SmoothWarmingUp`: reaches the rate over `period`, starting at `cold_factor` times the interval.
    pub fn warm_up(self, period: Duration, cold_factor: f64) -> Result<Quota, QuotaError> {
        WarmUp::new(self, Micros::from(period), cold_factor)
            .map(|it| Quota { kind: AlgorithmKind::WarmUp(it) })
    }
}

impl From<AlgorithmKind> for Quota {
    fn from(kind: AlgorithmKind) -> Self {
        Self { kind }
    }
}

impl TryFrom<Rate> for Quota {
    type Error = QuotaError;

    fn try_from(rate: Rate) -> Result<Self, QuotaError> {
        rate.quota()
    }
}

impl TryFrom<&str> for Quota {
    type Error = QuotaError;

    fn try_from(text: &str) -> Result<Self, QuotaError> {
        text.parse()
    }
}

impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        parse::parse_quota(text)
    }
}

/// Parses the text that [`Micros`] prints, and every period that a quota accepts.
///
/// ```
/// use tidegate_core::Micros;
///
/// assert_eq!("12.5ms".parse::<Micros>()?, Micros::new(12_500));
/// assert!("12.5".parse::<Micros>().is_err());
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
impl FromStr for Micros {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        parse::parse_time(text)
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}
