//! The rate limit headers: the written text, and the parsing of arbitrary input.

#![allow(clippy::unwrap_used, reason = "this is how a test fails")]

use proptest::prelude::*;
use std::fmt::Write as _;
use tidegate_core::{
    AlgorithmKind, Decision, Demand, Micros, Outcome, Quota, Retry,
    header::{self, MAX_INTEGER, PolicyField, Remaining, SmallString},
};
use tidegate_testkit::strategy::{CallClock, call_steps, check_property};

fn quota(text: &str) -> Quota {
    text.parse().unwrap()
}

fn remaining_header(label: &PolicyField, decision: &Decision) -> String {
    let mut text = SmallString::default();
    label.write_remaining(&mut text, decision).unwrap();
    text.as_str().to_owned()
}

#[test]
fn policy_header_for_every_algorithm() {
    for (text, policy) in [
        ("100/min", "q=100;w=60"),
        ("100/min burst 20", "q=20;w=12"),
        ("7/min burst 3", "q=3;w=26"),
        ("10/s burst 100", "q=100;w=10"),
        ("10/s burst 3", "q=10;w=1"),
        ("5 per 10s", "q=5;w=10"),
        ("1000/d fixed-window", "q=1000;w=86400"),
        ("100 per 1500ms fixed-window", "q=133;w=2"),
        ("100 per 100ms sliding-window", "q=1000;w=1"),
        ("100/min sliding-strict 60", "q=100;w=60"),
        ("100/min sliding-log", "q=100;w=60"),
        ("10/s leaky-bucket queue 5", "q=10;w=1"),
        ("10/s smooth", "q=10;w=1"),
        ("10/s warm-up 4s cold 3", "q=40;w=4"),
        ("1.5MB/s burst 3MB", "q=3000000;qu=\"content-bytes\";w=2"),
        ("3 at once", "q=3;qu=\"concurrent-requests\""),
        ("1000 total", "q=1000"),
        ("5MB total", "q=5000000;qu=\"content-bytes\""),
        ("3 at once lease 30s", "q=3;qu=\"concurrent-requests\""),
    ] {
        assert_eq!(PolicyField::new("x", &quota(text)).policy(), format!("\"x\";{policy}"), "{text}");
    }
}

