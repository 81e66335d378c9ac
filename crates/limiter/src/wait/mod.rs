//! Waiting: for tokens that were reserved, and in line for those that were not.
//!
//! Shapers (leaky bucket, smooth, warm-up) tell each caller at once how long to wait, and never take that back:
//! there every caller holds a reservation. For all other quotas callers stand in line, and only the first holds one.
//! It was told when to go and goes then, whatever is given back, forgotten or changed meanwhile. Whoever leaves the
//! line has taken nothing, and those behind move up.

mod line;
mod pause;

pub use line::{Bell, Priority, Refused, Waiter};
pub(crate) use line::{Lines, Manner, Ticket};
pub use pause::block_until;
#[cfg(feature = "tokio")]
pub use pause::{Alarm, Pause};

use crate::{
    limiter::{LocalBucket, LocalReservation},
    memory::Hold,
    slots::Awaited,
};
use std::time::Duration;
use tidegate_core::{Decision, Demand, Effect, Micros, Outcome, Retry};

impl<'a> LocalBucket<'a> {
    /// Waits for `cost`, up to `timeout`; an error says that there is no use in waiting. Dropping the future gives everything back.
    #[cfg(feature = "tokio")]
    pub(crate) async fn await_turn(
        &self,
        cost: u64,
        timeout: Option<Duration>,
    ) -> Result<LocalReservation<'a>, Decision> {
        match self.start(cost, timeout) {
            Start::Answer(decision) => Err(decision),
            Start::Wait(mut wait) => {
                let end = wait.rest().await;
                wait.finish(end)
            }
        }
    }

    /// The same, blocking this thread.
    pub(crate) fn block_for_turn(
        &self,
        cost: u64,
        timeout: Option<Duration>,
    ) -> Result<LocalReservation<'a>, Decision> {
        match self.start(cost, timeout) {
            Start::Answer(decision) => Err(decision),
            Start::Wait(mut wait) => {
                let end = wait.block();
                wait.finish(end)
            }
        }
    }

    /// Waits in the queue of the bucket: by priority, then first come, first served.
    #[cfg(feature = "tokio")]
    pub(crate) async fn queue(&self, waiter: Waiter, hold: Hold) -> Result<LocalReservation<'a>, Refused> {
        Wait::in_line(*self, waiter, hold)?.rest().await
    }

    /// The same, blocking this thread.
    pub(crate) fn queue_blocking(&self, waiter: Waiter, hold: Hold) -> Result<LocalReservation<'a>, Refused> {
        Wait::in_line(*self, waiter, hold)?.block()
    }

    /// Waits in the queue for a slot, however long the queue is: for callers that agreed to wait.
    #[cfg(feature = "stream")]
    pub(crate) async fn queue_unbounded(&self) -> Result<LocalReservation<'a>, Refused> {
        let ticket = self.lines().join(self.owner(), Waiter::new(1), self.clock().now());
        Wait::with_ticket(*self, ticket, Hold::Permit).rest().await
    }

    /// Begins to wait for `cost`, or tells at once why there is no use in it.
    fn start(&self, cost: u64, timeout: Option<Duration>) -> Start<'a> {
        let patience = timeout.map_or(Micros::MAX, Micros::from);
        if self.lines().manner() == Manner::Reserve {
            let reservation = self.take(Demand::with_max_wait(cost, patience), Hold::Nothing);
            return match reservation.decision().is_granted() {
                true => Start::Wait(Wait::reserved(*self, reservation)),
                false => Start::Answer(*reservation.decision()),
            };
        }
        let own = self.decide(Demand { effect: Effect::Probe, ..Demand::with_max_wait(cost, patience) });
        if !own.is_granted() {
            return Start::Answer(own);
        }
        let waiter = Waiter { deadline: timeout, ..Waiter::new(cost) };
        let ticket = self.lines().join(self.owner(), waiter, self.clock().now());
        // With what those before us will take: is there any hope to be in time?
        if timeout.is_some() {
            let sketch = self.sketch();
            let (now, latest) = (sketch.at, sketch.at.plus(patience));
            let ready_at = sketch.ready_at(ticket.costs_before().into_iter().chain([cost]), latest);
            if ready_at > latest {
                return Start::Answer(Decision::deny(own.limit(), ready_at.since(now)));
            }
        }
        Start::Wait(Wait::with_ticket(*self, ticket, Hold::Nothing))
    }
}

enum Start<'a> {
    Wait(Wait<'a>),
    Answer(Decision),
}

/// One caller that waits: a machine that is asked what to do next, by a task or a thread.
struct Wait<'a> {
    bucket: LocalBucket<'a>,
    /// Before the ticket: what is held must be given back before the next in line looks.
    held: Option<LocalReservation<'a>>,
    ticket: Option<Ticket<'a>>,
    hold: Hold,
    looks: Looks,
}

/// How often a caller has looked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looks {
    /// It always gets one, however short its patience: the clock goes on between its question and its first look.
    None,
    Some,
}

enum Step<'a> {
    Done(Result<LocalReservation<'a>, Refused>),
    /// Look again at this moment, or when the bell rings.
    Pause(Option<Micros>),
}

impl Step<'_> {
    /// Only a bell can help now, and only in time: at the last moment it is too late to wait for one.
    fn until_the_bell(ticket: &Ticket<'_>, now: Micros) -> Self {
        match ticket.latest() {
            Some(latest) if now >= latest => Self::Done(Err(ticket.too_late())),
            latest => Self::Pause(latest),
        }
    }
}

