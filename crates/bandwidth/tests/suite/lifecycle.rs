//! Streams that share a rate join, become idle, are abandoned and leave, without holding bytes of others.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::transfers::{EVEN_STEPS, EndlessStream, Transfer, assert_rate, manual_bandwidth, run_transfers};
use proptest::prelude::*;
use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    thread,
    time::Duration,
};
use tidegate_bandwidth::{Bandwidth, KeyedBandwidth};
use tidegate_limiter::Clock;
use tidegate_testkit::{strategy::runner_with_cases, test_task::TestTask};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

/// The first of two waiting reads is dropped without notice.
#[test]
fn abandoned_read_is_skipped() {
    let (bandwidth, clock, manual_clock) = manual_bandwidth("100kB/s");
    let mut fickle = bandwidth.limit_reads(EndlessStream { chunk: 1 << 16 });
    let mut buffer = vec![0; 1 << 16];
    while TestTask::new(async { fickle.read(&mut buffer).await.unwrap() }).output().is_some() {}
    let mut movers = [Transfer::read_from(bandwidth.limit_reads(EndlessStream { chunk: 1 << 16 }), 1 << 16)];
    let log = run_transfers(&mut movers, &manual_clock, &clock, EVEN_STEPS, 2);
    assert_rate(&log, 100_000, "the only active stream");
    // The skipped stream may continue later.
    manual_clock.advance(Duration::from_millis(4));
    assert!(TestTask::new(async { fickle.read(&mut buffer).await.unwrap() }).output().is_some());
}

/// All of many waiting reads but the last are dropped without notice; the last must not check each of them for minutes.
#[tokio::test(start_paused = true)]
async fn many_abandoned_reads_are_skipped_within_seconds() {
    let bandwidth = Bandwidth::builder().clock(Clock::tokio()).build("100kB/s").unwrap();
    let mut waiting: Vec<_> =
        (0..200).map(|_| bandwidth.limit_reads(EndlessStream { chunk: 1 << 16 })).collect();
    let mut buffer = vec![0; 1 << 16];
    for stream in &mut waiting {
        while TestTask::new(async { stream.read(&mut buffer).await.unwrap() }).output().is_some() {}
    }
    let mut last = bandwidth.limit_reads(EndlessStream { chunk: 1 << 16 });
    let first_bytes = tokio::time::timeout(Duration::from_secs(2), last.read(&mut buffer)).await;
    assert!(first_bytes.is_ok(), "nothing in two seconds");
    drop(waiting);
}

#[test]
fn closed_stream_returns_its_bytes() {
    let (bandwidth, clock, manual_clock) = manual_bandwidth("100kB/s");
    let endless = EndlessStream { chunk: 1 << 16 };
    let mut movers: Vec<_> =
        (0..5).map(|_| Transfer::read_from(bandwidth.limit_reads(endless), 1 << 16)).collect();
    run_transfers(&mut movers, &manual_clock, &clock, EVEN_STEPS, 1);
    for _ in 0..4 {
        movers.remove(0);
        let log = run_transfers(&mut movers, &manual_clock, &clock, EVEN_STEPS, 2);
        assert_rate(&log, 100_000, "remaining streams");
    }
    drop(movers);
    manual_clock.advance(Duration::from_secs(1));
    // Granted bytes that were not moved are available to others: the whole burst minus the moved bytes.
    for _ in 0..100 {
        let mut stream = bandwidth.limit_reads(endless);
        assert_eq!(TestTask::new(async { stream.read(&mut [0; 5]).await.unwrap() }).take_output(), Some(5));
    }
    let mut movers = [Transfer::read_from(bandwidth.limit_reads(endless), 1 << 16)];
    assert_eq!(run_transfers(&mut movers, &manual_clock, &clock, EVEN_STEPS, 0), [(0, 400)]);
}

/// A stream without data.
struct PendingReader;

