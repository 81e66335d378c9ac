//! Quotas as text and in code: parsing, printing and errors.

use proptest::prelude::*;
use std::time::Duration;
use tidegate_core::{Micros, Quota, QuotaError, Rate, RateUnit, algorithm::LeakyBucket};
use tidegate_testkit::strategy::{any_sample, check_property, rates, runner};

fn parse(text: &str) -> Result<Quota, QuotaError> {
    text.parse()
}

#[test]
fn quota_text_round_trips() {
    for text in [
        "100/min",
        "100/min burst 20",
        "100/min burst 20 initial 5",
        "100/min initial 0",
        "1.5MB/s burst 20MB initial 500kB",
        "5 per 10s",
        "1.5MB/s",
        "1.5MB/s burst 20MB",
        "3 at once",
        "3 at once lease 30s",
        "1000 total",
        "1.5GB total",
        "10/s warm-up 4s cold 3",
        "10/s warm-up 4s cold 1.25",
        "100/min sliding-window",
        "100/min sliding-strict 60",
        "100/min sliding-log",
        "100/d fixed-window",
        "10000/d fixed-window in Asia/Shanghai",
        "10000/w fixed-window in America/Argentina/Buenos_Aires",
        "5GB/month fixed-window in UTC",
        "100/h fixed-window from-first-hit",
        "100/w fixed-window from-epoch",
        "10/s leaky-bucket queue 5",
        "10/s leaky-bucket queue 5 delay 2",
        "10/s leaky-bucket queue 5 nodelay",
        "10/s smooth",
        "10/s smooth burst 20",
    ] {
        assert_eq!(parse(text).unwrap().to_string(), text);
    }
}

#[test]
fn alternative_spellings_parse_equally() {
    for (written, printed) in [
        ("  100 / minute   burst   20 ", "100/min burst 20"),
        ("100 per minute", "100/min"),
        ("1_000/hour", "1000/h"),
        ("100/min burst 100", "100/min"),
        ("100/day fixed-window in asia/shanghai", "100/d fixed-window in Asia/Shanghai"),
        ("100 per month calendar-window in UTC", "100/month fixed-window in UTC"),
        ("100/min burst 20 initial 20", "100/min burst 20"),
        ("100/min token-bucket burst 100 initial 0", "100/min initial 0"),
        ("60 per 60s", "60/min"),
        ("0.5/s", "1 per 2s"),
        ("2.5/s", "5 per 2s"),
        ("100/min token-bucket burst 20", "100/min burst 20"),
        ("100/min gcra burst 20", "100/min burst 20"),
        ("100/min leaky-bucket meter burst 20", "100/min burst 20"),
        ("10/s leaky-bucket 5", "10/s leaky-bucket queue 5"),
        ("10/s leaky-bucket 5 nodelay", "10/s leaky-bucket queue 5 nodelay"),
        ("10/s leaky-bucket queue 5 delay 5", "10/s leaky-bucket queue 5 nodelay"),
        ("10/s leaky-bucket", "10/s leaky-bucket queue 10"),
        ("10/s warm-up 4s", "10/s warm-up 4s cold 3"),
        ("1MiB/s", "1.048576MB/s"),
        ("1500KB/s", "1.5MB/s"),
        ("100 Gbit/s", "12.5GB/s"),
        ("1.5MB/s burst 500", "1.5MB/s burst 500B"),
    ] {
        assert_eq!(parse(written).unwrap().to_string(), printed, "{written}");
    }
}

#[test]
fn code_and_text_declare_the_same_quotas() {
    let ten_seconds = Duration::from_secs(10);
    for (built, text) in [
        (Quota::per_minute(100).token_bucket(20), "100/min burst 20"),
        (Quota::per_hour(100).quota(), "100/h"),
        (Quota::per_day(100).fixed_window(), "100/d fixed-window"),
        (Quota::amount_per_period(5, ten_seconds).quota(), "5 per 10s"),
        (Quota::bytes_per_second(1_500_000).quota(), "1.5MB/s"),
        (Quota::concurrency(3), "3 at once"),
        (Quota::total(1_000), "1000 total"),
        (Quota::concurrency_with_lease(3, ten_seconds), "3 at once lease 10s"),
        (Quota::per_second(10).warm_up(Duration::from_secs(4), 3.0), "10/s warm-up 4s cold 3"),
        (Quota::per_minute(100).sliding_window(), "100/min sliding-window"),
        (Quota::per_minute(100).sliding_strict(60), "100/min sliding-strict 60"),
        (Quota::per_minute(100).sliding_log(), "100/min sliding-log"),
        (Quota::per_second(10).leaky_bucket(5), "10/s leaky-bucket queue 5"),
        (Quota::per_second(10).leaky_bucket_with_delay(5, 2), "10/s leaky-bucket queue 5 delay 2"),
        (Quota::per_second(10).leaky_bucket_with_delay(5, 5), "10/s leaky-bucket queue 5 nodelay"),
        (Quota::per_hour(9).fixed_window_from_first_hit(), "9/h fixed-window from-first-hit"),
        (Quota::per_day(9).fixed_window_from_epoch(), "9/d fixed-window from-epoch"),
        (Quota::per_second(10).smooth(), "10/s smooth"),
        (Quota::per_second(10).smooth_with_burst(20), "10/s smooth burst 20"),
        (Quota::try_from(Quota::per_second(10)), "10/s"),
        (Quota::try_from("10/s"), "10/s"),
    ] {
        assert_eq!(built, parse(text), "{text}");
    }
}

