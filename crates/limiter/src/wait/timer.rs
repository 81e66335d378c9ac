//! Waiting until a moment or a bell, on whatever clock there is.

use super::queue::Notify;
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
pub struct WaitUntil<'a> {
    clock: &'a Clock,
    deadline: Option<Micros>,
    notify: Option<&'a Notify>,
    timer: Timer,
}

#[cfg(feature = "tokio")]
impl<'a> WaitUntil<'a> {
    /// Ends at `until`, or when `bell` rings.
    pub fn new(clock: &'a Clock, until: Option<Micros>, bell: Option<&'a Notify>) -> Self {
        Self { clock, deadline: until, notify: bell, timer: Timer::default() }
    }
}

#[cfg(feature = "tokio")]
impl Future for WaitUntil<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if is_over(self.clock, self.deadline, self.notify, context.waker()) {
            return Poll::Ready(());
        }
        let (clock, until) = (self.clock, self.deadline);
        match until {
            Some(until) => self.timer.poll(clock, until, context),
            None => Poll::Pending,
        }
    }
}

/// A timer that can be set again and again, and wakes whoever polled it last.
#[cfg(feature = "tokio")]
#[derive(Debug, Default)]
pub struct Timer {
    sleep: Option<Pin<Box<tokio::time::Sleep>>>,
    /// What the timer is set to.
    deadline: Option<Micros>,
}

#[cfg(feature = "tokio")]
impl Timer {
    /// Ready when it is `until`; if it is not, the task is woken then. On a manual clock it follows the hand.
    pub fn poll(&mut self, clock: &Clock, until: Micros, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if is_over(clock, Some(until), None, context.waker()) {
                return Poll::Ready(());
            }
            if clock.manual_clock().is_some() {
                return Poll::Pending;
            }
            let left = until.since(clock.now());
            let timer = self.sleep.get_or_insert_with(|| {
                self.deadline = Some(until);
                Box::pin(tokio::time::sleep(left.into()))
            });
            if self.deadline != Some(until) {
                self.deadline = Some(until);
                timer.as_mut().reset(Clock::tokio_deadline_after(left));
            }
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            // A timer that fires a little early by our clock is set again.
            self.deadline = None;
        }
    }
}

/// Blocks this thread until a moment, or until a bell rings, whichever is first.
pub fn block_until(clock: &Clock, until: Option<Micros>, bell: Option<&Notify>) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    while !is_over(clock, until, bell, &waker) {
        match until {
            Some(until) if clock.manual_clock().is_none() => {
                thread::park_timeout(until.since(clock.now()).into());
            }
            _ => thread::park(),
        }
    }
}

/// Whether a wait is over; if not, `waker` is woken when the bell rings or the clock's hand moves.
fn is_over(clock: &Clock, until: Option<Micros>, bell: Option<&Notify>, waker: &Waker) -> bool {
    if bell.is_some_and(|bell| bell.register(waker)) {
        return true;
    }
    // Watch before looking: a hand that moves in between must not be missed.
    if let (Some(manual_clock), Some(_)) = (clock.manual_clock(), until) {
        manual_clock.register_waker(waker);
    }
    until.is_some_and(|until| clock.now() >= until)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
