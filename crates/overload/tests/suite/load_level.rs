//! Load levels and limits that follow the load: no flapping despite noise.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use proptest::prelude::*;
use tidegate_core::{Micros, Percent, Ratio};
use tidegate_overload::{Ewma, LoadGauge, LoadLevel, LoadLevels, ScalePolicy, Scaler};
use tidegate_testkit::strategy::runner;

fn percent(percent: f64) -> Percent {
    Percent::new(percent).unwrap()
}

fn ratio(text: &str) -> Ratio {
    text.parse().unwrap()
}

/// A reading covers the time since the previous one, however that time is divided.
#[test]
fn ewma_is_independent_of_sample_rate() {
    let cuts = prop::collection::vec(1_u64..2_000_000, 1..30);
    let property = |(half_life, first, then, cuts): (u64, f64, f64, Vec<u64>)| {
        let new = || Ewma::new(Micros::new(half_life)).unwrap();
        let (mut once, mut often) = (new(), new());
        once.observe(Micros::ZERO, first);
        often.observe(Micros::ZERO, first);
        let mut now = Micros::ZERO;
        for cut in cuts {
            now = now.saturating_add(Micros::new(cut));
            often.observe(now, then);
        }
        once.observe(now, then);
        let (once, often) = (once.value().unwrap(), often.value().unwrap());
        prop_assert!((once - often).abs() < 1e-5, "{once} and {often}");
        prop_assert!(once >= first.min(then) - 1e-9 && once <= first.max(then) + 1e-9);
        Ok(())
    };
    runner().run(&(1_000_u64..5_000_000, 0.0_f64..1.0, 0.0_f64..1.0, cuts), property).unwrap();
}

/// Whatever the load, a level is left only after the dwell time, and one level at a time.
#[test]
fn level_falls_one_step_per_dwell() {
    let loads = prop::collection::vec((1_u64..3_000, 0_u64..=100), 1..200);
    let property = |loads: Vec<(u64, u64)>| {
        let dwell = Micros::from_secs(5);
        let mut gauge = LoadGauge::new(LoadLevels::default().dwell(dwell));
        let (mut now, mut last_change) = (Micros::ZERO, None);
        for (pause, load) in loads {
            now = now.saturating_add(Micros::from_millis(pause));
            let before = gauge.level();
            let after = gauge.observe(now, Percent::from_ratio(load, 100));
            if after < before {
                prop_assert_eq!(after as u8 + 1, before as u8);
                prop_assert!(last_change.is_some_and(|at: Micros| now.saturating_sub(at) >= dwell));
            }
            if after != before {
                last_change = Some(now);
            }
        }
        Ok(())
    };
    runner().run(&loads, property).unwrap();
}

/// Noise between the two thresholds of a level changes it at most once.
#[test]
fn level_is_stable_within_hysteresis() {
    let noise = prop::collection::vec((1_u64..20_000, 650_000_u64..900_000), 1..300);
    let property = |noise: Vec<(u64, u64)>| {
        let mut gauge = LoadGauge::new(LoadLevels::default());
        let (mut now, mut changes) = (Micros::ZERO, 0);
        gauge.observe(now, percent(60.0));
        for (pause, load) in noise {
            now = now.saturating_add(Micros::from_millis(pause));
            let before = gauge.level();
            changes += u32::from(gauge.observe(now, Percent::from_ratio(load, 1_000_000)) != before);
        }
        prop_assert!(changes <= 1, "{changes} changes");
        Ok(())
    };
    runner().run(&noise, property).unwrap();
}

