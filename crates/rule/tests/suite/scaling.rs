//! Quotas that follow the load, through declarations and reloads.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tidegate_core::{CarryOver, Percent};
use tidegate_limiter::{Capacity, Clock, ManualClock};
use tidegate_overload::{LoadMonitor, ScalePolicy};
use tidegate_rule::{LoadScale, Rule, RuleConfig, RuleSettings, Rules, Settings};

/// A load that a test sets, and the clocks of its rules.
struct TestLoad {
    percent: Arc<AtomicU64>,
    monitor: LoadMonitor,
    clock: Clock,
    manual_clock: ManualClock,
}

impl TestLoad {
    fn new() -> Self {
        let percent = Arc::new(AtomicU64::new(10));
        let (clock, manual_clock) = Clock::manual();
        let source = percent.clone();
        let read = move |_now| Some(Percent::from_ratio(source.load(Ordering::Relaxed), 100));
        let monitor = LoadMonitor::builder().clock(clock.clone()).source("test", read).build().unwrap();
        Self { percent, monitor, clock, manual_clock }
    }

    /// Reads this load until the factor has reached its limit.
    fn set(&self, percent: u64) {
        self.percent.store(percent, Ordering::Relaxed);
        for _ in 0..40 {
            self.manual_clock.advance(Duration::from_secs(10));
            self.monitor.sample_once();
        }
    }

    /// Settings that scale the rule `a` down to x0.5.
    fn scale(&self, quota: &str) -> RuleSettings {
        let policy = ScalePolicy::default();
        let policy = policy.factor_range("x0.5".parse().unwrap(), "x1".parse().unwrap()).unwrap();
        let mut settings = RuleSettings::new();
        settings.scale = Some(LoadScale { monitor: self.monitor.clone(), policy });
        settings.quotas = vec![quota.parse().unwrap()];
        settings
    }

    fn settings(&self, rule: RuleSettings) -> Settings {
        Settings::new().clock(self.clock.clone()).rule("a", rule)
    }
}

fn quota(rule: &Rule) -> String {
    rule.quotas()[0].to_string()
}

fn config() -> RuleConfig {
    RuleConfig::new("a").quota("100 per 52w").unwrap()
}

/// Settings that a rule cannot have are replaced by its declaration, including their `scale`.
#[test]
fn scale_of_rejected_settings_is_not_applied() {
    let (load, rules) = (TestLoad::new(), Rules::new());
    rules.apply(load.settings(load.scale("3 at once"))).unwrap();
    let rule = rules.declare(config()).unwrap();
    load.set(100);
    assert_eq!(quota(&rule), "100 per 52w");

    let rules = Rules::new();
    rules.apply(load.settings(load.scale("3 at once"))).unwrap();
    let without_quota = rules.declare(RuleConfig::new("a")).unwrap();
    let rule = rules.declare(config()).unwrap();
    load.set(100);
    assert_eq!([&without_quota, &rule].map(quota), ["100 per 52w", "100 per 52w"]);
}

#[test]
fn redeclare_scales_new_changed_and_rebuilt_rules() {
    let (load, rules) = (TestLoad::new(), Rules::new());
    let redeclare =
        |settings: RuleSettings| rules.redeclare(vec![config()], load.settings(settings)).unwrap().remove(0);
    let new = redeclare(load.scale("100 per 52w"));
    load.set(100);
    assert_eq!(quota(&new), "50 per 52w");
    let changed = redeclare(load.scale("200 per 52w"));
    assert_eq!([&new, &changed].map(quota), ["100 per 52w", "100 per 52w"]);
    // Another capacity needs another table.
    let mut more = load.scale("200 per 52w");
    more.capacity = Some(Capacity::Keys(9));
    let rebuilt = redeclare(more);
    assert_eq!(quota(&rebuilt), "100 per 52w", "it starts with the factor of the rule before");
    drop((new, changed));
    load.set(10);
    assert_eq!(quota(&rebuilt), "200 per 52w");
}

/// A change of quotas settles the open reservations of a limiter, so a refund shows that there was none.
#[test]
fn reload_does_not_lift_scaling() {
    let (load, rules) = (TestLoad::new(), Rules::new());
    rules.apply(load.settings(load.scale("100 per 52w"))).unwrap();
    let rule = rules.declare(config()).unwrap();
    load.set(100);
    assert_eq!(quota(&rule), "50 per 52w");
    let reserve = || rule.limiter().unwrap().blocking().key("ann").reserve(50, Duration::ZERO);

    let reserved = reserve();
    assert!(reserved.decision().is_allowed());
    rules.apply(load.settings(load.scale("100 per 52w"))).unwrap();
    rules.apply(load.settings(load.scale("100 per 52w").store("nowhere"))).unwrap_err();
    rules.apply(load.settings(load.scale("3 at once"))).unwrap_err();
    rules.redeclare(vec![config()], load.settings(load.scale("100 per 52w"))).unwrap();
    drop(reserved);
    let reserved = reserve();
    assert!(reserved.decision().is_allowed(), "the reservation was refunded");
    reserved.keep();
    assert!(rule.admit_blocking("ann", 1).is_err());

    // The usage carries over to the scaled new quota.
    rules.apply(load.settings(load.scale("120 per 52w"))).unwrap();
    assert_eq!(quota(&rule), "60 per 52w");
    assert_eq!((0..20).filter(|_| rule.admit_blocking("ann", 1).is_ok()).count(), 10);
    let mut reset = load.scale("140 per 52w");
    reset.carry_over = Some(CarryOver::Reset);
    rules.apply(load.settings(reset)).unwrap();
    assert_eq!(quota(&rule), "70 per 52w");
    assert_eq!((0..99).filter(|_| rule.admit_blocking("ann", 1).is_ok()).count(), 70);
}

#[test]
fn reload_without_scale_restores_quota() {
    let (load, rules) = (TestLoad::new(), Rules::new());
    rules.apply(load.settings(load.scale("100 per 52w"))).unwrap();
    let rule = rules.declare(config()).unwrap();
    load.set(100);
    assert_eq!(
        (quota(&rule), rule.declared_quotas()[0].to_string()),
        ("50 per 52w".into(), "100 per 52w".into())
    );
    rules.apply(load.settings(RuleSettings::new())).unwrap();
    assert_eq!(quota(&rule), "100 per 52w");
    load.set(10);
    load.set(100);
    assert_eq!(quota(&rule), "100 per 52w");
}

#[test]
fn scale_of_a_total_is_rejected() {
    let (load, rules) = (TestLoad::new(), Rules::new());
    let _rule = rules.declare(RuleConfig::new("a").quota("5 total").unwrap()).unwrap();
    let mut only_scale = load.scale("1/s");
    only_scale.quotas.clear();
    for (settings, total) in [(load.scale("9 total"), "9 total"), (only_scale, "5 total")] {
        let error = rules.apply(load.settings(settings)).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "rule `a`: `scale` changes quotas for a time, but `{total}` never refills; remove `scale`, or use a rate"
            )
        );
    }
}
