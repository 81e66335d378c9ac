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

mod slots;
mod source;
mod tokens;

pub use slots::PaceSlot;

use crate::{clock::Clock, key::Key, limiter::BuildError, limiter::Limiter, throttle::Throttle};
use futures_core::Stream;
use pin_project_lite::pin_project;
use slots::Slots;
use source::Source;
use std::{
    fmt,
    ops::{Deref, DerefMut},
    pin::Pin,
    task::{Context, Poll, ready},
};
use tidegate_core::{AlgorithmKind, Quota};
use tokens::Tokens;

/// How fast a stream is pulled, and how many of its items are in flight.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_limiter::{Limiter, Pace};
///
/// let own = Pace::new().rate("100/s burst 10")?.at_once(16)?;
///
/// let tenants = Limiter::new("50/s")?;
/// let shared = Pace::new().rate_of_key(&tenants, "tenant-7")?.at_once(4)?;
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Pace {
    clock: Clock,
    rate: Option<Source>,
    slots: Option<Source>,
}

impl Pace {
    /// As fast and as wide as it goes, until told otherwise.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, where the rate that it is told is counted on another clock than the machine's.
    pub fn on(clock: Clock) -> Self {
        Self { clock, ..Self::default() }
    }

    /// No faster than a rate of its own.
    pub fn rate<Q>(self, quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let throttle = Throttle::builder().clock(self.clock.clone()).build(quota)?;
        self.rate_of(&throttle)
    }

    /// No faster than a throttle allows, together with all others who use it.
    pub fn rate_of(self, throttle: &Throttle) -> Result<Self, BuildError> {
        self.with_rate(Source(throttle.place()))
    }

    /// No faster than a limiter allows one of its keys.
    pub fn rate_of_key<K: Key + ?Sized>(self, limiter: &Limiter, key: &K) -> Result<Self, BuildError> {
        self.with_rate(Source(limiter.place(key)?))
    }

    /// No more items in flight than this.
    pub fn at_once(self, items: u64) -> Result<Self, BuildError> {
        let throttle = Throttle::builder().clock(self.clock.clone()).build(Quota::concurrency(items)?)?;
        self.slots_of(&throttle)
    }

    /// No more items in flight than a throttle has slots, together with all others who use it.
    pub fn slots_of(self, throttle: &Throttle) -> Result<Self, BuildError> {
        self.with_slots(Source(throttle.place()))
    }

    /// No more items in flight than a limiter has slots for one of its keys.
    pub fn slots_of_key<K: Key + ?Sized>(self, limiter: &Limiter, key: &K) -> Result<Self, BuildError> {
        self.with_slots(Source(limiter.place(key)?))
    }

    fn with_rate(self, source: Source) -> Result<Self, BuildError> {
        match source.quotas().iter().find(|quota| quota.rate().is_none()) {
            Some(unfit) => Err(BuildError::unfit(unfit, "a rate, as in `10/s`")),
            None => Ok(Self { rate: Some(source), ..self }),
        }
    }

    fn with_slots(self, source: Source) -> Result<Self, BuildError> {
        let counts_slots = |quota: &Quota| matches!(quota.kind(), AlgorithmKind::Concurrency(_));
        match source.quotas().iter().find(|quota| !counts_slots(quota)) {
            Some(unfit) => Err(BuildError::unfit(unfit, "a number at once, as in `3 at once`")),
            None => Ok(Self { slots: Some(source), ..self }),
        }
    }
}

pin_project! {
    /// A stream that is pulled at a pace; see [`PaceExt::paced`]. It ends when the stream inside ends.
    ///
    /// Dropping it gives back what it was waiting for; items that it has yielded keep their slots until they are
    /// dropped themselves.
    ///
    /// While it waits it keeps its place in line, also when whoever polled it gives up, by a timeout say: poll it
    /// again, or drop it. One that is kept and not polled holds up all who share its slots.
    #[must_use = "streams do nothing unless polled"]
    pub struct Paced<S: Stream> {
        #[pin]
        inner: S,
        tokens: Option<Tokens>,
        slots: Option<Slots>,
        slot: Option<PaceSlot>,
        cost: Option<Cost<S::Item>>,
        ended: Ended,
    }
}

type Cost<T> = Box<dyn Fn(&T) -> u64 + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    No,
    Yes,
}

/// Paces any stream.
pub trait PaceExt: Stream + Sized {
    /// Pulls this stream at a pace. Each item comes with its slot, which is free again when the item is dropped.
    ///
    /// ```
    /// use tidegate_limiter::{Pace, PaceExt};
    ///
    /// # fn consume(messages: impl futures_core::Stream<Item = Vec<u8>>) -> Result<(), tidegate_limiter::BuildError> {
    /// let pace = Pace::new().rate("100/s")?.at_once(16)?;
    /// let batches = messages.paced(pace).cost(|batch| batch.len() as u64);
    /// # Ok(())
    /// # }
    /// ```
    fn paced(self, pace: Pace) -> Paced<Self> {
        let tokens = pace.rate.map(Tokens::new);
        let slots = pace.slots.map(Slots::new);
        Paced { inner: self, tokens, slots, slot: None, cost: None, ended: Ended::No }
    }
}

impl<S: Stream> PaceExt for S {}

impl<S: Stream> Paced<S> {
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

impl<S: Stream> Stream for Paced<S> {
    type Item = InFlight<S::Item>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        if *this.ended == Ended::Yes {
            return Poll::Ready(None);
        }
        if let (Some(slots), None) = (this.slots.as_mut(), this.slot.as_ref()) {
            *this.slot = ready!(slots.poll(context));
            if this.slot.is_none() {
                *this.ended = Ended::Yes;
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
            return Poll::Ready(Some(InFlight { item, slot: this.slot.take() }));
        }
        // Nothing to deliver: others may have what was kept for it.
        this.tokens.iter_mut().for_each(Tokens::rest);
        *this.slot = None;
        if next.is_ready() {
            *this.ended = Ended::Yes;
        }
        next.map(|_| None)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self.ended {
            Ended::No => self.inner.size_hint(),
            Ended::Yes => (0, Some(0)),
        }
    }
}

impl<S: Stream + fmt::Debug> fmt::Debug for Paced<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inner, tokens, slots, .. } = self;
        f.debug_struct("Paced")
            .field("inner", inner)
            .field("tokens", tokens)
            .field("slots", slots)
            .finish_non_exhaustive()
    }
}

/// An item, and the slot that it occupies until it is dropped.
#[derive(Debug)]
pub struct InFlight<T> {
    item: T,
    slot: Option<PaceSlot>,
}

impl<T> InFlight<T> {
    /// The item alone: its slot is free again.
    pub fn into_inner(self) -> T {
        self.item
    }

    /// The item and its slot, if slots are counted, to be dropped when the work is done.
    pub fn into_parts(self) -> (T, Option<PaceSlot>) {
        (self.item, self.slot)
    }
}

impl<T> Deref for InFlight<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.item
    }
}

impl<T> DerefMut for InFlight<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.item
    }
}
