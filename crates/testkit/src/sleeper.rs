//! A future that is polled only when it was woken: a wake-up that is lost shows as one that never ends.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

/// See the module.
pub struct Sleeper<'a, T> {
    future: Option<Pin<Box<dyn Future<Output = T> + 'a>>>,
    alarm: Arc<Alarm>,
    end: Option<T>,
}

struct Alarm(AtomicBool);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl<'a, T> Sleeper<'a, T> {
    /// Starts a future.
    pub fn new(future: impl Future<Output = T> + 'a) -> Self {
        let alarm = Arc::new(Alarm(AtomicBool::new(true)));
        let mut sleeper = Self { future: Some(Box::pin(future)), alarm, end: None };
        sleeper.stir();
        sleeper
    }

    /// Polls it if it was woken.
    pub fn stir(&mut self) -> bool {
        let woken = self.alarm.0.swap(false, Ordering::SeqCst);
        if let (true, Some(future)) = (woken, &mut self.future) {
            let waker = Waker::from(self.alarm.clone());
            if let Poll::Ready(end) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                (self.end, self.future) = (Some(end), None);
            }
        }
        woken
    }

    /// What it came to, if it has.
    pub fn end(&self) -> Option<&T> {
        self.end.as_ref()
    }

    /// Takes what it came to, if it has.
    pub fn take(&mut self) -> Option<T> {
        self.end.take()
    }
}

/// Polls all that were woken, until none is.
pub fn settle<T>(sleepers: &mut [Sleeper<'_, T>]) {
    while sleepers.iter_mut().map(Sleeper::stir).filter(|woken| *woken).count() > 0 {}
}

/// Which of them have come to an end.
pub fn ended<T>(sleepers: &mut [Sleeper<'_, T>]) -> Vec<usize> {
    settle(sleepers);
    let ended = sleepers.iter().enumerate().filter(|(_, sleeper)| sleeper.end.is_some());
    ended.map(|(index, _)| index).collect()
}