#[test]
fn factor_follows_load_in_steps() {
    let scale = ScalePolicy::default().factor_range(ratio("x0.5"), ratio("x1.2")).unwrap();
    let mut scaler = Scaler::new(scale);
    for (second, load, used, factor) in [
        (0, Some(60.0), 100.0, "x1"),
        (1, Some(80.0), 100.0, "x0.8"),
        (5, Some(99.0), 100.0, "x0.8"), // one step per five seconds
        (6, Some(99.0), 100.0, "x0.64"),
        (11, Some(99.0), 100.0, "x0.512"),
        (16, Some(99.0), 100.0, "x0.5"), // the floor
        (21, Some(99.0), 100.0, "x0.5"),
        (22, Some(79.9), 100.0, "x0.5"), // unchanged between the thresholds
        (23, Some(50.1), 0.0, "x0.5"),
        (24, Some(50.0), 0.0, "x0.55"), // back to x1, whatever the usage
        (29, Some(0.0), 0.0, "x0.605"),
        (34, Some(0.0), 0.0, "x0.666"),
        (39, Some(0.0), 0.0, "x0.733"),
        (44, Some(0.0), 0.0, "x0.807"),
        (49, Some(0.0), 0.0, "x0.888"),
        (54, Some(0.0), 0.0, "x0.977"),
        (59, Some(0.0), 100.0, "x1"),
        (64, Some(0.0), 50.0, "x1"), // neither unused nor used up
        (65, Some(0.0), 70.0, "x1.1"),
        (70, Some(0.0), 50.0, "x1.1"),
        (71, Some(0.0), 70.0, "x1.2"), // the ceiling
        (76, Some(60.0), 0.0, "x1.2"),
        (77, Some(20.0), 30.0, "x1"), // grown, and no longer used
        (82, Some(90.0), 0.0, "x0.8"),
        (87, None, 100.0, "x0.88"), // no signal: back to x1
    ] {
        let shown = scaler.observe(Micros::from_secs(second), load.map(percent), percent(used));
        assert_eq!(shown, ratio(factor), "at {second}s");
        assert_eq!(scaler.factor(), shown);
    }
}

/// A signal that cannot reach both thresholds moves the factor in one direction only, so a bounded number of
/// times.
#[test]
fn noisy_load_does_not_oscillate_factor() {
    let noise = prop::collection::vec((1_u64..20_000, 0_u64..300_000, 0_u64..400_000), 1..400);
    let property = |(base, used_base, start, noise): (u64, u64, bool, Vec<(u64, u64, u64)>)| {
        let mut scaler = Scaler::new(ScalePolicy::default());
        let mut now = Micros::ZERO;
        // Start from any factor: shrunk or grown.
        for _ in 0..base % 9 {
            let load = if start { Percent::FULL } else { Percent::ZERO };
            scaler.observe(now, Some(load), Percent::FULL);
            now = now.saturating_add(Micros::from_secs(5));
        }
        let (mut ups, mut downs) = (0, 0);
        for (pause, noise, used_noise) in noise {
            now = now.saturating_add(Micros::from_millis(pause));
            let before = scaler.factor();
            let load = Percent::from_ratio(base + noise, 1_000_000);
            let after =
                scaler.observe(now, Some(load), Percent::from_ratio(used_base + used_noise, 1_000_000));
            ups += u32::from(after > before);
            downs += u32::from(after < before);
        }
        prop_assert!(ups == 0 || downs == 0, "{ups} up and {downs} down");
        // From the floor to the ceiling in steps of x1.1; from the ceiling to the floor in steps of x0.8.
        prop_assert!(ups <= 33 && downs <= 14, "{ups} up and {downs} down");
        Ok(())
    };
    runner().run(&(0_u64..700_000, 0_u64..600_000, any::<bool>(), noise), property).unwrap();
}

