//! A limiter for threads that can wait.

use super::{
    Bucket, Limiter, LocalBucket, LocalPlace, LocalReservation, Permit, Reservation,
    bucket::Place as BucketPlace,
};
#[cfg(feature = "tokio")]
use crate::background;
use crate::{
    key::Key,
    memory::Hold,
    store::StoreError,
    throttle,
    wait::{Refused, Waiter},
};
use std::{sync::Arc, time::Duration};
#[cfg(feature = "tokio")]
use tidegate_core::Micros;
use tidegate_core::{Decision, Demand};

/// A [`Limiter`] for threads that can wait; see [`Limiter::blocking`]. It waits for its turn, and for a store where the limiter has one.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limiter::Limiter;
///
/// let limiter = Limiter::new("1000/min")?;
/// let tenant = limiter.blocking().key("tenant-7");
/// let tokens = tenant.reserve(400, Duration::ZERO);
/// assert!(tokens.decision().is_granted());
/// tokens.commit(150); // the work turned out to be smaller
/// assert_eq!(tenant.peek(0).remaining(), 850);
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Blocking<'a> {
    limiter: &'a Limiter,
}

impl<'a> Blocking<'a> {
    #[inline]
    pub(super) fn new(limiter: &'a Limiter) -> Self {
        Self { limiter }
    }

    /// The bucket of one key.
    #[inline]
    pub fn key<K: Key + ?Sized>(self, key: &K) -> BlockingBucket<'a> {
        match &self.limiter.backend {
            super::Backend::Memory(memory) => BlockingBucket::of_key(memory, memory.fingerprint(key)),
            #[cfg(feature = "tokio")]
            super::Backend::Store(remote) => {
                BlockingBucket { place: Place::Store(Bucket::in_store(remote.clone(), key.to_string())) }
            }
        }
    }
}

/// A [`Bucket`] for threads that can wait.
#[derive(Clone)]
pub struct BlockingBucket<'a> {
    place: Place<'a>,
}

#[derive(Clone)]
enum Place<'a> {
    Key {
        memory: &'a Arc<super::Memory>,
        owner: u64,
        tier: usize,
    },
    Throttle(&'a Arc<throttle::State>),
    #[cfg(feature = "tokio")]
    Store(Bucket),
}

