//! Byte rates of HTTP bodies: frames are cut, so that no second exceeds the rate and the burst.

#![cfg(feature = "http-body")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::transfers::manual_bandwidth;
use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use proptest::prelude::*;
use std::{
    collections::VecDeque,
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tidegate_bandwidth::{Bandwidth, ShapedStream};
use tidegate_core::Micros;
use tidegate_limiter::{Clock, ManualClock};
use tidegate_testkit::{strategy::runner_with_cases, test_task::TestTask};

/// A body of these frames, and of trailers if there are any.
#[derive(Clone)]
struct FrameSource {
    frames: VecDeque<Bytes>,
    trailers: bool,
}

impl FrameSource {
    fn with_lengths(lengths: &[usize]) -> Self {
        let content: Bytes = (0..lengths.iter().sum::<usize>()).map(|byte| (byte % 251) as u8).collect();
        let mut rest = content;
        Self { frames: lengths.iter().map(|length| rest.split_to(*length)).collect(), trailers: false }
    }
}

impl Body for FrameSource {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = match self.frames.pop_front() {
            Some(data) => Some(Frame::data(data)),
            None => std::mem::take(&mut self.trailers).then(|| Frame::trailers(Default::default())),
        };
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && !self.trailers
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.frames.iter().map(|frame| frame.len() as u64).sum())
    }
}

/// An endless body of frames of these lengths, in turn.
struct EndlessFrames {
    lengths: Vec<usize>,
    next: usize,
}

impl Body for EndlessFrames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
        let length = self.lengths[self.next % self.lengths.len()];
        self.next += 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&ZEROS[..length])))))
    }
}

/// A body with a task that reads it.
struct BodyReader<B> {
    body: Pin<Box<ShapedStream<B>>>,
    moved: u64,
}

impl<B: Body<Error = Infallible>> BodyReader<B> {
    fn new(body: ShapedStream<B>) -> Self {
        Self { body: Box::pin(body), moved: 0 }
    }

    /// Reads what the rate allows now.
    fn read_available(&mut self) {
        loop {
            let body = &mut self.body;
            let frame = TestTask::new(poll_fn(|context| body.as_mut().poll_frame(context))).take_output();
            match frame {
                Some(Some(frame)) => self.moved += frame.unwrap().data_ref().map_or(0, Bytes::len) as u64,
                Some(None) | None => return,
            }
        }
    }
}

/// Reads a body to its end: the time of each frame in milliseconds, and its length, or `None` for trailers.
fn read_to_end(
    mut body: Pin<Box<ShapedStream<FrameSource>>>,
    clock: &Clock,
    manual_clock: &ManualClock,
) -> Vec<(u64, Option<Bytes>)> {
    let start = clock.now();
    let mut frames = Vec::new();
    for _ in 0..100_000 {
        let frame = TestTask::new(poll_fn(|context| body.as_mut().poll_frame(context))).take_output();
        let at = clock.now().saturating_sub(start).get() / 1_000;
        match frame {
            Some(Some(frame)) => frames.push((at, frame.unwrap().into_data().ok())),
            Some(None) => return frames,
            None => manual_clock.advance(Duration::from_millis(1)),
        }
    }
    panic!("the body does not end");
}

#[test]
fn frames_are_cut_and_trailers_follow() {
    let (bandwidth, clock, manual_clock) = manual_bandwidth("100kB/s");
    let source = FrameSource { trailers: true, ..FrameSource::with_lengths(&[1_000, 500, 0, 300]) };
    let expected: Vec<u8> = source.frames.iter().flatten().copied().collect();
    let body = bandwidth.limit_reads(source);
    assert_eq!(Body::size_hint(&body).exact(), Some(1_800));
    let frames = read_to_end(Box::pin(body), &clock, &manual_clock);
    let shown: Vec<_> = frames.iter().map(|(at, data)| (*at, data.as_ref().map(Bytes::len))).collect();
    // A burst of 900 bytes in pieces of at most 400, then 100 bytes per millisecond.
    let expected_frames = [
        (0, Some(400)),
        (0, Some(400)),
        (3, Some(200)),
        (5, Some(400)),
        (9, Some(100)),
        (9, Some(0)),
        (9, Some(300)),
        (9, None),
    ];
    assert_eq!(shown, expected_frames);
    let passed: Vec<u8> = frames.into_iter().filter_map(|(_, data)| data).flatten().collect();
    assert_eq!(passed, expected);
}

#[test]
fn cut_body_reports_its_remaining_size() {
    let (bandwidth, ..) = manual_bandwidth("100kB/s");
    let mut body = Box::pin(bandwidth.limit_reads(FrameSource::with_lengths(&[500, 100])));
    let mut next = || {
        let frame =
            TestTask::new(poll_fn(|context| body.as_mut().poll_frame(context))).take_output().unwrap();
        let length = frame.map(|frame| frame.unwrap().data_ref().unwrap().len());
        (length, Body::size_hint(&*body).exact(), body.is_end_stream())
    };
    assert_eq!(next(), (Some(400), Some(200), false));
    assert_eq!(next(), (Some(100), Some(100), false), "the frame is cut, and not joined with the next");
    assert_eq!(next(), (Some(100), Some(0), true));
    assert_eq!(next(), (None, Some(0), true));
}

