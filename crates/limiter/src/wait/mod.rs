//! Waiting: for tokens that were reserved, and in line for those that were not.
//!
//! Shapers (leaky bucket, smooth, warm-up) tell each caller at once how long to wait, and never take that back:
//! there every caller holds a reservation. For all other quotas callers stand in line, and only the first holds one.
//! It was told when to go and goes then, whatever is given back, forgotten or changed meanwhile. Whoever leaves the
//! line has taken nothing, and those behind move up.

mod queue;
mod timer;

pub use queue::{Notify, WaitError, WaitPriority, Waiter};
pub(crate) use queue::{QueueEntry, WaitPolicy, WaitQueues};
pub use timer::block_until;
#[cfg(feature = "tokio")]
pub use timer::{Timer, WaitUntil};

use crate::{
    limiter::{LocalBucket, LocalReservation},
    memory::SlotHold,
    semaphore::HasWaiters,
};
use std::time::Duration;
use tidegate_core::{Decision, Demand, Effect, Micros, Outcome, Retry};

impl<'a> LocalBucket<'a> {
    /// Waits for `cost`, up to `timeout`; an error says that there is no use in waiting. Dropping the future gives everything back.
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

    /// The same, blocking this thread.
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
        hold: SlotHold,
    ) -> Result<LocalReservation<'a>, WaitError> {
        TokenWait::enqueue(*self, waiter, hold)?.wait_async().await
    }

    /// The same, blocking this thread.
    pub(crate) fn queue_blocking(
        &self,
        waiter: Waiter,
        hold: SlotHold,
    ) -> Result<LocalReservation<'a>, WaitError> {
        TokenWait::enqueue(*self, waiter, hold)?.wait_blocking()
    }

    /// Waits in the queue for a slot, however long the queue is: for callers that agreed to wait.
    #[cfg(feature = "stream")]
    pub(crate) async fn queue_unbounded(&self) -> Result<LocalReservation<'a>, WaitError> {
        let ticket = self.wait_queues().enqueue(self.owner(), Waiter::new(1), self.clock().now());
        TokenWait::with_entry(*self, ticket, SlotHold::Permit).wait_async().await
    }

    /// Begins to wait for `cost`, or tells at once why there is no use in it.
    fn start(&self, cost: u64, timeout: Option<Duration>) -> AcquireStart<'a> {
        let patience = timeout.map_or(Micros::MAX, Micros::from);
        if self.wait_queues().policy() == WaitPolicy::Reserve {
            let reservation = self.take(Demand::with_max_wait(cost, patience), SlotHold::Nothing);
            return match reservation.decision().is_granted() {
                true => AcquireStart::Wait(TokenWait::with_reservation(*self, reservation)),
                false => AcquireStart::Denied(*reservation.decision()),
            };
        }
        let own = self.decide(Demand { effect: Effect::Probe, ..Demand::with_max_wait(cost, patience) });
        if !own.is_granted() {
            return AcquireStart::Denied(own);
        }
        let waiter = Waiter { deadline: timeout, ..Waiter::new(cost) };
        let ticket = self.wait_queues().enqueue(self.owner(), waiter, self.clock().now());
        // With what those before us will take: is there any hope to be in time?
        if timeout.is_some() {
            let sketch = self.snapshot();
            let (now, latest) = (sketch.time, sketch.time.plus(patience));
            let ready_at = sketch.ready_at(ticket.costs_before().into_iter().chain([cost]), latest);
            if ready_at > latest {
                return AcquireStart::Denied(Decision::deny(own.limit(), ready_at.since(now)));
            }
        }
        AcquireStart::Wait(TokenWait::with_entry(*self, ticket, SlotHold::Nothing))
    }
}

enum AcquireStart<'a> {
    Wait(TokenWait<'a>),
    Denied(Decision),
}

/// One caller that waits: a machine that is asked what to do next, by a task or a thread.
struct TokenWait<'a> {
    bucket: LocalBucket<'a>,
    /// Before the ticket: what is held must be given back before the next in line looks.
    reservation: Option<LocalReservation<'a>>,
    entry: Option<QueueEntry<'a>>,
    hold: SlotHold,
    phase: WaitPhase,
}

/// How often a caller has looked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitPhase {
    /// It always gets one, however short its patience: the clock goes on between its question and its first look.
    FirstCheck,
    Recheck,
}

enum WaitStep<'a> {
    Done(Result<LocalReservation<'a>, WaitError>),
    /// Look again at this moment, or when the bell rings.
    Pause(Option<Micros>),
}