/// Where it is counted.
enum Target<'a> {
    Local(LocalBucket<'a>),
    #[cfg(feature = "tokio")]
    Store(&'a Bucket),
}

impl<'a> BlockingBucket<'a> {
    #[inline]
    fn of_key(memory: &'a Arc<super::Memory>, owner: u64) -> Self {
        Self { place: Place::Key { memory, owner, tier: super::FIRST } }
    }

    pub(crate) fn of_throttle(state: &'a Arc<throttle::State>) -> Self {
        Self { place: Place::Throttle(state) }
    }

    /// The same bucket under another of the limiter's tiers, counted from zero; `None` if there is no such tier.
    pub fn tier(&self, wanted: usize) -> Option<Self> {
        match &self.place {
            Place::Key { memory, owner, .. } if wanted < memory.tiers() => {
                Some(Self { place: Place::Key { memory, owner: *owner, tier: wanted } })
            }
            Place::Key { .. } | Place::Throttle(_) => None,
            #[cfg(feature = "tokio")]
            Place::Store(bucket) => {
                bucket.clone().tier(wanted).map(|bucket| Self { place: Place::Store(bucket) })
            }
        }
    }

    #[inline]
    fn target(&self) -> Target<'_> {
        match &self.place {
            Place::Key { memory, owner, tier } => Target::Local(LocalBucket::of_key(memory, *owner, *tier)),
            Place::Throttle(state) => Target::Local(LocalBucket::of_throttle(state)),
            #[cfg(feature = "tokio")]
            Place::Store(bucket) => Target::Store(bucket),
        }
    }

    /// It for what outlives this view.
    #[inline]
    fn bucket(&self) -> Bucket {
        match &self.place {
            Place::Key { memory, owner, tier } => {
                let (memory, owner, tier) = (Arc::clone(memory), *owner, *tier);
                Bucket::local(LocalPlace::Key { memory, owner, tier })
            }
            Place::Throttle(state) => Bucket::local(LocalPlace::Throttle(Arc::clone(state))),
            #[cfg(feature = "tokio")]
            Place::Store(bucket) => bucket.clone(),
        }
    }

    /// Takes `cost`, now or not at all.
    #[inline]
    pub fn check(&self, cost: u64) -> Decision {
        match self.target() {
            Target::Local(bucket) => bucket.check(cost),
            #[cfg(feature = "tokio")]
            Target::Store(bucket) => decided(bucket, move |bucket| async move { bucket.check(cost).await }),
        }
    }

    /// Takes `cost` now or not at all, even if it is larger than the burst: it is then granted as soon as a full
    /// burst would be, and those who come later wait until the rest is repaid.
    pub fn check_on_credit(&self, cost: u64) -> Decision {
        match self.target() {
            Target::Local(bucket) => bucket.check_on_credit(cost),
            #[cfg(feature = "tokio")]
            Target::Store(bucket) => {
                decided(bucket, move |bucket| async move { bucket.check_on_credit(cost).await })
            }
        }
    }

    /// What `cost` would get now. Takes nothing.
    #[inline]
    pub fn peek(&self, cost: u64) -> Decision {
        match self.target() {
            Target::Local(bucket) => bucket.peek(cost),
            #[cfg(feature = "tokio")]
            Target::Store(bucket) => decided(bucket, move |bucket| async move { bucket.peek(cost).await }),
        }
    }

    /// Takes as much as there is, up to `max`, and returns how much that was. Zero means that there was nothing; the
    /// decision then says when there will be.
    pub fn take_up_to(&self, max: u64) -> (u64, Decision) {
        match self.target() {
            Target::Local(bucket) => bucket.take_up_to(max),
            #[cfg(feature = "tokio")]
            Target::Store(bucket) => {
                let taken =
                    block_on(
                        bucket,
                        Duration::ZERO,
                        move |bucket| async move { bucket.take_up_to(max).await },
                    );
                taken.unwrap_or_else(|| (0, unanswered()))
            }
        }
    }

    /// Takes `cost` and accepts to wait for it up to `max_wait`, but does not wait; see [`Bucket::reserve`].
    pub fn reserve(&self, cost: u64, max_wait: Duration) -> Reservation {
        match self.bucket().place {
            BucketPlace::Local(place) => {
                Reservation::take(place, Demand::with_max_wait(cost, max_wait.into()), Hold::Nothing)
            }
            #[cfg(feature = "tokio")]
            place => reserved(&Bucket { place }, Duration::ZERO, move |bucket| async move {
                bucket.reserve(cost, max_wait).await
            }),
        }
    }

    /// Takes a slot that gives itself back when the permit is dropped; see [`Bucket::permit`].
    #[inline]
    pub fn permit(&self) -> Permit {
        match self.bucket().place {
            BucketPlace::Local(place) => Permit::take(place),
            #[cfg(feature = "tokio")]
            place => {
                let bucket = Bucket { place };
                let permit = block_on(&bucket, Duration::ZERO, |bucket| async move { bucket.permit().await });
                permit.unwrap_or_else(|| Permit::of(Reservation::settled(unanswered())))
            }
        }
    }

    /// Takes `cost` and blocks until it may be used; see [`Bucket::acquire`].
    pub fn acquire(&self, cost: u64) -> Decision {
        self.acquire_reserved(cost, None).keep()
    }

    /// Takes `cost` if it can be had within `timeout`, and blocks until then; else answers at once that it cannot.
    pub fn try_acquire(&self, cost: u64, timeout: Duration) -> Decision {
        self.acquire_reserved(cost, Some(timeout)).keep()
    }

    /// The same without an end if `timeout` is `None`; what was taken can still be given back.
    pub fn acquire_reserved(&self, cost: u64, timeout: Option<Duration>) -> Reservation {
        match self.bucket().place {
            BucketPlace::Local(place) => {
                let taken = place.bucket().block_for_turn(cost, timeout).map(LocalReservation::into_parts);
                Reservation::of_result(place, cost, taken)
            }
            #[cfg(feature = "tokio")]
            place => {
                reserved(&Bucket { place }, timeout.unwrap_or(Duration::MAX), move |bucket| async move {
                    bucket.acquire_reserved(cost, timeout).await
                })
            }
        }
    }

    /// Waits in the queue of the key; see [`Bucket::wait_in_line`].
    pub fn wait_in_line(&self, waiter: Waiter) -> Result<Decision, Refused> {
        match self.bucket().place {
            BucketPlace::Local(place) => {
                let (decision, _) = place.bucket().queue_blocking(waiter, Hold::Nothing)?.into_parts();
                Ok(decision)
            }
            #[cfg(feature = "tokio")]
            place => {
                queued(
                    &Bucket { place },
                    waiter,
                    move |bucket| async move { bucket.wait_in_line(waiter).await },
                )
            }
        }
    }

    /// Waits in the queue of the key for slots; see [`Bucket::permit_in_line`].
    pub fn permit_in_line(&self, waiter: Waiter) -> Result<Permit, Refused> {
        match self.bucket().place {
            BucketPlace::Local(place) => {
                let taken = place.bucket().queue_blocking(waiter, Hold::Permit)?.into_parts();
                Ok(Permit::of(Reservation::of(place, waiter.cost, taken)))
            }
            #[cfg(feature = "tokio")]
            place => {
                queued(
                    &Bucket { place },
                    waiter,
                    move |bucket| async move { bucket.permit_in_line(waiter).await },
                )
            }
        }
    }

    /// Forgets the key; see [`Bucket::reset`].
    pub fn reset(&self) -> Result<(), StoreError> {
        match self.target() {
            Target::Local(bucket) => {
                bucket.reset();
                Ok(())
            }
            #[cfg(feature = "tokio")]
            Target::Store(bucket) => {
                let reset = block_on(bucket, Duration::ZERO, |bucket| async move { bucket.reset().await });
                reset.unwrap_or(Err(StoreError::Late))
            }
        }
    }
}