#[test]
fn display_round_trips_for_any_quota() {
    check_property(Just(()), |sample, ()| {
        let printed = sample.quota.to_string();
        let read = parse(&printed).map_err(|error| TestCaseError::fail(format!("{printed}: {error}")))?;
        prop_assert_eq!(read, sample.quota);
        prop_assert_eq!(read.to_string(), printed);
        Ok(())
    });
}

#[test]
fn quota_parser_never_panics() {
    let almost = any_sample().prop_flat_map(|sample| {
        let text = sample.quota.to_string();
        let cut = 0..=text.len();
        (Just(text), cut, ".{0,3}", any::<bool>())
    });
    let broken = almost.prop_map(|(text, cut, noise, keeps_rest)| {
        let (before, after) = text.split_at(cut);
        format!("{before}{noise}{}", if keeps_rest { after } else { "" })
    });
    let words = "(([0-9_.]{1,50}|[a-z]{1,6}|burst|per|at|once|/|kB|TB|Gbit|s|w|warm-up|cold|leaky-bucket|queue|µs) ?){1,8}";
    for texts in [".{0,40}".boxed(), words.boxed(), broken.boxed()] {
        let never_panics = |text: String| {
            if let Err(error) = parse(&text) {
                prop_assert!(!error.problem().is_empty() && !error.fix().is_empty());
                prop_assert!(error.to_string().contains(error.problem()));
                prop_assert!(error.span().is_some_and(|span| text.get(span).is_some()));
            }
            Ok(())
        };
        if let Err(broken) = runner().run(&texts, never_panics) {
            panic!("{broken}");
        }
    }
}

#[test]
fn overlong_numbers_are_rejected() {
    for number in ["0.".to_owned() + &"0".repeat(50) + "1", "1".repeat(60), "1.".to_owned() + &"0".repeat(60)]
    {
        for text in
            [format!("{number}/s"), format!("{number}Tbit per 9000000000s"), format!("{number} at once")]
        {
            assert_eq!(parse(&text).unwrap_err().problem(), "too many digits", "{text}");
        }
    }
}

/// A rate that a program computes as a double and prints is rounded down, to whole microseconds.
#[test]
fn computed_rates_with_many_digits_are_rounded_down() {
    let table = [
        ("499.95000000000005/s", "500 per 1000101us"),
        ("499.949999999999995/s smooth", "500 per 1000101us smooth"),
        ("0.33333333333333331/s", "1 per 3000001us"),
        ("33.333333333333336/min burst 5", "34 per 61200ms burst 5"),
        ("1.2345678901234567MB/s", "1.234568MB per 1000001us"),
        ("0.49995000000000001/ms", "500 per 1000101us"),
    ];
    for (text, read) in table {
        assert_eq!(parse(text).unwrap().to_string(), read, "{text}");
    }
    let rounds_down = |(whole, digits, seconds): (u32, u64, u32)| {
        let text = format!("{whole}.{digits:015}7 per {seconds}s");
        let quota = parse(&text).map_err(|error| TestCaseError::fail(format!("{text}: {error}")))?;
        let rate = quota.rate().unwrap();
        // Both as requests in the product of both periods, in units of the last digit.
        let read = u128::from(rate.amount()) * 10_u128.pow(16) * u128::from(seconds) * 1_000_000;
        let written = (u128::from(whole) * 10_u128.pow(16) + u128::from(digits) * 10 + 7)
            * u128::from(rate.period().get());
        prop_assert!(read <= written, "{} is above {}", quota, text);
        prop_assert!(read >= written - written / 1_000_000 - 1, "{} is far below {}", quota, text);
        Ok(())
    };
    let rates = (1..100_000_u32, 0..1_000_000_000_000_000_u64, 1..60_u32);
    if let Err(broken) = runner().run(&rates, rounds_down) {
        panic!("{broken}");
    }
}

/// Twice the level plus a step of drain must fit in a double: the last exact quota, and the first inexact one.
#[test]
fn largest_exact_quota_is_accepted() {
    for (text, exact) in [
        ("1/s burst 4503599627", true),
        ("1/s burst 4503599628", false),
        ("1/s leaky-bucket queue 4503599626", true),
        ("1/s leaky-bucket queue 4503599627", false),
        ("3002399751580330/us", true),
        ("3002399751580331/us", false),
    ] {
        assert_eq!(parse(text).is_ok(), exact, "{text}");
    }
}

