//! Schedules as text, and their factors.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use proptest::prelude::*;
use tidegate_core::Micros;
use tidegate_overload::Schedule;
use tidegate_testkit::strategy::runner;

const MINUTE: u64 = 60_000_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// A time of the week that starts on Monday, 5 January 1970.
fn monday_plus(days: u64, hours: u64, minutes: u64) -> Micros {
    Micros::new((4 + days) * DAY + hours * HOUR + minutes * MINUTE)
}

fn schedule(text: &str) -> Schedule {
    text.parse().unwrap()
}

#[test]
fn schedule_display_round_trips() {
    for text in [
        "x2",
        "09:00-18:00 x2",
        "mon-fri 09:00-18:00 x2; 22:00-06:00 x0.5",
        "+08:00; mon-fri 09:00-18:00 x2",
        "-03:30; sat,sun x1/3",
        "mon,wed,fri-sun 00:00-12:30 x1.5",
        "18:00-24:00 x2",
    ] {
        assert_eq!(schedule(text).to_string(), text);
    }
    for (written, printed) in [
        ("  mon-fri   9:00-18:00 x2 ;; \n sat x3\n", "mon-fri 09:00-18:00 x2; sat x3"),
        ("fri-mon x2", "mon,fri-sun x2"),
        ("mon-sun x2", "x2"),
        ("sun-sat 00:00-24:00 x2", "x2"),
        ("18:00-00:00 x2", "18:00-24:00 x2"),
        ("+00:00; x2", "x2"),
    ] {
        assert_eq!(schedule(written).to_string(), printed);
    }
}

#[test]
fn first_matching_entry_applies() {
    let week = schedule("mon-fri 09:00-18:00 x2; sat,sun x0.5; 22:00-06:00 x1/4");
    for (day, hour, minute, factor) in [
        (0, 0, 0, "x0.25"), // the night from Sunday to Monday
        (0, 5, 59, "x0.25"),
        (0, 6, 0, "x1"),
        (0, 8, 59, "x1"),
        (0, 9, 0, "x2"),
        (0, 17, 59, "x2"),
        (0, 18, 0, "x1"),
        (0, 22, 0, "x0.25"),
        (4, 23, 59, "x0.25"),
        (5, 0, 0, "x0.5"),
        (6, 23, 0, "x0.5"),
    ] {
        let shown = week.factor_at(monday_plus(day, hour, minute)).to_string();
        assert_eq!(shown, factor, "day {day} at {hour}:{minute}");
    }
}

#[test]
fn overnight_entry_belongs_to_start_day() {
    let friday_night = schedule("fri 22:00-06:00 x3");
    for (day, hour, factor) in
        [(3, 23, "x1"), (4, 3, "x1"), (4, 22, "x3"), (5, 5, "x3"), (5, 6, "x1"), (5, 22, "x1")]
    {
        assert_eq!(
            friday_night.factor_at(monday_plus(day, hour, 0)).to_string(),
            factor,
            "day {day} at {hour}"
        );
    }
    let sunday_night = schedule("sun 22:00-06:00 x3");
    assert_eq!(sunday_night.factor_at(monday_plus(0, 5, 0)).to_string(), "x3");
    assert_eq!(sunday_night.next_change(monday_plus(0, 5, 0)), Some(monday_plus(0, 6, 0)));
    assert_eq!(sunday_night.next_change(monday_plus(0, 6, 0)), Some(monday_plus(6, 22, 0)));
}

#[test]
fn utc_offset_shifts_day() {
    let shanghai = schedule("+08:00; mon 09:00-18:00 x2");
    assert_eq!(shanghai.factor_at(monday_plus(0, 0, 59)).to_string(), "x1");
    assert_eq!(shanghai.factor_at(monday_plus(0, 1, 0)).to_string(), "x2");
    assert_eq!(shanghai.next_change(monday_plus(0, 1, 0)), Some(monday_plus(0, 10, 0)));
    let west = schedule("-10:00; wed x2"); // the epoch was a Wednesday there
    assert_eq!(west.factor_at(Micros::ZERO).to_string(), "x2");
    assert_eq!(west.next_change(Micros::ZERO), Some(Micros::new(10 * HOUR)));
}

