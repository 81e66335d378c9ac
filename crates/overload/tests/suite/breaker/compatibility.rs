//! Behavior compared with Resilience4j, Sentinel and recloser.

use super::script::run_script;
use tidegate_core::{Micros, Percent};
use tidegate_overload::{BreakerBuilder, BreakerSettings};

/// The settings of Resilience4j's own tests.
fn resilience4j_settings() -> BreakerBuilder {
    BreakerSettings::builder()
        .bucketed_window(Micros::from_secs(20), 20)
        .min_calls(5)
        .failure_rate(percent(50.0))
        .slow_calls(percent(50.0), Micros::from_secs(4))
        .half_open_calls(4)
        .open_duration(Micros::from_secs(5))
}

fn percent(percent: f64) -> Percent {
    Percent::new(percent).unwrap()
}

/// Three failures and two successes open it for five seconds, after which it is half-open.
const HALF_OPEN: &str = "E E E S S =open +5s";

#[test]
fn resilience4j_state_machine() {
    for (name, text) in [
        ("below the threshold", "S +1s S +1s S +1s E +1s E =closed 40% +1s E =open 50%"),
        ("no rate below the minimum", "-% E E E S -% slow=-% =closed S =open 60%"),
        ("slow calls", "S:5s S:5s S:100ms S:100ms slow=-% S:5s =open slow=60% 0%"),
        (
            "not longer than the threshold is not slow",
            "S:4s S:4s S:4s S:4s S:4s =closed slow=0% S:4001ms slow=16.6666%",
        ),
        ("the window moves on", "E +1s E +19s S S S -% S 20% S =closed 16.6666% +1s 0%"),
        ("open, then half-open", "E E E S S =open +3s no:2s +3s =open ask =half-open -% slow=-%"),
        ("no probe before its time", "E E E S S +4999ms no:1ms +999us no:1us +1us ask =half-open"),
    ] {
        run_script(name, resilience4j_settings(), text);
    }
    for (name, text) in [
        ("probes fail", "E E S -% E =open 75%"),
        ("half of the probes fail", "E E S S =open 50%"),
        ("probes succeed", "E S S =half-open S =closed -%"),
        ("probes are slow", "S:5s S:5s S:5s =half-open S =open slow=75%"),
        ("no more than four at once", "ask ask ask ask no:60s no I! ask no I! I! ask ask no"),
        ("ignored probes free their slots", "I I I I I I =half-open S S S I S =closed"),
        ("closing clears the window", "S S S S =closed E E E E =closed -% E =open 100%"),
    ] {
        run_script(name, resilience4j_settings(), &format!("{HALF_OPEN} {text}"));
    }
}

#[test]
fn resilience4j_open_time_backoff() {
    let settings = resilience4j_settings().backoff(1.5, Micros::from_secs(10));
    let failing = "E E E E =open";
    let text = format!(
        "E E E E E no:5s +5s {failing} no:7500ms +7500ms {failing} no:10s +10s {failing} no:10s +10s S S S S =closed \
         E E E E E no:5s close open:2s no:2s +2s {failing} no:5s +5s {failing} no:7500ms"
    );
    run_script("open times", settings, &text);
}

#[test]
fn resilience4j_manual_transitions() {
    for (name, text) in [
        ("forced open", "force no +60s no +10000s no =forced-open close S =closed"),
        ("disabled", "disable E E E E E E =disabled -% close =closed -%"),
        ("metrics only", "metrics E E E E -% E E =metrics-only 100% S S close =closed -%"),
        ("opened for a while", "open:3s =open -% no:3s +3s ask =half-open"),
        ("closed again", "E E E E E no close S S =closed"),
        ("opened for no time", "open:0s no:1us +1us S =half-open"),
    ] {
        run_script(name, resilience4j_settings(), text);
    }
}

