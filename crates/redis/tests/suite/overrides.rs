//! Overrides in a real server: a key has the same quota and the same usage as in memory, whatever operators set and remove.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use crate::common::{connect_store, summarize};
use proptest::{prelude::*, test_runner::TestCaseResult};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use tidegate_core::{Micros, Quota};
use tidegate_limiter::{FailureMode, Limiter, QuotaOverride};
use tidegate_testkit::{servers::RedisServer, strategy::runner_with_cases};

/// The operation, the limit of the override, and the cost.
type OverrideStep = (u8, u64, u64);

/// Runs random steps in memory and in the server. The quotas are so slow that the clocks need not agree.
#[test]
fn redis_overrides_match_memory() {
    let server = RedisServer::start().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime.block_on(connect_store(&server.url()));
    let next_rule = AtomicU64::new(0);
    for algorithm in ["", " fixed-window", " sliding-window", " sliding-strict 5", " sliding-log"] {
        let quota = |limit: u64| format!("{limit} per 52w{algorithm}").parse::<Quota>().unwrap();
        let inputs = (2_u64..7, proptest::collection::vec((0_u8..10, 1_u64..9, 0_u64..4), 1..25));
        let property = |(limit, steps): (u64, Vec<OverrideStep>)| -> TestCaseResult {
            let name = format!("rule-{}", next_rule.fetch_add(1, Ordering::Relaxed));
            let builder = || Limiter::builder().name(&name).overridable();
            let memory = builder().build(quota(limit)).unwrap();
            let redis = builder().store(store.clone()).failure_mode(FailureMode::Closed);
            let redis = redis.build(quota(limit)).unwrap();
            for (op, other, cost) in steps {
                let wanted = quota(other);
                let mut results = Vec::new();
                for limiter in [&memory, &redis] {
                    let set = |value| limiter.apply_overrides(&[(limiter.override_id("k"), value)]).len();
                    results.push(runtime.block_on(async {
                        let key = limiter.key("k");
                        match op {
                            0 => key.reset().await.map(|()| "reset".to_owned()).unwrap(),
                            1 => format!("{} rejected", set(None)),
                            2..=4 => {
                                let until = Micros::MAX;
                                format!("{} rejected", set(Some(QuotaOverride { quota: wanted, until })))
                            }
                            5 => {
                                let reserved = key.reserve(cost, Duration::ZERO).await;
                                let decision = *reserved.decision();
                                reserved.cancel().await;
                                format!("{} by {}", summarize(&decision), decision.quota())
                            }
                            6 => {
                                let decision = key.check(cost).await;
                                format!("{} by {}", summarize(&decision), decision.quota())
                            }
                            _ => {
                                let decision = limiter.decide("k", cost).await;
                                format!("{} by {}", summarize(&decision), decision.quota())
                            }
                        }
                    }));
                }
                prop_assert_eq!(&results[0], &results[1], "step {} {} {} of {}", op, other, cost, limit);
            }
            Ok(())
        };
        if let Err(failure) = runner_with_cases(24).run(&inputs, property) {
            panic!("{algorithm}: {failure}");
        }
    }
}
