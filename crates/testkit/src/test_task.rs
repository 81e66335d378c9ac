//! A future that is polled only after a wake-up: with a lost wake-up it never completes.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

/// A future that is polled only after a wake-up.
pub struct TestTask<'a, T> {
    future: Option<Pin<Box<dyn Future<Output = T> + 'a>>>,
    wake_flag: Arc<WakeFlag>,
    output: Option<T>,
}

struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl<'a, T> TestTask<'a, T> {
    /// Creates a task and polls it once.
    pub fn new(future: impl Future<Output = T> + 'a) -> Self {
        let wake_flag = Arc::new(WakeFlag(AtomicBool::new(true)));
        let mut task = Self { future: Some(Box::pin(future)), wake_flag, output: None };
        task.poll_if_woken();
        task
    }

    /// Polls the future if it was woken. Returns whether it was.
    pub fn poll_if_woken(&mut self) -> bool {
        let woken = self.wake_flag.0.swap(false, Ordering::SeqCst);
        if let (true, Some(future)) = (woken, &mut self.future) {
            let waker = Waker::from(self.wake_flag.clone());
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                (self.output, self.future) = (Some(output), None);
            }
        }
        woken
    }

    /// The output, if the future has completed.
    pub fn output(&self) -> Option<&T> {
        self.output.as_ref()
    }

    /// Takes the output, if the future has completed.
    pub fn take_output(&mut self) -> Option<T> {
        self.output.take()
    }
}

/// Polls the woken tasks until none is woken.
pub fn run_until_idle<T>(tasks: &mut [TestTask<'_, T>]) {
    while tasks.iter_mut().map(TestTask::poll_if_woken).filter(|woken| *woken).count() > 0 {}
}

/// Runs the tasks until they are idle and returns the indexes of the completed ones.
pub fn finished_tasks<T>(tasks: &mut [TestTask<'_, T>]) -> Vec<usize> {
    run_until_idle(tasks);
    let ended = tasks.iter().enumerate().filter(|(_, task)| task.output.is_some());
    ended.map(|(index, _)| index).collect()
}