/// Runs a future of a store on the thread for stores, and blocks this one until it is done.
#[cfg(feature = "tokio")]
fn block_on<F>(bucket: &Bucket, max_wait: Duration, call: impl FnOnce(Bucket) -> F) -> Option<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    background::block_on(max_wait, call(bucket.clone()))
}

/// Kept apart, so that what counts in memory stays small.
#[cfg(feature = "tokio")]
#[inline(never)]
fn decided<F>(bucket: &Bucket, call: impl FnOnce(Bucket) -> F) -> Decision
where
    F: Future<Output = Decision> + Send + 'static,
{
    block_on(bucket, Duration::ZERO, call).unwrap_or_else(unanswered)
}

#[cfg(feature = "tokio")]
fn reserved<F>(bucket: &Bucket, max_wait: Duration, call: impl FnOnce(Bucket) -> F) -> Reservation
where
    F: Future<Output = Reservation> + Send + 'static,
{
    block_on(bucket, max_wait, call).unwrap_or_else(|| Reservation::settled(unanswered()))
}

#[cfg(feature = "tokio")]
fn queued<T, F>(bucket: &Bucket, waiter: Waiter, call: impl FnOnce(Bucket) -> F) -> Result<T, Refused>
where
    F: Future<Output = Result<T, Refused>> + Send + 'static,
    T: Send,
{
    let answer = block_on(bucket, waiter.deadline.unwrap_or(Duration::MAX), call);
    answer.unwrap_or(Err(Refused::StoreAway(RETRY)))
}

/// The retry time of a check that no thread could send to the store.
#[cfg(feature = "tokio")]
const RETRY: Micros = Micros::from_secs(1);

#[cfg(feature = "tokio")]
fn unanswered() -> Decision {
    Decision::fail_closed(0, RETRY)
}
