//! A property of quota changes: for any sequence of settings, no more is admitted than the largest quota
//! allows.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use proptest::{collection::vec, prelude::*};
use std::time::Duration;
use tidegate_limiter::{Capacity, Clock};
use tidegate_rule::{Mode, RuleConfig, RuleSettings, Rules, Settings};

#[derive(Clone, Debug)]
enum SettingsStep {
    /// Settings with this quota.
    Change {
        limit: u64,
    },
    /// Invalid settings of several kinds.
    Invalid {
        limit: u64,
        mistake: u8,
    },
    Wait {
        millis: u64,
    },
    Call {
        cost: u64,
    },
}

fn step() -> impl Strategy<Value = SettingsStep> {
    prop_oneof![
        2 => (1..40_u64).prop_map(|limit| SettingsStep::Change { limit }),
        1 => (1..400_u64, 0..3_u8).prop_map(|(limit, mistake)| SettingsStep::Invalid { limit, mistake }),
        2 => (0..2_000_u64).prop_map(|millis| SettingsStep::Wait { millis }),
        6 => (1..6_u64).prop_map(|cost| SettingsStep::Call { cost }),
    ]
}

/// The same algorithm with another limit, and the maximum that it admits in any second.
fn quota(algorithm: usize, limit: u64) -> (String, u64) {
    match algorithm {
        0 => (format!("{limit}/s"), 2 * limit),
        1 => (format!("{limit}/s sliding-strict 4"), limit),
        2 => (format!("{limit}/s sliding-window"), 2 * limit - 1),
        _ => (format!("{limit}/s fixed-window"), 2 * limit),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn admitted_cost_stays_within_largest_bound(algorithm in 0..4_usize, steps in vec(step(), 1..80)) {
        let (clock, manual_clock) = Clock::manual();
        let rules = Rules::new();
        let of = |limit| {
            let (text, bound) = quota(algorithm, limit);
            (Settings::new().clock(clock.clone()).quota("rule", text.as_str()).unwrap(), bound)
        };
        let (settings, mut max) = of(10);
        rules.apply(settings).unwrap();
        let rule = rules.declare(RuleConfig::new("rule").quota("1/s").unwrap().capacity(Capacity::Keys(16))).unwrap();
        let _other = rules.declare(RuleConfig::new("other").quota("1 at once").unwrap().capacity(Capacity::Keys(16))).unwrap();
        // The admitted costs with their times.
        let (mut now, mut admitted) = (0_u64, Vec::new());
        for step in steps {
            match step {
                SettingsStep::Change { limit } => {
                    let (settings, bound) = of(limit);
                    rules.apply(settings).unwrap();
                    max = max.max(bound);
                }
                SettingsStep::Invalid { limit, mistake } => {
                    let before = (rule.quotas(), rule.mode());
                    let wrong = of(limit).0.mode(Mode::Off);
                    let wrong = match mistake {
                        0 => wrong.quota("other", "5/s").unwrap(),
                        1 => wrong.rule("later", RuleSettings::new().store("nowhere")),
                        _ => wrong.store_url("redis://127.0.0.1"),
                    };
                    prop_assert!(rules.apply(wrong).is_err());
                    prop_assert_eq!(before, (rule.quotas(), rule.mode()));
                }
                SettingsStep::Wait { millis } => {
                    manual_clock.advance(Duration::from_millis(millis));
                    now += millis;
                }
                SettingsStep::Call { cost } => {
                    if rule.admit_blocking("key", cost).is_ok() {
                        admitted.push((now, cost));
                    }
                }
            }
        }
        for (index, (start, _)) in admitted.iter().enumerate() {
            let within = admitted[index..].iter().take_while(|(at, _)| at - start < 1_000);
            let sum: u64 = within.map(|(_, cost)| cost).sum();
            prop_assert!(sum <= max, "{} in one second from {} ms, but at most {}", sum, start, max);
        }
    }
}
