//! Waiting until a moment or a bell, on whatever clock there is.

use super::line::Bell;
use crate::clock::Clock;
#[cfg(feature = "tokio")]
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};
use std::{
    sync::Arc,
    task::{Wake, Waker},
    thread::{self, Thread},
};
use tidegate_core::Micros;

/// A wait that ends at a moment, or when a bell rings, whichever is first.
#[cfg(feature = "tokio")]
pub struct Pause<'a> {
    clock: &'a Clock,
    until: Option<Micros>,
    bell: Option<&'a Bell>,
    alarm: Alarm,
}

#[cfg(feature = "tokio")]
impl<'a> Pause<'a> {
    /// Ends at `until`, or when `bell` rings.
    pub fn until(clock: &'a Clock, until: Option<Micros>, bell: Option<&'a Bell>) -> Self {
        Self { clock, until, bell, alarm: Alarm::default() }
    }
}

#[cfg(feature = "tokio")]
impl Future for Pause<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if is_over(self.clock, self.until, self.bell, context.waker()) {
            return Poll::Ready(());
        }
        let (clock, until) = (self.clock, self.until);
        match until {
            Some(until) => self.alarm.poll(clock, until, context),
            None => Poll::Pending,
        }
    }
}

/// A timer that can be set again and again, and wakes whoever polled it last.
#[cfg(feature = "tokio")]
#[derive(Debug, Default)]
pub struct Alarm {
    timer: Option<Pin<Box<tokio::time::Sleep>>>,
    /// What the timer is set to.
    until: Option<Micros>,
}

#[cfg(feature = "tokio")]
impl Alarm {
    /// Ready when it is `until`; if it is not, the task is woken then. On a manual clock it follows the hand.
    pub fn poll(&mut self, clock: &Clock, until: Micros, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if is_over(clock, Some(until), None, context.waker()) {
                return Poll::Ready(());
            }
            if clock.hand().is_some() {
                return Poll::Pending;
            }
            let left = until.since(clock.now());
            let timer = self.timer.get_or_insert_with(|| {
                self.until = Some(until);
                Box::pin(tokio::time::sleep(left.into()))
            });
            if self.until != Some(until) {
                self.until = Some(until);
                timer.as_mut().reset(Clock::tokio_instant_in(left));
            }
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            // A timer that fires a little early by our clock is set again.
            self.until = None;
        }
    }
}

/// Blocks this thread until a moment, or until a bell rings, whichever is first.
pub fn block_until(clock: &Clock, until: Option<Micros>, bell: Option<&Bell>) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    while !is_over(clock, until, bell, &waker) {
        match until {
            Some(until) if clock.hand().is_none() => {
                thread::park_timeout(until.since(clock.now()).into());
            }
            _ => thread::park(),
        }
    }
}

/// Whether a wait is over; if not, `waker` is woken when the bell rings or the clock's hand moves.
fn is_over(clock: &Clock, until: Option<Micros>, bell: Option<&Bell>, waker: &Waker) -> bool {
    if bell.is_some_and(|bell| bell.listen(waker)) {
        return true;
    }
    // Watch before looking: a hand that moves in between must not be missed.
    if let (Some(hand), Some(_)) = (clock.hand(), until) {
        hand.watch(waker);
    }
    until.is_some_and(|until| clock.now() >= until)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
