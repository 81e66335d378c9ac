//! Byte rates: the number of bytes in any second, and their distribution.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::transfers::{
    EVEN_STEPS, EndlessStream, FINE_STEPS, LATE_STEPS, Transfer, assert_rate, manual_bandwidth, run_transfers,
};
use std::{future::Future, time::Duration};
use tidegate_bandwidth::Bandwidth;
use tidegate_core::Micros;
use tidegate_limiter::Clock;
use tidegate_testkit::test_task::TestTask;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn every_second_matches_the_rate() {
    let jumps = [("even", EVEN_STEPS), ("fine", FINE_STEPS), ("late", LATE_STEPS)];
    for (quota, rate, chunks, buffer) in [
        ("100kB/s", 100_000, [1, 7, 100, 1_460, 65_536], 8_192),
        ("3MB/s", 3_000_000, [64, 100, 1_000, 1_460, 65_536], 8_192),
        ("1GB/s", 1_000_000_000, [8_192, 9_000, 16_384, 65_536, 1 << 20], 1 << 17),
    ] {
        for chunk in chunks {
            for (name, jump) in jumps {
                // Fine steps with many streams are slow and test nothing more.
                let many = if name == "fine" { 3 } else { 50 };
                for streams in [1, 2, many] {
                    let (bandwidth, clock, manual_clock) = manual_bandwidth(quota);
                    let mut movers: Vec<_> = (0..streams)
                        .map(|stream| match stream % 2 {
                            0 => Transfer::read_from(bandwidth.limit_reads(EndlessStream { chunk }), buffer),
                            _ => Transfer::write_to(
                                bandwidth.limit_writes(EndlessStream { chunk }),
                                chunk.min(buffer),
                            ),
                        })
                        .collect();
                    let mut log = run_transfers(&mut movers, &manual_clock, &clock, jump, 2);
                    // The burst belongs to the first second too.
                    log.insert(0, (0, 0));
                    let context = format!("{streams} streams of {chunk} at {quota}, {name}");
                    assert_rate(&log, rate, &context);
                    let shares: Vec<_> = movers.iter().map(Transfer::bytes_moved).collect();
                    let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
                    let fair = log.last().unwrap().1 / streams as u64;
                    // A few quanta, regardless of the duration.
                    let slack = fair / 10 + rate * 18 / 1_000;
                    assert!(most - least <= slack, "{context}: {least} to {most}");
                }
            }
        }
    }
}

/// A bulk stream and one with small chunks that share a rate move the same number of bytes.
#[test]
fn small_and_large_chunks_share_equally() {
    for (quota, rate, small) in
        [("100kB/s", 100_000, 10), ("100kB/s", 100_000, 100), ("50MB/s", 50_000_000, 500)]
    {
        for (name, jump) in [("even", EVEN_STEPS), ("late", LATE_STEPS)] {
            let (bandwidth, clock, manual_clock) = manual_bandwidth(quota);
            let bulk = EndlessStream { chunk: 1 << 20 };
            let mut movers = [
                Transfer::read_from(bandwidth.limit_reads(bulk), 1 << 16),
                Transfer::read_from(bandwidth.limit_reads(EndlessStream { chunk: small }), 1 << 16),
                Transfer::write_to(bandwidth.limit_writes(bulk), small),
            ];
            let log = run_transfers(&mut movers, &manual_clock, &clock, jump, 3);
            assert_rate(&log, rate, name);
            for mover in &movers {
                let share = mover.bytes_moved() as f64 / rate as f64;
                assert!((0.9..1.1).contains(&share), "{quota} {small} {name}: {share}");
            }
        }
    }
}

#[test]
fn small_writes_are_not_queued_behind_bulk_streams() {
    let (bandwidth, clock, manual_clock) = manual_bandwidth("1MB/s");
    let mut movers: Vec<_> = (0..20)
        .map(|_| Transfer::read_from(bandwidth.limit_reads(EndlessStream { chunk: 1 << 16 }), 1 << 16))
        .collect();
    run_transfers(&mut movers, &manual_clock, &clock, EVEN_STEPS, 1);
    // Occasional small writes: 10 bytes every 10 ms, a fiftieth of the fair share.
    let mut writer = bandwidth.limit_writes(EndlessStream { chunk: 1 << 16 });
    for number in 0..100 {
        let mut write = TestTask::new(async { writer.write_all(&[0; 10]).await.unwrap() });
        let mut waited = 0;
        while write.output().is_none() {
            for mover in &mut movers {
                mover.task.poll_if_woken();
            }
            write.poll_if_woken();
            manual_clock.advance(Duration::from_millis(1));
            waited += 1;
            // A new stream waits once for the existing ones: a quantum of each.
            let most = if number <= 1 { 90 } else { 10 };
            assert!(waited < most, "write {number} waits for {waited} ms");
        }
        run_transfers(&mut movers, &manual_clock, &clock, EVEN_STEPS, 0);
        manual_clock.advance(Duration::from_millis(10));
    }
}

