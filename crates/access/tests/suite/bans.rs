//! Bans start and end at the right time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use proptest::prelude::*;
use std::{collections::BTreeMap, net::IpAddr, sync::Barrier, thread, time::Duration};
use tidegate_access::{AccessControl, AccessDecision, BanOutcome, BanRule, Bans, BansBuilder};
use tidegate_core::Micros;
use tidegate_limiter::{BuildError, Capacity, Clock, ManualClock};
use tidegate_testkit::strategy::runner_with_cases;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

fn build_bans(settings: impl FnOnce(BansBuilder) -> BansBuilder) -> (Bans, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    manual_clock.set(Micros::from_secs(1_000));
    (settings(Bans::builder().clock(clock)).build().unwrap(), manual_clock)
}

fn bans_with_rule(rule: &str) -> (Bans, ManualClock) {
    build_bans(|bans| bans.rule(rule.parse().unwrap()))
}

/// Records denials at these seconds, and returns the seconds after which the key is banned.
fn seconds_with_ban(rule: &str, seconds: &[u64]) -> Vec<u64> {
    let (bans, manual_clock) = bans_with_rule(rule);
    let mut banned = Vec::new();
    for second in seconds {
        manual_clock.set(Micros::from_secs(1_000 + second));
        if bans.record_denial("eve").is_some() {
            banned.push(*second);
        }
    }
    banned
}

#[test]
fn denials_over_the_rule_ban() {
    for (rule, seconds, expected) in [
        ("10/min for 1h", [0; 10].as_slice(), [0].as_slice()),
        ("10/min for 1h", &[0; 9], &[]),
        // Denials spread over a minute count too: the first is still in the window.
        ("10/min for 1h", &[0, 6, 12, 18, 24, 30, 36, 42, 48, 59], &[59]),
        ("10/min for 1h", &[0, 6, 12, 18, 24, 30, 36, 42, 48, 60], &[]),
        ("10/min for 1h", &[0, 6, 12, 18, 24, 30, 36, 42, 48, 60, 61], &[61]),
        ("1/min for 1h", &[0], &[0]),
        // A token bucket refills one every six seconds.
        ("10/min burst 11 for 1h", &[0, 6, 12, 18, 24, 30, 36, 42, 48, 59], &[]),
        ("3/min fixed-window for 1h", &[10, 15, 20, 21], &[]),
        ("3/min fixed-window for 1h", &[20, 25, 30, 31], &[30, 31]),
        ("3/min sliding-window for 1h", &[20, 25, 30], &[30]),
    ] {
        assert_eq!(seconds_with_ban(rule, seconds), expected, "{rule} {seconds:?}");
    }
}

#[test]
fn ban_expires_and_denial_count_restarts() {
    let (bans, manual_clock) = bans_with_rule("2/min for 1h");
    assert_eq!(bans.record_denial("eve"), None);
    assert_eq!(bans.record_denial("eve"), Some(HOUR.into()));
    assert_eq!(bans.check("bob"), None);
    manual_clock.advance(HOUR - Duration::from_micros(1));
    assert_eq!(bans.check("eve"), Some(Micros::new(1)));
    assert_eq!(bans.record_denial("eve"), Some(Micros::new(1)), "the ban is not extended");
    manual_clock.advance(Duration::from_micros(1));
    assert_eq!(bans.check("eve"), None);
    assert_eq!(bans.record_denial("eve"), None, "the first of two again");
    assert_eq!(bans.record_denial("eve"), Some(HOUR.into()));
    assert_eq!(bans.lift("eve"), Some(HOUR.into()));
    assert_eq!((bans.check("eve"), bans.lift("eve")), (None, None));
    assert_eq!(bans.record_denial("eve"), None, "the denial count is dropped too");
}

