//! Attributes on functions and methods, with a manual clock.

#![cfg(feature = "macros")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "this is how a test fails")]
#![allow(clippy::await_holding_lock, reason = "each test has its own thread and runtime")]

use std::{
    fmt::Display,
    hash::Hash,
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tidegate::{Clock, Limited, Rules, limit, limiter::ManualClock, rule::Settings};

static CLOCK: LazyLock<Mutex<ManualClock>> = LazyLock::new(|| {
    let (clock, manual_clock) = Clock::manual();
    Rules::global().apply(Settings::new().clock(clock)).unwrap();
    Mutex::new(manual_clock)
});

/// Installs the manual clock. The tests share it, so they run one at a time.
fn lock_clock() -> MutexGuard<'static, ManualClock> {
    CLOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns how many of ten calls are admitted.
fn passed_of_ten<T, E>(mut call: impl FnMut() -> Result<T, E>) -> usize {
    (0..10).filter(|_| call().is_ok()).count()
}

async fn passed_of_ten_async<T, E>(mut call: impl AsyncFnMut() -> Result<T, E>) -> usize {
    let mut passed = 0;
    for _ in 0..10 {
        passed += usize::from(call().await.is_ok());
    }
    passed
}

#[limit("3 total", key = user)]
fn trial(user: &str) -> Result<(), Limited> {
    let _ = user;
    Ok(())
}

#[test]
fn total_admits_its_number_of_calls_for_good() {
    let clock = lock_clock();
    assert_eq!(passed_of_ten(|| trial("ann")), 3);
    clock.advance(Duration::from_secs(1 << 30));
    let denied = trial("ann").unwrap_err();
    assert_eq!((denied.retry_after(), denied.to_string().contains("retry")), (None, false), "{denied}");
    assert_eq!(passed_of_ten(|| trial("bob")), 3);
}

#[limit("2/day fixed-window in Asia/Shanghai", key = user)]
fn daily(user: &str) -> Result<(), Limited> {
    let _ = user;
    Ok(())
}

#[limit("60/h burst 5 initial 0", key = user)]
fn gradual(user: &str) -> Result<(), Limited> {
    let _ = user;
    Ok(())
}

#[test]
fn attributes_accept_calendar_windows_and_initial_tokens() {
    let clock = lock_clock();
    assert_eq!(passed_of_ten(|| daily("ann")), 2);
    assert_eq!(passed_of_ten(|| gradual("ann")), 0);
    clock.advance(Duration::from_secs(2 * 60));
    assert_eq!(passed_of_ten(|| gradual("ann")), 2);
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
    fn generic<K, const N: usize>(key: K) -> Result<[K; N], Limited>
    where
        K: Hash + Display + Copy,
    {
        Ok([key; N])
    }

    /// A borrowed argument and a borrowed result.
    #[limit("10/h burst 3", key = *text)]
    fn borrowed<'a>(text: &'a str, _: &str) -> Result<&'a str, Limited> {
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

    /// The expansion raises no clippy lints.
    #[limit("10/h burst 3", key = id, on_limit = fallback_value, crate = ::tidegate)]
    #[deny(clippy::used_underscore_binding)]
    fn unused(id: u32, _name: &str) -> u32 {
        id
    }

    fn fallback_value(_: u32, _: &str) -> u32 {
        0
    }

    #[test]
    fn functions_of_every_shape_are_limited() {
        let _clock = lock_clock();
        assert_eq!(passed_of_ten(plain), 3);
        assert_eq!(passed_of_ten(|| generic::<_, 2>("a")), 3);
        assert_eq!(passed_of_ten(|| generic::<_, 2>("b")), 3);
        assert_eq!(passed_of_ten(|| generic::<_, 3>(7_u8)), 3, "all instances share one counter");
        assert_eq!(borrowed("abc", "").unwrap(), "bc");
        assert_eq!(passed_of_ten(|| borrowed("abc", "")), 2);
        assert_eq!(patterns((1, &2), 3, [4, 5]).unwrap(), 10);
        assert_eq!(passed_of_ten(|| patterns((1, &2), 3, [4, 5])), 2);
        assert_eq!(passed_of_ten(|| patterns((1, &3), 3, [4, 5])), 3);
        assert_eq!(opaque([1, 2]).unwrap().sum::<u32>(), 5);
        assert_eq!(passed_of_ten(|| opaque([1])), 2);
        assert_eq!(passed_of_ten(|| all_opaque().into()), 3);
        assert_eq!([(); 4].map(|()| unused(7, "")), [7, 7, 7, 0]);
    }

    #[tokio::test]
    async fn futures_are_limited_and_stay_send() {
        let _clock = lock_clock();
        assert_eq!(passed_of_ten_async(async || asynchronous().await).await, 3);
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
        let _clock = lock_clock();
        for id in [1, 2] {
            let mut shop = Shop { id };
            assert_eq!(passed_of_ten(|| shop.by_reference()), 3);
            assert_eq!(passed_of_ten(|| shop.by_mutable_reference().map(|id| *id)), 3);
            assert_eq!(passed_of_ten(|| Shop { id }.by_value()), 3);
            assert_eq!(passed_of_ten_async(async || Arc::new(Shop { id }).by_arc().await).await, 3);
        }
        assert_eq!(passed_of_ten(|| Shop::new(1)), 3);
    }

    #[test]
    fn methods_of_same_name_count_separately() {
        let _clock = lock_clock();
        assert_eq!(passed_of_ten(|| Shop { id: 1 }.sell()), 3);
        assert_eq!(passed_of_ten(|| Market(1).sell()), 4);
        assert_eq!(passed_of_ten(|| Market("x").sell()), 0, "all instances share one counter");
        assert_eq!(passed_of_ten(|| Shop { id: 1 }.by_default()), 3);
        let names: Vec<_> = Rules::global().list().iter().map(|rule| rule.name().to_owned()).collect();
        for name in ["Shop::sell", "Sells::by_default"] {
            assert!(names.iter().any(|known| known == name), "{name} in {names:?}");
        }
    }
}

