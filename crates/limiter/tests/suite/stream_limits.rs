//! Rate-limited streams.

#![cfg(feature = "stream")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use futures_core::Stream;
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tidegate_limiter::{
    Clock, DirectLimiter, InFlightItem, LimitedStream, Limiter, ManualClock, StreamLimit, StreamLimitExt,
};
use tidegate_testkit::test_task::TestTask;

/// A stream of messages that a test pushes.
#[derive(Clone, Default)]
struct MessageStream(Rc<MessageStreamState>);

#[derive(Default)]
struct MessageStreamState {
    waiting: RefCell<VecDeque<u64>>,
    pulled: Cell<usize>,
    closed: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl MessageStream {
    fn with_messages(messages: impl IntoIterator<Item = u64>) -> Self {
        let stream = Self::default();
        stream.0.waiting.borrow_mut().extend(messages);
        stream
    }

    fn push(&self, message: u64) {
        self.0.waiting.borrow_mut().push_back(message);
        if let Some(waker) = self.0.waker.take() {
            waker.wake();
        }
    }

    fn pulled(&self) -> usize {
        self.0.pulled.get()
    }
}

impl Stream for MessageStream {
    type Item = u64;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<u64>> {
        let message = self.0.waiting.borrow_mut().pop_front();
        if message.is_some() {
            self.0.pulled.set(self.0.pulled.get() + 1);
        } else if !self.0.closed.get() {
            *self.0.waker.borrow_mut() = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(message)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.waiting.borrow().len(), None)
    }
}

type NextItem<'a> = TestTask<'a, Option<InFlightItem<u64>>>;

fn next(stream: &mut LimitedStream<MessageStream>) -> NextItem<'_> {
    TestTask::new(poll_fn(move |context| Pin::new(&mut *stream).poll_next(context)))
}

/// The items that are ready without waiting.
fn ready_items(stream: &mut LimitedStream<MessageStream>) -> Vec<InFlightItem<u64>> {
    std::iter::from_fn(|| next(stream).take_output().flatten()).collect()
}

fn count_ready(stream: &mut LimitedStream<MessageStream>) -> usize {
    ready_items(stream).len()
}

fn manual_limit() -> (StreamLimit, Clock, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    (StreamLimit::with_clock(clock.clone()), clock, manual_clock)
}

#[test]
fn stream_delivers_at_the_rate() {
    let (limit, _, manual_clock) = manual_limit();
    let messages = MessageStream::with_messages(0..100);
    let mut stream = messages.clone().limit(limit.rate("10/s burst 3").unwrap());
    assert_eq!(stream.size_hint(), (100, None));
    assert_eq!(count_ready(&mut stream), 3);
    for _ in 0..20 {
        let mut waiting = next(&mut stream);
        manual_clock.advance(Duration::from_millis(99));
        waiting.poll_if_woken();
        assert!(waiting.output().is_none());
        // No item is pulled that cannot be delivered.
        let pulled = messages.pulled();
        manual_clock.advance(Duration::from_millis(1));
        waiting.poll_if_woken();
        assert!(waiting.take_output().flatten().is_some());
        assert_eq!(messages.pulled(), pulled + 1);
    }
    // After an idle time there is one burst again, and no more.
    manual_clock.advance(Duration::from_millis(60_000));
    assert_eq!(count_ready(&mut stream), 3);
}