/// A suggested quota must be valid itself.
#[test]
fn suggested_fix_parses() {
    let large =
        (1_000_000_u64..=1_000_000_000_000, prop_oneof![Just(1_u64), Just(60), Just(3_600), Just(86_400)]);
    let texts = (large, any::<bool>()).prop_map(|((amount, seconds), windows)| {
        let rate = Rate::new(amount, Micros::from_secs(seconds));
        if windows { rate.sliding_window() } else { rate.quota() }
    });
    let accepted = |result: Result<Quota, QuotaError>| {
        let Err(error) = result else { return Ok(()) };
        let Some((suggested, _)) =
            error.fix().strip_prefix("use ").and_then(|fix| fix.split_once(", a smaller "))
        else {
            return Ok(());
        };
        prop_assert!(parse(suggested).is_ok(), "{} suggests {}", error, suggested);
        Ok(())
    };
    if let Err(broken) = runner().run(&texts, accepted) {
        panic!("{broken}");
    }
}

#[test]
fn rates_print_their_unit_and_period() {
    let read_back = |rate: Rate| {
        let text = rate.to_string();
        let Ok(quota) = rate.fixed_window() else { return Ok(()) };
        prop_assert_eq!(parse(&format!("{text} fixed-window")), Ok(quota));
        Ok(())
    };
    if let Err(broken) = runner().run(&rates(), read_back) {
        panic!("{broken}");
    }
    assert_eq!(
        Rate::new(9_007_199_254_740_991, Micros::from_secs(1)).with_unit(RateUnit::Bytes).to_string(),
        "9007.199254740991TB/s"
    );
}

#[test]
fn a_delay_longer_than_the_queue_is_a_conflict() {
    let error = LeakyBucket::new(Quota::per_second(10), 2, 5).unwrap_err();
    assert_eq!(error.to_string(), "delay 5 exceeds queue 2; use at most 2");
}

#[test]
fn scale_changes_only_amounts() {
    for (quota, factor, scaled) in [
        ("100/min burst 20", "x2", "200/min burst 40"),
        ("100/min burst 20", "x1/3", "33/min burst 6"),
        ("100/min burst 20 initial 10", "x0.5", "50/min burst 10 initial 5"),
        ("100/min burst 20 initial 0", "x0.01", "1/min burst 1 initial 0"),
        ("100/min burst 20", "x0.01", "1/min burst 1"),
        ("1/min", "x0.5", "1/min"),
        ("5 per 10s", "x3", "15 per 10s"),
        ("1.5MB/s burst 20MB", "x2", "3MB/s burst 40MB"),
        ("10/s leaky-bucket queue 5 delay 2", "x2", "20/s leaky-bucket queue 10 delay 4"),
        ("10/s leaky-bucket queue 5 nodelay", "x0.1", "1/s leaky-bucket queue 0"),
        ("100/h fixed-window from-first-hit", "x1.5", "150/h fixed-window from-first-hit"),
        ("100/min sliding-window", "x1.5", "150/min sliding-window"),
        ("100/min sliding-strict 60", "x1.5", "150/min sliding-strict 60"),
        ("100/min sliding-log", "x0.5", "50/min sliding-log"),
        ("10/s smooth", "x2", "20/s smooth"),
        ("10/s smooth burst 20", "x2", "20/s smooth burst 40"),
        ("10/s warm-up 4s cold 3", "x2", "20/s warm-up 4s cold 3"),
        ("3 at once", "x2.5", "7 at once"),
        ("3GB total", "x0.5", "1.5GB total"),
        ("100/month fixed-window in UTC", "x1.5", "150/month fixed-window in UTC"),
        ("3 at once lease 30s", "x0.1", "1 at once lease 30s"),
    ] {
        let shown = parse(quota).unwrap().scale(factor.parse().unwrap()).unwrap().to_string();
        let expected = parse(scaled).unwrap().to_string();
        assert_eq!(shown, expected, "{quota} {factor}");
    }
    let error = parse("10/s").unwrap().scale("x999999999999999".parse().unwrap()).unwrap_err();
    assert!(!error.problem().is_empty() && !error.fix().is_empty());
    assert!(parse("4000000000000000 at once").unwrap().scale("x1000".parse().unwrap()).is_err());
}

/// A scaled quota has the same algorithm and period and is never zero, or it is an error; x1 changes nothing.
#[test]
fn scale_keeps_kind_and_period() {
    check_property((1_u64..2_000, 1_u64..2_000), |sample, (numerator, denominator)| {
        let quota = sample.quota;
        prop_assert_eq!(quota.scale(tidegate_core::Ratio::ONE).unwrap(), quota);
        let Ok(scaled) = quota.scale(tidegate_core::Ratio::new(numerator, denominator).unwrap()) else {
            return Ok(());
        };
        prop_assert_eq!(scaled.kind().name(), quota.kind().name());
        prop_assert!(scaled.limit() >= 1);
        if let (Some(old), Some(new)) = (quota.rate(), scaled.rate()) {
            prop_assert_eq!((new.period(), new.unit()), (old.period(), old.unit()));
            prop_assert_eq!(new.amount(), (old.amount() * numerator / denominator).max(1));
        }
        Ok(())
    });
}
