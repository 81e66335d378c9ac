//! Byte rate limits for readers, writers, streams and HTTP bodies, separate or shared.
//!
//! ```
//! use tidegate_bandwidth::{Bandwidth, KeyedBandwidth};
//!
//! let (down, up) = (Bandwidth::new("5MB/s")?, Bandwidth::new("1MB/s")?);
//! let (socket, _peer) = tokio::io::duplex(64);
//! let socket = down.limit_reads(socket).limit_writes(&up);
//!
//! let per_user = KeyedBandwidth::new("500kB/s burst 1MB")?;
//! let socket = per_user.key("alice").limit_reads(socket);
//! # Ok::<(), tidegate_limiter::BuildError>(())
//! ```
//!
//! | noun | meaning |
//! |---|---|
//! | [`Bandwidth`] | a byte rate that any number of streams share |
//! | [`KeyedBandwidth`] | a byte rate for each key |
//! | [`ShapedStream`] | a stream with limited reads, writes or both |
//!
//! It does not
//!
//! - share a rate between processes;
//! - work outside of a tokio runtime, whose timers it uses;
//! - split the items of a stream; frames of a body are cut.

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
    BuildError, Capacity, Clock, Overflow,
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
/// Streams with the same bandwidth, or a clone of it, share it byte by byte: each gets the same rate, with small
/// chunks or large ones. An idle stream holds no bytes. Use one bandwidth per stream for separate limits,
/// [`KeyedBandwidth`] for a limit per user, and wrap one limit in the other for both.
///
/// While a stream has bytes to move, the rate in any second is exact to 1 %, with timers that are up to 5 ms late.
/// There are two exceptions: below 57 kB/s up to 512 bytes and at most 30 ms of the rate (but not fewer than 36 bytes)
/// are moved at once, and an item of a stream is passed whole, and the next one waits.
#[derive(Clone)]
pub struct Bandwidth {
    inner: Arc<BandwidthInner>,
}

struct BandwidthInner {
    shared: Arc<SharedScheduler>,
    settings: Mutex<BandwidthSettings>,
}

/// The settings that can change at run time.
#[derive(Clone, Copy)]
struct BandwidthSettings {
    quota: Quota,
    scheduler: SchedulerSettings,
    /// The burst of the builder, in place of that of a quota.
    burst: Option<u64>,
    limit_after: u64,
}

impl Bandwidth {
    /// A bandwidth on the system clock, with a byte rate such as `100kB/s`, or `1MB/s burst 10MB` with a larger burst.
    pub fn new<Q>(quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        Self::builder().build(quota)
    }

    /// Returns a builder with the default settings.
    pub fn builder() -> BandwidthBuilder {
        BandwidthBuilder::default()
    }

    /// Limits the reads from `inner`, or the items or frames of a `Stream` or a body.
    pub fn limit_reads<T>(&self, inner: T) -> ShapedStream<T> {
        ShapedStream::new(inner).limit_reads(self)
    }

    /// Limits the writes to `inner`.
    pub fn limit_writes<T>(&self, inner: T) -> ShapedStream<T> {
        ShapedStream::new(inner).limit_writes(self)
    }

    /// Changes the rate at run time, also for streams that already wait.
    pub fn change<Q>(&self, quota: Q) -> Result<(), BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let settings = lock(&self.inner.settings).with_quota(quota.try_into()?)?;
        self.apply_settings(settings).into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// The rate and the burst.
    pub fn quota(&self) -> Quota {
        lock(&self.inner.settings).quota
    }

    /// The most bytes in any window, for divisible data, without the bytes exempted by `limit_after`.
    pub fn bound(&self) -> Bound {
        let quota = self.quota();
        let prepaid = ChunkSizes::for_quota(&quota).prepaid;
        let bound = quota
            .rate()
            .and_then(|rate| rate.token_bucket(quota.limit() + prepaid).ok())
            .unwrap_or(quota)
            .bound();
        self.inner.shared.clock().widen_bound(bound)
    }

    fn from_parts(settings: BandwidthSettings, clock: Clock) -> Self {
        let shared = SharedScheduler::new(settings.scheduler, clock);
        Self { inner: Arc::new(BandwidthInner { shared: Arc::new(shared), settings: Mutex::new(settings) }) }
    }

    /// Applies new settings and returns the wakers of the waiting streams.
    #[must_use]
    fn apply_settings(&self, settings: BandwidthSettings) -> Vec<Waker> {
        // Holds the lock until the end, so that concurrent changes end with the same quota and settings.
        let mut current = lock(&self.inner.settings);
        *current = settings;
        self.inner.shared.reconfigure(settings.scheduler)
    }

    fn new_handle(&self) -> StreamHandle {
        let free_bytes = lock(&self.inner.settings).limit_after;
        StreamHandle::new(self.inner.shared.clone(), free_bytes)
    }

    /// The debt if nothing but its table uses it; zero if its state equals that of a new one.
    fn unused_level(&self) -> Option<u64> {
        (Arc::strong_count(&self.inner) == 1).then(|| self.inner.shared.unused_level())?
    }
}

impl fmt::Debug for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bandwidth({}, {:?})", self.quota(), self.inner.shared.clock())
    }
}

/// The settings of a [`Bandwidth`] or a [`KeyedBandwidth`].
#[derive(Clone, Debug)]
pub struct BandwidthBuilder {
    clock: Option<Clock>,
    burst: Option<u64>,
    limit_after: u64,
    capacity: Capacity,
    overflow: Overflow,
}

/// The default memory of the keys of a [`KeyedBandwidth`], as of a limiter.
const DEFAULT_CAPACITY: Capacity = Capacity::Bytes(64 << 20);

