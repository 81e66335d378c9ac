//! A limiter for threads that can block.

use super::{
    Bucket, Limiter, LocalBackend, LocalBucket, LocalReservation, Permit, Reservation, bucket::BucketBackend,
};
#[cfg(feature = "tokio")]
use crate::background;
use crate::{
    direct,
    key::LimitKey,
    memory::PermitHold,
    store::StoreError,
    wait::{WaitError, Waiter},
};
use std::{sync::Arc, time::Duration};
#[cfg(feature = "tokio")]
use tidegate_core::Micros;
use tidegate_core::{Decision, Demand};

/// A [`Limiter`] for threads that can block; see [`Limiter::blocking`]. It blocks on queues, and on the store if the
/// limiter has one.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limiter::Limiter;
///
/// let limiter = Limiter::new("1000/min")?;
/// let tenant = limiter.blocking().key("tenant-7");
/// let tokens = tenant.reserve(400, Duration::ZERO);
/// assert!(tokens.decision().is_granted());
/// tokens.commit(150); // the actual cost was lower
/// assert_eq!(tenant.peek(0).remaining(), 850);
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BlockingLimiter<'a> {
    limiter: &'a Limiter,
}

impl<'a> BlockingLimiter<'a> {
    #[inline]
    pub(super) fn new(limiter: &'a Limiter) -> Self {
        Self { limiter }
    }

    /// The bucket of one key.
    #[inline]
    pub fn key<K: LimitKey + ?Sized>(self, key: &K) -> BlockingBucket<'a> {
        match &self.limiter.backend {
            super::LimiterBackend::Memory(memory) => BlockingBucket::for_key(memory, memory.fingerprint(key)),
            #[cfg(feature = "tokio")]
            super::LimiterBackend::Store(remote) => BlockingBucket {
                backend: BlockingBackend::Store(Bucket::from_remote(remote.clone(), key.to_string())),
            },
        }
    }
}

/// A [`Bucket`] for threads that can block.
#[derive(Clone)]
pub struct BlockingBucket<'a> {
    backend: BlockingBackend<'a>,
}

#[derive(Clone)]
enum BlockingBackend<'a> {
    Key {
        memory: &'a Arc<super::MemoryLimiter>,
        owner: u64,
        tier: usize,
    },
    Direct(&'a Arc<direct::DirectState>),
    #[cfg(feature = "tokio")]
    Store(Bucket),
}

