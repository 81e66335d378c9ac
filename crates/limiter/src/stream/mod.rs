//! Streams that are pulled at a pace: for consumers of messages, and for outbound calls that come from a stream.
//!
//! ```text
//!            slot?      token?      pull        yield            drop
//!   inner ───────────────────────────▶ item ───▶ InFlight(item) ───▶ the slot is free again
//!          wait in    wait until    nothing there: both are given back
//!          line       it is time
//! ```
//!
//! An item is pulled only when it can be delivered, so whatever is behind the stream feels the pressure. Between two
//! polls a stream that has nothing to deliver holds nothing; one that waits keeps its place.
//!
//! Its surprise: what a batch costs is known only once it is there. So one token is waited for, the rest is owed, and
//! repaid before the next batch comes.

mod permits;
mod source;
mod tokens;

pub use permits::StreamPermit;

use crate::{clock::Clock, direct::DirectLimiter, key::LimitKey, limiter::BuildError, limiter::Limiter};
use futures_core::Stream;
use permits::StreamPermits;
use pin_project_lite::pin_project;
use source::StreamSource;
use std::{
    fmt,
    ops::{Deref, DerefMut},
    pin::Pin,
    task::{Context, Poll, ready},
};
use tidegate_core::{AlgorithmKind, Quota};
use tokens::StreamTokens;

/// How fast a stream is pulled, and how many of its items are in flight.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_limiter::{Limiter, StreamLimit};
///
/// let own = StreamLimit::new().rate("100/s burst 10")?.max_in_flight(16)?;
///
/// let tenants = Limiter::new("50/s")?;
/// let shared = StreamLimit::new().rate_from_key(&tenants, "tenant-7")?.max_in_flight(4)?;
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct StreamLimit {
    clock: Clock,
    rate: Option<StreamSource>,
    slots: Option<StreamSource>,
}

impl StreamLimit {
    /// As fast and as wide as it goes, until told otherwise.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, where the rate that it is told is counted on another clock than the machine's.
    pub fn with_clock(clock: Clock) -> Self {
        Self { clock, ..Self::default() }
    }

    /// No faster than a rate of its own.
    pub fn rate<Q>(self, quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let throttle = DirectLimiter::builder().clock(self.clock.clone()).build(quota)?;
        self.rate_from(&throttle)
    }

    /// No faster than a throttle allows, together with all others who use it.
    pub fn rate_from(self, throttle: &DirectLimiter) -> Result<Self, BuildError> {
        self.with_rate(StreamSource(throttle.local_backend()))
    }

    /// No faster than a limiter allows one of its keys.
    pub fn rate_from_key<K: LimitKey + ?Sized>(self, limiter: &Limiter, key: &K) -> Result<Self, BuildError> {
        self.with_rate(StreamSource(limiter.local_backend(key)?))
    }

    /// No more items in flight than this.
    pub fn max_in_flight(self, items: u64) -> Result<Self, BuildError> {
        let throttle =
            DirectLimiter::builder().clock(self.clock.clone()).build(Quota::concurrency(items)?)?;
        self.slots_from(&throttle)
    }

    /// No more items in flight than a throttle has slots, together with all others who use it.
    pub fn slots_from(self, throttle: &DirectLimiter) -> Result<Self, BuildError> {
        self.with_slots(StreamSource(throttle.local_backend()))
    }

    /// No more items in flight than a limiter has slots for one of its keys.
    pub fn slots_from_key<K: LimitKey + ?Sized>(
        self,
        limiter: &Limiter,
        key: &K,
    ) -> Result<Self, BuildError> {
        self.with_slots(StreamSource(limiter.local_backend(key)?))
    }

    fn with_rate(self, source: StreamSource) -> Result<Self, BuildError> {
        match source.quotas().iter().find(|quota| quota.rate().is_none()) {
            Some(unfit) => Err(BuildError::unsupported_quota(unfit, "a rate, as in `10/s`")),
            None => Ok(Self { rate: Some(source), ..self }),
        }
    }

    fn with_slots(self, source: StreamSource) -> Result<Self, BuildError> {
        let counts_slots = |quota: &Quota| matches!(quota.kind(), AlgorithmKind::Concurrency(_));
        match source.quotas().iter().find(|quota| !counts_slots(quota)) {
            Some(unfit) => Err(BuildError::unsupported_quota(unfit, "a number at once, as in `3 at once`")),
            None => Ok(Self { slots: Some(source), ..self }),
        }
    }
}

