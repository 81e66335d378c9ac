//! What headers say of quotas: the text that is written, and whatever servers send.

#![allow(clippy::unwrap_used, reason = "this is how a test fails")]

use proptest::prelude::*;
use std::fmt::Write as _;
use tidegate_core::{
    Decision, Demand, Kind, Micros, Outcome, Quota, Retry,
    header::{self, LARGEST, Label, Left, Text},
};
use tidegate_testkit::strategy::{Moment, hold, moves};

fn quota(text: &str) -> Quota {
    text.parse().unwrap()
}

fn left(label: &Label, decision: &Decision) -> String {
    let mut text = Text::default();
    label.write_left(&mut text, decision).unwrap();
    text.as_str().to_owned()
}

#[test]
fn policies_of_every_algorithm() {
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
        ("3 at once lease 30s", "q=3;qu=\"concurrent-requests\""),
    ] {
        assert_eq!(Label::new("x", &quota(text)).policy(), format!("\"x\";{policy}"), "{text}");
    }
}

#[test]
fn names_are_strings_of_structured_fields() {
    for (name, written) in [
        ("login", r#""login""#),
        ("", r#""""#),
        (r#"a "b" \c"#, r#""a \"b\" \\c""#),
        ("größe", r#""gr%C3%B6%C3%9Fe""#),
        ("100%", r#""100%25""#),
        ("a\r\nset-cookie: b", r#""a%0D%0Aset-cookie: b""#),
    ] {
        let label = Label::new(name, &quota("5/min"));
        assert_eq!(label.policy(), format!("{written};q=5;w=60"));
        assert_eq!(label.name(), name);
    }
    let several: Vec<_> =
        (0..3).map(|place| Label::of_several("login", place, &quota("5/min")).name().to_owned()).collect();
    assert_eq!(several, ["login", "login.2", "login.3"]);
}

#[test]
fn a_story_in_headers() {
    let quota = quota("100/min burst 3");
    let label = Label::new("api", &quota);
    let mut words = [0; 2];
    let mut ask =
        |ms, cost| quota.decide(words.as_mut_slice(), Micros::from_millis(ms), Demand::now(cost)).decision;
    for (ms, cost, written, retry) in [
        (0, 0, r#""api";r=3"#, None),
        (0, 1, r#""api";r=2;t=1"#, None),
        (0, 2, r#""api";r=0;t=1"#, None),
        (0, 1, r#""api";r=0;t=1"#, Some(1)),
        (0, 3, r#""api";r=0;t=2"#, Some(2)),
        (600, 1, r#""api";r=0;t=1"#, None),
        (2_400, 0, r#""api";r=3"#, None),
    ] {
        let decision = ask(ms, cost);
        assert_eq!(left(&label, &decision), written, "at {ms}ms");
        assert_eq!(header::retry_after(&decision), retry, "at {ms}ms");
    }
}

#[test]
fn where_time_alone_does_not_help_none_is_told() {
    let quota = quota("3 at once");
    let label = Label::new("api", &quota);
    let mut words = [0; 2];
    let taken = quota.decide(words.as_mut_slice(), Micros::ZERO, Demand::now(3)).decision;
    let denied = quota.decide(words.as_mut_slice(), Micros::ZERO, Demand::now(1)).decision;
    assert_eq!(left(&label, &taken), r#""api";r=0"#);
    assert_eq!(left(&label, &denied), r#""api";r=0"#);
    assert_eq!(header::retry_after(&denied), None);
    assert_eq!(left(&label, &Decision::holding(3, 1)), r#""api";r=2"#);
    assert_eq!(left(&label, &Decision::unlimited()), r#""api";r=3"#);
}

#[test]
fn numbers_that_no_field_can_hold_are_cut() {
    let large = Quota::at_once((1 << 53) - 1).unwrap();
    let label = Label::new("x", &large);
    assert_eq!(label.policy(), format!("\"x\";q={LARGEST};qu=\"concurrent-requests\""));
    assert_eq!(left(&label, &Decision::unlimited()), format!("\"x\";r={LARGEST}"));
    let slow =
        Label::new("x", &Quota::amount_per_period(1, Micros::MAX.to_duration()).fixed_window().unwrap());
    assert_eq!(slow.policy(), "\"x\";q=1;w=9007199255");
}

#[test]
fn older_drafts() {
    let write = |text| {
        let mut out = Text::default();
        Label::new("x", &quota(text)).write_limit_of_draft_03(&mut out).unwrap();
        out.as_str().to_owned()
    };
    assert_eq!(write("5/min"), "5, 5;w=60");
    assert_eq!(write("3 at once"), "3");
}

#[test]
fn what_servers_send() {
    let some = |remaining, more_after| Some(Left { remaining, more_after });
    let long = format!("{}\"late\";r=1", " ".repeat(5_000));
    for (value, heard) in [
        // As in the draft.
        (r#""default";r=50;t=30"#, some(50, Some(30))),
        (r#""problemPolicy";r=0;t=10"#, some(0, Some(10))),
        (r#""default";r=999;pk=:dHJpYWwxMjEzMjM=:"#, some(999, None)),
        (r#""default";r=0;t=40000, "daily";r=70"#, some(0, Some(40_000))),
        // The tightest of several; of two that are used up, the one that takes longer.
        (r#""a";r=5;t=60,"b";r=2;t=1"#, some(2, Some(1))),
        (r#""a";r=0;t=60,"b";r=0;t=3600"#, some(0, Some(3_600))),
        (r#""a";r=0,"b";r=0;t=3600"#, some(0, Some(3_600))),
        // Names that look like more than they are.
        (r#""a,b;r=0";r=7"#, some(7, None)),
        (r#""a\",b;r=0";r=7"#, some(7, None)),
        // Not quite as in the draft.
        (r#" default ; r = 5 ; t = 3 "#, some(5, Some(3))),
        (r#""a";r=5;t=1.5"#, some(5, Some(2))),
        (r#""a";r=5;t=2.0"#, some(5, Some(2))),
        (r#""a";r=99999999999999999999999;t=3"#, some(u64::MAX, Some(3))),
        // What makes no sense is passed over.
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
        assert_eq!(header::parse_rate_limit(value.as_bytes()), heard, "{value}");
    }
    let many = "\"a\";r=1,".repeat(1_000);
    assert_eq!(header::items(many.as_bytes()).count(), 32);
    let names: Vec<_> = header::items(br#""a b";r=1, c;r=2"#).map(|(name, _)| name).collect();
    assert_eq!(names, [b"a b".as_slice(), b"c"]);
}

#[test]
fn seconds_that_servers_send() {
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
fn a_text_grows_when_it_must() {
    let mut text = Text::default();
    assert!(text.is_empty());
    let mut whole = String::new();
    for number in 0..60_u64 {
        header::write_number(&mut text, number * 1_000).unwrap();
        text.write_str("ö,").unwrap();
        whole += &format!("{}ö,", number * 1_000);
        assert_eq!(text.as_str(), whole);
    }
    for number in (0..20_000).chain([u64::MAX, LARGEST]) {
        text.clear();
        header::write_number(&mut text, number).unwrap();
        assert_eq!(text.as_str(), number.to_string());
    }
    text.clear();
    text.write_str("short").unwrap();
    assert_eq!(text.as_str(), "short");
}

/// Whatever is asked of whatever quota: what is left never exceeds what the policy says, and what is told of the time is
/// neither too early nor zero, the same in both headers, and read back as it was written.
#[test]
fn headers_never_contradict_each_other() {
    hold(moves(), |sample, story| {
        let label = Label::new("api", &sample.quota);
        prop_assert!(label.most() >= 1 && label.window() != Some(0));
        let mut words = vec![0; sample.quota.width()];
        let mut moment = Moment::start_of(&sample);
        for step in story {
            moment.pass(step.pause);
            let demand = step.demand(&sample);
            let decision = sample.quota.decide(words.as_mut_slice(), moment.now, demand).decision;
            moment.hear(&decision);
            let told = label.left(&decision);
            prop_assert!(told.remaining <= label.most());
            prop_assert!(told.more_after != Some(0));
            if let Outcome::Deny(Retry::After(wait)) = decision.outcome() {
                let retry = header::retry_after(&decision);
                prop_assert_eq!(retry, told.more_after);
                prop_assert!(retry.is_some_and(|seconds| Micros::from_secs(seconds) >= wait && seconds > 0));
            }
            prop_assert_eq!(header::parse_rate_limit(left(&label, &decision).as_bytes()), Some(told));
        }
        Ok(())
    });
}

/// More does come when it was said to, and not a microsecond before, where a level says so exactly.
#[test]
fn more_comes_when_it_was_told() {
    hold(moves(), |sample, story| {
        // Those are defined in doubles: a permit may be stored a rounding later.
        if matches!(sample.quota.kind(), Kind::Smooth(_) | Kind::WarmUp(_)) {
            return Ok(());
        }
        let mut words = vec![0; sample.quota.width()];
        let mut moment = Moment::start_of(&sample);
        for step in story {
            moment.pass(step.pause);
            let demand = step.demand(&sample);
            let decision = sample.quota.decide(words.as_mut_slice(), moment.now, demand).decision;
            moment.hear(&decision);
            let more = decision.more_after();
            if more == Micros::ZERO || more == Micros::MAX || decision.wait() > Micros::ZERO {
                continue;
            }
            let peek = |at: Micros| {
                let mut later = words.clone();
                sample.quota.decide(later.as_mut_slice(), at, Demand::now(0)).decision.remaining()
            };
            prop_assert!(peek(moment.now.plus(more)) > decision.remaining());
            if matches!(sample.quota.kind(), Kind::TokenBucket(_)) {
                prop_assert_eq!(peek(moment.now.plus(more).since(Micros::new(1))), decision.remaining());
            }
        }
        Ok(())
    });
}

proptest! {
    #[test]
    fn any_name_is_read_back_and_different_names_differ(one in ".*", other in ".*") {
        let quota = quota("5/min");
        let label = Label::new(&one, &quota);
        prop_assert!(label.policy().bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        let text = left(&label, &Decision::holding(5, 1));
        prop_assert!(one.len() > 1_000 || header::items(text.as_bytes()).count() == 1);
        prop_assert_eq!(label.policy() == Label::new(&other, &quota).policy(), one == other);
    }

    #[test]
    fn nothing_that_is_sent_breaks_the_reader(value in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = header::parse_seconds(&value);
        prop_assert!(header::items(&value).count() <= 32);
    }

    #[test]
    fn nothing_that_nearly_makes_sense_breaks_the_reader(value in "[\"ab\\\\,;=rt0-9:. -]{0,60}") {
        prop_assert!(header::items(value.as_bytes()).count() <= 32);
    }
}
