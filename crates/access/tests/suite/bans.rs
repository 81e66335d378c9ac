//! Bans end when they should, neither later nor sooner, and come when they are due.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use proptest::prelude::*;
use std::{collections::BTreeMap, net::IpAddr, sync::Barrier, thread, time::Duration};
use tidegate_access::{AccessControl, BanOutcome, BanRule, Bans, BansBuilder, Standing};
use tidegate_core::Micros;
use tidegate_limiter::{BuildError, Capacity, Clock, ClockHand};
use tidegate_testkit::strategy::runner_of;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

fn bans(settings: impl FnOnce(BansBuilder) -> BansBuilder) -> (Bans, ClockHand) {
    let (clock, hand) = Clock::manual();
    hand.set(Micros::from_secs(1_000));
    (settings(Bans::builder().clock(clock)).build().unwrap(), hand)
}

fn automatic(rule: &str) -> (Bans, ClockHand) {
    bans(|bans| bans.automatic(rule.parse().unwrap()))
}

/// Denials at these seconds, and the seconds at which the key is banned after them.
fn banned_at(rule: &str, seconds: &[u64]) -> Vec<u64> {
    let (bans, hand) = automatic(rule);
    let mut banned = Vec::new();
    for second in seconds {
        hand.set(Micros::from_secs(1_000 + second));
        if bans.record_denial("eve").is_some() {
            banned.push(*second);
        }
    }
    banned
}

#[test]
fn the_tenth_denial_within_a_minute_bans() {
    for (rule, seconds, expected) in [
        ("10/min for 1h", [0; 10].as_slice(), [0].as_slice()),
        ("10/min for 1h", &[0; 9], &[]),
        // Spread over a minute they count all the same: the first is not forgotten yet.
        ("10/min for 1h", &[0, 6, 12, 18, 24, 30, 36, 42, 48, 59], &[59]),
        ("10/min for 1h", &[0, 6, 12, 18, 24, 30, 36, 42, 48, 60], &[]),
        ("10/min for 1h", &[0, 6, 12, 18, 24, 30, 36, 42, 48, 60, 61], &[61]),
        ("1/min for 1h", &[0], &[0]),
        // A bucket gives back one in six seconds.
        ("10/min burst 11 for 1h", &[0, 6, 12, 18, 24, 30, 36, 42, 48, 59], &[]),
        ("3/min fixed-window for 1h", &[10, 15, 20, 21], &[]),
        ("3/min fixed-window for 1h", &[20, 25, 30, 31], &[30, 31]),
        ("3/min sliding-window for 1h", &[20, 25, 30], &[30]),
    ] {
        assert_eq!(banned_at(rule, seconds), expected, "{rule} {seconds:?}");
    }
}

#[test]
fn a_ban_lasts_its_time_and_the_count_starts_anew() {
    let (bans, hand) = automatic("2/min for 1h");
    assert_eq!(bans.record_denial("eve"), None);
    assert_eq!(bans.record_denial("eve"), Some(HOUR.into()));
    assert_eq!(bans.check("bob"), None);
    hand.advance(HOUR - Duration::from_micros(1));
    assert_eq!(bans.check("eve"), Some(Micros::new(1)));
    assert_eq!(bans.record_denial("eve"), Some(Micros::new(1)), "it is not lengthened");
    hand.advance(Duration::from_micros(1));
    assert_eq!(bans.check("eve"), None);
    assert_eq!(bans.record_denial("eve"), None, "the first of two again");
    assert_eq!(bans.record_denial("eve"), Some(HOUR.into()));
    assert_eq!(bans.lift("eve"), Some(HOUR.into()));
    assert_eq!((bans.check("eve"), bans.lift("eve")), (None, None));
    assert_eq!(bans.record_denial("eve"), None, "what was counted is forgotten too");
}