#[test]
fn repeated_bans_grow() {
    let (bans, manual_clock) = bans_with_rule("1/min for 1h growing 2 up to 5h");
    let hours = |hours: u32| Some(Micros::from(HOUR * hours));
    for expected in [1, 2, 4, 5, 5] {
        assert_eq!(bans.record_denial("eve"), hours(expected));
        assert_eq!(bans.active(10)[0].remaining, HOUR.saturating_mul(expected).into());
        manual_clock.advance(HOUR * expected);
        assert_eq!(bans.check("eve"), None);
        assert_eq!(bans.active(10), []);
    }
    // Five hours without a denial.
    manual_clock.advance(HOUR * 5 - Duration::from_micros(1));
    assert_eq!(bans.record_denial("eve"), hours(5));
    manual_clock.advance(HOUR * 10);
    assert_eq!(bans.record_denial("eve"), hours(1));
    bans.lift("eve");
    assert_eq!(bans.record_denial("eve"), hours(1));
}

/// Expired bans are dropped a few at a time; one that is not dropped yet has no effect.
#[test]
fn expired_growth_is_dropped_for_every_key() {
    let (bans, manual_clock) = bans_with_rule("1/min for 10s growing 2 up to 1min");
    let ban = |key: u32| bans.record_denial(&key).unwrap();
    assert!((0..100).all(|key| ban(key) == Micros::from_secs(10)));
    manual_clock.advance(Duration::from_secs(70));
    assert_eq!(ban(99), Micros::from_secs(10), "its last ban ended a minute ago");
    assert_eq!(bans.active(1).first().map(|ban| ban.ban_count), Some(1));
    bans.ban(&98, Duration::from_secs(60));
    assert_eq!(bans.active(1).first().map(|ban| ban.ban_count), Some(1));
}

#[test]
fn full_table_evicts_the_ban_that_ends_first() {
    let (bans, manual_clock) = build_bans(|bans| bans.capacity(2));
    assert_eq!(bans.ban("a", MINUTE * 2), BanOutcome::Banned);
    assert_eq!(bans.ban("b", MINUTE * 3), BanOutcome::Banned);
    assert_eq!(bans.ban("c", MINUTE), BanOutcome::TableFull);
    assert_eq!((bans.check("c"), bans.stats().evicted), (None, 1));
    assert_eq!(bans.ban("d", MINUTE * 4), BanOutcome::Banned);
    assert_eq!((bans.check("a"), bans.stats().evicted), (None, 2));
    assert_eq!(bans.ban("b", MINUTE), BanOutcome::Unchanged);
    assert_eq!(bans.ban("b", MINUTE * 5), BanOutcome::Extended);
    let names = |bans: &Bans, most| bans.active(most).into_iter().map(|ban| ban.key).collect::<Vec<_>>();
    assert_eq!(names(&bans, 9), ["b", "d"]);
    assert_eq!(names(&bans, 1), ["b"]);
    // An expired ban makes room, and is not counted as evicted.
    manual_clock.advance(MINUTE * 4);
    assert_eq!(bans.ban("e", Duration::from_micros(1)), BanOutcome::Banned);
    assert_eq!(bans.stats().evicted, 2);
    assert_eq!(bans.ban("f", Duration::MAX), BanOutcome::Banned);
    manual_clock.advance(HOUR * 1_000_000);
    assert!(bans.check("f").is_some());
}

/// The record of an expired ban is dropped for any other ban, without counting as evicted.
#[test]
fn retained_ban_is_not_active() {
    let rule = "1/min for 1h growing 2 up to 1d".parse().unwrap();
    let (bans, manual_clock) = build_bans(|bans| bans.capacity(1).rule(rule));
    assert!(bans.record_denial("eve").is_some());
    manual_clock.advance(HOUR);
    assert_eq!((bans.stats().stored, bans.active(9).len()), (1, 0));
    assert_eq!(bans.ban("mallory", MINUTE), BanOutcome::Banned);
    assert_eq!((bans.stats().stored, bans.stats().evicted), (1, 0));
}

#[test]
fn checks_drop_expired_bans() {
    let (bans, manual_clock) = build_bans(|bans| bans);
    for key in 0..100_u32 {
        bans.ban(&key, MINUTE);
    }
    manual_clock.advance(MINUTE);
    assert_eq!(bans.stats().stored, 100);
    for _ in 0..100_u32.div_ceil(8) {
        assert_eq!(bans.check("anybody"), None);
    }
    assert_eq!((bans.stats().stored, bans.stats().evicted), (0, 0));
}

#[derive(Clone, Copy, Debug)]
enum BanOp {
    Ban(u8, u64),
    Lift(u8),
    Advance(u64),
}