impl Default for BandwidthBuilder {
    fn default() -> Self {
        Self {
            clock: None,
            burst: None,
            limit_after: 0,
            capacity: DEFAULT_CAPACITY,
            overflow: Overflow::default(),
        }
    }
}

impl BandwidthBuilder {
    /// Sets the clock; the system clock by default.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// Sets the number of bytes that may be moved at once after idle time; that of the quota, or 9 ms of the rate
    /// by default (30 ms at low rates). A larger burst exceeds the rate in the second after; a smaller one loses throughput when a
    /// timer is late.
    #[must_use]
    pub fn burst(self, bytes: u64) -> Self {
        Self { burst: Some(bytes), ..self }
    }

    /// Sets the number of bytes that each stream moves in each direction before the limit applies.
    #[must_use]
    pub fn limit_after(self, bytes: u64) -> Self {
        Self { limit_after: bytes, ..self }
    }

    /// Sets the number of keys of a [`KeyedBandwidth`], or their memory; 64 MiB by default.
    #[must_use]
    pub fn capacity(self, capacity: Capacity) -> Self {
        Self { capacity, ..self }
    }

    /// Sets what happens to a new key of a [`KeyedBandwidth`] when the capacity is reached and no key is idle. With
    /// [`Overflow::Replace`], the default, it replaces a key that no stream uses, which then starts without a debt; if
    /// all are in use, and always with [`Overflow::Share`], it shares one rate with other such keys. A bandwidth
    /// rejects nothing, so [`Overflow::Deny`] equals [`Overflow::Share`].
    #[must_use]
    pub fn overflow(self, overflow: Overflow) -> Self {
        Self { overflow, ..self }
    }

    /// Builds the bandwidth.
    pub fn build<Q>(self, quota: Q) -> Result<Bandwidth, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let settings = self.resolve(quota.try_into()?)?;
        Ok(Bandwidth::from_parts(settings, self.clock.unwrap_or_default()))
    }

    /// Builds a bandwidth for each key.
    pub fn build_keyed<Q>(self, quota: Q) -> Result<KeyedBandwidth, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let settings = self.resolve(quota.try_into()?)?;
        Ok(KeyedBandwidth::from_parts(settings, self))
    }

    fn resolve(&self, quota: Quota) -> Result<BandwidthSettings, BuildError> {
        BandwidthSettings::new(quota, self.burst, self.limit_after)
    }
}

impl BandwidthSettings {
    /// The quota with its effective burst, and the settings of the scheduler.
    fn new(quota: Quota, burst: Option<u64>, limit_after: u64) -> Result<Self, BuildError> {
        let unsupported = || BuildError::unsupported_quota(&quota, "a plain rate in bytes, as in `100kB/s`");
        let (AlgorithmKind::TokenBucket(_), Some(rate)) = (quota.kind(), quota.rate()) else {
            return Err(unsupported());
        };
        if rate.unit() != RateUnit::Bytes {
            return Err(unsupported());
        }
        // The burst of a quota without one is the amount of a period, which is not meant here.
        let configured_burst = burst.or(Some(quota.limit()).filter(|burst| *burst != rate.amount()));
        let quota = rate.token_bucket(configured_burst.unwrap_or_else(|| default_burst(rate)))?;
        let AlgorithmKind::TokenBucket(bucket) = quota.kind() else { return Err(unsupported()) };
        let ChunkSizes { quantum, prepaid } = ChunkSizes::for_quota(&quota);
        let scheduler =
            SchedulerSettings { integer_bucket: *bucket.integer_bucket(), quantum, max_prepaid: prepaid };
        Ok(Self { quota, scheduler, burst, limit_after })
    }

    fn with_quota(&self, quota: Quota) -> Result<Self, BuildError> {
        Self::new(quota, self.burst, self.limit_after)
    }
}

/// The default burst as a time at the rate. Together with the prepaid bytes it is below 10 ms, so that a second is
/// exact to 1 %.
const DEFAULT_BURST_TIME: Micros = Micros::from_millis(9);
/// The quantum as a time at the rate: how much one stream moves before another may.
const QUANTUM_TIME: Micros = Micros::from_millis(4);
/// A burst of fewer bytes is not worth a timer, unless it takes longer than this at the rate: then a second would be
/// exceeded by more than 3 %.
const SMALL_BURST: u64 = 512;
const SMALL_BURST_TIME: Micros = Micros::from_millis(30);
/// The minimum default burst at any rate.
const MIN_BURST: u64 = 36;
/// The prepaid bytes of all streams together are at most this fraction of the quantum.
const PREPAID_DIVISOR: u64 = 8;

/// The number of bytes per grant, and the maximum number of prepaid bytes.
struct ChunkSizes {
    quantum: u64,
    prepaid: u64,
}

impl ChunkSizes {
    fn for_quota(quota: &Quota) -> Self {
        let part = |burst: u64| burst / 9 * 4 + burst % 9 * 4 / 9;
        let quantum = quota.rate().map_or(0, |rate| bytes_in(rate, QUANTUM_TIME)).max(part(SMALL_BURST));
        let quantum = quantum.min(part(quota.limit())).max(1);
        Self { quantum, prepaid: quantum / PREPAID_DIVISOR }
    }
}

/// The burst of a rate without one.
fn default_burst(rate: Rate) -> u64 {
    let small = bytes_in(rate, SMALL_BURST_TIME).clamp(MIN_BURST, SMALL_BURST);
    bytes_in(rate, DEFAULT_BURST_TIME).max(small)
}

fn bytes_in(rate: Rate, time: Micros) -> u64 {
    let bytes = u128::from(rate.amount()) * u128::from(time.get()) / u128::from(rate.period().get().max(1));
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