#[test]
fn repeat_offenders_are_banned_for_longer() {
    let (bans, hand) = automatic("1/min for 1h growing 2 up to 5h");
    let hours = |hours: u32| Some(Micros::from(HOUR * hours));
    for expected in [1, 2, 4, 5, 5] {
        assert_eq!(bans.record_denial("eve"), hours(expected));
        assert_eq!(bans.active(10)[0].remaining, HOUR.saturating_mul(expected).into());
        hand.advance(HOUR * expected);
        assert_eq!(bans.check("eve"), None);
        assert_eq!(bans.active(10), []);
    }
    // Five hours of peace.
    hand.advance(HOUR * 5 - Duration::from_micros(1));
    assert_eq!(bans.record_denial("eve"), hours(5));
    hand.advance(HOUR * 10);
    assert_eq!(bans.record_denial("eve"), hours(1));
    bans.lift("eve");
    assert_eq!(bans.record_denial("eve"), hours(1));
}

/// Ended bans are dropped a few at a time: that one is still there must not make a difference.
#[test]
fn a_key_is_forgiven_on_time_however_many_there_are() {
    let (bans, hand) = automatic("1/min for 10s growing 2 up to 1min");
    let ban = |key: u32| bans.record_denial(&key).unwrap();
    assert!((0..100).all(|key| ban(key) == Micros::from_secs(10)));
    hand.advance(Duration::from_secs(70));
    assert_eq!(ban(99), Micros::from_secs(10), "its last ban ended a minute ago");
    assert_eq!(bans.active(1).first().map(|ban| ban.times), Some(1));
    bans.ban(&98, Duration::from_secs(60));
    assert_eq!(bans.active(1).first().map(|ban| ban.times), Some(1));
}

#[test]
fn in_a_full_table_the_one_that_ends_soonest_gives_way() {
    let (bans, hand) = bans(|bans| bans.capacity(2));
    assert_eq!(bans.ban("a", MINUTE * 2), BanOutcome::Banned);
    assert_eq!(bans.ban("b", MINUTE * 3), BanOutcome::Banned);
    assert_eq!(bans.ban("c", MINUTE), BanOutcome::NoRoom);
    assert_eq!((bans.check("c"), bans.stats().displaced), (None, 1));
    assert_eq!(bans.ban("d", MINUTE * 4), BanOutcome::Banned);
    assert_eq!((bans.check("a"), bans.stats().displaced), (None, 2));
    assert_eq!(bans.ban("b", MINUTE), BanOutcome::Kept);
    assert_eq!(bans.ban("b", MINUTE * 5), BanOutcome::Extended);
    let names = |bans: &Bans, most| bans.active(most).into_iter().map(|ban| ban.key).collect::<Vec<_>>();
    assert_eq!(names(&bans, 9), ["b", "d"]);
    assert_eq!(names(&bans, 1), ["b"]);
    // An ended ban makes room, and counts as nothing.
    hand.advance(MINUTE * 4);
    assert_eq!(bans.ban("e", Duration::from_micros(1)), BanOutcome::Banned);
    assert_eq!(bans.stats().displaced, 2);
    assert_eq!(bans.ban("f", Duration::MAX), BanOutcome::Banned);
    hand.advance(HOUR * 1_000_000);
    assert!(bans.check("f").is_some());
}

/// What is remembered of an ended ban gives way to any other, and nobody is displaced by that.
#[test]
fn a_remembered_ban_is_no_ban() {
    let rule = "1/min for 1h growing 2 up to 1d".parse().unwrap();
    let (bans, hand) = bans(|bans| bans.capacity(1).automatic(rule));
    assert!(bans.record_denial("eve").is_some());
    hand.advance(HOUR);
    assert_eq!((bans.stats().held, bans.active(9).len()), (1, 0));
    assert_eq!(bans.ban("mallory", MINUTE), BanOutcome::Banned);
    assert_eq!((bans.stats().held, bans.stats().displaced), (1, 0));
}

