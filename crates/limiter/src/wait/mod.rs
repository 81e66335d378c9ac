//! Waiting for tokens and slots: with a reservation, or in a queue.
//!
//! Shapers (leaky bucket, smooth, warm-up) reserve for each caller at once and report a final wait, so every waiting
//! caller holds a reservation. For all other quotas callers wait in a queue, and only the first one holds a reservation.
//! Its ready time is fixed: refunds, resets and quota changes do not move it. A caller that leaves the queue is charged
//! nothing.

mod queue;
mod timer;

pub use queue::{Notify, WaitError, WaitPriority, Waiter};
pub(crate) use queue::{QueueEntry, WaitPolicy, WaitQueues};
pub use timer::block_until;
#[cfg(feature = "tokio")]
pub use timer::{Timer, WaitUntil};

use crate::{
    limiter::{LocalBucket, LocalReservation},
    memory::PermitHold,
    semaphore::HasWaiters,
};
use std::time::Duration;
use tidegate_core::{Decision, Demand, Effect, Micros, Outcome, Retry};

impl<'a> LocalBucket<'a> {
    /// Waits for `cost`, up to `timeout`. Returns the denial if the wait cannot succeed in time.
    /// Dropping the future refunds everything.
    #[cfg(feature = "tokio")]
    pub(crate) async fn acquire_async(
        &self,
        cost: u64,
        timeout: Option<Duration>,
    ) -> Result<LocalReservation<'a>, Decision> {
        match self.start(cost, timeout) {
            AcquireStart::Denied(decision) => Err(decision),
            AcquireStart::Wait(mut wait) => {
                let end = wait.wait_async().await;
                wait.finish(end)
            }
        }
    }

    /// Like `acquire_async`, but blocks this thread.
    pub(crate) fn acquire_blocking(
        &self,
        cost: u64,
        timeout: Option<Duration>,
    ) -> Result<LocalReservation<'a>, Decision> {
        match self.start(cost, timeout) {
            AcquireStart::Denied(decision) => Err(decision),
            AcquireStart::Wait(mut wait) => {
                let end = wait.wait_blocking();
                wait.finish(end)
            }
        }
    }

    /// Waits in the queue of the bucket: by priority, then first come, first served.
    #[cfg(feature = "tokio")]
    pub(crate) async fn queue(
        &self,
        waiter: Waiter,
        hold: PermitHold,
    ) -> Result<LocalReservation<'a>, WaitError> {
        TokenWait::enqueue(*self, waiter, hold)?.wait_async().await
    }

    /// Like `queue`, but blocks this thread.
    pub(crate) fn queue_blocking(
        &self,
        waiter: Waiter,
        hold: PermitHold,
    ) -> Result<LocalReservation<'a>, WaitError> {
        TokenWait::enqueue(*self, waiter, hold)?.wait_blocking()
    }

    /// Waits in the queue for a slot. `max_waiters` does not apply.
    #[cfg(feature = "stream")]
    pub(crate) async fn queue_unbounded(&self) -> Result<LocalReservation<'a>, WaitError> {
        let entry = self.wait_queues().enqueue(self.owner(), Waiter::new(1), self.clock().now());
        TokenWait::with_entry(*self, entry, PermitHold::Permit).wait_async().await
    }

    /// Starts the wait for `cost`, or returns the denial if the wait cannot succeed in time.
    fn start(&self, cost: u64, timeout: Option<Duration>) -> AcquireStart<'a> {
        let max_wait = timeout.map_or(Micros::MAX, Micros::from);
        if self.wait_queues().policy() == WaitPolicy::Reserve {
            let reservation = self.take(Demand::with_max_wait(cost, max_wait), PermitHold::Nothing);
            return match reservation.decision().is_granted() {
                true => AcquireStart::Wait(TokenWait::with_reservation(*self, reservation)),
                false => AcquireStart::Denied(*reservation.decision()),
            };
        }
        let own = self.decide(Demand { effect: Effect::Peek, ..Demand::with_max_wait(cost, max_wait) });
        if !own.is_granted() {
            return AcquireStart::Denied(own);
        }
        let waiter = Waiter { deadline: timeout, ..Waiter::new(cost) };
        let entry = self.wait_queues().enqueue(self.owner(), waiter, self.clock().now());
        // Include the costs of the callers ahead: the deadline may already be out of reach.
        if timeout.is_some() {
            let snapshot = self.snapshot();
            let (now, latest) = (snapshot.time, snapshot.time.saturating_add(max_wait));
            let ready_at = snapshot.ready_at(entry.costs_before().into_iter().chain([cost]), latest);
            if ready_at > latest {
                return AcquireStart::Denied(Decision::deny(own.limit(), ready_at.saturating_sub(now)));
            }
        }
        AcquireStart::Wait(TokenWait::with_entry(*self, entry, PermitHold::Nothing))
    }
}

