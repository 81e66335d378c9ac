//! The attributes as they are used: one clock that is moved by hand, and a function for each story.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::{
    fmt::Display,
    hash::Hash,
    sync::{LazyLock, Once},
    time::Duration,
};
use tidegate::{Clock, ClockHand, Limited, Report, Rules, Settings, breaker, concurrency, limit};

static HAND: LazyLock<ClockHand> = LazyLock::new(|| {
    let (clock, hand) = Clock::manual();
    Rules::global().apply(Settings::new().clock(clock)).unwrap();
    hand
});

/// Before anything is limited.
fn hand() -> &'static ClockHand {
    &HAND
}

/// How many of ten calls go through.
fn of_ten<T, E>(mut call: impl FnMut() -> Result<T, E>) -> usize {
    hand();
    (0..10).filter(|_| call().is_ok()).count()
}

async fn of_ten_async<T, E>(mut call: impl AsyncFnMut() -> Result<T, E>) -> usize {
    hand();
    let mut passed = 0;
    for _ in 0..10 {
        passed += usize::from(call().await.is_ok());
    }
    passed
}

mod shapes {
    use super::*;

    #[limit("10/h burst 3")]
    fn plain() -> Result<(), Limited> {
        Ok(())
    }

    #[limit("10/h burst 3")]
    async fn asynchronous() -> Result<(), Limited> {
        tokio::task::yield_now().await;
        Ok(())
    }

    #[limit("10/h burst 3", key = key)]
    fn generic<K: Hash + Display, const N: usize>(key: K) -> Result<[K; N], Limited>
    where
        K: Copy,
    {
        Ok([key; N])
    }

    /// Borrowed in, borrowed out.
    #[limit("10/h burst 3", key = *text)]
    fn borrowed<'a>(text: &'a str, _: u8) -> Result<&'a str, Limited> {
        Ok(&text[1..])
    }

    #[limit("10/h burst 3", key = (a, *b))]
    fn patterns((a, b): (u32, &u32), mut sum: u32, [c, _]: [u32; 2]) -> Result<u32, Limited> {
        sum += a + b + c;
        Ok(sum)
    }

    #[limit("10/h burst 3")]
    fn opaque(items: impl IntoIterator<Item = u32>) -> Result<impl Iterator<Item = u32>, Limited> {
        Ok(items.into_iter().map(|item| item + 1))
    }

    #[limit("10/h burst 3")]
    fn all_opaque() -> impl Into<Result<u32, Limited>> {
        Ok(4)
    }

    #[test]
    fn functions_of_every_shape_are_limited() {
        assert_eq!(of_ten(plain), 3);
        assert_eq!(of_ten(|| generic::<_, 2>("a")), 3);
        assert_eq!(of_ten(|| generic::<_, 2>("b")), 3);
        assert_eq!(of_ten(|| generic::<_, 3>(7_u8)), 3, "one counter, whatever the types");
        assert_eq!(borrowed("abc", 0).unwrap(), "bc");
        assert_eq!(of_ten(|| borrowed("abc", 0)), 2);
        assert_eq!(patterns((1, &2), 3, [4, 5]).unwrap(), 10);
        assert_eq!(of_ten(|| patterns((1, &2), 3, [4, 5])), 2);
        assert_eq!(of_ten(|| patterns((1, &3), 3, [4, 5])), 3);
        assert_eq!(opaque([1, 2]).unwrap().sum::<u32>(), 5);
        assert_eq!(of_ten(|| opaque([1])), 2);
        assert_eq!(of_ten(|| all_opaque().into()), 3);
    }

    #[tokio::test]
    async fn futures_are_limited_and_as_send_as_before() {
        assert_eq!(of_ten_async(async || asynchronous().await).await, 3);
        fn is_send_and_sync(_: impl Send + Sync) {}
        is_send_and_sync(asynchronous());
    }
}

mod methods {
    use super::*;
    use std::sync::Arc;

    struct Shop {
        id: u64,
    }

    impl Shop {
        #[limit("10/h burst 3", key = self.id)]
        fn by_reference(&self) -> Result<u64, Limited> {
            Ok(self.id)
        }

        #[limit("10/h burst 3", key = self.id)]
        fn by_mutable_reference(&mut self) -> Result<&mut u64, Limited> {
            self.id += 0;
            Ok(&mut self.id)
        }

        #[limit("10/h burst 3", key = self.id)]
        fn by_value(self) -> Result<u64, Limited> {
            Ok(self.id)
        }

        #[limit("10/h burst 3", key = self.id)]
        async fn by_arc(self: Arc<Self>) -> Result<u64, Limited> {
            Ok(self.id)
        }

        #[limit("10/h burst 3")]
        fn new(id: u64) -> Result<Self, Limited> {
            Ok(Self { id })
        }
    }

    struct Market<T>(T);

    trait Sells {
        fn sell(&self) -> Result<u64, Limited>;

        #[limit("10/h burst 3")]
        fn by_default(&self) -> Result<u64, Limited> {
            Ok(1)
        }
    }

    impl Sells for Shop {
        #[limit("10/h burst 3")]
        fn sell(&self) -> Result<u64, Limited> {
            Ok(self.id)
        }
    }

    impl<T: Display> Sells for Market<T> {
        #[limit("10/h burst 4")]
        fn sell(&self) -> Result<u64, Limited> {
            Ok(self.0.to_string().len() as u64)
        }
    }

    #[tokio::test]
    async fn methods_with_every_receiver_are_limited() {
        for id in [1, 2] {
            let mut shop = Shop { id };
            assert_eq!(of_ten(|| shop.by_reference()), 3);
            assert_eq!(of_ten(|| shop.by_mutable_reference().map(|id| *id)), 3);
            assert_eq!(of_ten(|| Shop { id }.by_value()), 3);
            assert_eq!(of_ten_async(async || Arc::new(Shop { id }).by_arc().await).await, 3);
        }
        assert_eq!(of_ten(|| Shop::new(1)), 3);
    }

    #[test]
    fn methods_of_the_same_name_do_not_meet() {
        assert_eq!(of_ten(|| Shop { id: 1 }.sell()), 3);
        assert_eq!(of_ten(|| Market(1).sell()), 4);
        assert_eq!(of_ten(|| Market("x").sell()), 0, "one counter, whatever the types");
        assert_eq!(of_ten(|| Shop { id: 1 }.by_default()), 3);
        let names: Vec<_> = Rules::global().list().iter().map(|rule| rule.name().to_owned()).collect();
        for name in [
            "<attributes::methods::Shop as attributes::methods::Sells>::sell",
            "attributes::methods::Sells::by_default",
        ] {
            assert!(names.iter().any(|known| known == name), "{name} in {names:?}");
        }
    }
}