/// A load that is proportional to the limit, as CPU load is: the factor settles, whatever the demand.
#[test]
fn proportional_load_settles() {
    let property = |(demand, noise): (f64, Vec<f64>)| {
        let mut scaler = Scaler::new(ScalePolicy::default());
        let mut average = Ewma::new(Micros::from_secs(1)).unwrap();
        let (mut turns, mut last) = (0, None);
        for (step, noise) in noise.iter().cycle().take(4_000).enumerate() {
            let now = Micros::from_millis(250 * step as u64);
            let load = (demand * scaler.factor().as_f64() + noise).clamp(0.0, 1.0);
            average.observe(now, load);
            let before = scaler.factor();
            let smooth = percent(average.value().unwrap() * 100.0);
            let after = scaler.observe(now, Some(smooth), Percent::FULL);
            if after != before {
                turns += u32::from(last.is_some_and(|last| last != (after > before)));
                last = Some(after > before);
            }
        }
        // The first readings may cause one wrong step; after that it moves in one direction and settles.
        prop_assert!(turns <= 1, "{turns} turns");
        Ok(())
    };
    let noise = prop::collection::vec(-0.03_f64..0.03, 1..200);
    runner().run(&(0.05_f64..3.0, noise), property).unwrap();
}

#[test]
fn rejects_oscillating_scales() {
    let scale = ScalePolicy::default();
    let marks = |low, high| scale.load_thresholds(percent(low), percent(high));
    assert!(marks(50.0, 50.0).is_err() && marks(60.0, 50.0).is_err());
    assert!(marks(70.0, 80.0).is_err(), "one step down crosses both thresholds");
    assert!(scale.steps(ratio("x0.8"), ratio("x1.7")).is_err(), "one step up crosses both thresholds");
    for (shrink, grow) in [("x1", "x1.1"), ("x0.8", "x1"), ("x1.1", "x0.8")] {
        assert!(scale.steps(ratio(shrink), ratio(grow)).is_err(), "{shrink} {grow}");
    }
    for (floor, ceiling) in [("x1.1", "x2"), ("x0.5", "x0.9"), ("x0.0001", "x2")] {
        assert!(scale.factor_range(ratio(floor), ratio(ceiling)).is_err(), "{floor} {ceiling}");
    }
    assert!(scale.interval(Micros::ZERO).is_err() && scale.interval(Micros::MAX).is_err());
    assert!(scale.usage_thresholds(percent(70.0), percent(30.0)).is_err());
    assert!(scale.factor_range(ratio("x1"), ratio("x1")).is_ok());
}

#[test]
fn levels_are_ordered() {
    assert!(LoadLevel::ALL.is_sorted() && LoadLevel::default() == LoadLevel::Relaxed);
}

/// The maximum factor does not wrap around.
#[test]
fn factor_growth_saturates() {
    let most = Ratio::new(u64::MAX, 1).unwrap();
    let scale = ScalePolicy::default().load_thresholds(Percent::ZERO, Percent::FULL).unwrap();
    let scale = scale.factor_range(Ratio::ONE, most).unwrap().steps("x0.8".parse().unwrap(), most).unwrap();
    let mut scaler = Scaler::new(scale);
    for second in [0, 5, 10] {
        let factor = scaler.observe(Micros::from_secs(second), Some(Percent::ZERO), Percent::FULL);
        assert!(factor >= Ratio::new(u64::MAX, 1_000).unwrap(), "{factor}");
    }
}

/// A clock that was ahead by mistake must not keep a limit low, or a level high, until that time.
#[test]
fn clock_step_back_restarts_interval() {
    let at = Micros::from_secs;
    let mut scaler = Scaler::new(ScalePolicy::default());
    let mut gauge = LoadGauge::new(LoadLevels::default());
    scaler.observe(at(1_000_000), Some(Percent::FULL), Percent::ZERO);
    gauge.observe(at(1_000_000), Percent::FULL);
    gauge.observe(at(1_000_000), Percent::ZERO);
    for (second, factor, level) in [
        (100, "x0.8", LoadLevel::Critical),
        (104, "x0.8", LoadLevel::Critical),
        (105, "x0.88", LoadLevel::Busy),
    ] {
        assert_eq!(
            scaler.observe(at(second), Some(Percent::ZERO), Percent::ZERO),
            ratio(factor),
            "at {second}s"
        );
        assert_eq!(gauge.observe(at(second), Percent::ZERO), level, "at {second}s");
    }
}