#[limit("10/h burst 3")]
fn at_the_root() -> Result<(), Limited> {
    Ok(())
}

#[actix_web::get("/root")]
#[limit("10/h burst 1", on_limit = root)]
async fn at_the_root_of_actix() -> String {
    root().await
}

async fn root() -> String {
    "root".to_owned()
}

mod names {
    use super::*;
    use tidegate::{CallError, breaker};

    #[limit("10/h burst 3")]
    pub(super) fn price() -> Result<(), Limited> {
        Ok(())
    }

    pub(super) mod elsewhere {
        use super::*;

        #[limit("10/h burst 3")]
        pub(in super::super) fn price() -> Result<(), Limited> {
            Ok(())
        }

        #[limit("10/h burst 3")]
        pub(in super::super) fn fare() -> Result<(), Limited> {
            Ok(())
        }

        #[breaker]
        pub(in super::super) fn rate() -> Result<(), Limited> {
            Ok(())
        }
    }

    /// Two modules of the same name.
    mod other {
        pub(super) mod elsewhere {
            use super::super::*;

            #[limit("10/h burst 3")]
            pub(in super::super) fn fare() -> Result<(), Limited> {
                Ok(())
            }

            #[breaker]
            pub(in super::super) fn rate() -> Result<(), Limited> {
                Ok(())
            }
        }
    }

    /// The inner function is called first, to detect names that depend on the order of calls.
    #[test]
    fn default_rule_names_come_from_path() {
        let _clock = lock_clock();
        assert_eq!(passed_of_ten(elsewhere::price), 3);
        assert_eq!(elsewhere::price().unwrap_err().rule(), "elsewhere::price");
        assert_eq!(passed_of_ten(price), 3, "a separate counter");
        assert_eq!(price().unwrap_err().rule(), "names::price");
        assert_eq!(passed_of_ten(super::at_the_root), 3);
        assert_eq!(super::at_the_root().unwrap_err().rule(), "at_the_root");
    }

    #[test]
    fn duplicate_default_name_is_an_error() {
        let _clock = lock_clock();
        elsewhere::fare().unwrap();
        let limited = other::elsewhere::fare().unwrap_err();
        assert_eq!(limited.rule(), "elsewhere::fare");
        assert!(matches!(limited.cause(), CallError::Misconfigured(_)), "{limited}");
        let text = limited.to_string();
        let named = [
            "`attributes::names::elsewhere::fare`",
            "`attributes::names::other::elsewhere::fare`",
            "attributes.rs:",
            r#"`rule = "name"`"#,
        ];
        assert!(named.iter().all(|part| text.contains(part)), "{text}");
        elsewhere::rate().unwrap();
        let limited = other::elsewhere::rate().unwrap_err();
        assert!(matches!(limited.cause(), CallError::Misconfigured(_)), "{limited}");
    }

    #[limit("10/h burst 3", rule = "one rule")]
    fn three() -> Result<(), Limited> {
        Ok(())
    }

    #[limit("10/h burst 4", rule = "one rule", message = "slow down")]
    fn four() -> Result<(), Limited> {
        Ok(())
    }

    #[test]
    fn conflicting_quotas_of_one_rule_are_an_error() {
        let _clock = lock_clock();
        three().unwrap();
        let text = four().unwrap_err().to_string();
        let named = ["`one rule`", "`10/h burst 3`", "`10/h burst 4`", "attributes.rs:"];
        assert!(named.iter().all(|part| text.contains(part)), "{text}");
        assert_eq!(
            passed_of_ten(three),
            2,
            "the first declaration applies, and the rejected one does not use its quota"
        );
    }
}

/// actix-web turns a handler into a type, with the function in one of its methods.
mod handlers {
    use super::*;
    use actix_web::{App, get, test};

    #[get("/fee")]
    #[limit("10/h burst 1", on_limit = busy)]
    async fn fee() -> String {
        "7".to_owned()
    }

    async fn busy() -> String {
        "busy".to_owned()
    }

