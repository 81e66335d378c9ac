//! What a byte-rate limit costs: processor time of a copy through it, beside a bare copy at the same rate.
//!
//! The bare copy sleeps after every 4 MB until it is time to go on: the least that any limit has to do. A machine that
//! pauses takes more processor time for the same bytes than one that runs through, whoever makes it pause; the figures also
//! tell how much more the limited copy takes than a bare one that never pauses.

use rustix::time::{ClockId, clock_gettime};
use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tidegate_bandwidth::Bandwidth;
use tidegate_bench::{Result, suite::Measured, turns::median};
use tokio::{
    io::{AsyncRead, AsyncWrite, BufReader, ReadBuf, copy_buf},
    runtime::{Builder, Runtime},
    time::{Instant, Sleep, sleep},
};

/// Bytes of one copy, the memory that they come from and go to, and the buffer between.
const BYTES: u64 = 200_000_000;
const MEMORY: usize = 64 << 20;
const BUFFER: usize = 64 << 10;
/// Many short rounds: the machine's memory is not equally fast all the time.
const ROUNDS: usize = 61;
/// What the paced copy moves between two pauses.
const PIECE: u64 = 4_000_000;

pub(crate) fn cpu() -> Result<Measured> {
    let runtime = Builder::new_current_thread().enable_time().build()?;
    let mut memory = (vec![7; MEMORY], vec![1; MEMORY]);
    copy(&runtime, &mut memory, |source| source)?;
    let (mut limited, mut paced, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(copy(&runtime, &mut memory, |source| source)?);
        let bandwidth = Bandwidth::new("1GB/s")?;
        limited.push(copy(&runtime, &mut memory, |source| bandwidth.limit_reads(source))?);
        paced.push(copy(&runtime, &mut memory, Paced::new)?);
    }
    let ratio = |theirs: &[f64]| {
        let ratios: Vec<f64> = limited.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
        median(&ratios)
    };
    let per_gb = |times: &[f64]| median(times) * 1e3 / (BYTES as f64 / 1e9);
    let figures = format!(
        "limited {:.0} ms of processor time a GB, paced by sleeps {:.0} ms; {:.3} of a bare copy that never pauses, {:.0} ms",
        per_gb(&limited),
        per_gb(&paced),
        ratio(&bare),
        per_gb(&bare)
    );
    Ok(Measured { value: ratio(&paced), figures })
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

/// Sleeps after every piece until it is time for the next, at 1 GB/s.
struct Paced<T> {
    inner: T,
    start: Instant,
    moved: u64,
    left: u64,
    pause: Pin<Box<Sleep>>,
}

impl<T> Paced<T> {
    fn new(inner: T) -> Self {
        Self { inner, start: Instant::now(), moved: 0, left: PIECE, pause: Box::pin(sleep(Duration::ZERO)) }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Paced<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.left == 0 {
            ready!(this.pause.as_mut().poll(context));
            this.left = PIECE;
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
