//! Delayed requests, and requests with durations.

use crate::support::{builtin_formats, common_log, open_logs, parse_policy, replay};
use std::path::Path;
use tidegate_core::Micros;
use tidegate_replay::replay_log;

/// Of ten requests at once, one is admitted, two wait for one and two seconds, and the others find a full queue.
#[test]
fn waits_are_delays_up_to_queue_limit() {
    let requests = [(0, "192.0.2.1", "GET /", 200); 10];
    let rule = "rules: [{ name: each, key: ip, quota: 1/s burst 1, wait: 60s, queue: 2 }]";
    let result = replay(common_log(&requests).as_bytes(), rule).unwrap();
    assert_eq!((result.stats.admitted, result.stats.delayed, result.stats.denied), (1, 2, 7));
    assert_eq!(result.stats.rules[0].longest_wait, Micros::from_secs(2));
    assert_eq!(result.stats.total_wait, Micros::from_secs(3));

    // When the first waiter is admitted, the queue has room again.
    let later: Vec<_> = requests.into_iter().chain([(1, "192.0.2.1", "GET /", 200); 3]).collect();
    let result = replay(common_log(&later).as_bytes(), rule).unwrap();
    assert_eq!((result.stats.admitted, result.stats.delayed, result.stats.denied), (1, 3, 9));
}

/// A request holds its slot for the duration in the log.
#[test]
fn requests_in_flight_hold_their_slots() {
    let line = |millis: u64, took: u64| {
        format!(
            "{{\"time\": {}, \"ip\": \"192.0.2.1\", \"path\": \"/\", \"duration_ms\": {took}}}\n",
            1_706_788_800_000 + millis
        )
    };
    // The second request arrives while the first is in flight, the third after it.
    let log = [line(0, 1_000), line(999, 10), line(1_000, 10), line(1_010, 10)].concat();
    let text = "rules: [{ name: each, key: ip, quota: 1 at once }]";
    let result = replay(log.as_bytes(), text).unwrap();
    assert_eq!((result.stats.admitted, result.stats.denied), (3, 1));
    assert!(result.notes.is_empty());

    let without = common_log(&[(0, "192.0.2.1", "GET /", 200), (0, "192.0.2.1", "GET /", 200)]);
    let result = replay(without.as_bytes(), text).unwrap();
    assert_eq!(result.stats.denied, 0);
    assert!(result.notes[0].starts_with("the log has no request durations"), "{:?}", result.notes);
}

/// Lists, bans and circuit breakers are evaluated as in the gateway.
#[test]
fn lists_bans_and_breakers_are_evaluated() {
    let requests: Vec<_> = (0..20)
        .flat_map(|at| [(at, "192.0.2.1", "GET /", 200), (at, "198.51.100.1", "GET /", 200)])
        .collect();
    let list = "rules: [{ name: list, deny: [198.51.100.0/24] }]";
    let result = replay(common_log(&requests).as_bytes(), list).unwrap();
    let rule = &result.stats.rules[0];
    assert_eq!((rule.requests, rule.admitted, rule.denied), (40, 20, 20));
    assert_eq!(rule.keys.top().iter().map(|key| key.name.as_str()).collect::<Vec<_>>(), ["198.51.100.1"]);

    // The burst is two; after three denials the address is banned for an hour.
    let banned = "rules: [{ name: each, key: ip, quota: 2/h, ban: 3/min for 1h }]";
    assert_eq!(replay(common_log(&requests).as_bytes(), banned).unwrap().stats.denied, 36);

    let failing: Vec<_> = (0..50).map(|at| (at, "192.0.2.1", "GET /", 500)).collect();
    let breaker = "rules: [{ name: guard, breaker: { failure-rate: 50%, window-size: 10, min-calls: 10, open-duration: 20s, half-open-calls: 1 } }]";
    let result = replay(common_log(&failing).as_bytes(), breaker).unwrap();
    // Ten requests fail, then the breaker probes once every twenty seconds.
    assert_eq!(result.stats.admitted, 12);
    let rule = &result.stats.rules[0];
    assert_eq!((rule.requests, rule.admitted, rule.denied), (50, 12, 38));
}

/// Schedules use the time of the log.
#[test]
fn schedules_use_log_time() {
    let requests: Vec<_> = (0..240).map(|minute| (minute * 60, "192.0.2.1", "GET /", 200)).collect();
    let text = "rules: [{ name: each, key: ip, quota: 10/h fixed-window, schedule: '13:00-15:00 x3' }]";
    let policy = parse_policy(text);
    let result = replay_log(
        open_logs(&[common_log(&requests).as_bytes()], builtin_formats(), &policy).unwrap(),
        (&policy, Path::new("")),
        None,
        |_| {},
    );
    assert_eq!(result.unwrap().stats.admitted, 10 + 30 + 30 + 10);
}