/// Data that is not `Bytes`, in two parts.
struct ChainBody(Option<bytes::buf::Chain<&'static [u8], &'static [u8]>>);

impl Body for ChainBody {
    type Data = bytes::buf::Chain<&'static [u8], &'static [u8]>;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Infallible>>> {
        Poll::Ready(self.0.take().map(|data| Ok(Frame::data(data))))
    }
}

#[test]
fn data_of_other_types_is_converted() {
    let (bandwidth, ..) = manual_bandwidth("100kB/s");
    let mut body = Box::pin(bandwidth.limit_reads(ChainBody(Some((&b"two "[..]).chain(&b"parts"[..])))));
    let frame = TestTask::new(poll_fn(|context| body.as_mut().poll_frame(context))).take_output();
    assert_eq!(frame.unwrap().unwrap().unwrap().into_data().unwrap(), "two parts");
}

#[test]
fn bytes_are_cut_without_a_copy() {
    let (bandwidth, ..) = manual_bandwidth("100kB/s");
    let source = FrameSource::with_lengths(&[600]);
    let address = source.frames[0].as_ptr();
    let mut body = Box::pin(bandwidth.limit_reads(source));
    let frame = TestTask::new(poll_fn(|context| body.as_mut().poll_frame(context))).take_output();
    assert_eq!(frame.unwrap().unwrap().unwrap().data_ref().unwrap().as_ptr(), address);
}

/// A body whose consumer stops to poll, as an HTTP/2 stream without a window, takes nothing from the others.
#[test]
fn stalled_body_holds_no_bytes_of_a_shared_rate() {
    let (bandwidth, clock, manual_clock) = manual_bandwidth("100kB/s");
    let endless = |lengths: &[usize]| EndlessFrames { lengths: lengths.to_vec(), next: 0 };
    let mut stalled: Vec<_> = (0..5)
        .map(|_| {
            let mut reader = BodyReader::new(bandwidth.limit_reads(endless(&[30])));
            reader.read_available();
            reader
        })
        .collect();
    let mut active = BodyReader::new(bandwidth.limit_reads(endless(&[60_000])));
    let start = clock.now();
    while clock.now().saturating_sub(start) < Micros::from_secs(3) {
        active.read_available();
        manual_clock.advance(Duration::from_millis(1));
    }
    assert!(active.moved >= 297_000, "{} of 300000 bytes", active.moved);
    let before: u64 = stalled.iter().map(|reader| reader.moved).sum();
    assert!(before <= 900);
    // They continue with what the rate allows now.
    manual_clock.advance(Duration::from_secs(1));
    stalled.iter_mut().for_each(BodyReader::read_available);
    let after: u64 = stalled.iter().map(|reader| reader.moved).sum();
    assert!((1..=900).contains(&(after - before)), "{}", after - before);
}

#[test]
fn limit_after_exempts_the_first_bytes_of_each_body() {
    let (clock, manual_clock) = Clock::manual();
    let builder = Bandwidth::builder().clock(clock.clone()).limit_after(200_000);
    let bandwidth = builder.build("100kB/s").unwrap();
    for expected in [200_800, 200_000] {
        let mut reader = BodyReader::new(
            bandwidth.limit_reads(EndlessFrames { lengths: vec![65_536, 1, 4_000], next: 0 }),
        );
        reader.read_available();
        // The second body finds the burst used up.
        assert!((expected..expected + 200).contains(&reader.moved), "{} of {expected}", reader.moved);
    }
    let mut reader = BodyReader::new(bandwidth.limit_reads(EndlessFrames { lengths: vec![65_536], next: 0 }));
    reader.read_available();
    manual_clock.advance(Duration::from_secs(60));
    reader.read_available();
    assert!(reader.moved <= 200_000 + 900, "idle time gives no more than the burst: {}", reader.moved);
}

/// A random use of one rate.
#[derive(Clone, Debug)]
struct BodyCase {
    rate: u64,
    burst: Option<u64>,
    /// The lengths of the frames of each body.
    bodies: Vec<Vec<usize>>,
    /// The delays between polls, in microseconds, and whether each body is polled then, as a mask.
    polls: Vec<(u64, u8)>,
}