    #[actix_web::test]
    async fn actix_handler_rule_uses_function_name() {
        let _clock = lock_clock();
        let app = test::init_service(App::new().service(fee).service(super::at_the_root_of_actix)).await;
        for (uri, answers) in [("/fee", ["7", "busy"]), ("/root", ["root", "root"])] {
            for answer in answers {
                let request = test::TestRequest::with_uri(uri).to_request();
                assert_eq!(test::call_and_read_body(&app, request).await, answer);
            }
        }
        let names: Vec<_> = Rules::global().list().iter().map(|rule| rule.name().to_owned()).collect();
        for name in ["handlers::fee", "at_the_root_of_actix"] {
            assert!(names.iter().any(|known| known == name), "{name} in {names:?}");
        }
    }
}

mod parameters {
    use super::*;

    struct KeyedUser {
        id: u64,
        name: String,
    }

    #[limit("10/h burst 3", key = user.name)]
    #[allow(clippy::needless_pass_by_value, reason = "the key does not move it")]
    fn field(user: KeyedUser) -> Result<u64, Limited> {
        Ok(user.id)
    }

    #[limit("10/h burst 3", key = (user.id, &*user.name, user.name.len()))]
    fn tuple(user: &KeyedUser) -> Result<u64, Limited> {
        Ok(user.id)
    }

    #[limit("10/h burst 3", key = &user.name[..1])]
    fn part(user: &KeyedUser) -> Result<u64, Limited> {
        Ok(user.id)
    }

    /// The lock of the key expression is released before the first await.
    #[limit("10/h burst 3", key = last.lock().unwrap().id)]
    async fn locked(last: &Mutex<KeyedUser>) -> Result<(), Limited> {
        tokio::task::yield_now().await;
        Ok(())
    }

    #[limit("10/h burst 3", key = method)]
    fn word_and_argument(method: &str) -> Result<(), Limited> {
        Ok(())
    }

    /// The key type is not `Sync`, but the future is `Send`.
    #[limit("10/h burst 3", key = key)]
    async fn sent<K: Hash + Display + Send>(key: K) -> Result<(), Limited> {
        tokio::task::yield_now().await;
        drop(key);
        Ok(())
    }

    #[tokio::test]
    async fn key_is_any_expression_of_arguments() {
        let _clock = lock_clock();
        let user = |id, name: &str| KeyedUser { id, name: name.to_owned() };
        assert_eq!(passed_of_ten(|| field(user(1, "alice"))), 3);
        assert_eq!(passed_of_ten(|| field(user(2, "alice"))), 0);
        assert_eq!(passed_of_ten(|| field(user(2, "bob"))), 3);
        assert_eq!(passed_of_ten(|| tuple(&user(1, "alice"))), 3);
        assert_eq!(passed_of_ten(|| tuple(&user(2, "alice"))), 3);
        assert_eq!(passed_of_ten(|| part(&user(1, "alice"))), 3);
        assert_eq!(passed_of_ten(|| part(&user(1, "anna"))), 0);
        assert_eq!(passed_of_ten(|| word_and_argument("a")) + passed_of_ten(|| word_and_argument("b")), 6);
        // The capacity is the same as for any other argument.
        let names: Vec<_> = (0..1_000).map(|name| name.to_string()).collect();
        assert_eq!(names.iter().filter(|name| passed_of_ten(|| word_and_argument(name)) == 3).count(), 1_000);
        for id in [1, 2] {
            let user = Mutex::new(user(id, "alice"));
            assert_eq!(passed_of_ten_async(async || locked(&user).await).await, 3);
        }
        fn is_send<T: Send>(value: T) -> T {
            value
        }
        assert_eq!(passed_of_ten_async(async || is_send(sent("alice")).await).await, 3);
        is_send(locked(&Mutex::new(user(1, "alice")))).await.unwrap_err();
    }

    #[limit("10/h burst 30", cost = items.len() as u64)]
    fn costly(items: &[u8]) -> Result<(), Limited> {
        Ok(())
    }

    #[limit("10/h burst 12", cost = if is_premium { 1 } else { 5 })]
    fn by_tier(is_premium: bool) -> Result<(), Limited> {
        Ok(())
    }

    #[limit("10/s burst 5", "100/h burst 7")]
    fn two_quotas() -> Result<(), Limited> {
        Ok(())
    }

    #[limit("4/h", "2 per 30min", algorithm = "fixed-window")]
    fn two_windows() -> Result<(), Limited> {
        Ok(())
    }

    #[test]
    fn costs_and_quotas_are_applied() {
        let clock = lock_clock();
        assert_eq!(passed_of_ten(|| costly(&[0; 10])), 3);
        assert_eq!(passed_of_ten(|| by_tier(false)), 2);
        assert_eq!(passed_of_ten(|| by_tier(true)), 2);
        assert_eq!(passed_of_ten(two_quotas), 5);
        assert_eq!(passed_of_ten(two_windows), 2);
        let limited = two_windows().unwrap_err();
        assert_eq!(
            limited.quota().map(|quota| quota.to_string()).as_deref(),
            Some("2 per 30min fixed-window")
        );
        clock.advance(Duration::from_secs(1));
        assert_eq!(
            passed_of_ten(two_quotas),
            2,
            "the second quota is not charged for calls that the first denied"
        );
    }
}
