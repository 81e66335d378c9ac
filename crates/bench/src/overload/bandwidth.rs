//! The cost of a byte-rate limit: CPU time of a limited copy, compared with a bare copy at the same rate.
//!
//! The bare copy sleeps after every 4 MB, which is the least that any limit must do. Pauses themselves cost CPU time, so
//! the figures also contain the ratio to a bare copy without pauses.

use rustix::time::{ClockId, clock_gettime};
use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tidegate_bandwidth::Bandwidth;
use tidegate_bench::{BenchResult, interleaved::median, suite::Measurement};
use tokio::{
    io::{AsyncRead, AsyncWrite, BufReader, ReadBuf, copy_buf},
    runtime::{Builder, Runtime},
    time::{Instant, Sleep, sleep},
};

/// The bytes of one copy.
const COPY_BYTES: u64 = 200_000_000;
/// The size of the source and of the sink.
const MEMORY_BYTES: usize = 64 << 20;
/// The size of the copy buffer.
const BUFFER_BYTES: usize = 64 << 10;
/// Many short rounds, because the speed of the memory varies.
const ROUNDS: usize = 61;
/// The bytes between two pauses of the paced copy.
const CHUNK_BYTES: u64 = 4_000_000;

pub(crate) fn measure_cpu() -> BenchResult<Measurement> {
    let runtime = Builder::new_current_thread().enable_time().build()?;
    let mut memory = (vec![7; MEMORY_BYTES], vec![1; MEMORY_BYTES]);
    copy(&runtime, &mut memory, |source| source)?;
    let (mut limited, mut paced, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(copy(&runtime, &mut memory, |source| source)?);
        let bandwidth = Bandwidth::new("1GB/s")?;
        limited.push(copy(&runtime, &mut memory, |source| bandwidth.limit_reads(source))?);
        paced.push(copy(&runtime, &mut memory, SleepPaced::new)?);
    }
    let ratios =
        |theirs: &[f64]| limited.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>();
    let per_gb = |times: &[f64]| median(times) * 1e3 / (COPY_BYTES as f64 / 1e9);
    let figures = format!(
        "limited {:.0} ms of processor time a GB, paced by sleeps {:.0} ms; {:.3} of a bare copy that never pauses, {:.0} ms",
        per_gb(&limited),
        per_gb(&paced),
        median(&ratios(&bare)),
        per_gb(&bare)
    );
    Ok(Measurement::from_rounds(&ratios(&paced), figures))
}

/// Copies once and returns the CPU time of this process in seconds.
fn copy<'a, R: AsyncRead + Unpin>(
    runtime: &Runtime,
    memory: &'a mut (Vec<u8>, Vec<u8>),
    limit: impl FnOnce(MemorySource<'a>) -> R,
) -> BenchResult<f64> {
    let (from, to) = memory;
    let before = processor_time();
    let moved = runtime.block_on(async {
        let mut source = BufReader::with_capacity(
            BUFFER_BYTES,
            limit(MemorySource { memory: from, position: 0, left: COPY_BYTES }),
        );
        copy_buf(&mut source, &mut MemorySink { memory: to, position: 0 }).await
    })?;
    assert_eq!(moved, COPY_BYTES);
    Ok(processor_time() - before)
}

fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Sleeps after every chunk until the next is due, at 1 GB/s.
struct SleepPaced<T> {
    inner: T,
    start: Instant,
    moved: u64,
    left: u64,
    pause: Pin<Box<Sleep>>,
}

impl<T> SleepPaced<T> {
    fn new(inner: T) -> Self {
        Self {
            inner,
            start: Instant::now(),
            moved: 0,
            left: CHUNK_BYTES,
            pause: Box::pin(sleep(Duration::ZERO)),
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for SleepPaced<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.left == 0 {
            ready!(this.pause.as_mut().poll(context));
            this.left = CHUNK_BYTES;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(context, buffer))?;
        let length = (buffer.filled().len() - before) as u64;
        this.moved += length;
        this.left = this.left.saturating_sub(length);
        if this.left == 0 {
            this.pause.as_mut().reset(this.start + Duration::from_nanos(this.moved));
        }
        Poll::Ready(Ok(()))
    }
}

/// Reads memory cyclically.
struct MemorySource<'a> {
    memory: &'a [u8],
    position: usize,
    left: u64,
}

impl AsyncRead for MemorySource<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buffer.remaining().min(self.memory.len() - self.position);
        let length = usize::try_from(self.left).unwrap_or(usize::MAX).min(room);
        buffer.put_slice(&self.memory[self.position..self.position + length]);
        self.position = (self.position + length) % self.memory.len();
        self.left -= length as u64;
        Poll::Ready(Ok(()))
    }
}

/// Writes memory cyclically.
struct MemorySink<'a> {
    memory: &'a mut [u8],
    position: usize,
}

impl AsyncWrite for MemorySink<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let position = self.position;
        let length = bytes.len().min(self.memory.len() - position);
        self.memory[position..position + length].copy_from_slice(&bytes[..length]);
        self.position = (position + length) % self.memory.len();
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