#[test]
fn errors_point_at_span() {
    for (text, at, problem) in [
        ("", None, "schedule has no entries"),
        (" ; \n", None, "schedule has no entries"),
        ("+08:00", None, "schedule has no entries"),
        ("mon-fri 09:00-18:00", Some("".len()..0), "missing factor"),
        ("mon-fir x2", Some(0..7), "invalid day `fir`"),
        ("Mon x2", Some(0..3), "invalid day `Mon`"),
        ("mon, tue x2", Some(0..4), "invalid day ``"),
        ("x2; 25:00-26:00 x2", Some(4..15), "invalid time `25:00`"),
        ("9-18 x2", Some(0..4), "invalid time `9`"),
        ("09:60-10:00 x2", Some(0..11), "invalid time `09:60`"),
        ("09:0-10:00 x2", Some(0..10), "invalid time `09:0`"),
        ("09:00 x2", Some(0..5), "invalid time range `09:00`"),
        ("09:00-09:00 x2", Some(0..11), "time range `09:00-09:00` is empty"),
        ("24:00-06:00 x2", Some(0..11), "time range `24:00-06:00` is empty"),
        ("mon 09:00-18:00 x0", Some(16..18), "a factor must not be zero"),
        ("mon 09:00-18:00 x-2", Some(16..19), "invalid factor `x-2`"),
        ("mon 09:00-18:00 busy x2", Some(16..20), "unexpected `busy`"),
        ("09:00-18:00 mon x2", Some(0..11), "invalid day `09:00`"),
        ("+15:00; x2", Some(0..6), "invalid UTC offset `+15:00`"),
        ("+8; x2", Some(0..2), "invalid UTC offset `+8`"),
        ("x2; +08:00", Some(10..10), "missing factor"),
    ] {
        let error = text.parse::<Schedule>().expect_err(text);
        assert_eq!(error.problem(), problem, "{text}");
        if let Some(at) = at.filter(|at| at.end > 0) {
            assert_eq!(error.span(), Some(at), "{text}");
        }
        assert!(!error.fix().is_empty());
    }
    let error = "x2\nmön-fri x2".parse::<Schedule>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid day `mön`\n  mön-fri x2\n  ^^^^^^^\nuse mon, tue, wed, thu, fri, sat, sun, as in `mon-fri` or \
         `sat,sun`"
    );
    assert!("x2;".repeat(65).parse::<Schedule>().is_err() && "x2;".repeat(64).parse::<Schedule>().is_ok());
}

fn schedules() -> impl Strategy<Value = String> {
    let days = prop_oneof![
        2 => Just(String::new()),
        1 => prop::sample::select(vec!["mon-fri ", "sat,sun ", "fri-mon ", "wed ", "mon,thu-sat "]).prop_map(String::from),
    ];
    let times = prop_oneof![
        1 => Just(String::new()),
        3 => (0_u64..1_440, 1_u64..1_440).prop_map(|(start, length)| {
            let end = (start + length) % 1_440;
            format!("{:02}:{:02}-{:02}:{:02} ", start / 60, start % 60, end / 60, end % 60)
        }),
    ];
    let factor = prop::sample::select(vec!["x1", "x2", "x0.5", "x1/3"]);
    let entry = (days, times, factor).prop_map(|(days, times, factor)| format!("{days}{times}{factor}"));
    let offset = prop::sample::select(vec!["", "+08:00; ", "-09:30; ", "+14:00; "]);
    (offset, prop::collection::vec(entry, 1..5))
        .prop_map(|(offset, entries)| format!("{offset}{}", entries.join("; ")))
}

#[test]
fn any_schedule_display_round_trips() {
    let property = |text: String| {
        let read = schedule(&text);
        prop_assert_eq!(&schedule(&read.to_string()), &read);
        Ok(())
    };
    runner().run(&schedules(), property).unwrap();
}

/// The factor applies exactly until the next change.
#[test]
fn next_change_is_exact() {
    let property = |(text, start): (String, u64)| {
        let week = schedule(&text);
        let now = Micros::new(start);
        let current = week.factor_at(now);
        let Some(next) = week.next_change(now) else {
            for minute in 0..7 * 24 * 60 {
                prop_assert_eq!(week.factor_at(now.saturating_add(Micros::new(minute * MINUTE))), current);
            }
            return Ok(());
        };
        prop_assert!(next > now && week.factor_at(next) != current);
        prop_assert_eq!(week.factor_at(next.saturating_sub(Micros::new(1))), current);
        let mut at = now;
        while at < next {
            prop_assert_eq!(week.factor_at(at), current);
            at = at.saturating_add(Micros::new(MINUTE));
        }
        Ok(())
    };
    runner().run(&(schedules(), 0_u64..2_000_000_000_000_000), property).unwrap();
}

#[test]
fn accepts_max_time() {
    let week = schedule("+14:00; 22:00-06:00 x2");
    assert!(week.factors().any(|factor| factor == week.factor_at(Micros::MAX)));
    assert!(week.next_change(Micros::MAX).is_some());
}