impl WaitStep<'_> {
    /// Only a bell can help now, and only in time: at the last moment it is too late to wait for one.
    fn until_notified(ticket: &QueueEntry<'_>, now: Micros) -> Self {
        match ticket.effective_deadline() {
            Some(latest) if now >= latest => Self::Done(Err(ticket.timeout_error())),
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
            hold: SlotHold::Nothing,
            phase: WaitPhase::FirstCheck,
        }
    }

    fn with_entry(bucket: LocalBucket<'a>, ticket: QueueEntry<'a>, hold: SlotHold) -> Self {
        Self { bucket, reservation: None, entry: Some(ticket), hold, phase: WaitPhase::FirstCheck }
    }

    fn enqueue(bucket: LocalBucket<'a>, waiter: Waiter, hold: SlotHold) -> Result<Self, WaitError> {
        let ticket = bucket.wait_queues().try_enqueue(bucket.owner(), waiter, bucket.clock().now())?;
        Ok(Self::with_entry(bucket, ticket, hold))
    }

    fn notify(&self) -> Option<&Notify> {
        self.entry.as_ref().map(QueueEntry::notify)
    }

    /// What to do now.
    fn step(&mut self) -> WaitStep<'a> {
        let now = self.bucket.clock().now();
        let looks = std::mem::replace(&mut self.phase, WaitPhase::Recheck);
        if let Some(ticket) = &self.entry {
            if let Some(refused) = ticket.check_deadline(now).filter(|_| looks == WaitPhase::Recheck) {
                // What was ready in time is ours, however late we look.
                let in_time = self.reservation.take().filter(|_| ticket.try_claim());
                return WaitStep::Done(in_time.ok_or(refused));
            }
            if !ticket.try_claim() {
                // Somebody more important came: what we hold is theirs.
                self.reservation = None;
                ticket.release_claim();
                return WaitStep::until_notified(ticket, now);
            }
            if self.reservation.is_none() {
                let patience = ticket.effective_deadline().map_or(Micros::MAX, |latest| latest.since(now));
                let reservation = self.bucket.take(Demand::with_max_wait(ticket.cost(), patience), self.hold);
                match reservation.decision().outcome() {
                    // Until it is time, whoever leaves gives everything back, tokens beside a slot too.
                    Outcome::Allow | Outcome::Delay(_) => {
                        self.reservation = Some(reservation.with_hold(SlotHold::Nothing));
                    }
                    Outcome::Deny(Retry::Never) => return WaitStep::Done(Err(WaitError::ExceedsLimit)),
                    Outcome::Deny(Retry::WhenReleased) => match self.bucket.await_release(ticket.cost()) {
                        HasWaiters::Yes => return WaitStep::until_notified(ticket, now),
                        // One was given back meanwhile: look again, unless it is too late.
                        HasWaiters::No => return WaitStep::Pause(Some(now)),
                    },
                    // Nobody before us, and still too late: say so now rather than then.
                    Outcome::Deny(Retry::After(wait)) if wait > patience || patience == Micros::ZERO => {
                        return WaitStep::Done(Err(ticket.timeout_error()));
                    }
                    // A bounded queue of the quota's own is full, or there is no room for the key.
                    Outcome::Deny(Retry::After(wait)) => return WaitStep::Pause(Some(now.plus(wait))),
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

    /// The answer to a caller that wants a decision: what it got, or why it got nothing.
    fn finish(&self, end: Result<LocalReservation<'a>, WaitError>) -> Result<LocalReservation<'a>, Decision> {
        let cost = self.entry.as_ref().map_or(1, QueueEntry::cost);
        end.map_err(|_| match self.bucket.peek(cost) {
            // It would get it now, but has taken nothing.
            look if look.is_granted() => Decision::deny(look.limit(), Micros::ZERO),
            look => look,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Clock, limiter::LimiterBuilder, store::QuotaSelection};

    /// A thread may be put aside between its question and its first look, for longer than it would have waited.
    #[test]
    fn first_check_ignores_passed_deadline() {
        for (quota, hold) in [("2/s", SlotHold::Nothing), ("2 at once", SlotHold::Permit)] {
            let (clock, manual_clock) = Clock::manual();
            let memory = LimiterBuilder::default()
                .clock(clock)
                .build_memory(&[quota.parse().unwrap()], QuotaSelection::All)
                .unwrap();
            let bucket = memory.bucket("k", 0);
            let look = |patience| {
                let waiter = Waiter::new(1).deadline(patience);
                let mut wait = TokenWait::enqueue(bucket, waiter, hold).unwrap();
                manual_clock.advance(Duration::from_micros(7));
                match wait.step() {
                    WaitStep::Done(end) => end.map(|reservation| reservation.with_hold(hold)),
                    WaitStep::Pause(_) => Err(WaitError::QueueFull),
                }
            };
            for patience in [0, 6] {
                assert!(
                    look(Duration::from_micros(patience)).map(LocalReservation::into_parts).is_ok(),
                    "{quota}"
                );
            }
            assert_eq!(look(Duration::from_micros(6)).err(), Some(WaitError::DeadlineExceeded), "{quota}");
        }
    }
}
