//! Bytes per second: limits on what streams move, alone or together.
//!
//! | file | holds |
//! |---|---|
//! | `flow` | who may move how much, and when; pure |
//! | `tap` | one stream's end of a flow, with its timer |
//! | `shaped` | the wrapper around a stream |
//! | `io`, `stream`, `body` | what the wrapper is to those who read and write |
//! | `keys` | one bandwidth for each key |

#[cfg(feature = "http-body")]
mod body;
mod io;
mod keyed;
mod scheduler;
mod shaped_stream;
#[cfg(feature = "stream")]
mod stream;
mod stream_handle;

pub use keyed::KeyedBandwidth;
pub use shaped_stream::ShapedStream;
#[cfg(feature = "stream")]
pub use stream::ByteLen;

use scheduler::SchedulerSettings;
use std::{fmt, sync::Arc, task::Waker};
use stream_handle::{SharedScheduler, StreamHandle};
use tidegate_core::{AlgorithmKind, Bound, Micros, Quota, Rate, RateUnit};
use tidegate_limiter::{
    BuildError, Clock,
    sync::{Mutex, lock},
};

/// A byte rate that any number of streams share.
///
/// ```
/// use tidegate_bandwidth::Bandwidth;
/// use tokio::io::AsyncReadExt;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let downloads = Bandwidth::new("5MB/s")?;
/// let mut file = downloads.limit_reads(&b"any AsyncRead"[..]);
/// let mut text = String::new();
/// file.read_to_string(&mut text).await?;
/// assert_eq!(text, "any AsyncRead");
/// # Ok(())
/// # }
/// ```
///
/// Streams that are limited by the same bandwidth, or by a clone of it, share it byte by byte: each gets as much as
/// the others, whether it moves small chunks or large ones. A stream that moves nothing holds nothing. For a limit of
/// its own a stream gets a bandwidth of its own, for one limit per user there are [`KeyedBandwidth`], and for both, one
/// is put around the other.
///
/// While a stream has bytes to move, any second sees the rate to within 1 %, on timers that are up to 5 ms late. Two
/// things are less even: below 57 kB/s up to 512 bytes go at once, and what cannot be cut (an item of a stream, a frame
/// of a body) passes whole and is waited for afterwards.
#[derive(Clone)]
pub struct Bandwidth {
    inner: Arc<BandwidthInner>,
}

struct BandwidthInner {
    shared: Arc<SharedScheduler>,
    quota: Mutex<Quota>,
    settings: BandwidthBuilder,
}

impl Bandwidth {
    /// A bandwidth on the machine's clock, of a rate in bytes such as `100kB/s`, or `1MB/s burst 10MB` to let more go
    /// at once.
    pub fn new<Q>(quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        Self::builder().build(quota)
    }

    /// A bandwidth with settings of its own.
    pub fn builder() -> BandwidthBuilder {
        BandwidthBuilder::default()
    }

    /// Limits what is read from `inner`, or what it yields as a `Stream` or as a body.
    pub fn limit_reads<T>(&self, inner: T) -> ShapedStream<T> {
        ShapedStream::new(inner).limit_reads(self)
    }

    /// Limits what is written to `inner`.
    pub fn limit_writes<T>(&self, inner: T) -> ShapedStream<T> {
        ShapedStream::new(inner).limit_writes(self)
    }

    /// Replaces the rate while running. Streams that wait learn of it at once.
    pub fn change<Q>(&self, quota: Q) -> Result<(), BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let (quota, terms) = self.inner.settings.resolve(quota.try_into()?)?;
        self.apply_settings(quota, terms).into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// The rate, and how many bytes go at once.
    pub fn quota(&self) -> Quota {
        *lock(&self.inner.quota)
    }

    /// The most bytes that pass in any stretch of time, of what can be cut and beyond what is free.
    pub fn bound(&self) -> Bound {
        let quota = self.quota();
        let held = ChunkSizes::for_quota(&quota).prepaid;
        let bound =
            quota.rate().and_then(|rate| rate.burst(quota.limit() + held).ok()).unwrap_or(quota).bound();
        self.inner.shared.clock().widen_bound(bound)
    }

    fn from_parts(quota: Quota, scheduler_settings: SchedulerSettings, settings: BandwidthBuilder) -> Self {
        let shared = SharedScheduler::new(scheduler_settings, settings.clock.clone().unwrap_or_default());
        let inner = BandwidthInner { shared: Arc::new(shared), quota: Mutex::new(quota), settings };
        Self { inner: Arc::new(inner) }
    }

