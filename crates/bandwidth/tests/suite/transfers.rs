//! Tasks that move bytes forever, and their rate in any second.

use std::{
    cell::Cell,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};
use tidegate_bandwidth::Bandwidth;
use tidegate_core::Micros;
use tidegate_limiter::{Clock, ManualClock};
use tidegate_testkit::test_task::TestTask;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

/// An endless stream that moves at most `chunk` bytes at a time.
#[derive(Clone, Copy)]
pub(crate) struct EndlessStream {
    pub(crate) chunk: usize,
}

impl AsyncRead for EndlessStream {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let bytes = self.chunk.min(buf.remaining());
        buf.initialize_unfilled_to(bytes);
        buf.advance(bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for EndlessStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(self.chunk.min(buf.len())))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A task that moves bytes forever, and their number.
pub(crate) struct Transfer {
    pub(crate) task: TestTask<'static, ()>,
    bytes_moved: Rc<Cell<u64>>,
}

impl Transfer {
    pub(crate) fn read_from(mut stream: impl AsyncRead + Unpin + 'static, buffer: usize) -> Self {
        Self::new(async move |moved| {
            let mut buffer = vec![0; buffer];
            loop {
                let bytes = stream.read(&mut buffer).await.unwrap();
                moved.set(moved.get() + bytes as u64);
            }
        })
    }

    pub(crate) fn write_to(mut stream: impl AsyncWrite + Unpin + 'static, buffer: usize) -> Self {
        Self::new(async move |moved| {
            let buffer = vec![0; buffer];
            loop {
                let bytes = stream.write(&buffer).await.unwrap();
                moved.set(moved.get() + bytes as u64);
            }
        })
    }

    pub(crate) fn new(run: impl AsyncFnOnce(Rc<Cell<u64>>) + 'static) -> Self {
        let moved = Rc::new(Cell::new(0));
        let counter = moved.clone();
        // Boxed first: it is polled at once, and then only when it is woken.
        Self { task: TestTask::new(async move { run(counter).await }), bytes_moved: moved }
    }

    pub(crate) fn bytes_moved(&self) -> u64 {
        self.bytes_moved.get()
    }
}

/// The step of the manual clock, which is also the delay of timers.
pub(crate) type ClockStep = fn(u64) -> u64;

pub(crate) const EVEN_STEPS: ClockStep = |_| 1_000;
pub(crate) const FINE_STEPS: ClockStep = |_| 170;
pub(crate) const LATE_STEPS: ClockStep = |step| [1_000, 4_000, 2_000, 1_300, 3_700][step as usize % 5];

/// Runs all tasks for `seconds`, and returns the number of moved bytes at each time.
pub(crate) fn run_transfers(
    transfers: &mut [Transfer],
    manual_clock: &ManualClock,
    clock: &Clock,
    clock_step: ClockStep,
    seconds: u64,
) -> Vec<(u64, u64)> {
    let start = clock.now();
    let mut log = Vec::new();
    for step in 0.. {
        while transfers
            .iter_mut()
            .filter(|mover| mover.task.output().is_none())
            .any(|mover| mover.task.poll_if_woken())
        {}
        let elapsed = clock.now().saturating_sub(start).get();
        log.push((elapsed, transfers.iter().map(Transfer::bytes_moved).sum()));
        if elapsed >= seconds * 1_000_000 {
            break;
        }
        manual_clock.advance(Duration::from_micros(clock_step(step)));
    }
    log
}

/// In any second the number of bytes is that of the rate, within 1 %.
pub(crate) fn assert_rate(log: &[(u64, u64)], rate: u64, context: &str) {
    let mut windows = 0;
    for (index, (from, before)) in log.iter().enumerate() {
        let Some((to, after)) = log[index..].iter().find(|(at, _)| *at >= from + 1_000_000) else { break };
        let expected = rate as f64 * (to - from) as f64 / 1e6;
        let off = ((after - before) as f64 - expected) / expected;
        assert!(off.abs() <= 0.01, "{context}: {:+.2} % in the second from {from}us", off * 100.0);
        windows += 1;
    }
    assert!(windows > 200, "{context}: only {windows} windows");
}

pub(crate) fn manual_bandwidth(quota: &str) -> (Bandwidth, Clock, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    // Not zero, which no real clock shows.
    manual_clock.set(Micros::from_secs(1_000_000));
    (Bandwidth::builder().clock(clock.clone()).build(quota).unwrap(), clock, manual_clock)
}