#[test]
fn ended_bans_are_dropped_by_whoever_comes_by() {
    let (bans, hand) = bans(|bans| bans);
    for key in 0..100_u32 {
        bans.ban(&key, MINUTE);
    }
    hand.advance(MINUTE);
    assert_eq!(bans.stats().held, 100);
    for _ in 0..100_u32.div_ceil(8) {
        assert_eq!(bans.check("anybody"), None);
    }
    assert_eq!((bans.stats().held, bans.stats().displaced), (0, 0));
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Ban(u8, u64),
    Lift(u8),
    Pass(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        5 => (0_u8..12, 0_u64..20).prop_map(|(key, length)| Act::Ban(key, length)),
        1 => (0_u8..12).prop_map(Act::Lift),
        2 => (0_u64..8).prop_map(Act::Pass),
    ];
    proptest::collection::vec(act, 1..120)
}

/// Against a table that is searched from end to end. Every ban ends at a moment of its own.
#[test]
fn a_ban_ends_on_time_unless_lifted_or_displaced() {
    let law = |(capacity, acts): (usize, Vec<Act>)| {
        let (bans, hand) = bans(|bans| bans.capacity(capacity));
        let (mut now, mut displaced) = (1_000_000_000, 0);
        let mut model: BTreeMap<u8, u64> = BTreeMap::new();
        for (act, unique) in acts.into_iter().zip(1_u64..) {
            model.retain(|_, until| *until > now);
            match act {
                Act::Pass(time) => now += time * 1_000,
                Act::Lift(key) => {
                    let lifted = model.remove(&key).map(|until| Micros::new(until - now));
                    prop_assert_eq!(bans.lift(&key), lifted);
                }
                Act::Ban(key, length) => {
                    let length = length * 1_000 + unique;
                    let expected = match model.get(&key) {
                        Some(until) if *until >= now + length => BanOutcome::Kept,
                        Some(_) => BanOutcome::Extended,
                        None if model.len() < capacity => BanOutcome::Banned,
                        None => {
                            displaced += 1;
                            let (soonest, until) = model.iter().min_by_key(|(_, until)| **until).unwrap();
                            let (soonest, until) = (*soonest, *until);
                            if until < now + length {
                                model.remove(&soonest);
                                BanOutcome::Banned
                            } else {
                                BanOutcome::NoRoom
                            }
                        }
                    };
                    if matches!(expected, BanOutcome::Banned | BanOutcome::Extended) {
                        model.insert(key, now + length);
                    }
                    prop_assert_eq!(bans.ban(&key, Duration::from_micros(length)), expected);
                }
            }
            hand.set(Micros::new(now));
            for key in 0..12_u8 {
                let remaining = model.get(&key).and_then(|until| until.checked_sub(now)).filter(|it| *it > 0);
                prop_assert_eq!(bans.check(&key), remaining.map(Micros::new));
            }
            prop_assert_eq!(bans.stats().displaced, displaced);
            prop_assert!(bans.stats().held <= capacity as u64);
        }
        Ok(())
    };
    if let Err(broken) = runner_of(500).run(&(1_usize..12, acts()), law) {
        panic!("{broken}");
    }
}