enum AcquireStart<'a> {
    Wait(TokenWait<'a>),
    Denied(Decision),
}

/// One waiting caller: a state machine that a task or a thread drives.
struct TokenWait<'a> {
    bucket: LocalBucket<'a>,
    /// Declared before `entry`, so that drop refunds it before the next caller in the queue checks.
    reservation: Option<LocalReservation<'a>>,
    entry: Option<QueueEntry<'a>>,
    hold: PermitHold,
    phase: WaitPhase,
}

/// Whether the caller has checked its deadline before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitPhase {
    /// Ignores the deadline: the clock may advance between the call and its first check.
    FirstCheck,
    Recheck,
}

enum WaitStep<'a> {
    Done(Result<LocalReservation<'a>, WaitError>),
    /// Check again at this time, or on notification.
    Pause(Option<Micros>),
}

impl WaitStep<'_> {
    /// Pauses until a notification, or fails if the deadline is already reached.
    fn until_notified(entry: &QueueEntry<'_>, now: Micros) -> Self {
        match entry.effective_deadline() {
            Some(latest) if now >= latest => Self::Done(Err(entry.timeout_error())),
            latest => Self::Pause(latest),
        }
    }
}

impl<'a> TokenWait<'a> {
    fn with_reservation(bucket: LocalBucket<'a>, reservation: LocalReservation<'a>) -> Self {
        Self {
            bucket,
            reservation: Some(reservation),
            entry: None,
            hold: PermitHold::Nothing,
            phase: WaitPhase::FirstCheck,
        }
    }

    fn with_entry(bucket: LocalBucket<'a>, entry: QueueEntry<'a>, hold: PermitHold) -> Self {
        Self { bucket, reservation: None, entry: Some(entry), hold, phase: WaitPhase::FirstCheck }
    }

    fn enqueue(bucket: LocalBucket<'a>, waiter: Waiter, hold: PermitHold) -> Result<Self, WaitError> {
        let entry = bucket.wait_queues().try_enqueue(bucket.owner(), waiter, bucket.clock().now())?;
        Ok(Self::with_entry(bucket, entry, hold))
    }

    fn notify(&self) -> Option<&Notify> {
        self.entry.as_ref().map(QueueEntry::notify)
    }