impl<'a> Wait<'a> {
    fn reserved(bucket: LocalBucket<'a>, reservation: LocalReservation<'a>) -> Self {
        Self { bucket, held: Some(reservation), ticket: None, hold: Hold::Nothing, looks: Looks::None }
    }

    fn with_ticket(bucket: LocalBucket<'a>, ticket: Ticket<'a>, hold: Hold) -> Self {
        Self { bucket, held: None, ticket: Some(ticket), hold, looks: Looks::None }
    }

    fn in_line(bucket: LocalBucket<'a>, waiter: Waiter, hold: Hold) -> Result<Self, Refused> {
        let ticket = bucket.lines().enter(bucket.owner(), waiter, bucket.clock().now())?;
        Ok(Self::with_ticket(bucket, ticket, hold))
    }

    fn bell(&self) -> Option<&Bell> {
        self.ticket.as_ref().map(Ticket::bell)
    }

    /// What to do now.
    fn step(&mut self) -> Step<'a> {
        let now = self.bucket.clock().now();
        let looks = std::mem::replace(&mut self.looks, Looks::Some);
        if let Some(ticket) = &self.ticket {
            if let Some(refused) = ticket.overdue(now).filter(|_| looks == Looks::Some) {
                // What was ready in time is ours, however late we look.
                let in_time = self.held.take().filter(|_| ticket.may_be_served());
                return Step::Done(in_time.ok_or(refused));
            }
            if !ticket.may_be_served() {
                // Somebody more important came: what we hold is theirs.
                self.held = None;
                ticket.step_back();
                return Step::until_the_bell(ticket, now);
            }
            if self.held.is_none() {
                let patience = ticket.latest().map_or(Micros::MAX, |latest| latest.since(now));
                let reservation = self.bucket.take(Demand::with_max_wait(ticket.cost(), patience), self.hold);
                match reservation.decision().outcome() {
                    // Until it is time, whoever leaves gives everything back, tokens beside a slot too.
                    Outcome::Allow | Outcome::Delay(_) => {
                        self.held = Some(reservation.held_as(Hold::Nothing));
                    }
                    Outcome::Deny(Retry::Never) => return Step::Done(Err(Refused::Never)),
                    Outcome::Deny(Retry::WhenReleased) => match self.bucket.await_release(ticket.cost()) {
                        Awaited::Yes => return Step::until_the_bell(ticket, now),
                        // One was given back meanwhile: look again, unless it is too late.
                        Awaited::No => return Step::Pause(Some(now)),
                    },
                    // Nobody before us, and still too late: say so now rather than then.
                    Outcome::Deny(Retry::After(wait)) if wait > patience || patience == Micros::ZERO => {
                        return Step::Done(Err(ticket.too_late()));
                    }
                    // A bounded queue of the quota's own is full, or there is no room for the key.
                    Outcome::Deny(Retry::After(wait)) => return Step::Pause(Some(now.plus(wait))),
                }
            }
        }
        match self.held.take() {
            Some(reservation) if reservation.wait().is_zero() => Step::Done(Ok(reservation)),
            Some(reservation) => {
                let ready_at = reservation.ready_at();
                self.held = Some(reservation);
                Step::Pause(Some(ready_at))
            }
            None => Step::Pause(None),
        }
    }

    #[cfg(feature = "tokio")]
    async fn rest(&mut self) -> Result<LocalReservation<'a>, Refused> {
        loop {
            match self.step() {
                Step::Done(end) => return end.map(|reservation| reservation.held_as(self.hold)),
                Step::Pause(until) => Pause::until(self.bucket.clock(), until, self.bell()).await,
            }
        }
    }

    fn block(&mut self) -> Result<LocalReservation<'a>, Refused> {
        loop {
            match self.step() {
                Step::Done(end) => return end.map(|reservation| reservation.held_as(self.hold)),
                Step::Pause(until) => block_until(self.bucket.clock(), until, self.bell()),
            }
        }
    }

    /// The answer to a caller that wants a decision: what it got, or why it got nothing.
    fn finish(&self, end: Result<LocalReservation<'a>, Refused>) -> Result<LocalReservation<'a>, Decision> {
        let cost = self.ticket.as_ref().map_or(1, Ticket::cost);
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
    use crate::{Clock, limiter::LimiterBuilder, store::Choice};

    /// A thread may be put aside between its question and its first look, for longer than it would have waited.
    #[test]
    fn the_first_look_is_never_too_late() {
        for (quota, hold) in [("2/s", Hold::Nothing), ("2 at once", Hold::Permit)] {
            let (clock, hand) = Clock::manual();
            let memory = LimiterBuilder::default()
                .clock(clock)
                .build_memory(&[quota.parse().unwrap()], Choice::All)
                .unwrap();
            let bucket = memory.bucket("k", 0);
            let look = |patience| {
                let waiter = Waiter::new(1).deadline(patience);
                let mut wait = Wait::in_line(bucket, waiter, hold).unwrap();
                hand.advance(Duration::from_micros(7));
                match wait.step() {
                    Step::Done(end) => end.map(|reservation| reservation.held_as(hold)),
                    Step::Pause(_) => Err(Refused::Full),
                }
            };
            for patience in [0, 6] {
                assert!(
                    look(Duration::from_micros(patience)).map(LocalReservation::into_parts).is_ok(),
                    "{quota}"
                );
            }
            assert_eq!(look(Duration::from_micros(6)).err(), Some(Refused::Deadline), "{quota}");
        }
    }
}
