//! What a byte-rate limit costs: processor time of a copy through it, beside the bare copy.

use crate::{Result, cases::Measured, turns::median};
use rustix::time::{ClockId, clock_gettime};
use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};
use tidegate_engine::Bandwidth;
use tokio::{
    io::{AsyncRead, AsyncWrite, BufReader, ReadBuf, copy_buf},
    runtime::{Builder, Runtime},
};

/// Bytes of one copy, the memory that they come from and go to, and the buffer between.
const BYTES: u64 = 1_000_000_000;
const MEMORY: usize = 64 << 20;
const BUFFER: usize = 64 << 10;
const ROUNDS: usize = 15;

/// From memory to memory: sockets would hide the limiter behind what a pause does to them.
pub(crate) fn cpu() -> Result<Measured> {
    let runtime = Builder::new_current_thread().enable_time().build()?;
    let (mut ours, mut theirs, mut ratios, mut rates) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut memory = (vec![7; MEMORY], vec![1; MEMORY]);
    copy(&runtime, &mut memory, |source| source)?;
    for _ in 0..ROUNDS {
        let bare = copy(&runtime, &mut memory, |source| source)?;
        let bandwidth = Bandwidth::new("1GB/s")?;
        let start = Instant::now();
        let limited = copy(&runtime, &mut memory, |source| bandwidth.limit_reads(source))?;
        rates.push(BYTES as f64 / start.elapsed().as_secs_f64() / 1e9);
        ours.push(limited * 1e3);
        theirs.push(bare * 1e3);
        ratios.push(limited / bare);
    }
    let figures = format!(
        "limited {:.0} ms of processor time a GB at {:.3} GB/s, bare {:.0} ms",
        median(&ours),
        median(&rates),
        median(&theirs)
    );
    Ok(Measured { value: median(&ratios), figures })
}

/// Copies once, and says how much processor time this process took for it, in seconds.
fn copy<'a, R: AsyncRead + Unpin>(
    runtime: &Runtime,
    memory: &'a mut (Vec<u8>, Vec<u8>),
    limit: impl FnOnce(Source<'a>) -> R,
) -> Result<f64> {
    let (from, to) = memory;
    let before = processor_time();
    let moved = runtime.block_on(async {
        let mut source =
            BufReader::with_capacity(BUFFER, limit(Source { memory: from, place: 0, left: BYTES }));
        copy_buf(&mut source, &mut Sink { memory: to, place: 0 }).await
    })?;
    assert_eq!(moved, BYTES);
    Ok(processor_time() - before)
}

fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Reads memory round and round.
struct Source<'a> {
    memory: &'a [u8],
    place: usize,
    left: u64,
}

impl AsyncRead for Source<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buffer.remaining().min(self.memory.len() - self.place);
        let length = usize::try_from(self.left).unwrap_or(usize::MAX).min(room);
        buffer.put_slice(&self.memory[self.place..self.place + length]);
        self.place = (self.place + length) % self.memory.len();
        self.left -= length as u64;
        Poll::Ready(Ok(()))
    }
}

/// Writes memory round and round.
struct Sink<'a> {
    memory: &'a mut [u8],
    place: usize,
}

impl AsyncWrite for Sink<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let place = self.place;
        let length = bytes.len().min(self.memory.len() - place);
        self.memory[place..place + length].copy_from_slice(&bytes[..length]);
        self.place = (place + length) % self.memory.len();
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