fn body_cases() -> impl Strategy<Value = BodyCase> {
    let rate = prop_oneof![
        1_000_u64..20_000,
        20_000_u64..2_000_000,
        2_000_000_u64..200_000_000,
        Just(1_000_000_000)
    ];
    let frames = || {
        let length = prop_oneof![1_usize..20, 20_usize..2_000, 2_000_usize..(1 << 20)];
        prop::collection::vec(length, 1..6)
    };
    let polls = prop::collection::vec((prop_oneof![1_u64..1_000, 1_000_u64..60_000], any::<u8>()), 20..80);
    let burst = prop::option::of(prop_oneof![1_u64..2_000, 2_000_u64..3_000_000]);
    (rate, burst, prop::collection::vec(frames(), 1..5), polls)
        .prop_map(|(rate, burst, bodies, polls)| BodyCase { rate, burst, bodies, polls })
        // The moved bytes of a case bound its time.
        .prop_filter("too many bytes", |case| {
            let smallest = case.bodies.iter().flatten().min().copied().unwrap_or(1) as u64;
            (case.rate + case.burst.unwrap_or(0)) / smallest.min(400) < 400_000
        })
}

fn build_case(case: &BodyCase) -> (Bandwidth, Clock, ManualClock, Vec<BodyReader<EndlessFrames>>) {
    let (clock, manual_clock) = Clock::manual();
    manual_clock.set(Micros::from_secs(1_000_000));
    let mut builder = Bandwidth::builder().clock(clock.clone());
    if let Some(burst) = case.burst {
        builder = builder.burst(burst);
    }
    let bandwidth = builder.build(format!("{}B/s", case.rate).as_str()).unwrap();
    let readers = case
        .bodies
        .iter()
        .map(|lengths| {
            BodyReader::new(bandwidth.limit_reads(EndlessFrames { lengths: lengths.clone(), next: 0 }))
        })
        .collect();
    (bandwidth, clock, manual_clock, readers)
}

/// For any frames and any polls, no window of one second has more bytes than the rate and the burst.
#[test]
fn any_second_is_within_rate_and_burst() {
    let result = runner_with_cases(200).run(&body_cases(), |case| {
        let (bandwidth, clock, manual_clock, mut readers) = build_case(&case);
        let most = case.rate + bandwidth.quota().limit();
        let mut log = vec![(clock.now(), 0)];
        for (delay, mask) in &case.polls {
            manual_clock.advance(Duration::from_micros(*delay));
            for (index, reader) in readers.iter_mut().enumerate() {
                if mask & 1 << index != 0 {
                    reader.read_available();
                }
            }
            log.push((clock.now(), readers.iter().map(|reader| reader.moved).sum::<u64>()));
        }
        for (index, pair) in log.windows(2).enumerate() {
            // A window starts before the bytes of its first poll and ends after those of its last one.
            let [(_, before), (from, _)] = pair else { panic!("two polls") };
            let later = log[index + 1..].iter();
            let (_, after) =
                later.take_while(|(at, _)| at.saturating_sub(*from) <= Micros::from_secs(1)).last().unwrap();
            prop_assert!(
                after - before <= most,
                "{} of {most} bytes in the second from {from}",
                after - before
            );
        }
        Ok(())
    });
    result.unwrap();
}

/// While bodies are polled as soon as they may move, they get the rate, with timers of one millisecond.
#[test]
fn busy_bodies_get_99_percent_of_the_rate() {
    let cases = body_cases().prop_filter("burst below 9 ms", |case| {
        case.burst.is_none_or(|burst| burst * 1_000 >= case.rate * 9 && burst >= 36)
    });
    let result = runner_with_cases(60).run(&cases, |case| {
        let (_, clock, manual_clock, mut readers) = build_case(&case);
        let start = clock.now();
        while clock.now().saturating_sub(start) < Micros::from_secs(2) {
            readers.iter_mut().for_each(BodyReader::read_available);
            manual_clock.advance(Duration::from_millis(1));
        }
        let moved: u64 = readers.iter().map(|reader| reader.moved).sum();
        let least = case.rate * 2 * 99 / 100;
        prop_assert!(moved >= least, "{moved} of {least} bytes");
        Ok(())
    });
    result.unwrap();
}

/// At low rates a body sends small pieces steadily, and never a lump.
#[test]
fn low_rates_send_small_pieces() {
    for (quota, rate) in [("1kB/s", 1_000), ("10kB/s", 10_000), ("50kB/s", 50_000)] {
        let (bandwidth, clock, manual_clock) = manual_bandwidth(quota);
        let mut reader =
            BodyReader::new(bandwidth.limit_reads(EndlessFrames { lengths: vec![1 << 20], next: 0 }));
        let start = clock.now();
        let (mut pieces, mut last) = (0, 0);
        while clock.now().saturating_sub(start) < Micros::from_secs(4) {
            reader.read_available();
            assert!(reader.moved - last <= rate / 30, "{quota}: {} bytes at once", reader.moved - last);
            pieces += u64::from(reader.moved > last);
            last = reader.moved;
            manual_clock.advance(Duration::from_millis(1));
        }
        assert!(pieces >= 4 * 30, "{quota}: {pieces} pieces in 4 s");
    }
}
