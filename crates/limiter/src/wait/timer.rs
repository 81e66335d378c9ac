//! Waits until a time or a notification, on the system clock or a manual one.

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

/// A future that completes at a time or on notification, whichever is first.
#[cfg(feature = "tokio")]
pub struct WaitUntil<'a> {
    clock: &'a Clock,
    deadline: Option<Micros>,
    notify: Option<&'a Notify>,
    timer: Timer,
}

#[cfg(feature = "tokio")]
impl<'a> WaitUntil<'a> {
    /// Completes at `until`, or when `notify` is notified.
    pub fn new(clock: &'a Clock, until: Option<Micros>, notify: Option<&'a Notify>) -> Self {
        Self { clock, deadline: until, notify, timer: Timer::default() }
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

/// A reusable timer that wakes the task that polled it last.
#[cfg(feature = "tokio")]
#[derive(Debug, Default)]
pub struct Timer {
    sleep: Option<Pin<Box<tokio::time::Sleep>>>,
    /// The time that `sleep` is set to.
    deadline: Option<Micros>,
}

#[cfg(feature = "tokio")]
impl Timer {
    /// Ready at `until`. On a manual clock, advancing the clock wakes the task.
    pub fn poll(&mut self, clock: &Clock, until: Micros, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if is_over(clock, Some(until), None, context.waker()) {
                return Poll::Ready(());
            }
            if clock.manual_clock().is_some() {
                return Poll::Pending;
            }
            let left = until.saturating_sub(clock.now());
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
            // The tokio timer can fire early by this clock: set it again.
            self.deadline = None;
        }
    }
}

/// Blocks this thread until a time or a notification, whichever is first.
pub fn block_until(clock: &Clock, until: Option<Micros>, notify: Option<&Notify>) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    while !is_over(clock, until, notify, &waker) {
        match until {
            Some(until) if clock.manual_clock().is_none() => {
                thread::park_timeout(until.saturating_sub(clock.now()).into());
            }
            _ => thread::park(),
        }
    }
}

/// Whether the wait is over; otherwise registers `waker` for the notification and for the manual clock.
fn is_over(clock: &Clock, until: Option<Micros>, notify: Option<&Notify>, waker: &Waker) -> bool {
    if notify.is_some_and(|notify| notify.register(waker)) {
        return true;
    }
    // Register before reading the clock, so that an advance in between is not missed.
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