#[test]
fn count_window_drops_oldest_call() {
    let settings = || BreakerSettings::builder().count_window(4).failure_rate(percent(75.0));
    for (name, text) in [
        ("a minimum of 100 is no more than the window", "E E S =closed -% E =open 75%"),
        ("the oldest call goes", "E E S S 50% S S 0% E E E =open"),
        ("time does not matter", "E +1000s E +1000s S +1000s E =open"),
    ] {
        run_script(name, settings(), text);
    }
}

/// Sentinel opens above its ratio and this breaker at it, so the ratio here is one millionth higher. Sentinel
/// admits one call when it is half-open.
#[test]
fn sentinel_slow_and_failing_calls() {
    let settings = || {
        BreakerSettings::builder()
            .bucketed_window(Micros::from_secs(20), 1)
            .min_calls(10)
            .open_duration(Micros::from_secs(5))
            .half_open_calls(1)
    };
    let slow = |share| settings().slow_calls(percent(share), Micros::from_millis(50));
    let six = "S:60ms S:60ms S:60ms S:60ms S:60ms S:60ms";
    let script = format!(
        "{six} S:60ms S S S slow=70% {six} =open slow=81.25% \
         +1s no +5s S:60ms =open no +6s S:50ms =closed"
    );
    run_script("above 80 %", slow(80.0001), &script);
    run_script(
        "at 80 %",
        slow(80.0),
        &format!("{six} S:60ms S S S S:60ms S:60ms S:60ms S:60ms =closed S:60ms =open"),
    );
    run_script("all of them", slow(100.0), &format!("{six} S:60ms S:60ms S:60ms =closed S:60ms =open"));
    let failing = settings().failure_rate(percent(50.0001));
    run_script("errors", failing, "E E E E E E S S S =closed E =open 70%");
}

/// In Sentinel and Resilience4j an older call may decide; in recloser all calls are admitted when it is
/// half-open.
#[test]
fn late_outcomes_of_older_generation_are_ignored() {
    let settings = || resilience4j_settings().half_open_calls(2);
    for (name, text) in [
        ("from closed to half-open", "ask ask E E E E E +5s ask E! E! =half-open S S! =closed"),
        ("from closed to closed", "ask E E E E E +5s S S =closed E! E E E E =closed -% E =open"),
        ("from closed to open", "ask E E E E E =open S! 100% no:5s"),
        (
            "from one half-open to the next",
            "E E E E E +5s ask ask +60s no +5s ask E! E! =half-open ask no S! S! =closed",
        ),
        ("a probe after the others decided", "E E E E E +5s ask ask +60s no =open +5s S S =closed E! E! -%"),
        ("ignored, from before", "ask E E E E E +5s ask ask no I! no"),
    ] {
        run_script(name, settings(), text);
    }
}

/// Resilience4j waits forever for a probe without an outcome.
#[test]
fn probe_deadline_ends_half_open_state() {
    let settings = || resilience4j_settings().half_open_timeout(Micros::from_secs(30));
    for (name, text) in [
        ("no probe has an outcome", "ask ask ask ask +29s no:1s +1s no:5s =open -% +5s ask =half-open"),
        ("most probes have no outcome", "ask ask ask S +30s no =open 75%"),
        ("most probes succeed", "ask S S +30s S =closed"),
        ("few calls, all succeed", "+29s S +30s S =closed"),
        ("few calls, all fail", "+29s E +30s no:5s =open 100%"),
        ("all ignored", "I +15s I +15s no:5s =open"),
        ("an outcome after the deadline still counts", "ask ask ask ask +40s S! S! S! =half-open S! =closed"),
    ] {
        run_script(name, settings(), &format!("{HALF_OPEN} {text}"));
    }
    // Where only slow calls open it, a probe without an outcome counts as slow.
    let slow_only = settings().failure_rate(Percent::FULL);
    run_script("missing is slow", slow_only, "E E E E E =open +5s ask ask S S +30s no:5s =open 50% slow=50%");
}
