//! Several attributes on one function, and the ends of a call: a value, `?`, a panic, or cancellation.

#![cfg(feature = "macros")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]
#![allow(clippy::await_holding_lock, reason = "each test has its own thread and runtime")]

use std::{
    cell::Cell,
    num::ParseIntError,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tidegate::{
    CallError, CallOutcome, Clock, Limited, Rules, breaker, concurrency, limit, limiter::ManualClock,
    rule::Settings,
};
use tokio::sync::Notify;

/// The tests share one clock, so they run one at a time.
fn lock_clock() -> MutexGuard<'static, ()> {
    static CLOCK_LOCK: Mutex<()> = Mutex::new(());
    let guard = CLOCK_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    LazyLock::force(&CLOCK);
    guard
}

static CLOCK: LazyLock<ManualClock> = LazyLock::new(|| {
    let (clock, manual_clock) = Clock::manual();
    Rules::global().apply(Settings::new().clock(clock)).unwrap();
    manual_clock
});

#[derive(Debug)]
enum StackError {
    Rejected(Limited),
    InvalidNumber,
}

impl From<Limited> for StackError {
    fn from(limited: Limited) -> Self {
        Self::Rejected(limited)
    }
}

impl From<ParseIntError> for StackError {
    fn from(_: ParseIntError) -> Self {
        Self::InvalidNumber
    }
}

fn is_rejected<T>(answer: &Result<T, StackError>) -> bool {
    matches!(answer, Err(StackError::Rejected(_)))
}

mod slots {
    use super::*;

    #[concurrency(2)]
    fn nested(depth: u32) -> Result<u32, Limited> {
        if depth == 0 { Ok(0) } else { Ok(nested(depth - 1)? + 1) }
    }

    #[test]
    fn recursive_call_takes_slot_each_time() {
        let _guard = lock_clock();
        assert_eq!(nested(1).unwrap(), 1);
        let limited = nested(2).unwrap_err();
        assert_eq!(limited.rule(), "slots::nested#concurrency");
        assert_eq!(nested(1).unwrap(), 1, "all slots are released");
    }

    #[concurrency("1 at once")]
    fn ends(how: &str) -> Result<u32, StackError> {
        if how == "early" {
            return Ok(0);
        }
        if how == "panic" {
            panic!("as requested");
        }
        Ok(how.parse::<u32>()?)
    }

    #[test]
    fn slot_is_released_on_every_exit() {
        let _guard = lock_clock();
        for _ in 0..3 {
            assert!(matches!(ends("early"), Ok(0)));
            assert!(matches!(ends("7"), Ok(7)));
            assert!(matches!(ends("seven"), Err(StackError::InvalidNumber)));
            assert!(catch_unwind(|| ends("panic")).is_err());
        }
    }

    #[concurrency(1, key = user)]
    async fn waits(user: &str, until: &Notify) -> Result<(), Limited> {
        until.notified().await;
        Ok(())
    }

    #[tokio::test]
    async fn future_holds_slot_until_end_or_drop() {
        let _guard = lock_clock();
        let never = Notify::new();
        let mut first = Box::pin(waits("alice", &never));
        assert!(poll_once(&mut first).is_pending());
        assert!(waits("alice", &never).await.is_err());
        let mut other = Box::pin(waits("bob", &never));
        assert!(poll_once(&mut other).is_pending(), "another key");
        drop(first);
        let mut second = Box::pin(waits("alice", &never));
        assert!(poll_once(&mut second).is_pending());
        never.notify_waiters();
        second.await.unwrap();
    }
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> std::task::Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}

mod breakers {
    use super::*;

