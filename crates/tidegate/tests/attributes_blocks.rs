//! Attributes on an `impl` block, and on methods that another macro expands.

#![cfg(feature = "macros")]
#![allow(clippy::unwrap_used, reason = "this is how a test fails")]
#![allow(clippy::unused_self, clippy::manual_async_fn, reason = "attributes apply to all kinds of functions")]

use async_trait::async_trait;
use std::{pin::Pin, sync::LazyLock};
use tidegate::{Clock, Limited, Rules, breaker, concurrency, limit, limiter::ManualClock, rule::Settings};

static CLOCK: LazyLock<ManualClock> = LazyLock::new(|| {
    let (clock, manual_clock) = Clock::manual();
    Rules::global().apply(Settings::new().clock(clock)).unwrap();
    manual_clock
});

async fn passed_of_ten<T, E>(mut call: impl AsyncFnMut() -> Result<T, E>) -> usize {
    LazyLock::force(&CLOCK);
    let mut passed = 0;
    for _ in 0..10 {
        passed += usize::from(call().await.is_ok());
    }
    passed
}

struct Orders {
    id: u64,
}

#[limit("10/h burst 3")]
impl Orders {
    const LIST_RESULT: u64 = 7;

    #[limit(skip)]
    fn new(id: u64) -> Self {
        Self { id }
    }

    fn list(&self) -> Result<u64, Limited> {
        Ok(Self::LIST_RESULT)
    }

    async fn place(&self) -> Result<u64, Limited> {
        Ok(self.id)
    }

    /// Has a larger quota.
    #[limit("10/h burst 5", key = self.id)]
    fn get(&self) -> Result<u64, Limited> {
        Ok(self.id)
    }
}

struct Reports;

#[limit("10/h burst 4", shared)]
#[concurrency(1)]
impl Reports {
    fn daily(&self) -> Result<(), Limited> {
        Ok(())
    }

    async fn weekly(&self) -> Result<(), Limited> {
        // The slot is separate; only the rate is shared.
        Ok(())
    }

    #[tidegate::limit(skip)]
    fn nested(&self) -> Result<(), Limited> {
        self.daily().and_then(|()| self.daily())
    }
}

#[tokio::test]
async fn each_method_has_own_counter() {
    let orders = Orders::new(1);
    assert_eq!(passed_of_ten(async || orders.list()).await, 3);
    assert_eq!(passed_of_ten(async || orders.place().await).await, 3);
    assert_eq!(passed_of_ten(async || orders.get()).await, 5, "its own attribute takes precedence");
    assert_eq!(passed_of_ten(async || Orders::new(2).get()).await, 5);
}

#[tokio::test]
async fn shared_block_has_one_counter() {
    LazyLock::force(&CLOCK);
    let reports = Reports;
    reports.daily().unwrap();
    reports.weekly().await.unwrap();
    reports.nested().unwrap();
    assert_eq!(reports.weekly().await.unwrap_err().rule(), "Reports");
    assert_eq!(reports.daily().unwrap_err().rule(), "Reports");
}

#[async_trait]
trait RemoteService: Send + Sync {
    async fn call(&mut self, id: u64, pair: (u64, String)) -> Result<String, Limited>;
    async fn read(&self, name: &str) -> Result<usize, Limited>;
    async fn cached(&self, name: &str) -> Result<usize, Limited> {
        Ok(name.len() + 100)
    }
}

/// The attributes are on methods that `async_trait` has already expanded.
#[async_trait]
impl RemoteService for Orders {
    #[limit("10/h burst 3", key = (self.id, id, a))]
    #[concurrency(5, key = self.id)]
    #[breaker]
    async fn call(&mut self, id: u64, (a, text): (u64, String)) -> Result<String, Limited> {
        tokio::task::yield_now().await;
        self.id += 0;
        if a == 0 {
            return Ok(text);
        }
        let inner: String = Ok::<_, Limited>(text)?;
        Ok(format!("{inner}{id}"))
    }

    #[limit("10/h burst 3", key = name, on_limit = Self::cached)]
    async fn read(&self, name: &str) -> Result<usize, Limited> {
        Ok(name.len())
    }
}

/// The attribute precedes `async_trait`, which passes it on.
#[limit("10/h burst 2", key = self.0)]
#[breaker]
#[async_trait]
impl RemoteService for (u64,) {
    async fn call(&mut self, _: u64, pair: (u64, String)) -> Result<String, Limited> {
        Ok(pair.1)
    }

    async fn read(&self, name: &str) -> Result<usize, Limited> {
        Ok(name.len())
    }
}

#[limit("10/h burst 2", key = id)]
fn by_hand(id: u64) -> Pin<Box<dyn Future<Output = Result<u64, Limited>> + Send>> {
    Box::pin(async move { Ok(id) })
}

#[limit("10/h burst 2", key = id)]
fn desugared(id: u64) -> impl Future<Output = Result<u64, Limited>> + Send {
    async move { Ok(id) }
}

#[tokio::test]
async fn boxed_futures_are_limited() {
    let mut orders = Orders::new(7);
    assert_eq!(orders.call(1, (2, "x".to_owned())).await.unwrap(), "x1");
    assert_eq!(passed_of_ten(async || orders.call(1, (2, String::new())).await).await, 2);
    assert_eq!(passed_of_ten(async || orders.call(1, (0, String::new())).await).await, 3);
    let lengths =
        [orders.read("ab").await, orders.read("ab").await, orders.read("ab").await, orders.read("ab").await];
    assert_eq!(lengths.map(Result::unwrap), [2, 2, 2, 102]);

    let mut pair = (1,);
    assert_eq!(passed_of_ten(async || pair.call(1, (2, String::new())).await).await, 2);
    assert_eq!(passed_of_ten(async || pair.read("x").await).await, 2);
    assert_eq!(passed_of_ten(async || (2,).read("x").await).await, 2);
    assert_eq!(passed_of_ten(async || by_hand(1).await).await, 2);
    assert_eq!(passed_of_ten(async || desugared(1).await).await, 2);
}
