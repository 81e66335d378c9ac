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
pub(crate) struct Pause<'a> {
    clock: &'a Clock,
    until: Option<Micros>,
    bell: Option<&'a Bell>,
    timer: Option<Pin<Box<tokio::time::Sleep>>>,
}

#[cfg(feature = "tokio")]
impl<'a> Pause<'a> {
    pub(crate) fn until(clock: &'a Clock, until: Option<Micros>, bell: Option<&'a Bell>) -> Self {
        Self { clock, until, bell, timer: None }
    }
}

#[cfg(feature = "tokio")]
impl Future for Pause<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if is_over(self.clock, self.until, self.bell, context.waker()) {
            return Poll::Ready(());
        }
        let Some(until) = self.until else { return Poll::Pending };
        if self.clock.hand().is_some() {
            return Poll::Pending;
        }
        loop {
            let left = until.since(self.clock.now());
            if left == Micros::ZERO {
                return Poll::Ready(());
            }
            // A timer that fires a little early by our clock is set again.
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(left.into())));
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.timer = None;
        }
    }
}

/// Blocks this thread until a moment, or until a bell rings, whichever is first.
pub(crate) fn block_until(clock: &Clock, until: Option<Micros>, bell: Option<&Bell>) {
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