fn ban_ops() -> impl Strategy<Value = Vec<BanOp>> {
    let op = prop_oneof![
        5 => (0_u8..12, 0_u64..20).prop_map(|(key, length)| BanOp::Ban(key, length)),
        1 => (0_u8..12).prop_map(BanOp::Lift),
        2 => (0_u64..8).prop_map(BanOp::Advance),
    ];
    proptest::collection::vec(op, 1..120)
}

/// Compares with a linear model. Every ban ends at a different time.
#[test]
fn a_ban_ends_on_time_unless_lifted_or_displaced() {
    let property = |(capacity, ops): (usize, Vec<BanOp>)| {
        let (bans, manual_clock) = build_bans(|bans| bans.capacity(capacity));
        let (mut now, mut evicted) = (1_000_000_000, 0);
        let mut model: BTreeMap<u8, u64> = BTreeMap::new();
        for (op, unique) in ops.into_iter().zip(1_u64..) {
            model.retain(|_, until| *until > now);
            match op {
                BanOp::Advance(time) => now += time * 1_000,
                BanOp::Lift(key) => {
                    let lifted = model.remove(&key).map(|until| Micros::new(until - now));
                    prop_assert_eq!(bans.lift(&key), lifted);
                }
                BanOp::Ban(key, length) => {
                    let length = length * 1_000 + unique;
                    let expected = match model.get(&key) {
                        Some(until) if *until >= now + length => BanOutcome::Unchanged,
                        Some(_) => BanOutcome::Extended,
                        None if model.len() < capacity => BanOutcome::Banned,
                        None => {
                            evicted += 1;
                            let (soonest, until) = model.iter().min_by_key(|(_, until)| **until).unwrap();
                            let (soonest, until) = (*soonest, *until);
                            if until < now + length {
                                model.remove(&soonest);
                                BanOutcome::Banned
                            } else {
                                BanOutcome::TableFull
                            }
                        }
                    };
                    if matches!(expected, BanOutcome::Banned | BanOutcome::Extended) {
                        model.insert(key, now + length);
                    }
                    prop_assert_eq!(bans.ban(&key, Duration::from_micros(length)), expected);
                }
            }
            manual_clock.set(Micros::new(now));
            for key in 0..12_u8 {
                let remaining = model.get(&key).and_then(|until| until.checked_sub(now)).filter(|it| *it > 0);
                prop_assert_eq!(bans.check(&key), remaining.map(Micros::new));
            }
            prop_assert_eq!(bans.stats().evicted, evicted);
            prop_assert!(bans.stats().stored <= capacity as u64);
        }
        Ok(())
    };
    if let Err(broken) = runner_with_cases(500).run(&(1_usize..12, ban_ops()), property) {
        panic!("{broken}");
    }
}

fn run_in_threads(work: impl Fn(usize) + Sync) {
    let barrier = Barrier::new(16);
    thread::scope(|scope| {
        for index in 0..16 {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                barrier.wait();
                work(index);
            });
        }
    });
}

#[test]
fn concurrent_denials_ban_once() {
    let (bans, _manual_clock) = bans_with_rule("160/min for 1h growing 2 up to 1d");
    run_in_threads(|index| {
        for denial in 0..10 {
            // The last denial is recorded below.
            if (index, denial) != (0, 0) {
                assert_eq!(bans.record_denial("eve"), None);
            }
        }
    });
    assert_eq!(bans.record_denial("eve"), Some(HOUR.into()));
    bans.lift("eve");
    run_in_threads(|_| {
        for _ in 0..200 {
            bans.record_denial("eve");
        }
    });
    let banned = bans.active(10);
    assert_eq!((banned.len(), banned[0].ban_count, banned[0].remaining), (1, 1, HOUR.into()));
}

#[test]
fn concurrent_bans_keep_the_table_consistent() {
    let (bans, manual_clock) = build_bans(|bans| bans.capacity(50));
    run_in_threads(|index| {
        for step in 0..2_000_u64 {
            let key = (step * 31 + index as u64) % 97;
            match (step + index as u64) % 7 {
                0 => drop(bans.lift(&key)),
                1 | 2 => drop(bans.check(&key)),
                3 => manual_clock.advance(Duration::from_micros(3)),
                4 => assert!(bans.active(60).len() <= 50),
                _ => drop(bans.ban(&key, Duration::from_micros(1 + key % 40))),
            }
            assert!(bans.stats().stored <= 50);
        }
    });
    manual_clock.advance(HOUR);
    for _ in 0..50_u32.div_ceil(8) {
        assert_eq!(bans.check("anybody"), None);
    }
    assert_eq!(bans.stats().stored, 0);
}