#[test]
fn names_are_structured_field_strings() {
    for (name, written) in [
        ("login", r#""login""#),
        ("", r#""""#),
        (r#"a "b" \c"#, r#""a \"b\" \\c""#),
        ("größe", r#""gr%C3%B6%C3%9Fe""#),
        ("100%", r#""100%25""#),
        ("a\r\nset-cookie: b", r#""a%0D%0Aset-cookie: b""#),
    ] {
        let label = PolicyField::new(name, &quota("5/min"));
        assert_eq!(label.policy(), format!("{written};q=5;w=60"));
        assert_eq!(label.name(), name);
    }
    let several: Vec<_> = (0..3)
        .map(|index| PolicyField::for_indexed_quota("login", index, &quota("5/min")).name().to_owned())
        .collect();
    assert_eq!(several, ["login", "login.2", "login.3"]);
}

#[test]
fn headers_follow_the_decisions() {
    let quota = quota("100/min burst 3");
    let label = PolicyField::new("api", &quota);
    let mut state = [0; 2];
    let mut check =
        |ms, cost| quota.decide(state.as_mut_slice(), Micros::from_millis(ms), Demand::new(cost)).decision;
    for (ms, cost, written, retry) in [
        (0, 0, r#""api";r=3"#, None),
        (0, 1, r#""api";r=2;t=1"#, None),
        (0, 2, r#""api";r=0;t=1"#, None),
        (0, 1, r#""api";r=0;t=1"#, Some(1)),
        (0, 3, r#""api";r=0;t=2"#, Some(2)),
        (600, 1, r#""api";r=0;t=1"#, None),
        (2_400, 0, r#""api";r=3"#, None),
    ] {
        let decision = check(ms, cost);
        assert_eq!(remaining_header(&label, &decision), written, "at {ms}ms");
        assert_eq!(header::retry_after(&decision), retry, "at {ms}ms");
    }
}

#[test]
fn concurrency_limit_has_no_reset_time() {
    let quota = quota("3 at once");
    let label = PolicyField::new("api", &quota);
    let mut state = [0; 2];
    let taken = quota.decide(state.as_mut_slice(), Micros::ZERO, Demand::new(3)).decision;
    let denied = quota.decide(state.as_mut_slice(), Micros::ZERO, Demand::new(1)).decision;
    assert_eq!(remaining_header(&label, &taken), r#""api";r=0"#);
    assert_eq!(remaining_header(&label, &denied), r#""api";r=0"#);
    assert_eq!(header::retry_after(&denied), None);
    assert_eq!(remaining_header(&label, &Decision::from_in_flight(3, 1)), r#""api";r=2"#);
    assert_eq!(remaining_header(&label, &Decision::unlimited()), r#""api";r=3"#);
}

#[test]
fn numbers_are_clamped_to_the_field_maximum() {
    let large = Quota::concurrency((1 << 53) - 1).unwrap();
    let label = PolicyField::new("x", &large);
    assert_eq!(label.policy(), format!("\"x\";q={MAX_INTEGER};qu=\"concurrent-requests\""));
    assert_eq!(remaining_header(&label, &Decision::unlimited()), format!("\"x\";r={MAX_INTEGER}"));
    let slow = PolicyField::new(
        "x",
        &Quota::amount_per_period(1, Micros::MAX.to_duration()).fixed_window().unwrap(),
    );
    assert_eq!(slow.policy(), "\"x\";q=1;w=9007199255");
}

#[test]
fn draft_03_limit_header() {
    let write = |text| {
        let mut out = SmallString::default();
        PolicyField::new("x", &quota(text)).write_limit_draft_03(&mut out).unwrap();
        out.as_str().to_owned()
    };
    assert_eq!(write("5/min"), "5, 5;w=60");
    assert_eq!(write("3 at once"), "3");
}

#[test]
fn rate_limit_header_parses() {
    let some = |remaining, more_after| Some(Remaining { remaining, refill_after: more_after });
    let long = format!("{}\"late\";r=1", " ".repeat(5_000));
    for (value, expected) in [
        // Examples of the draft.
        (r#""default";r=50;t=30"#, some(50, Some(30))),
        (r#""problemPolicy";r=0;t=10"#, some(0, Some(10))),
        (r#""default";r=999;pk=:dHJpYWwxMjEzMjM=:"#, some(999, None)),
        (r#""default";r=0;t=40000, "daily";r=70"#, some(0, Some(40_000))),
        // The most restrictive of several; if both are used up, the longer time.
        (r#""a";r=5;t=60,"b";r=2;t=1"#, some(2, Some(1))),
        (r#""a";r=0;t=60,"b";r=0;t=3600"#, some(0, Some(3_600))),
        (r#""a";r=0,"b";r=0;t=3600"#, some(0, Some(3_600))),
        // Names with separators.
        (r#""a,b;r=0";r=7"#, some(7, None)),
        (r#""a\",b;r=0";r=7"#, some(7, None)),
        // Slightly outside of the draft.
        (r#" default ; r = 5 ; t = 3 "#, some(5, Some(3))),
        (r#""a";r=5;t=1.5"#, some(5, Some(2))),
        (r#""a";r=5;t=2.0"#, some(5, Some(2))),
        (r#""a";r=99999999999999999999999;t=3"#, some(u64::MAX, Some(3))),
        // Invalid items are skipped.
        (r#""a";r=-1, "b";r=4"#, some(4, None)),
        (r#""a";r=5;t=soon"#, some(5, None)),
        (r#""a";t=3"#, None),
        (r#""a";r"#, None),
        (r#""a;r=3"#, None),
        ("limit=10, remaining=5", None),
        ("", None),
        (",,,;;;===\"", None),
        (&long, None),
    ] {
        assert_eq!(header::parse_rate_limit(value.as_bytes()), expected, "{value}");
    }
    let many = "\"a\";r=1,".repeat(1_000);
    assert_eq!(header::parse_items(many.as_bytes()).count(), 32);
    let names: Vec<_> = header::parse_items(br#""a b";r=1, c;r=2"#).map(|(name, _)| name).collect();
    assert_eq!(names, [b"a b".as_slice(), b"c"]);
}

#[test]
fn retry_after_seconds_parse() {
    for (value, seconds) in [
        ("0", Some(0)),
        (" 120\t", Some(120)),
        ("99999999999999999999999999", Some(u64::MAX)),
        ("", None),
        ("-1", None),
        ("+1", None),
        ("1.5", None),
        ("1 2", None),
        ("Fri, 31 Dec 1999 23:59:59 GMT", None),
    ] {
        assert_eq!(header::parse_seconds(value.as_bytes()), seconds, "{value}");
    }
}

#[test]
fn small_string_grows_to_the_heap() {
    let mut text = SmallString::default();
    assert!(text.is_empty());
    let mut whole = String::new();
    for number in 0..60_u64 {
        header::write_number(&mut text, number * 1_000).unwrap();
        text.write_str("ö,").unwrap();
        whole += &format!("{}ö,", number * 1_000);
        assert_eq!(text.as_str(), whole);
    }
    for number in (0..20_000).chain([u64::MAX, MAX_INTEGER]) {
        text.clear();
        header::write_number(&mut text, number).unwrap();
        assert_eq!(text.as_str(), number.to_string());
    }
    text.clear();
    text.write_str("short").unwrap();
    assert_eq!(text.as_str(), "short");
}

/// For any quota and demand, the remaining amount never exceeds the policy, the time is neither too early nor zero
/// and equal in both headers, and the text parses back.
#[test]
fn headers_are_consistent() {
    check_property(call_steps(), |sample, calls| {
        let label = PolicyField::new("api", &sample.quota);
        prop_assert!(label.limit() >= 1 && label.window() != Some(0));
        let mut state = vec![0; sample.quota.state_len()];
        let mut clock = CallClock::new(&sample);
        for step in calls {
            clock.advance(step.pause);
            let demand = step.demand(&sample);
            let decision = sample.quota.decide(state.as_mut_slice(), clock.now, demand).decision;
            clock.record(&decision);
            let remaining = label.remaining(&decision);
            prop_assert!(remaining.remaining <= label.limit());
            prop_assert!(remaining.refill_after != Some(0));
            if let Outcome::Deny(Retry::After(wait)) = decision.outcome() {
                let retry = header::retry_after(&decision);
                prop_assert_eq!(retry, remaining.refill_after);
                prop_assert!(retry.is_some_and(|seconds| Micros::from_secs(seconds) >= wait && seconds > 0));
            }
            prop_assert_eq!(
                header::parse_rate_limit(remaining_header(&label, &decision).as_bytes()),
                Some(remaining)
            );
        }
        Ok(())
    });
}

/// More is granted exactly at `refill_after` and not a microsecond earlier, for exact levels.
#[test]
fn refill_after_is_exact() {
    check_property(call_steps(), |sample, calls| {
        // The shapers use doubles: rounding may store a permit later.
        if matches!(sample.quota.kind(), AlgorithmKind::Smooth(_) | AlgorithmKind::WarmUp(_)) {
            return Ok(());
        }
        let mut state = vec![0; sample.quota.state_len()];
        let mut clock = CallClock::new(&sample);
        for step in calls {
            clock.advance(step.pause);
            let demand = step.demand(&sample);
            let decision = sample.quota.decide(state.as_mut_slice(), clock.now, demand).decision;
            clock.record(&decision);
            let more = decision.refill_after();
            if more == Micros::ZERO || more == Micros::MAX || decision.wait() > Micros::ZERO {
                continue;
            }
            let peek = |at: Micros| {
                let mut later = state.clone();
                sample.quota.decide(later.as_mut_slice(), at, Demand::new(0)).decision.remaining()
            };
            prop_assert!(peek(clock.now.saturating_add(more)) > decision.remaining());
            if matches!(sample.quota.kind(), AlgorithmKind::TokenBucket(_)) {
                prop_assert_eq!(
                    peek(clock.now.saturating_add(more).saturating_sub(Micros::new(1))),
                    decision.remaining()
                );
            }
        }
        Ok(())
    });
}

proptest! {
    #[test]
    fn any_name_round_trips(one in ".*", other in ".*") {
        let quota = quota("5/min");
        let label = PolicyField::new(&one, &quota);
        prop_assert!(label.policy().bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        let text = remaining_header(&label, &Decision::from_in_flight(5, 1));
        prop_assert!(one.len() > 1_000 || header::parse_items(text.as_bytes()).count() == 1);
        prop_assert_eq!(label.policy() == PolicyField::new(&other, &quota).policy(), one == other);
    }

    #[test]
    fn header_parser_accepts_any_bytes(value in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = header::parse_seconds(&value);
        prop_assert!(header::parse_items(&value).count() <= 32);
    }

    #[test]
    fn header_parser_accepts_near_valid_input(value in "[\"ab\\\\,;=rt0-9:. -]{0,60}") {
        prop_assert!(header::parse_items(value.as_bytes()).count() <= 32);
    }
}
