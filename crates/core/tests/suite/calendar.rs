//! Calendar windows in time zones: changes of the clock, skipped days, leap years and the ends of months.

use proptest::prelude::*;
use tidegate_core::{CalendarPeriod, CalendarSpan, Demand, Micros, Outcome, Quota, Retry, TimeZone};
use tidegate_testkit::{
    CoreModel, Subject,
    strategy::{runner, time_zones},
};

const HOUR: u64 = 3_600_000_000;

fn zone(name: &str) -> TimeZone {
    TimeZone::find(name).unwrap()
}

/// Seconds since 1970 of a date and time in UTC.
fn utc(text: &str) -> Micros {
    let number = |range: std::ops::Range<usize>| text[range].parse::<u64>().unwrap();
    let days = tidegate_core::Utc::days_since_epoch(number(0..4), number(5..7), number(8..10)).unwrap();
    Micros::from_secs(days * 86_400 + number(11..13) * 3_600 + number(14..16) * 60)
}

/// A point in time, and the window that contains it, all in UTC.
type SpanCase = (&'static str, CalendarPeriod, &'static str, &'static str, &'static str);

const CASES: &[SpanCase] = {
    use CalendarPeriod::{Day, Month, Week};
    &[
        ("UTC", Day, "2026-11-18 12:00", "2026-11-18 00:00", "2026-11-19 00:00"),
        ("UTC", Day, "2026-11-18 00:00", "2026-11-18 00:00", "2026-11-19 00:00"),
        ("Asia/Shanghai", Day, "2026-11-18 15:59", "2026-11-17 16:00", "2026-11-18 16:00"),
        ("Asia/Shanghai", Day, "2026-11-18 16:00", "2026-11-18 16:00", "2026-11-19 16:00"),
        // 23 and 25 hours.
        ("America/New_York", Day, "2026-03-08 12:00", "2026-03-08 05:00", "2026-03-09 04:00"),
        ("America/New_York", Day, "2026-11-01 12:00", "2026-11-01 04:00", "2026-11-02 05:00"),
        // Half an hour: 23:30 and 24:30.
        ("Australia/Lord_Howe", Day, "2026-10-04 00:00", "2026-10-03 13:30", "2026-10-04 13:00"),
        ("Australia/Lord_Howe", Day, "2026-04-05 00:00", "2026-04-04 13:00", "2026-04-05 13:30"),
        // 30 December 2011 was skipped: the 29th has 24 hours, and the 31st follows.
        ("Pacific/Apia", Day, "2011-12-30 09:59", "2011-12-29 10:00", "2011-12-30 10:00"),
        ("Pacific/Apia", Day, "2011-12-30 10:00", "2011-12-30 10:00", "2011-12-31 10:00"),
        ("Pacific/Apia", Week, "2011-12-31 00:00", "2011-12-26 10:00", "2012-01-01 10:00"),
        ("Pacific/Apia", Month, "2011-12-15 00:00", "2011-12-01 10:00", "2011-12-31 10:00"),
        // Clocks were put forward from 00:00 to 01:00: the day starts at 01:00.
        ("America/Sao_Paulo", Day, "2018-11-04 12:00", "2018-11-04 03:00", "2018-11-05 02:00"),
        // Clocks were put back from 00:01 to 23:01: the day that has started goes on.
        ("America/St_Johns", Day, "2006-10-29 02:45", "2006-10-29 02:30", "2006-10-30 03:30"),
        // Weeks start on Monday.
        ("UTC", Week, "2026-11-18 12:00", "2026-11-16 00:00", "2026-11-23 00:00"),
        ("UTC", Week, "2026-11-22 23:59", "2026-11-16 00:00", "2026-11-23 00:00"),
        ("America/New_York", Week, "2026-03-08 12:00", "2026-03-02 05:00", "2026-03-09 04:00"),
        ("UTC", Week, "2027-01-01 00:00", "2026-12-28 00:00", "2027-01-04 00:00"),
        // Leap years and the ends of months.
        ("UTC", Month, "2024-02-29 23:59", "2024-02-01 00:00", "2024-03-01 00:00"),
        ("UTC", Month, "2023-02-28 23:59", "2023-02-01 00:00", "2023-03-01 00:00"),
        ("UTC", Month, "2100-02-28 12:00", "2100-02-01 00:00", "2100-03-01 00:00"),
        ("UTC", Month, "2026-12-31 23:59", "2026-12-01 00:00", "2027-01-01 00:00"),
        ("Asia/Shanghai", Month, "2026-12-31 16:00", "2026-12-31 16:00", "2027-01-31 16:00"),
        ("America/New_York", Month, "2026-03-15 00:00", "2026-03-01 05:00", "2026-04-01 04:00"),
        // The first window starts with the range of time.
        ("Asia/Shanghai", Day, "1970-01-01 00:00", "1970-01-01 00:00", "1970-01-01 16:00"),
    ]
};