/// Keys that cannot be counted are not banned, and do not ban others.
#[test]
fn uncounted_key_is_not_banned() {
    let (bans, _manual_clock) =
        build_bans(|bans| bans.denial_capacity(Capacity::Keys(1)).rule("2/min for 1h".parse().unwrap()));
    for key in 0..1_000_u32 {
        assert_eq!(bans.record_denial(&key), None);
    }
    assert!(bans.stats().uncounted_denials > 900);
    assert_eq!(bans.active(10), []);
}

#[test]
fn invalid_ban_rules_are_rejected() {
    for (rule, expected) in [
        ("10/min", "missing `for` and a duration"),
        ("10/min for", "missing `for` and a duration"),
        ("10/min for ever", "`10/min for 1h`"),
        ("ten for 1h", "`10/min for 1h`"),
        ("10/min for 0s", "a ban must not be zero"),
        ("3 at once for 1h", "cannot count denials"),
        ("10/min leaky-bucket for 1h", "cannot count denials"),
        ("10/s smooth for 1h", "cannot count denials"),
        ("10/min for 1h growing 2", "up to 1d"),
        ("10/min for 1h growing 1 up to 1d", "from 2 to 1000"),
        ("10/min for 1h growing x up to 1d", "`10/min for 1h`"),
        ("10/min for 1h growing 2 up to 1min", "above the first duration"),
        ("1000000/min for 1h", "sliding-window"),
    ] {
        let error = rule.parse::<BanRule>().unwrap_err().to_string();
        assert!(error.contains(expected), "{rule}: {error}");
    }
    for rule in ["10/min sliding-log for 1h", "1000000/min sliding-window for 1d growing 3 up to 1w"] {
        assert_eq!(rule.parse::<BanRule>().unwrap().to_string(), rule);
    }
    assert_eq!(Bans::builder().capacity(0).build().unwrap_err(), BuildError::ZeroCapacity);
}

#[test]
fn list_takes_precedence_over_bans() {
    let (bans, manual_clock) = bans_with_rule("1/min for 1h");
    let text = "allow 192.0.2.0/24\ndeny 192.0.2.66\nallow key alice\ndeny key mallory";
    let control = AccessControl::new(text.parse().unwrap(), bans);
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let banned = AccessDecision::Banned(HOUR.into());
    for (text, standing) in [
        ("192.0.2.7", AccessDecision::Allowed),
        ("192.0.2.66", AccessDecision::Denied),
        ("::ffff:192.0.2.66", AccessDecision::Denied),
        ("::ffff:198.51.100.1", banned),
    ] {
        assert_eq!(control.record_denial(address(text)), standing, "{text}");
        assert_eq!(control.check(address(text)), standing, "{text}");
    }
    // An IPv4-mapped address is the same address.
    assert_eq!(control.check(address("198.51.100.1")), banned);
    assert_eq!(control.bans().lift(&address("198.51.100.1")), Some(HOUR.into()));
    assert_eq!(control.check(address("::ffff:198.51.100.1")), AccessDecision::Unlisted);
    for (key, standing) in
        [("alice", AccessDecision::Allowed), ("mallory", AccessDecision::Denied), ("eve", banned)]
    {
        assert_eq!(control.record_key_denial(key), standing);
        assert_eq!(control.check_key(key), standing);
    }
    control.replace("deny key eve\nallow key bob".parse().unwrap());
    assert_eq!(control.check_key("eve"), AccessDecision::Denied);
    control.replace("allow key eve".parse().unwrap());
    assert_eq!(control.check_key("eve"), AccessDecision::Allowed);
    assert_eq!(control.list().len(), 1);
    manual_clock.advance(HOUR);
    control.replace(Default::default());
    assert_eq!(control.check_key("eve"), AccessDecision::Unlisted);
}