    #[breaker(
        window_size = 4,
        min_calls = 4,
        failure_rate = "50%",
        open_duration = "30s",
        half_open_calls = 1
    )]
    fn parse(text: &str) -> Result<u32, StackError> {
        if text == "early" {
            return Ok(0);
        }
        if text == "panic" {
            panic!("as requested");
        }
        Ok(text.parse::<u32>()?)
    }

    #[test]
    fn errors_and_panics_open_breaker_and_probe_closes_it() {
        let _guard = lock_clock();
        assert!(matches!(parse("early"), Ok(0)));
        assert!(matches!(parse("7"), Ok(7)));
        assert!(matches!(parse("seven"), Err(StackError::InvalidNumber)));
        assert!(catch_unwind(|| parse("panic")).is_err());
        let Err(StackError::Rejected(limited)) = parse("7") else { panic!("still closed") };
        assert_eq!(limited.rule(), "breakers::parse#breaker");
        assert!(matches!(limited.cause(), CallError::GuardRejected(_)));
        assert_eq!(limited.retry_after(), Some(Duration::from_secs(30)));
        CLOCK.advance(Duration::from_secs(30));
        assert!(matches!(parse("7"), Ok(7)));
        assert!(matches!(parse("8"), Ok(8)));
    }

    #[breaker(window_size = 2, min_calls = 2, open_duration = "30s")]
    async fn call(until: &Notify) -> Result<u32, StackError> {
        until.notified().await;
        Err(StackError::InvalidNumber)
    }

    #[tokio::test]
    async fn dropped_future_is_not_recorded() {
        let _guard = lock_clock();
        let until = Notify::new();
        for _ in 0..5 {
            let mut future = Box::pin(call(&until));
            assert!(poll_once(&mut future).is_pending());
        }
        for _ in 0..2 {
            until.notify_one();
            assert!(matches!(call(&until).await, Err(StackError::InvalidNumber)));
        }
        assert!(is_rejected(&call(&until).await));
    }

    fn nothing_found(answer: &Option<u32>) -> CallOutcome {
        if answer.is_some() { CallOutcome::Success } else { CallOutcome::Failure }
    }

    fn zero(_: &str) -> Option<u32> {
        Some(0)
    }

    #[breaker(window_size = 2, min_calls = 2, classify = nothing_found, on_limit = zero)]
    fn find(text: &str) -> Option<u32> {
        text.parse().ok()
    }

    #[breaker(window_size = 2, min_calls = 2, classify = |answer| match answer { Err(0) => CallOutcome::Ignored, other => CallOutcome::from_result(other) },
        map_err = |_| 99)]
    fn fails(with: u32) -> Result<(), u32> {
        Err(with)
    }

    #[test]
    fn failure_classification_is_configurable() {
        let _guard = lock_clock();
        assert_eq!((find("x"), find("y"), find("3")), (None, None, Some(0)));
        assert_eq!((fails(0), fails(0), fails(0)), (Err(0), Err(0), Err(0)));
        assert_eq!((fails(1), fails(1), fails(1)), (Err(1), Err(1), Err(99)));
    }

    struct Db {
        rows: Vec<String>,
    }

    impl Db {
        #[breaker(rule = "db", window_size = 2, min_calls = 2)]
        fn row(&mut self, index: usize) -> Result<&mut String, StackError> {
            self.rows.get_mut(index).ok_or(StackError::InvalidNumber)
        }

        #[breaker(rule = "db", window_size = 2, min_calls = 2)]
        async fn consume(self, mut index: usize) -> Result<impl AsRef<str>, StackError> {
            index += 1;
            self.rows.into_iter().nth(index - 1).ok_or(StackError::InvalidNumber)
        }
    }

    #[tokio::test]
    async fn same_name_shares_breaker() {
        let _guard = lock_clock();
        let mut db = Db { rows: vec!["a".to_owned()] };
        db.row(0).unwrap().push('b');
        assert!(matches!(db.row(1), Err(StackError::InvalidNumber)), "one of the last two");
        assert!(is_rejected(&db.row(0).map(|_| ())));
        assert!(is_rejected(&db.consume(0).await.map(|_| ())), "the same breaker");
    }
}

mod order {
    use super::*;

    #[breaker(window_size = 1, rule = "breaker of ordered")]
    #[concurrency(1, rule = "slots of ordered")]
    #[limit("10/h burst 4", rule = "limit of ordered")]
    fn ordered(depth: u32) -> Result<u32, StackError> {
        match depth {
            0 => Ok("x".parse()?),
            depth => ordered(depth - 1),
        }
    }

    fn rejecting_rule<T>(answer: Result<T, StackError>) -> Option<String> {
        match answer {
            Err(StackError::Rejected(limited)) => Some(limited.rule().to_owned()),
            _ => None,
        }
    }

    /// The order of checks is rates, slots, breakers, regardless of the order of the attributes. A later rejection
    /// refunds the earlier checks.
    #[test]
    fn rates_slots_breakers_are_checked_in_order() {
        let _guard = lock_clock();
        // The inner call finds no slot, and the breaker records a failure of the outer call.
        assert_eq!(rejecting_rule(ordered(1)).as_deref(), Some("slots of ordered"));
        for _ in 0..10 {
            assert_eq!(
                rejecting_rule(ordered(0)).as_deref(),
                Some("breaker of ordered"),
                "the token is refunded"
            );
        }
    }

    #[limit("10/h burst 2", key = user, rule = "per user")]
    #[limit("10/h burst 3", rule = "of all")]
    fn two(user: &str) -> Result<(), Limited> {
        Ok(())
    }

