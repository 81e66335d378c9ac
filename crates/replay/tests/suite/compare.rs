//! Comparisons of two policies on the same log.

use crate::support::{REAL_LOG, common_log, replay_compared};
use tidegate_replay::report::{ReplayReport, to_text};

const POLICY: &str = "
rules:
  - { name: each, key: ip, quota: 10/h burst 10 }
  - { name: pages, match: { path: /blog/** }, key: ip, quota: 2/min burst 2 }
  - { name: queue, match: { path: /presentations/** }, key: ip, quota: 10/min leaky-bucket queue 5, wait: 20s }
  - { name: watched, key: ip, quota: 1/min, mode: shadow }";

#[test]
fn policy_equals_itself() {
    let result = replay_compared(REAL_LOG, POLICY, POLICY);
    let (against, difference) = result.comparison.as_ref().unwrap();
    assert!(difference.is_empty() && difference.keys.is_empty(), "{difference:?}");
    assert!(difference.denied_by_both > 1_000);
    for (rule, other) in result.stats.rules.iter().zip(&against.rules) {
        let numbers = |rule: &tidegate_replay::RuleStats| {
            (rule.requests, rule.admitted, rule.delayed, rule.denied, rule.shadow)
        };
        assert_eq!(numbers(rule), numbers(other), "{}", rule.name);
    }
    let output = to_text(&ReplayReport { result: &result, policy: "a", baseline: Some("b") });
    assert!(output.contains("a and b make the same decision for every request"), "{output}");
}

#[test]
fn difference_is_reported_by_key() {
    let requests: Vec<(u64, &str, &str, u16)> = (0..6)
        .flat_map(|at| [(at, "192.0.2.1", "GET /", 200), (at, "192.0.2.2", "GET /login", 200)])
        .collect();
    let strict = "rules: [{ name: each, key: ip, quota: 3/h }]";
    let other = "rules: [{ name: login, match: { path: /login }, key: ip, quota: 1/h }]";
    let result = replay_compared(common_log(&requests).as_bytes(), strict, other);
    let (_, difference) = result.comparison.unwrap();
    // The first policy denies three requests of each address; the second one denies five of the second address.
    assert_eq!((difference.newly_denied, difference.no_longer_denied), (3, 2));
    assert_eq!(difference.denied_by_both, 3);
    let keys: Vec<_> =
        difference.keys.iter().map(|key| (&*key.key, key.newly_denied, key.no_longer_denied)).collect();
    assert_eq!(keys, [("each: 192.0.2.1", 3, 0), ("login: 192.0.2.2", 0, 2)]);
}