    /// Goes by other terms from now on; those who wait are to be woken.
    #[must_use]
    fn apply_settings(&self, quota: Quota, settings: SchedulerSettings) -> Vec<Waker> {
        // Under the lock, so that of two changes the same is the last in both places.
        let mut current = lock(&self.inner.quota);
        *current = quota;
        self.inner.shared.reconfigure(settings)
    }

    fn new_handle(&self) -> StreamHandle {
        StreamHandle::new(self.inner.shared.clone(), self.inner.settings.limit_after)
    }

    /// Whether nobody uses it, and nothing would be lost with it.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.inner) == 1 && self.inner.shared.is_idle()
    }
}

impl fmt::Debug for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bandwidth({}, {:?})", self.quota(), self.inner.shared.clock())
    }
}

/// Settings of a [`Bandwidth`] or of [`KeyedBandwidth`].
#[derive(Clone, Debug, Default)]
pub struct BandwidthBuilder {
    clock: Option<Clock>,
    burst: Option<u64>,
    limit_after: u64,
}

impl BandwidthBuilder {
    /// The clock; the machine's exact one unless told otherwise.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// How many bytes go at once after a silence; 9 ms of the rate unless told otherwise here or in the quota. More
    /// lets a second see more than the rate; less loses bytes whenever a timer is late.
    #[must_use]
    pub fn burst(self, bytes: u64) -> Self {
        Self { burst: Some(bytes), ..self }
    }

    /// How many bytes each stream moves, in each direction, before the limit holds for it.
    #[must_use]
    pub fn limit_after(self, bytes: u64) -> Self {
        Self { limit_after: bytes, ..self }
    }

    /// Makes the bandwidth.
    pub fn build<Q>(self, quota: Q) -> Result<Bandwidth, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let (quota, terms) = self.resolve(quota.try_into()?)?;
        Ok(Bandwidth::from_parts(quota, terms, self))
    }

    /// Makes a bandwidth for each key.
    pub fn build_keyed<Q>(self, quota: Q) -> Result<KeyedBandwidth, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let (quota, terms) = self.resolve(quota.try_into()?)?;
        Ok(KeyedBandwidth::from_parts(quota, terms, self))
    }

    /// The quota with the burst that it gets here, and the numbers that it amounts to.
    fn resolve(&self, quota: Quota) -> Result<(Quota, SchedulerSettings), BuildError> {
        let refuse = || BuildError::unsupported_quota(&quota, "a plain rate in bytes, as in `100kB/s`");
        let (AlgorithmKind::TokenBucket(_), Some(rate)) = (quota.kind(), quota.rate()) else {
            return Err(refuse());
        };
        if rate.unit() != RateUnit::Bytes {
            return Err(refuse());
        }
        // A quota without a burst reads as one of a whole period.
        let configured_burst = self.burst.or(Some(quota.limit()).filter(|burst| *burst != rate.amount()));
        let burst = configured_burst.unwrap_or_else(|| bytes_in(rate, DEFAULT_BURST_TIME).max(MIN_BURST));
        let quota = rate.burst(burst)?;
        let AlgorithmKind::TokenBucket(bucket) = quota.kind() else { return Err(refuse()) };
        let ChunkSizes { quantum: piece, prepaid: held } = ChunkSizes::for_quota(&quota);
        Ok((quota, SchedulerSettings { meter: *bucket.meter(), quantum: piece, max_prepaid: held }))
    }
}

/// How long it takes to move what goes at once. With what is held it is less than the hundredth of a second by which
/// a second may be off.
const DEFAULT_BURST_TIME: Micros = Micros::from_millis(9);
/// How long it takes to move what one stream takes at a time.
const QUANTUM_TIME: Micros = Micros::from_millis(4);
/// What goes at once however slow the rate is: fewer bytes are not worth a timer.
const MIN_BURST: u64 = 512;
/// The part of a piece that streams may hold, together.
const PREPAID_DIVISOR: u64 = 8;

/// How many bytes are taken at a time, and held, under a quota.
struct ChunkSizes {
    quantum: u64,
    prepaid: u64,
}

impl ChunkSizes {
    fn for_quota(quota: &Quota) -> Self {
        let part = |burst: u64| burst / 9 * 4 + burst % 9 * 4 / 9;
        let piece = quota.rate().map_or(0, |rate| bytes_in(rate, QUANTUM_TIME)).max(part(MIN_BURST));
        let piece = piece.min(part(quota.limit())).max(1);
        Self { quantum: piece, prepaid: piece / PREPAID_DIVISOR }
    }
}

fn bytes_in(rate: Rate, time: Micros) -> u64 {
    let bytes = u128::from(rate.amount()) * u128::from(time.get()) / u128::from(rate.period().get().max(1));
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
