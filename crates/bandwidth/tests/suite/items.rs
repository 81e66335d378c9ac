//! Byte rates of indivisible data: items of a stream.

#![cfg(feature = "stream")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use bytes::Bytes;
use futures_core::Stream;
use std::{
    collections::VecDeque,
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tidegate_bandwidth::{Bandwidth, ByteLen, ShapedStream};
use tidegate_limiter::{Clock, ManualClock};
use tidegate_testkit::test_task::TestTask;

/// Items as a stream.
struct ItemSource(VecDeque<Vec<u8>>);

impl ItemSource {
    fn with_lengths(lengths: &[usize]) -> Self {
        Self(lengths.iter().map(|length| vec![7; *length]).collect())
    }
}

impl Stream for ItemSource {
    type Item = Result<Vec<u8>, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.len(), Some(self.0.len()))
    }
}

fn limit_items(items: ItemSource) -> (ShapedStream<ItemSource>, Clock, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    let bandwidth = Bandwidth::builder().clock(clock.clone()).build("100kB/s").unwrap();
    (bandwidth.limit_reads(items), clock, manual_clock)
}

/// The time of each item, in milliseconds.
fn arrival_times<T>(
    mut next: impl FnMut(&mut Context<'_>) -> Poll<Option<T>>,
    clock: &Clock,
    manual_clock: &ManualClock,
) -> Vec<(u64, T)> {
    let mut moments = Vec::new();
    for _ in 0..30_000 {
        let mut waiting = TestTask::new(poll_fn(&mut next));
        while waiting.output().is_none() {
            manual_clock.advance(Duration::from_millis(1));
            waiting.poll_if_woken();
        }
        match waiting.take_output().unwrap() {
            Some(item) => moments.push((clock.now().get() / 1_000, item)),
            None => return moments,
        }
    }
    panic!("the stream does not end");
}

#[test]
fn stream_item_is_charged_before_the_next() {
    // A burst of 9 ms, of which 4 ms must be free; the last item waits for the debt of the others.
    let (mut stream, clock, manual_clock) =
        limit_items(ItemSource::with_lengths(&[10_000, 100, 100, 0, 2_000, 50]));
    assert_eq!(Stream::size_hint(&stream), (6, Some(6)));
    let came = arrival_times(|context| Pin::new(&mut stream).poll_next(context), &clock, &manual_clock);
    let when: Vec<_> = came.iter().map(|(at, item)| (*at, item.byte_len())).collect();
    assert_eq!(when, [(0, 10_000), (95, 100), (95, 100), (95, 0), (95, 2_000), (117, 50)]);
}

#[test]
fn small_items_arrive_at_the_rate() {
    let (mut stream, clock, manual_clock) = limit_items(ItemSource::with_lengths(&[10; 20_000]));
    let came = arrival_times(|context| Pin::new(&mut stream).poll_next(context), &clock, &manual_clock);
    for (index, (at, _)) in came.iter().enumerate() {
        let expected = index as i64 / 10;
        assert!((expected - 10..=expected + 1).contains(&(*at as i64)), "item {index} at {at} ms");
    }
}

#[test]
fn byte_len_of_byte_types() {
    fn length(item: impl ByteLen) -> usize {
        item.byte_len()
    }
    assert_eq!(length("four") + length(String::from("four")) + length(&b"four"[..]) + length([0_u8; 4]), 16);
    assert_eq!(
        length(vec![0; 4]) + length(Bytes::from_static(b"four")) + length(Box::<[u8]>::from([0; 4])),
        12
    );
    assert_eq!(length(std::borrow::Cow::Borrowed("four")) + length(std::sync::Arc::<str>::from("four")), 8);
    assert_eq!(length(Ok::<_, ()>("four")) + length(Err::<Vec<u8>, _>("no bytes")), 4);
}