pin_project! {
    /// A stream that is pulled at a pace; see [`StreamLimitExt::limit`]. It ends when the stream inside ends.
    ///
    /// Dropping it gives back what it was waiting for; items that it has yielded keep their slots until they are
    /// dropped themselves.
    ///
    /// While it waits it keeps its place in line, also when whoever polled it gives up, by a timeout say: poll it
    /// again, or drop it. One that is kept and not polled holds up all who share its slots.
    #[must_use = "streams do nothing unless polled"]
    pub struct LimitedStream<S: Stream> {
        #[pin]
        inner: S,
        tokens: Option<StreamTokens>,
        slots: Option<StreamPermits>,
        slot: Option<StreamPermit>,
        cost: Option<ItemCost<S::Item>>,
        state: StreamState,
    }
}

type ItemCost<T> = Box<dyn Fn(&T) -> u64 + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamState {
    Active,
    Ended,
}

/// Paces any stream.
pub trait StreamLimitExt: Stream + Sized {
    /// Pulls this stream at a pace. Each item comes with its slot, which is free again when the item is dropped.
    ///
    /// ```
    /// use tidegate_limiter::{StreamLimit, StreamLimitExt};
    ///
    /// # fn consume(messages: impl futures_core::Stream<Item = Vec<u8>>) -> Result<(), tidegate_limiter::BuildError> {
    /// let pace = StreamLimit::new().rate("100/s")?.max_in_flight(16)?;
    /// let batches = messages.limit(pace).cost(|batch| batch.len() as u64);
    /// # Ok(())
    /// # }
    /// ```
    fn limit(self, limit: StreamLimit) -> LimitedStream<Self> {
        let tokens = limit.rate.map(StreamTokens::new);
        let slots = limit.slots.map(StreamPermits::new);
        LimitedStream { inner: self, tokens, slots, slot: None, cost: None, state: StreamState::Active }
    }
}

impl<S: Stream> StreamLimitExt for S {}

impl<S: Stream> LimitedStream<S> {
    /// What an item costs, in tokens; one unless told otherwise. A batch may cost its length: it comes as soon as one
    /// token is there, and the next when the rest is repaid. What costs nothing is not counted.
    pub fn cost(self, cost: impl Fn(&S::Item) -> u64 + Send + Sync + 'static) -> Self {
        Self { cost: Some(Box::new(cost)), ..self }
    }

    /// The stream inside.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The stream inside, without the pace.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: Stream> Stream for LimitedStream<S> {
    type Item = InFlightItem<S::Item>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        if *this.state == StreamState::Ended {
            return Poll::Ready(None);
        }
        if let (Some(slots), None) = (this.slots.as_mut(), this.slot.as_ref()) {
            *this.slot = ready!(slots.poll(context));
            if this.slot.is_none() {
                *this.state = StreamState::Ended;
                return Poll::Ready(None);
            }
        }
        if let Some(tokens) = this.tokens {
            ready!(tokens.poll(context));
        }

        let next = this.inner.poll_next(context);
        if let Poll::Ready(Some(item)) = next {
            if let Some(tokens) = this.tokens {
                tokens.spend(this.cost.as_ref().map_or(1, |cost| cost(&item)));
            }
            return Poll::Ready(Some(InFlightItem { item, slot: this.slot.take() }));
        }
        // Nothing to deliver: others may have what was kept for it.
        this.tokens.iter_mut().for_each(StreamTokens::release);
        *this.slot = None;
        if next.is_ready() {
            *this.state = StreamState::Ended;
        }
        next.map(|_| None)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self.state {
            StreamState::Active => self.inner.size_hint(),
            StreamState::Ended => (0, Some(0)),
        }
    }
}

impl<S: Stream + fmt::Debug> fmt::Debug for LimitedStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inner, tokens, slots, .. } = self;
        f.debug_struct("LimitedStream")
            .field("inner", inner)
            .field("tokens", tokens)
            .field("slots", slots)
            .finish_non_exhaustive()
    }
}

/// An item, and the slot that it occupies until it is dropped.
#[derive(Debug)]
pub struct InFlightItem<T> {
    item: T,
    slot: Option<StreamPermit>,
}

impl<T> InFlightItem<T> {
    /// The item alone: its slot is free again.
    pub fn into_inner(self) -> T {
        self.item
    }

    /// The item and its slot, if slots are counted, to be dropped when the work is done.
    pub fn into_parts(self) -> (T, Option<StreamPermit>) {
        (self.item, self.slot)
    }
}

impl<T> Deref for InFlightItem<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.item
    }
}

impl<T> DerefMut for InFlightItem<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.item
    }
}