#[test]
fn windows_follow_the_calendar_of_the_zone() {
    for (name, period, at, start, end) in CASES {
        let expected = CalendarSpan { start: utc(start), end: utc(end) };
        assert_eq!(zone(name).span_at(*period, utc(at)), expected, "{name} {period:?} at {at}");
        let last = Micros::new(expected.end.get() - 1);
        assert_eq!(zone(name).span_at(*period, last), expected, "{name} {period:?} before {end}");
    }
}

#[test]
fn windows_cover_all_time_without_gaps() {
    let periods =
        prop_oneof![Just(CalendarPeriod::Day), Just(CalendarPeriod::Week), Just(CalendarPeriod::Month)];
    let result =
        runner().run(&(time_zones(), periods, 0_u64..8_000_000_000_000_000), |(zone, period, at)| {
            let at = Micros::new(at);
            let span = zone.span_at(period, at);
            prop_assert!(span.start <= at && at < span.end, "{:?}", span);
            prop_assert_eq!(zone.span_at(period, span.start), span);
            let next = zone.span_at(period, span.end);
            prop_assert_eq!(next.start, span.end);
            let hours = (next.end.get() - next.start.get()) / HOUR;
            let (least, most) = match period {
                CalendarPeriod::Day => (17, 31),
                CalendarPeriod::Week => (144, 175),
                CalendarPeriod::Month => (671, 768),
            };
            prop_assert!((least..=most).contains(&hours), "{} hours from {}", hours, next.start);
            Ok(())
        });
    assert_eq!(result, Ok(()));
}

#[test]
fn zones_are_found_in_upper_and_lower_case() {
    let at = utc("2026-11-18 12:00");
    for name in
        ["Africa/Abidjan", "America/Argentina/Buenos_Aires", "Etc/GMT+12", "Europe/Kyiv", "US/Pacific", "UTC"]
    {
        let span = zone(name).span_at(CalendarPeriod::Day, at);
        assert_eq!(span.end.get() - span.start.get(), 24 * HOUR, "{name}");
        let lower = zone(&name.to_lowercase());
        assert_eq!((lower, lower.name()), (zone(name), name));
    }
}

/// The retry time is exactly the start of the next window, and a full window is admitted again then.
#[test]
fn retry_is_the_start_of_the_next_window() {
    for (name, period, at, _, end) in CASES {
        let quota = Quota::per_day(3).calendar_window(*period, zone(name)).unwrap();
        assert_eq!(quota.to_string().parse(), Ok(quota));
        let (mut key, now, end) = (CoreModel::new(quota), utc(at), utc(end));
        assert_eq!(key.decide(now, Demand::new(3)).decision.remaining(), 0);
        let denied = key.decide(now, Demand::new(1)).decision;
        assert_eq!(denied.outcome(), Outcome::Deny(Retry::After(end.saturating_sub(now))), "{quota} at {at}");
        assert_eq!(denied.reset_after(), end.saturating_sub(now));
        assert!(!key.decide(end.saturating_sub(Micros::new(1)), Demand::new(1)).decision.is_allowed());
        assert_eq!(key.decide(end, Demand::new(3)).decision.remaining(), 0, "{quota} at {at}");
    }
}

/// A caller waits for the next window, and not for the one after it.
#[test]
fn wait_ends_with_the_next_window() {
    let mut key = CoreModel::new("2/day fixed-window in UTC".parse().unwrap());
    let (now, day) = (utc("2026-11-18 18:00"), Micros::from_secs(86_400));
    let mut wait = || key.decide(now, Demand::with_max_wait(2, Micros::MAX)).decision.outcome();
    assert_eq!(wait(), Outcome::Allow);
    assert_eq!(wait(), Outcome::Delay(Micros::from_secs(6 * 3_600)));
    assert_eq!(wait(), Outcome::Deny(Retry::After(day.saturating_add(Micros::from_secs(6 * 3_600)))));
    // Work that was done is charged to the window in which others wait.
    assert!(key.decide(now, Demand::forced(100)).decision.is_granted());
    assert!(!key.decide(now.saturating_add(day), Demand::new(1)).decision.is_allowed());
    let later = Micros::new(now.get() + 2 * day.get());
    assert!(key.decide(later, Demand::new(2)).decision.is_allowed());
}

/// A day in UTC is the fixed window of a day.
#[test]
fn day_in_utc_is_a_fixed_window() {
    let calls = prop::collection::vec((0_u64..100_000_000_000, 0_u64..4), 1..40);
    let result = runner().run(&(calls, 0_u64..2_000_000_000_000_000), |(calls, start)| {
        let quotas = ["3/day fixed-window in UTC", "3/d fixed-window"];
        let [mut calendar, mut fixed] = quotas.map(|text| CoreModel::new(text.parse().unwrap()));
        let mut now = start;
        for (pause, cost) in calls {
            now += pause;
            let (now, demand) = (Micros::new(now), Demand::new(cost));
            prop_assert_eq!(calendar.decide(now, demand), fixed.decide(now, demand));
        }
        Ok(())
    });
    assert_eq!(result, Ok(()));
}