#[test]
fn limit_after_exempts_the_first_bytes() {
    let (clock, manual_clock) = Clock::manual();
    let builder = Bandwidth::builder().clock(clock.clone()).limit_after(1_000_000);
    let bandwidth = builder.build("100kB/s").unwrap();
    let endless = EndlessStream { chunk: 1 << 16 };
    let mut movers = [
        Transfer::read_from(bandwidth.limit_reads(endless), 1 << 16),
        Transfer::write_to(bandwidth.limit_writes(endless).limit_after(5_000), 1 << 16),
    ];
    let log = run_transfers(&mut movers, &manual_clock, &clock, EVEN_STEPS, 0);
    // The exempt bytes, and the burst.
    assert_eq!(log, [(0, 1_005_000 + 800)]);
    let log = run_transfers(&mut movers, &manual_clock, &clock, EVEN_STEPS, 2);
    assert_rate(&log, 100_000, "after the exempt bytes");
}

#[test]
fn rate_change_applies_immediately() {
    let (bandwidth, clock, manual_clock) = manual_bandwidth("100B/s");
    let mut movers: Vec<_> = (0..3)
        .map(|_| Transfer::read_from(bandwidth.limit_reads(EndlessStream { chunk: 1 << 16 }), 1 << 16))
        .collect();
    run_transfers(&mut movers, &manual_clock, &clock, EVEN_STEPS, 5);
    for (quota, rate) in
        [("10MB/s", 10_000_000), ("100kB/s", 100_000), ("1GB/s", 1_000_000_000), ("60kB/s", 60_000)]
    {
        bandwidth.change(quota).unwrap();
        assert_rate(&run_transfers(&mut movers, &manual_clock, &clock, EVEN_STEPS, 2), rate, quota);
    }
    assert_eq!(bandwidth.quota().to_string(), "60kB/s burst 540B");
}

#[test]
fn configured_burst_passes_immediately() {
    let (clock, manual_clock) = Clock::manual();
    let bandwidth = Bandwidth::builder().clock(clock.clone()).burst(1_000_000).build("100kB/s").unwrap();
    let mut movers = [Transfer::read_from(bandwidth.limit_reads(EndlessStream { chunk: 1 << 16 }), 1 << 16)];
    let (_, at_once) = run_transfers(&mut movers, &manual_clock, &clock, EVEN_STEPS, 0)[0];
    assert!((999_600..=1_000_000).contains(&at_once), "{at_once}");
    assert!(bandwidth.bound().max_in_window(Micros::from_secs(1)) <= 1_100_050);
}

/// On the clock of tokio: one timer for each stream, and a task is woken only when it can do something.
#[tokio::test(start_paused = true)]
async fn waiting_streams_do_not_busy_poll() {
    // About 250 grants a second, each of which wakes the active stream, the next one and the one that watches.
    for (streams, most) in [(1, 600), (10, 2_000)] {
        let polls = count_polls(streams).await;
        assert!(polls < most, "{polls} polls of {streams} streams");
    }
}

/// The number of polls of the tasks of `streams` streams that move 200 kB.
async fn count_polls(streams: usize) -> u32 {
    let clock = Clock::tokio();
    let bandwidth = Bandwidth::builder().clock(clock.clone()).build("100kB/s").unwrap();
    let started = clock.now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..streams {
        let mut stream = bandwidth.limit_reads(EndlessStream { chunk: 10 });
        tasks.spawn(async move {
            let (mut polls, mut left) = (0, 200_000 / streams);
            let mut reading = Box::pin(async {
                while left > 0 {
                    left -= stream.read(&mut [0; 1024]).await.unwrap().min(left);
                }
            });
            std::future::poll_fn(|context| {
                polls += 1;
                reading.as_mut().poll(context)
            })
            .await;
            polls
        });
    }
    let polls: u32 = tasks.join_all().await.into_iter().sum();
    let elapsed = clock.now().saturating_sub(started).to_duration();
    assert!((1.98..2.02).contains(&elapsed.as_secs_f64()), "200 kB in {elapsed:?}");
    polls
}