fn all_at_once(work: impl Fn(usize) + Sync) {
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
fn sixteen_threads_ban_once() {
    let (bans, _hand) = automatic("160/min for 1h growing 2 up to 1d");
    all_at_once(|index| {
        for denial in 0..10 {
            // The last of all denials is kept for later.
            if (index, denial) != (0, 0) {
                assert_eq!(bans.record_denial("eve"), None);
            }
        }
    });
    assert_eq!(bans.record_denial("eve"), Some(HOUR.into()));
    bans.lift("eve");
    all_at_once(|_| {
        for _ in 0..200 {
            bans.record_denial("eve");
        }
    });
    let banned = bans.active(10);
    assert_eq!((banned.len(), banned[0].times, banned[0].remaining), (1, 1, HOUR.into()));
}

#[test]
fn sixteen_threads_keep_the_table_whole() {
    let (bans, hand) = bans(|bans| bans.capacity(50));
    all_at_once(|index| {
        for step in 0..2_000_u64 {
            let key = (step * 31 + index as u64) % 97;
            match (step + index as u64) % 7 {
                0 => drop(bans.lift(&key)),
                1 | 2 => drop(bans.check(&key)),
                3 => hand.advance(Duration::from_micros(3)),
                4 => assert!(bans.active(60).len() <= 50),
                _ => drop(bans.ban(&key, Duration::from_micros(1 + key % 40))),
            }
            assert!(bans.stats().held <= 50);
        }
    });
    hand.advance(HOUR);
    for _ in 0..50_u32.div_ceil(8) {
        assert_eq!(bans.check("anybody"), None);
    }
    assert_eq!(bans.stats().held, 0);
}

/// A flood of keys that cannot be counted bans none of them, and nobody else.
#[test]
fn a_key_without_room_is_not_banned_for_others() {
    let (bans, _hand) =
        bans(|bans| bans.counting(Capacity::Keys(1)).automatic("2/min for 1h".parse().unwrap()));
    for key in 0..1_000_u32 {
        assert_eq!(bans.record_denial(&key), None);
    }
    assert!(bans.stats().uncounted > 900);
    assert_eq!(bans.active(10), []);
}

#[test]
fn rules_that_make_no_sense_are_refused() {
    for (rule, says) in [
        ("10/min", "how many denials ban"),
        ("10/min for", "how many denials ban"),
        ("10/min for ever", "`10/min for 1h`"),
        ("ten for 1h", "`10/min for 1h`"),
        ("10/min for 0s", "a ban of zero"),
        ("3 at once for 1h", "does not count how often"),
        ("10/min leaky-bucket for 1h", "does not count how often"),
        ("10/s smooth for 1h", "does not count how often"),
        ("10/min for 1h growing 2", "up to 1d"),
        ("10/min for 1h growing 1 up to 1d", "from 2 to 1000"),
        ("10/min for 1h growing x up to 1d", "`10/min for 1h`"),
        ("10/min for 1h growing 2 up to 1min", "longer than the first"),
        ("1000000/min for 1h", "sliding-window"),
    ] {
        let error = rule.parse::<BanRule>().unwrap_err().to_string();
        assert!(error.contains(says), "{rule}: {error}");
    }
    for rule in ["10/min sliding-log for 1h", "1000000/min sliding-window for 1d growing 3 up to 1w"] {
        assert_eq!(rule.parse::<BanRule>().unwrap().to_string(), rule);
    }
    assert_eq!(Bans::builder().capacity(0).build().unwrap_err(), BuildError::NoRoom);
}

#[test]
fn the_list_has_the_first_word() {
    let (bans, hand) = automatic("1/min for 1h");
    let text = "allow 192.0.2.0/24\ndeny 192.0.2.66\nallow key alice\ndeny key mallory";
    let control = AccessControl::new(text.parse().unwrap(), bans);
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let banned = Standing::Banned(HOUR.into());
    for (text, standing) in [
        ("192.0.2.7", Standing::Allowed),
        ("192.0.2.66", Standing::Denied),
        ("::ffff:192.0.2.66", Standing::Denied),
        ("::ffff:198.51.100.1", banned),
    ] {
        assert_eq!(control.record_denial(address(text)), standing, "{text}");
        assert_eq!(control.check(address(text)), standing, "{text}");
    }
    // Mapped or not, it is the same address.
    assert_eq!(control.check(address("198.51.100.1")), banned);
    assert_eq!(control.bans().lift(&address("198.51.100.1")), Some(HOUR.into()));
    assert_eq!(control.check(address("::ffff:198.51.100.1")), Standing::Unlisted);
    for (key, standing) in [("alice", Standing::Allowed), ("mallory", Standing::Denied), ("eve", banned)] {
        assert_eq!(control.record_denial_of_key(key), standing);
        assert_eq!(control.check_key(key), standing);
    }
    control.replace("deny key eve\nallow key bob".parse().unwrap());
    assert_eq!(control.check_key("eve"), Standing::Denied);
    control.replace("allow key eve".parse().unwrap());
    assert_eq!(control.check_key("eve"), Standing::Allowed);
    assert_eq!(control.list().len(), 1);
    hand.advance(HOUR);
    control.replace(Default::default());
    assert_eq!(control.check_key("eve"), Standing::Unlisted);
}
