//! One round of load on a competitor.

use std::{
    future::Future,
    time::{Duration, Instant},
};
use tidegate_limiter::Limiter;

/// The result of one competitor in one round.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadResult {
    /// Decisions per second.
    pub(crate) rate: f64,
    /// The median and the 99th percentile of a decision, in microseconds.
    pub(crate) median: f64,
    pub(crate) p99: f64,
}

/// Runs `tasks` tasks for `length`. `check` decides one request by its number and returns whether it is allowed.
pub(crate) async fn run_load<A, F>(tasks: u64, length: Duration, check: A) -> LoadResult
where
    A: Fn(u64) -> F + Clone + Send + 'static,
    F: Future<Output = bool> + Send,
{
    let start = Instant::now();
    let mut handles = Vec::new();
    for task in 0..tasks {
        let check = check.clone();
        handles.push(tokio::spawn(async move {
            let mut times = Vec::with_capacity(1 << 12);
            let mut random = task.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut count = 0_u64;
            loop {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let before = Instant::now();
                assert!(check(random >> 33).await, "a decision was denied");
                times.push(before.elapsed());
                count += 1;
                // Yields like a server between requests.
                if count.is_multiple_of(16) {
                    tokio::task::yield_now().await;
                }
                if before.duration_since(start) > length {
                    return times;
                }
            }
        }));
    }
    let mut times = Vec::new();
    for handle in handles {
        times.extend(handle.await.unwrap_or_default());
    }
    let rate = times.len() as f64 / start.elapsed().as_secs_f64();
    LoadResult { rate, median: percentile(&mut times, 0.5), p99: percentile(&mut times, 0.99) }
}

/// Counts decisions without timing each one, because they are faster than a clock read.
pub(crate) async fn count_decisions(
    tasks: u64,
    length: Duration,
    limiter: &Limiter,
    key: &'static str,
) -> f64 {
    let start = Instant::now();
    let mut handles = Vec::new();
    for _ in 0..tasks {
        let limiter = limiter.clone();
        handles.push(tokio::spawn(async move {
            let mut count = 0_u64;
            while start.elapsed() < length {
                for _ in 0..32 {
                    let decision = limiter.decide(key, 1).await;
                    assert!(decision.is_allowed(), "a decision was denied");
                }
                count += 32;
                tokio::task::yield_now().await;
            }
            count
        }));
    }
    let mut total = 0;
    for handle in handles {
        total += handle.await.unwrap_or_default();
    }
    total as f64 / start.elapsed().as_secs_f64()
}

pub(crate) fn percentile(times: &mut [Duration], part: f64) -> f64 {
    if times.is_empty() {
        return f64::NAN;
    }
    times.sort_unstable();
    let index = ((times.len() - 1) as f64 * part).round() as usize;
    times[index].as_secs_f64() * 1e6
}