/// The bucket to call: in memory or in a store.
enum BlockingTarget<'a> {
    Local(LocalBucket<'a>),
    #[cfg(feature = "tokio")]
    Store(&'a Bucket),
}

impl<'a> BlockingBucket<'a> {
    #[inline]
    fn for_key(memory: &'a Arc<super::MemoryLimiter>, owner: u64) -> Self {
        let tier = memory.tier_for(owner, super::FIRST_TIER);
        Self { backend: BlockingBackend::Key { memory, owner, tier } }
    }

    pub(crate) fn for_direct(state: &'a Arc<direct::DirectState>) -> Self {
        Self { backend: BlockingBackend::Direct(state) }
    }

    /// The same bucket under another tier of the limiter, numbered from zero; `None` if there is no such tier.
    pub fn tier(&self, tier: usize) -> Option<Self> {
        match &self.backend {
            BlockingBackend::Key { memory, owner, .. } if tier < memory.tiers() => {
                let tier = memory.tier_for(*owner, tier);
                Some(Self { backend: BlockingBackend::Key { memory, owner: *owner, tier } })
            }
            BlockingBackend::Key { .. } | BlockingBackend::Direct(_) => None,
            #[cfg(feature = "tokio")]
            BlockingBackend::Store(bucket) => {
                bucket.clone().tier(tier).map(|bucket| Self { backend: BlockingBackend::Store(bucket) })
            }
        }
    }

    #[inline]
    fn target(&self) -> BlockingTarget<'_> {
        match &self.backend {
            BlockingBackend::Key { memory, owner, tier } => {
                BlockingTarget::Local(LocalBucket::for_key(memory, *owner, *tier))
            }
            BlockingBackend::Direct(state) => BlockingTarget::Local(LocalBucket::for_direct(state)),
            #[cfg(feature = "tokio")]
            BlockingBackend::Store(bucket) => BlockingTarget::Store(bucket),
        }
    }

    /// An owned bucket, for results that outlive this view.
    #[inline]
    fn bucket(&self) -> Bucket {
        match &self.backend {
            BlockingBackend::Key { memory, owner, tier } => {
                let (memory, owner, tier) = (Arc::clone(memory), *owner, *tier);
                Bucket::local(LocalBackend::Key { memory, owner, tier })
            }
            BlockingBackend::Direct(state) => Bucket::local(LocalBackend::Direct(Arc::clone(state))),
            #[cfg(feature = "tokio")]
            BlockingBackend::Store(bucket) => bucket.clone(),
        }
    }

    /// Takes `cost` now, or denies.
    #[inline]
    pub fn check(&self, cost: u64) -> Decision {
        match self.target() {
            BlockingTarget::Local(bucket) => bucket.check(cost),
            #[cfg(feature = "tokio")]
            BlockingTarget::Store(bucket) => {
                block_on_decision(bucket, move |bucket| async move { bucket.check(cost).await })
            }
        }
    }

    /// Takes `cost` now, or denies, even if it exceeds the burst: it is then granted as soon as a full burst would be, and
    /// later callers wait until the overdraft is repaid.
    pub fn check_with_overdraft(&self, cost: u64) -> Decision {
        match self.target() {
            BlockingTarget::Local(bucket) => bucket.check_with_overdraft(cost),
            #[cfg(feature = "tokio")]
            BlockingTarget::Store(bucket) => {
                block_on_decision(
                    bucket,
                    move |bucket| async move { bucket.check_with_overdraft(cost).await },
                )
            }
        }
    }

    /// The decision that `cost` would get now. Takes nothing.
    #[inline]
    pub fn peek(&self, cost: u64) -> Decision {
        match self.target() {
            BlockingTarget::Local(bucket) => bucket.peek(cost),
            #[cfg(feature = "tokio")]
            BlockingTarget::Store(bucket) => {
                block_on_decision(bucket, move |bucket| async move { bucket.peek(cost).await })
            }
        }
    }

    /// Takes as many tokens as are available, up to `max`, and returns their number. Zero means that none was available; the
    /// decision then contains the time of the next one.
    pub fn take_up_to(&self, max: u64) -> (u64, Decision) {
        match self.target() {
            BlockingTarget::Local(bucket) => bucket.take_up_to(max),
            #[cfg(feature = "tokio")]
            BlockingTarget::Store(bucket) => {
                let taken =
                    block_on(
                        bucket,
                        Duration::ZERO,
                        move |bucket| async move { bucket.take_up_to(max).await },
                    );
                taken.unwrap_or_else(|| (0, unavailable_decision()))
            }
        }
    }

    /// Takes `cost` with a delay of up to `max_wait`, without waiting for it; see [`Bucket::reserve`].
    pub fn reserve(&self, cost: u64, max_wait: Duration) -> Reservation {
        match self.bucket().backend {
            BucketBackend::Local(backend) => {
                Reservation::take(backend, Demand::with_max_wait(cost, max_wait.into()), PermitHold::Nothing)
            }
            #[cfg(feature = "tokio")]
            backend => block_on_reservation(&Bucket { backend }, Duration::ZERO, move |bucket| async move {
                bucket.reserve(cost, max_wait).await
            }),
        }
    }

    /// Acquires a slot that is released when the permit is dropped; see [`Bucket::permit`].
    #[inline]
    pub fn permit(&self) -> Permit {
        match self.bucket().backend {
            BucketBackend::Local(backend) => Permit::take(backend),
            #[cfg(feature = "tokio")]
            backend => {
                let bucket = Bucket { backend };
                let permit = block_on(&bucket, Duration::ZERO, |bucket| async move { bucket.permit().await });
                permit.unwrap_or_else(|| Permit::from_reservation(Reservation::empty(unavailable_decision())))
            }
        }
    }

    /// Takes `cost` and blocks until it may be used; see [`Bucket::acquire`].
    pub fn acquire(&self, cost: u64) -> Decision {
        self.acquire_reserved(cost, None).keep()
    }

    /// Takes `cost` if it is available within `timeout`, and blocks until then; otherwise denies at once.
    pub fn try_acquire(&self, cost: u64, timeout: Duration) -> Decision {
        self.acquire_reserved(cost, Some(timeout)).keep()
    }

    /// Like [`try_acquire`](Self::try_acquire), but the charge can still be refunded. `None` waits without a limit.
    pub fn acquire_reserved(&self, cost: u64, timeout: Option<Duration>) -> Reservation {
        match self.bucket().backend {
            BucketBackend::Local(backend) => {
                let taken =
                    backend.bucket().acquire_blocking(cost, timeout).map(LocalReservation::into_parts);
                Reservation::from_result(backend, cost, taken)
            }
            #[cfg(feature = "tokio")]
            backend => block_on_reservation(
                &Bucket { backend },
                timeout.unwrap_or(Duration::MAX),
                move |bucket| async move { bucket.acquire_reserved(cost, timeout).await },
            ),
        }
    }

    /// Waits in the queue of the key; see [`Bucket::acquire_queued`].
    pub fn acquire_queued(&self, waiter: Waiter) -> Result<Decision, WaitError> {
        match self.bucket().backend {
            BucketBackend::Local(backend) => {
                let (decision, _) =
                    backend.bucket().queue_blocking(waiter, PermitHold::Nothing)?.into_parts();
                Ok(decision)
            }
            #[cfg(feature = "tokio")]
            backend => block_on_queue(&Bucket { backend }, waiter, move |bucket| async move {
                bucket.acquire_queued(waiter).await
            }),
        }
    }

    /// Waits in the queue of the key for slots; see [`Bucket::permit_queued`].
    pub fn permit_queued(&self, waiter: Waiter) -> Result<Permit, WaitError> {
        match self.bucket().backend {
            BucketBackend::Local(backend) => {
                let taken = backend.bucket().queue_blocking(waiter, PermitHold::Permit)?.into_parts();
                Ok(Permit::from_reservation(Reservation::from_charge(backend, waiter.cost, taken)))
            }
            #[cfg(feature = "tokio")]
            backend => block_on_queue(&Bucket { backend }, waiter, move |bucket| async move {
                bucket.permit_queued(waiter).await
            }),
        }
    }

    /// Resets the key; see [`Bucket::reset`].
    pub fn reset(&self) -> Result<(), StoreError> {
        match self.target() {
            BlockingTarget::Local(bucket) => {
                bucket.reset();
                Ok(())
            }
            #[cfg(feature = "tokio")]
            BlockingTarget::Store(bucket) => {
                let reset = block_on(bucket, Duration::ZERO, |bucket| async move { bucket.reset().await });
                reset.unwrap_or(Err(StoreError::Timeout))
            }
        }
    }
}