    #[test]
    fn later_denial_refunds_earlier_limits() {
        let _guard = lock_clock();
        let rules = |users: &[&str]| -> Vec<String> {
            users
                .iter()
                .map(|user| two(user).map_or_else(|limited| limited.rule().to_owned(), |()| String::new()))
                .collect()
        };
        assert_eq!(rules(&["a", "a", "a", "b", "b", "c"]), ["", "", "per user", "", "of all", "of all"]);
        CLOCK.advance(Duration::from_secs(3600));
        assert_eq!(rules(&["b", "b", "b"]), ["", "", "per user"], "b was not charged");
    }

    #[limit("10/h burst 2", "20/h burst 20", key = user)]
    #[concurrency(1)]
    async fn with_slot(user: &str, until: &Notify) -> Result<(), Limited> {
        until.notified().await;
        Ok(())
    }

    #[limit("10/h", key = user, wait = "1ms")]
    #[concurrency(1, wait = "1ms")]
    #[breaker]
    async fn all_of_them(user: String) -> Result<String, Limited> {
        tokio::task::yield_now().await;
        Ok(user)
    }

    #[test]
    fn future_stays_send() {
        fn is_send(_: impl Send) {}
        is_send(all_of_them(String::new()));
    }

    #[tokio::test]
    async fn missing_slot_refunds_tokens() {
        let _guard = lock_clock();
        let until = Notify::new();
        let mut first = Box::pin(with_slot("a", &until));
        assert!(poll_once(&mut first).is_pending());
        for _ in 0..10 {
            let limited = with_slot("b", &until).await.unwrap_err();
            assert_eq!(limited.rule(), "order::with_slot#concurrency");
        }
        drop(first);
        let mut other = Box::pin(with_slot("b", &until));
        assert!(poll_once(&mut other).is_pending());
    }
}

mod fallbacks {
    use super::*;
    use std::rc::Rc;

    fn cached(id: u64, (name, ages): (&str, [u8; 2]), _: u8) -> String {
        format!("cached {id} {name} {ages:?}")
    }

    #[limit("10/h burst 1", key = id, on_limit = cached)]
    fn fresh(id: u64, (name, ages): (&str, [u8; 2]), _: u8) -> String {
        format!("fresh {id} {name} {ages:?}")
    }

    struct FallbackStore {
        name: Cell<&'static str>,
    }

    struct Wrapper<T>(T);
    struct PairArgument {
        left: u32,
        right: u32,
    }

    impl FallbackStore {
        async fn stale(
            &self,
            Wrapper(rc): Wrapper<Rc<u32>>,
            PairArgument { left, right: r }: PairArgument,
        ) -> u32 {
            self.name.set("stale");
            *rc + left + r
        }

        #[limit("10/h burst 1", on_limit = Self::stale)]
        #[breaker(classify = |_| CallOutcome::Success, on_limit = Self::stale)]
        async fn read(
            &self,
            Wrapper(rc): Wrapper<Rc<u32>>,
            PairArgument { left, right: r }: PairArgument,
        ) -> u32 {
            self.name.set("fresh");
            *rc + left + r
        }
    }

    #[derive(Debug, PartialEq)]
    struct ForeignError(String);

    #[limit("10/h burst 1", message = "come back later", map_err = |limited| ForeignError(limited.to_string()))]
    fn foreign() -> Result<(), ForeignError> {
        Ok(())
    }

    #[tokio::test]
    async fn fallback_gets_same_arguments() {
        let _guard = lock_clock();
        let call = |id| fresh(id, ("x", [1, 2]), 3);
        assert_eq!(
            [call(1), call(1), call(2)],
            ["fresh 1 x [1, 2]", "cached 1 x [1, 2]", "fresh 2 x [1, 2]"]
        );
        let store = FallbackStore { name: Cell::new("") };
        for name in ["fresh", "stale"] {
            assert_eq!(store.read(Wrapper(Rc::new(1)), PairArgument { left: 2, right: 3 }).await, 6);
            assert_eq!(store.name.get(), name);
        }
        assert_eq!(foreign(), Ok(()));
        assert_eq!(foreign(), Err(ForeignError("come back later".to_owned())));
    }

    #[test]
    fn panic_keeps_rate_charge() {
        let _guard = lock_clock();
        #[limit("10/h burst 2")]
        fn panics() -> Result<(), Limited> {
            panic!("as requested");
        }
        for _ in 0..2 {
            assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        }
        assert!(panics().is_err());
    }
}