impl AsyncRead for PendingReader {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

#[test]
fn idle_streams_hold_no_bytes() {
    let (bandwidth, clock, manual_clock) = manual_bandwidth("100kB/s");
    let mut silent: Vec<_> =
        (0..50).map(|_| Transfer::read_from(bandwidth.limit_reads(PendingReader), 1 << 16)).collect();
    run_transfers(&mut silent, &manual_clock, &clock, EVEN_STEPS, 1);
    let mut movers = [Transfer::read_from(bandwidth.limit_reads(EndlessStream { chunk: 1 << 16 }), 1 << 16)];
    assert_rate(
        &run_transfers(&mut movers, &manual_clock, &clock, EVEN_STEPS, 2),
        100_000,
        "one among idle streams",
    );
}

/// Bytes that an idle stream was granted and did not move are available to others at once.
#[test]
fn idle_stream_returns_bytes_immediately() {
    let (bandwidth, clock, manual_clock) = manual_bandwidth("100kB/s");
    let mut silent: Vec<_> =
        (0..2).map(|_| Transfer::read_from(bandwidth.limit_reads(PendingReader), 1 << 16)).collect();
    run_transfers(&mut silent, &manual_clock, &clock, EVEN_STEPS, 0);
    let mut movers = [Transfer::read_from(bandwidth.limit_reads(EndlessStream { chunk: 1 << 16 }), 1 << 16)];
    assert_eq!(run_transfers(&mut movers, &manual_clock, &clock, EVEN_STEPS, 0), [(0, 800)]);
}

/// Moves bytes forever and counts them; with a new stream for each move, or one for all.
fn spawn_endless_reader(bandwidth: &Bandwidth, reuse_stream: bool) -> Arc<AtomicU64> {
    let (bandwidth, moved) = (bandwidth.clone(), Arc::new(AtomicU64::new(0)));
    let counter = moved.clone();
    tokio::spawn(async move {
        let mut stream = bandwidth.limit_reads(EndlessStream { chunk: 1 << 16 });
        let mut buffer = vec![0; 1 << 16];
        loop {
            counter.fetch_add(stream.read(&mut buffer).await.unwrap() as u64, Ordering::SeqCst);
            if !reuse_stream {
                stream = bandwidth.limit_reads(EndlessStream { chunk: 1 << 16 });
            }
        }
    });
    moved
}

#[tokio::test(start_paused = true)]
async fn idle_and_new_streams_do_not_starve_others() {
    let bandwidth = Bandwidth::builder().clock(Clock::tokio()).build("100kB/s").unwrap();
    let mut silent = bandwidth.limit_reads(EndlessStream { chunk: 1 << 16 });
    let mut buffer = vec![0; 1 << 16];
    assert_eq!(silent.read(&mut buffer).await.unwrap(), 400);
    let steady = spawn_endless_reader(&bandwidth, true);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = steady.load(Ordering::SeqCst);
    let back = tokio::time::timeout(Duration::from_secs(2), async {
        loop {
            assert!(silent.read(&mut buffer).await.unwrap() > 0);
        }
    });
    assert!(back.await.is_err());
    let meanwhile = steady.load(Ordering::SeqCst) - before;
    assert!(meanwhile > 90_000, "{meanwhile} of 200 kB beside one that was idle");

    let before = steady.load(Ordering::SeqCst);
    spawn_endless_reader(&bandwidth, false);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let meanwhile = steady.load(Ordering::SeqCst) - before;
    assert!(meanwhile > 90_000, "{meanwhile} of 200 kB beside short-lived streams");
}

/// A manual clock wakes all streams when it moves. Here only timers and other streams wake a stream.
#[tokio::test(start_paused = true)]
async fn waiting_stream_is_woken_by_changes() {
    let slow = || Bandwidth::builder().clock(Clock::tokio()).build("1B/s burst 512B").unwrap();
    let mut buffer = vec![0; 400];

    // Another rate, although the timer is set to minutes ahead.
    let bandwidth = slow();
    let moved = spawn_endless_reader(&bandwidth, true);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = moved.load(Ordering::SeqCst);
    bandwidth.change("100kB/s").unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(moved.load(Ordering::SeqCst) > before + 9_000);

    // Released bytes: 27 of them, worth as many seconds.
    let bandwidth = slow();
    let mut holds = bandwidth.limit_reads(EndlessStream { chunk: 1 << 16 });
    assert_eq!(holds.read(&mut [0]).await.unwrap(), 1);
    let moved = spawn_endless_reader(&bandwidth, true);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = moved.load(Ordering::SeqCst);
    drop(holds);
    tokio::time::sleep(Duration::from_secs(175)).await;
    assert!(moved.load(Ordering::SeqCst) > before, "its timer alone would fire after 196 s");

    // The task that polled last is woken, not the one before.
    let bandwidth = slow();
    let mut stream = bandwidth.limit_reads(EndlessStream { chunk: 1 << 16 });
    while TestTask::new(async { stream.read(&mut buffer).await.unwrap() }).output().is_some() {}
    let mut other = TestTask::new(async { stream.read(&mut buffer).await.unwrap() });
    assert!(!other.poll_if_woken());
    bandwidth.change("100kB/s").unwrap();
    assert!(other.poll_if_woken());
}

#[test]
fn bandwidth_requires_a_byte_rate() {
    for quota in ["10/s", "3 at once", "1MB/s sliding-window", "1MB/s smooth"] {
        let error = Bandwidth::new(quota).unwrap_err().to_string();
        assert!(
            error.ends_with("is not supported here; use a plain rate in bytes, as in `100kB/s`"),
            "{error}"
        );
        assert_eq!(KeyedBandwidth::new(quota).unwrap_err().to_string(), error);
        assert_eq!(Bandwidth::new("1MB/s").unwrap().change(quota).unwrap_err().to_string(), error);
    }
    assert!(Bandwidth::builder().burst(0).build("1MB/s").is_err());
    assert!(Bandwidth::new("1MB").is_err());
    for (quota, burst) in [
        ("1GB/s", 9_000_000),
        ("100kB/s", 900),
        ("1B/h", 36),
        ("1kB/s", 36),
        ("10kB/s", 300),
        ("50kB/s", 512),
        ("6MB/min", 900),
        ("1MB/s burst 10MB", 10_000_000),
        ("1MB/s burst 10B", 10),
    ] {
        assert_eq!(Bandwidth::new(quota).unwrap().quota().limit(), burst, "{quota}");
    }
}

/// An event of a stream that shares a rate.
#[derive(Clone, Copy, Debug)]
enum StreamEvent {
    Open {
        chunk: usize,
        buffer: usize,
    },
    Close(usize),
    /// The stream is not polled, and may be again.
    Pause(usize),
    Resume(usize),
    Advance(u64),
}

fn stream_events() -> impl Strategy<Value = Vec<StreamEvent>> {
    let sizes = || prop_oneof![1_usize..100, 100_usize..5_000];
    let event = prop_oneof![
        2 => (sizes(), sizes()).prop_map(|(chunk, buffer)| StreamEvent::Open { chunk, buffer }),
        1 => (0_usize..8).prop_map(StreamEvent::Close),
        2 => (0_usize..8).prop_map(StreamEvent::Pause),
        2 => (0_usize..8).prop_map(StreamEvent::Resume),
        8 => prop_oneof![1_u64..100, 100_u64..6_000].prop_map(StreamEvent::Advance),
    ];
    prop::collection::vec(event, 1..120)
}

/// After any events, the bound is never exceeded, and the full rate is available on demand.
#[test]
fn random_events_keep_bound_and_full_rate() {
    let result = runner_with_cases(300).run(&stream_events(), |events| {
        let (bandwidth, clock, manual_clock) = manual_bandwidth("200kB/s");
        let (mut active, mut paused): (Vec<Transfer>, Vec<Transfer>) = (Vec::new(), Vec::new());
        let (mut gone, mut log) = (0, Vec::new());
        for event in events {
            match event {
                StreamEvent::Open { chunk, buffer } => {
                    active.push(Transfer::read_from(bandwidth.limit_reads(EndlessStream { chunk }), buffer));
                }
                StreamEvent::Close(index) if index < active.len() => {
                    gone += active.swap_remove(index).bytes_moved();
                }
                StreamEvent::Pause(index) if index < active.len() => paused.push(active.swap_remove(index)),
                StreamEvent::Resume(index) if index < paused.len() => active.push(paused.swap_remove(index)),
                StreamEvent::Advance(micros) => manual_clock.advance(Duration::from_micros(micros)),
                _ => {}
            }
            let (at, moved) = run_transfers(&mut active, &manual_clock, &clock, EVEN_STEPS, 0)[0];
            assert_eq!(at, 0);
            let all = moved + gone + paused.iter().map(Transfer::bytes_moved).sum::<u64>();
            log.push((clock.now(), all));
        }
        for (index, (from, before)) in log.iter().enumerate() {
            for (to, after) in &log[index..] {
                let most = bandwidth.bound().max_in_window(to.saturating_sub(*from));
                prop_assert!(after - before <= most, "{} of {most} from {from} to {to}", after - before);
            }
        }
        active.push(Transfer::read_from(bandwidth.limit_reads(EndlessStream { chunk: 50 }), 1_000));
        let log = run_transfers(&mut active, &manual_clock, &clock, EVEN_STEPS, 2);
        let moved_since = |ms: usize| log[ms + 1_000].1 - log[ms].1;
        let second = moved_since(500);
        prop_assert!((198_000..=202_000).contains(&second), "{second}");
        Ok(())
    });
    result.unwrap();
}

/// The data is unchanged, for any sizes of reads and writes.
#[test]
fn limited_io_preserves_all_bytes() {
    let data: Vec<u8> = (0..20_000_u32).map(|byte| (byte % 251) as u8).collect();
    let (bandwidth, clock, manual_clock) = manual_bandwidth("100kB/s");
    let task = {
        let (data, bandwidth) = (data.clone(), bandwidth.clone());
        Transfer::new(async move |moved| {
            let mut read = Vec::new();
            bandwidth.limit_reads(&data[..]).read_to_end(&mut read).await.unwrap();
            assert!(read == data);
            let mut written = bandwidth.limit_writes(io::Cursor::new(Vec::new()));
            written.write_all(&data).await.unwrap();
            let mut vectored = bandwidth.limit_writes(io::Cursor::new(Vec::new()));
            assert!(vectored.is_write_vectored());
            let mut done = 0;
            while done < data.len() {
                // Slices that fit, that do not fit, and that are empty.
                let (first, rest) = data[done..].split_at((data.len() - done).min(done % 700));
                let (second, third) = rest.split_at(rest.len() / 2);
                let slices = [first, &[], second, third].map(io::IoSlice::new);
                done += vectored.write_vectored(&slices).await.unwrap();
            }
            vectored.flush().await.unwrap();
            vectored.shutdown().await.unwrap();
            assert!(written.into_inner().into_inner() == data && vectored.into_inner().into_inner() == data);
            moved.set(1);
        })
    };
    let mut movers = [task];
    let log = run_transfers(&mut movers, &manual_clock, &clock, EVEN_STEPS, 1);
    let done_at = log.iter().find(|(_, done)| *done == 1).map(|(at, _)| *at);
    // 60 kB, of which the burst takes no time.
    assert!(done_at.is_some_and(|at| (590_000..605_000).contains(&at)), "{done_at:?}");
}

/// Threads that share a rate never exceed its bound, and none waits forever.
#[test]
fn concurrent_streams_keep_the_bound() {
    let (clock, manual_clock) = Clock::manual();
    let bandwidth = Bandwidth::builder().clock(clock.clone()).build("1MB/s").unwrap();
    let moved = AtomicU64::new(0);
    let busy = AtomicU64::new(4);
    thread::scope(|scope| {
        for thread in 1..=4 {
            let (bandwidth, moved, busy) = (&bandwidth, &moved, &busy);
            scope.spawn(move || {
                for _ in 0..30 {
                    let mut stream = bandwidth.limit_reads(EndlessStream { chunk: 97 * thread });
                    let mut left = 1_000;
                    let mut reading = TestTask::new(async {
                        while left > 0 {
                            let bytes = stream.read(&mut [0; 1024]).await.unwrap();
                            moved.fetch_add(bytes as u64, Ordering::SeqCst);
                            left -= bytes.min(left);
                        }
                    });
                    while reading.output().is_none() {
                        reading.poll_if_woken();
                        thread::yield_now();
                    }
                }
                busy.fetch_sub(1, Ordering::SeqCst);
            });
        }
        for _ in 0..1_000_000 {
            // Read before the time; bytes that are moved in between are counted in the next iteration.
            let moved = moved.load(Ordering::SeqCst);
            let bound = bandwidth.bound().max_in_window(clock.now());
            // Each of the four may have been granted a quantum that it moves now.
            assert!(moved <= bound + 4 * 1_024, "{moved} of {bound}");
            if busy.load(Ordering::SeqCst) == 0 {
                return;
            }
            manual_clock.advance(Duration::from_micros(100));
            thread::yield_now();
        }
        panic!("a stream waits forever");
    });
}