    /// Advances the wait by one step.
    fn step(&mut self) -> WaitStep<'a> {
        let now = self.bucket.clock().now();
        let phase = std::mem::replace(&mut self.phase, WaitPhase::Recheck);
        if let Some(entry) = &self.entry {
            if let Some(error) = entry.check_deadline(now).filter(|_| phase == WaitPhase::Recheck) {
                // A reservation that was ready in time is valid, even if this check runs late.
                let in_time = self.reservation.take().filter(|_| entry.try_claim());
                return WaitStep::Done(in_time.ok_or(error));
            }
            if !entry.try_claim() {
                // A waiter of higher priority arrived: refund, so that it can reserve.
                self.reservation = None;
                entry.release_claim();
                return WaitStep::until_notified(entry, now);
            }
            if self.reservation.is_none() {
                let max_wait =
                    entry.effective_deadline().map_or(Micros::MAX, |latest| latest.saturating_sub(now));
                let reservation = self.bucket.take(Demand::with_max_wait(entry.cost(), max_wait), self.hold);
                match reservation.decision().outcome() {
                    // Until the reservation is ready, dropping it refunds everything, including tokens beside a slot.
                    Outcome::Allow | Outcome::Delay(_) => {
                        self.reservation = Some(reservation.with_hold(PermitHold::Nothing));
                    }
                    Outcome::Deny(Retry::Never) => return WaitStep::Done(Err(WaitError::ExceedsLimit)),
                    Outcome::Deny(Retry::WhenReleased) => match self.bucket.await_release(entry.cost()) {
                        HasWaiters::Yes => return WaitStep::until_notified(entry, now),
                        // A slot was released meanwhile: check again.
                        HasWaiters::No => return WaitStep::Pause(Some(now)),
                    },
                    // First in the queue and still too late: fail now instead of at the deadline.
                    Outcome::Deny(Retry::After(wait)) if wait > max_wait || max_wait == Micros::ZERO => {
                        return WaitStep::Done(Err(entry.timeout_error()));
                    }
                    // The quota's own bounded queue is full, or the key table is full.
                    Outcome::Deny(Retry::After(wait)) => {
                        return WaitStep::Pause(Some(now.saturating_add(wait)));
                    }
                }
            }
        }
        match self.reservation.take() {
            Some(reservation) if reservation.wait().is_zero() => WaitStep::Done(Ok(reservation)),
            Some(reservation) => {
                let ready_at = reservation.ready_at();
                self.reservation = Some(reservation);
                WaitStep::Pause(Some(ready_at))
            }
            None => WaitStep::Pause(None),
        }
    }

    #[cfg(feature = "tokio")]
    async fn wait_async(&mut self) -> Result<LocalReservation<'a>, WaitError> {
        loop {
            match self.step() {
                WaitStep::Done(end) => return end.map(|reservation| reservation.with_hold(self.hold)),
                WaitStep::Pause(until) => WaitUntil::new(self.bucket.clock(), until, self.notify()).await,
            }
        }
    }

    fn wait_blocking(&mut self) -> Result<LocalReservation<'a>, WaitError> {
        loop {
            match self.step() {
                WaitStep::Done(end) => return end.map(|reservation| reservation.with_hold(self.hold)),
                WaitStep::Pause(until) => block_until(self.bucket.clock(), until, self.notify()),
            }
        }
    }

    /// Converts the result of the wait for a caller that expects a decision.
    fn finish(&self, end: Result<LocalReservation<'a>, WaitError>) -> Result<LocalReservation<'a>, Decision> {
        let cost = self.entry.as_ref().map_or(1, QueueEntry::cost);
        end.map_err(|_| match self.bucket.peek(cost) {
            // A retry would succeed now, but this call was charged nothing.
            decision if decision.is_granted() => Decision::deny(decision.limit(), Micros::ZERO),
            decision => decision,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Clock, limiter::LimiterBuilder, store::QuotaSelection};

    /// A thread can be descheduled between the call and its first check for longer than its deadline.
    #[test]
    fn first_check_ignores_passed_deadline() {
        for (quota, hold) in [("2/s", PermitHold::Nothing), ("2 at once", PermitHold::Permit)] {
            let (clock, manual_clock) = Clock::manual();
            let memory = LimiterBuilder::default()
                .clock(clock)
                .build_memory(&[quota.parse().unwrap()], QuotaSelection::All)
                .unwrap();
            let bucket = memory.bucket("k", 0);
            let check = |max_wait| {
                let waiter = Waiter::new(1).deadline(max_wait);
                let mut wait = TokenWait::enqueue(bucket, waiter, hold).unwrap();
                manual_clock.advance(Duration::from_micros(7));
                match wait.step() {
                    WaitStep::Done(end) => end.map(|reservation| reservation.with_hold(hold)),
                    WaitStep::Pause(_) => Err(WaitError::QueueFull),
                }
            };
            for max_wait in [0, 6] {
                assert!(
                    check(Duration::from_micros(max_wait)).map(LocalReservation::into_parts).is_ok(),
                    "{quota}"
                );
            }
            assert_eq!(check(Duration::from_micros(6)).err(), Some(WaitError::DeadlineExceeded), "{quota}");
        }
    }
}