/// Runs a store call on the background thread, and blocks this thread until it is done.
#[cfg(feature = "tokio")]
fn block_on<F>(bucket: &Bucket, max_wait: Duration, call: impl FnOnce(Bucket) -> F) -> Option<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    background::block_on(max_wait, call(bucket.clone()))
}

/// Never inlined, so that the path in memory stays small.
#[cfg(feature = "tokio")]
#[inline(never)]
fn block_on_decision<F>(bucket: &Bucket, call: impl FnOnce(Bucket) -> F) -> Decision
where
    F: Future<Output = Decision> + Send + 'static,
{
    block_on(bucket, Duration::ZERO, call).unwrap_or_else(unavailable_decision)
}

#[cfg(feature = "tokio")]
fn block_on_reservation<F>(bucket: &Bucket, max_wait: Duration, call: impl FnOnce(Bucket) -> F) -> Reservation
where
    F: Future<Output = Reservation> + Send + 'static,
{
    block_on(bucket, max_wait, call).unwrap_or_else(|| Reservation::empty(unavailable_decision()))
}

#[cfg(feature = "tokio")]
fn block_on_queue<T, F>(
    bucket: &Bucket,
    waiter: Waiter,
    call: impl FnOnce(Bucket) -> F,
) -> Result<T, WaitError>
where
    F: Future<Output = Result<T, WaitError>> + Send + 'static,
    T: Send,
{
    let result = block_on(bucket, waiter.deadline.unwrap_or(Duration::MAX), call);
    result.unwrap_or(Err(WaitError::StoreUnavailable(RETRY_AFTER)))
}

/// The retry time of a check that no thread could send to the store.
#[cfg(feature = "tokio")]
const RETRY_AFTER: Micros = Micros::from_secs(1);

#[cfg(feature = "tokio")]
fn unavailable_decision() -> Decision {
    Decision::fail_closed(0, RETRY_AFTER)
}