#[test]
fn in_flight_items_never_exceed_slots() {
    let (limit, _, _manual_clock) = manual_limit();
    let messages = MessageStream::with_messages(0..10);
    let mut stream = messages.clone().limit(limit.max_in_flight(3).unwrap());
    let mut working = ready_items(&mut stream);
    assert_eq!(working.iter().map(|item| **item).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(messages.pulled(), 3);

    let mut waiting = next(&mut stream);
    assert!(waiting.output().is_none());
    working.remove(1);
    waiting.poll_if_woken();
    working.push(waiting.take_output().flatten().unwrap());
    drop(waiting);
    // An item can be separated from its slot.
    let (item, slot) = working.remove(0).into_parts();
    assert_eq!((item, count_ready(&mut stream)), (0, 0));
    drop(slot);
    assert_eq!(next(&mut stream).take_output().flatten().map(InFlightItem::into_inner), Some(4));
    assert_eq!(next(&mut stream).take_output().flatten().map(InFlightItem::into_inner), Some(5));
    drop(working);
    // Items that are dropped at once hold their slots only briefly.
    let remaining =
        std::iter::from_fn(|| next(&mut stream).take_output().flatten().map(InFlightItem::into_inner));
    assert_eq!(remaining.collect::<Vec<_>>(), [6, 7, 8, 9]);
}

#[test]
fn batch_cost_is_repaid_before_next_item() {
    let (limit, _, manual_clock) = manual_limit();
    let messages = MessageStream::with_messages([50, 1, 0, 0, 20, 1]);
    let mut stream = messages.limit(limit.rate("100/s burst 10").unwrap()).cost(|batch| *batch);
    let mut delivered = Vec::new();
    for ms in 0..=1_000 {
        delivered.extend(ready_items(&mut stream).into_iter().map(|item| (ms, *item)));
        manual_clock.advance(Duration::from_millis(1));
    }
    // 50 leave a debt of 40, and one more token must be available; an item of cost zero waits for a token but takes none.
    assert_eq!(delivered, [(0, 50), (410, 1), (420, 0), (420, 0), (420, 20), (620, 1)]);
}

#[test]
fn cancelled_wait_takes_nothing() {
    let (limit, clock, manual_clock) = manual_limit();
    let limiter = Arc::new(DirectLimiter::builder().clock(clock.clone()).build("10/s burst 2").unwrap());
    let slots = Arc::new(DirectLimiter::builder().clock(clock).build("2 at once").unwrap());
    let limit = limit.rate_from(&limiter).unwrap().slots_from(&slots).unwrap();
    let free = || (limiter.blocking().peek(0).remaining(), slots.blocking().peek(0).remaining());

    // No item: it holds neither a token nor a slot while it waits.
    let silent = MessageStream::default();
    let mut stream = silent.clone().limit(limit.clone());
    let mut waiting = next(&mut stream);
    assert_eq!(free(), (2, 2));
    silent.push(1);
    waiting.poll_if_woken();
    let first = waiting.take_output().flatten().unwrap();
    drop(waiting);
    assert_eq!(free(), (1, 1));

    // Waiting for a token, with a slot in use.
    silent.push(2);
    drop(next(&mut stream).take_output().flatten().unwrap());
    silent.push(3);
    assert!(next(&mut stream).output().is_none());
    assert_eq!(free(), (0, 0));
    drop(stream);
    assert_eq!(free(), (0, 1));
    manual_clock.advance(Duration::from_millis(100));
    assert_eq!(free(), (1, 1), "the token of the cancelled wait");

    // Waiting for a slot.
    let second = slots.blocking().permit();
    let mut stream = MessageStream::with_messages([4]).limit(limit.clone());
    assert!(next(&mut stream).output().is_none());
    drop(stream);
    drop((first, second));
    assert_eq!(free(), (1, 2));

    // An item outlives its stream.
    let mut stream = MessageStream::with_messages([5]).limit(limit);
    let last = next(&mut stream).take_output().flatten().unwrap();
    drop(stream);
    assert_eq!(free(), (0, 1));
    drop(last);
    assert_eq!(free(), (0, 2));
}

#[test]
fn panic_releases_the_slot() {
    let (limit, _, _manual_clock) = manual_limit();
    let mut stream = MessageStream::with_messages(0..5).limit(limit.max_in_flight(1).unwrap());
    let item = next(&mut stream).take_output().flatten().unwrap();
    let work = std::panic::AssertUnwindSafe(move || {
        let _item = item;
        std::panic::resume_unwind(Box::new("work failed"));
    });
    assert!(std::panic::catch_unwind(work).is_err());
    assert!(next(&mut stream).take_output().flatten().is_some());
}

#[test]
fn limited_stream_ends_with_inner_stream() {
    let (limit, clock, manual_clock) = manual_limit();
    let limiter = Arc::new(DirectLimiter::builder().clock(clock).build("10/s burst 1").unwrap());
    let messages = MessageStream::with_messages([1]);
    let mut stream = messages.clone().limit(limit.rate_from(&limiter).unwrap().max_in_flight(1).unwrap());
    drop(next(&mut stream).take_output().flatten().unwrap());
    messages.0.closed.set(true);
    let mut end = next(&mut stream);
    manual_clock.advance(Duration::from_millis(100));
    end.poll_if_woken();
    assert!(end.take_output().unwrap().is_none());
    drop(end);
    assert_eq!(limiter.blocking().peek(0).remaining(), 1, "the end costs nothing");
    assert!(next(&mut stream).take_output().unwrap().is_none());
    assert_eq!(stream.size_hint(), (0, Some(0)));
}

#[test]
fn streams_share_a_key() {
    let (clock, manual_clock) = Clock::manual();
    let tenants = Arc::new(Limiter::builder().clock(clock.clone()).build("10/s burst 4").unwrap());
    let slots = Arc::new(Limiter::builder().clock(clock).build("3 at once").unwrap());
    let limited = |tenant: &str| {
        let limit = StreamLimit::new()
            .rate_from_key(&tenants, tenant)
            .unwrap()
            .slots_from_key(&slots, tenant)
            .unwrap();
        MessageStream::with_messages(0..100).limit(limit)
    };
    let (mut a, mut b, mut c) = (limited("a"), limited("a"), limited("c"));
    let one = |stream: &mut LimitedStream<MessageStream>| next(stream).take_output().flatten().unwrap();
    let working = [one(&mut a), one(&mut b), one(&mut a)];
    assert!(next(&mut b).output().is_none(), "no slot");
    assert_eq!(ready_items(&mut c).len(), 3);
    drop(working);
    assert_eq!(count_ready(&mut b), 1, "no token");
    let (mut first, mut second) = (next(&mut a), next(&mut b));
    for _ in 0..2 {
        manual_clock.advance(Duration::from_millis(100));
        first.poll_if_woken();
        second.poll_if_woken();
    }
    assert!(first.output().is_some() && second.output().is_some());
}

#[test]
fn wrong_quota_kind_is_rejected() {
    assert_eq!(
        StreamLimit::new().rate("3 at once").unwrap_err().to_string(),
        "quota `3 at once` is not supported here; use a rate, as in `10/s`"
    );
    let limiter = Arc::new(DirectLimiter::new("10/s").unwrap());
    assert_eq!(
        StreamLimit::new().slots_from(&limiter).unwrap_err().to_string(),
        "quota `10/s` is not supported here; use a concurrency quota, as in `3 at once`"
    );
    assert!(StreamLimit::new().max_in_flight(0).is_err());
    assert!(StreamLimit::new().rate("ten").is_err());
}

/// Every algorithm with a rate can limit a stream, and repays a batch.
#[test]
fn every_rate_algorithm_limits_a_stream() {
    for quota in [
        "10/s burst 1",
        "10/s leaky-bucket queue 5",
        "10/s fixed-window",
        "10/s sliding-window",
        "10/s sliding-strict 10",
        "10/s sliding-log",
        "10/s smooth",
        "10/s warm-up 1s",
    ] {
        let (limit, _, manual_clock) = manual_limit();
        let mut stream = MessageStream::with_messages(0..1_000).limit(limit.rate(quota).unwrap());
        let mut delivered = 0;
        for _ in 0..1_000 {
            delivered += count_ready(&mut stream);
            manual_clock.advance(Duration::from_millis(10));
        }
        assert!((90..=111).contains(&delivered), "{quota}: {delivered}");
    }
}
