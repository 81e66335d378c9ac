//! Rules that are declared again as a whole, and gates with selected limits.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use crate::common::TestRequest;
use tidegate_core::{Percent, Quota};
use tidegate_limiter::Clock;
use tidegate_rule::{
    Evaluation, Gate, LimitSelection, RequestLimit, Rule, RuleConfig, RuleSettings, Rules, RunMode, Settings,
    Verdict,
    request::{KeyValue, key},
};

fn settings(clock: &Clock) -> Settings {
    Settings::new().clock(clock.clone())
}

fn rule_config(name: &'static str, quotas: &[&str]) -> RuleConfig {
    quotas.iter().fold(RuleConfig::new(name), |declaration, quota| declaration.quota(*quota).unwrap())
}

/// The number of ten calls that are admitted.
fn admitted_count(rule: &Rule) -> usize {
    (0..10).filter(|_| rule.admit_blocking("alice", 1).is_ok()).count()
}

#[test]
fn redeclare_keeps_counters_of_unchanged_rules() {
    let (rules, (clock, _manual_clock)) = (Rules::new(), Clock::manual());
    let redeclare = |declarations: Vec<RuleConfig>| rules.redeclare(declarations, settings(&clock));
    let first = redeclare(vec![
        rule_config("same", &["5/min"]),
        rule_config("more", &["2/min"]),
        rule_config("other", &["2/min"]),
        rule_config("gone", &["2/min"]),
    ])
    .unwrap();
    assert_eq!(first.iter().map(admitted_count).collect::<Vec<_>>(), [5, 2, 2, 2]);

    let second = redeclare(vec![
        rule_config("more", &["4/min"]),
        rule_config("same", &["5/min"]),
        rule_config("other", &["3/min", "100/h"]),
        rule_config("new", &["1/min"]),
    ])
    .unwrap();
    // Usage carries over, also to another number of quotas.
    assert_eq!(second.iter().map(admitted_count).collect::<Vec<_>>(), [2, 0, 1, 1]);
    assert!(second.iter().all(|rule| rule.fast_limiter().is_some()));
    assert_eq!(first[2].quotas().len(), 1, "holders of the old rule keep using it");

    drop(first);
    let third = redeclare(vec![rule_config("gone", &["2/min"])]).unwrap();
    assert_eq!(admitted_count(&third[0]), 2, "it was dropped");
    drop(second);
    redeclare(Vec::new()).unwrap();
    assert_eq!(
        rules.list().iter().map(Rule::name).collect::<Vec<_>>(),
        ["gone"],
        "still referenced by this test"
    );
}

#[test]
fn invalid_redeclaration_changes_nothing() {
    let (rules, (clock, _manual_clock)) = (Rules::new(), Clock::manual());
    let rule = rules.redeclare(vec![rule_config("login", &["3/min"])], settings(&clock)).unwrap().remove(0);
    assert_eq!(admitted_count(&rule), 3);

    let twice = vec![rule_config("login", &["9/min"]), rule_config("login", &["8/min"])];
    let error = rules.redeclare(twice, settings(&clock)).unwrap_err();
    assert_eq!(error.to_string(), "rule `login`: two rules have this name; give one another name");
    let elsewhere = settings(&clock).rule("new", RuleSettings::new().store("nowhere"));
    let both = vec![rule_config("login", &["9/min"]), rule_config("new", &["9/min"])];
    assert!(rules.redeclare(both, elsewhere).unwrap_err().to_string().contains("unknown store `nowhere`"));
    let mixed: [Quota; 2] = ["3/min".parse().unwrap(), "3 at once".parse().unwrap()];
    let tiers = vec![rule_config("login", &["9/min"]), RuleConfig::new("tiers").tiers(mixed)];
    assert!(rules.redeclare(tiers, settings(&clock)).is_err());

    assert_eq!((admitted_count(&rule), rule.quotas()), (0, vec!["3/min".parse().unwrap()]));
    assert_eq!(rules.list().len(), 1);
}

#[test]
fn only_selected_limits_are_checked() {
    let (clock, _manual_clock) = Clock::manual();
    let names = ["a", "b", "c"].map(|name| rule_config(name, &["1/min"]));
    let limits = Rules::new().redeclare(names.into(), settings(&clock)).unwrap();
    let gate = Gate::new(limits.into_iter().map(RequestLimit::new));
    let request = TestRequest::from_peer("192.0.2.1");
    let check = |indexes: &[usize]| {
        let mut verdict = Verdict::default();
        let pending = gate.evaluate(&request, LimitSelection::Indexes(indexes), RunMode::Live, &mut verdict);
        assert!(pending.is_none(), "everything is in memory");
        let names = verdict.decisions().map(|one| one.rule(&gate).unwrap().name().to_owned());
        (names.collect::<String>(), verdict.is_admitted())
    };
    assert_eq!(check(&[]), (String::new(), true));
    assert_eq!(check(&[1]), ("b".to_owned(), true));
    assert_eq!(check(&[0, 2]), ("ac".to_owned(), true));
    assert_eq!(check(&[1]), ("b".to_owned(), false));
    assert_eq!(check(&[7]), (String::new(), true), "there is no such rule");
}

#[test]
fn rollout_enforces_part_of_keys() {
    let (clock, _manual_clock) = Clock::manual();
    let rule =
        Rules::new().redeclare(vec![rule_config("login", &["1/min"])], settings(&clock)).unwrap().remove(0);
    let half = RequestLimit::new(rule).key(key::peer()).rollout(Percent::new(50.0).unwrap());
    let gate = Gate::new([half]);
    let mut denied = 0;
    for last in 0..100 {
        let request = TestRequest::from_peer(&format!("192.0.2.{last}"));
        let is_admitted = || match gate.check(&request) {
            Evaluation::Ready(verdict) => verdict.is_admitted(),
            Evaluation::Pending(_) => panic!("everything is in memory"),
        };
        assert!(is_admitted());
        let is_denied = !is_admitted();
        let selected = gate.limits()[0].is_enforced_for(&KeyValue::from(request.peer.unwrap()));
        assert_eq!(is_denied, selected, "{request:?}");
        denied += usize::from(is_denied);
    }
    assert!((30..70).contains(&denied), "{denied}");
}
