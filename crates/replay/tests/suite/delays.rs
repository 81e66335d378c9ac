//! Requests that wait, and requests that take their time.

use crate::support::{builtin_formats, common_log, open_logs, parse_policy, replay};
use std::path::Path;
use tidegate_core::Micros;
use tidegate_replay::replay_log;

/// Ten requests at once: one goes, two wait for a second and for two, and the rest finds no place.
#[test]
fn waits_are_delays_up_to_queue_limit() {
    let visits = [(0, "192.0.2.1", "GET /", 200); 10];
    let rule = "rules: [{ name: each, key: ip, quota: 1/s burst 1, wait: 60s, queue: 2 }]";
    let play = replay(common_log(&visits).as_bytes(), rule).unwrap();
    assert_eq!((play.stats.admitted, play.stats.delayed, play.stats.denied), (1, 2, 7));
    assert_eq!(play.stats.rules[0].longest_wait, Micros::from_secs(2));
    assert_eq!(play.stats.total_wait, Micros::from_secs(3));

    // When the first of them has gone, there is a place again.
    let later: Vec<_> = visits.into_iter().chain([(1, "192.0.2.1", "GET /", 200); 3]).collect();
    let play = replay(common_log(&later).as_bytes(), rule).unwrap();
    assert_eq!((play.stats.admitted, play.stats.delayed, play.stats.denied), (1, 3, 9));
}

/// Slots are held as long as the log says that a request took.
#[test]
fn requests_in_flight_hold_their_slots() {
    let line = |millis: u64, took: u64| {
        format!(
            "{{\"time\": {}, \"ip\": \"192.0.2.1\", \"path\": \"/\", \"duration_ms\": {took}}}\n",
            1_706_788_800_000 + millis
        )
    };
    // The second comes while the first is served, the third when it is over.
    let log = [line(0, 1_000), line(999, 10), line(1_000, 10), line(1_010, 10)].concat();
    let text = "rules: [{ name: each, key: ip, quota: 1 at once }]";
    let play = replay(log.as_bytes(), text).unwrap();
    assert_eq!((play.stats.admitted, play.stats.denied), (3, 1));
    assert!(play.notes.is_empty());

    let without = common_log(&[(0, "192.0.2.1", "GET /", 200), (0, "192.0.2.1", "GET /", 200)]);
    let play = replay(without.as_bytes(), text).unwrap();
    assert_eq!(play.stats.denied, 0);
    assert!(play.notes[0].starts_with("the log does not tell how long requests took"), "{:?}", play.notes);
}

/// Lists, bans and breakers are asked as the gateway asks them.
#[test]
fn lists_bans_and_breakers_are_evaluated() {
    let visits: Vec<_> = (0..20)
        .flat_map(|at| [(at, "192.0.2.1", "GET /", 200), (at, "198.51.100.1", "GET /", 200)])
        .collect();
    let list = "rules: [{ name: list, deny: [198.51.100.0/24] }]";
    let play = replay(common_log(&visits).as_bytes(), list).unwrap();
    let rule = &play.stats.rules[0];
    assert_eq!((rule.requests, rule.admitted, rule.denied), (40, 20, 20));
    assert_eq!(rule.keys.top().iter().map(|key| key.name.as_str()).collect::<Vec<_>>(), ["198.51.100.1"]);

    // The burst is two; after three denials the address is out for an hour.
    let banned = "rules: [{ name: each, key: ip, quota: 2/h, ban: 3/min for 1h }]";
    assert_eq!(replay(common_log(&visits).as_bytes(), banned).unwrap().stats.denied, 36);

    let failing: Vec<_> = (0..50).map(|at| (at, "192.0.2.1", "GET /", 500)).collect();
    let breaker =
        "rules: [{ name: guard, breaker: { failure-rate: 50%, over: 10, least: 10, open: 20s, probes: 1 } }]";
    let play = replay(common_log(&failing).as_bytes(), breaker).unwrap();
    // Ten fail, then it is tried once every twenty seconds.
    assert_eq!(play.stats.admitted, 12);
    let rule = &play.stats.rules[0];
    assert_eq!((rule.requests, rule.admitted, rule.denied), (50, 12, 38));
}

/// Quotas follow a schedule by the time of the log.
#[test]
fn schedules_use_log_time() {
    let visits: Vec<_> = (0..240).map(|minute| (minute * 60, "192.0.2.1", "GET /", 200)).collect();
    let text = "rules: [{ name: each, key: ip, quota: 10/h fixed-window, schedule: '13:00-15:00 x3' }]";
    let policy = parse_policy(text);
    let play = replay_log(
        open_logs(&[common_log(&visits).as_bytes()], builtin_formats(), &policy).unwrap(),
        (&policy, Path::new("")),
        None,
        |_| {},
    );
    assert_eq!(play.unwrap().stats.admitted, 10 + 30 + 30 + 10);
}
