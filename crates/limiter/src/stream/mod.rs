//! Rate-limited streams: for consumers of messages, and for outbound calls that originate from a stream.
//!
//! ```text
//!            slot?      token?      poll        yield            drop
//!   inner ───────────────────────────▶ item ───▶ InFlightItem ───▶ slot released
//!          wait in    wait until    no item: both are released
//!          the queue  it is ready
//! ```
//!
//! An item is polled only when it can be delivered, so the producer is subject to backpressure. Between two polls a stream
//! without an item holds neither token nor slot; a waiting one keeps its position in the queue.
//!
//! The cost of a batch is known only after it arrives. So the stream waits for one token, charges the remaining cost as
//! debt, and repays it before the next batch.

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
use tidegate_core::Quota;
use tokens::StreamTokens;

/// The rate of a stream, and the number of its items in flight.
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
    /// No limits; add them with the other methods.
    pub fn new() -> Self {
        Self::default()
    }

    /// Like [`new`](Self::new), with a clock for its own rate instead of the system clock.
    pub fn with_clock(clock: Clock) -> Self {
        Self { clock, ..Self::default() }
    }

    /// Limits the stream by a rate of its own.
    pub fn rate<Q>(self, quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let limiter = DirectLimiter::builder().clock(self.clock.clone()).build(quota)?;
        self.rate_from(&limiter)
    }

    /// Limits the stream by a limiter that it may share with others.
    pub fn rate_from(self, limiter: &DirectLimiter) -> Result<Self, BuildError> {
        self.with_rate(StreamSource(limiter.local_backend()))
    }

    /// Limits the stream by one key of a limiter.
    pub fn rate_from_key<K: LimitKey + ?Sized>(self, limiter: &Limiter, key: &K) -> Result<Self, BuildError> {
        self.with_rate(StreamSource(limiter.local_backend(key)?))
    }

    /// Limits the number of items in flight.
    pub fn max_in_flight(self, items: u64) -> Result<Self, BuildError> {
        let limiter = DirectLimiter::builder().clock(self.clock.clone()).build(Quota::concurrency(items)?)?;
        self.slots_from(&limiter)
    }

    /// Limits the items in flight by the slots of a limiter that the stream may share with others.
    pub fn slots_from(self, limiter: &DirectLimiter) -> Result<Self, BuildError> {
        self.with_slots(StreamSource(limiter.local_backend()))
    }

    /// Limits the items in flight by the slots of one key of a limiter.
    pub fn slots_from_key<K: LimitKey + ?Sized>(
        self,
        limiter: &Limiter,
        key: &K,
    ) -> Result<Self, BuildError> {
        self.with_slots(StreamSource(limiter.local_backend(key)?))
    }

    fn with_rate(self, source: StreamSource) -> Result<Self, BuildError> {
        match source.quotas().iter().find(|quota| quota.rate().is_none()) {
            Some(quota) => Err(BuildError::unsupported_quota(quota, "a rate, as in `10/s`")),
            None => Ok(Self { rate: Some(source), ..self }),
        }
    }

    fn with_slots(self, source: StreamSource) -> Result<Self, BuildError> {
        match source.quotas().iter().find(|quota| !quota.is_concurrency()) {
            Some(quota) => {
                Err(BuildError::unsupported_quota(quota, "a concurrency quota, as in `3 at once`"))
            }
            None => Ok(Self { slots: Some(source), ..self }),
        }
    }
}

pin_project! {
    /// A rate-limited stream; see [`StreamLimitExt::limit`]. It ends when the inner stream ends.
    ///
    /// Dropping it releases its token and slot; items that it has yielded hold their slots until they are dropped.
    ///
    /// While it waits it keeps its position in the queue, even if the task that polled it gives up, for example on a timeout:
    /// poll it again, or drop it. A stream that is neither polled nor dropped blocks all others that share its slots.
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

/// Limits any stream.
pub trait StreamLimitExt: Stream + Sized {
    /// Limits the rate of this stream. Each item holds a slot, which is released when the item is dropped.
    ///
    /// ```
    /// use tidegate_limiter::{StreamLimit, StreamLimitExt};
    ///
    /// # fn consume(messages: impl futures_core::Stream<Item = Vec<u8>>) -> Result<(), tidegate_limiter::BuildError> {
    /// let limit = StreamLimit::new().rate("100/s")?.max_in_flight(16)?;
    /// let batches = messages.limit(limit).cost(|batch| batch.len() as u64);
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
    /// Sets the cost of an item in tokens; by default one. A batch can cost its length: it is delivered as soon as one token is
    /// available, and the next one when the remaining cost is repaid. An item of cost zero is not counted.
    pub fn cost(self, cost: impl Fn(&S::Item) -> u64 + Send + Sync + 'static) -> Self {
        Self { cost: Some(Box::new(cost)), ..self }
    }

    /// The inner stream.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner stream, without the limits.
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
        // No item to deliver: release the token and the slot for others.
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

/// An item, and the slot that it holds until it is dropped.
#[derive(Debug)]
pub struct InFlightItem<T> {
    item: T,
    slot: Option<StreamPermit>,
}

impl<T> InFlightItem<T> {
    /// The item alone; releases its slot.
    pub fn into_inner(self) -> T {
        self.item
    }

    /// The item and its slot, if slots are limited; drop the slot when the work is done.
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
