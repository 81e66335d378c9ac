//! A policy makes the same decisions as a scan of all its limits, and as a dry run.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::{
    requests::{MatchExt as _, PolicyTestRequest, any_request},
    rules::{gate, header, ip, policy, rejection, rule},
};
use proptest::prelude::*;
use tidegate_core::Micros;
use tidegate_limiter::Clock;
use tidegate_policy::{
    compile::{Compiler, DryRun, Prefetch},
    model::{CostSpec, KeyPart, KeySpec, RuleEnforcement, RuleSpec},
};
use tidegate_rule::{Evaluation, Mode, Rules};

fn rule_sets() -> impl Strategy<Value = Vec<RuleSpec>> {
    let key = prop_oneof![
        Just(KeySpec::All),
        Just(ip()),
        Just(header("x-user")),
        Just(KeySpec::Composite(vec![ip(), header("x-user")]))
    ];
    let path = prop_oneof![Just("/**"), Just("/a"), Just("/{x}"), Just("/a/*"), Just("/b/**")];
    let quotas = prop_oneof![
        Just(vec!["3/min"]),
        Just(vec!["2/min", "4/h"]),
        Just(vec!["1/min"]),
        Just(vec!["3/min sliding-window"]),
        Just(vec!["2/min fixed-window"])
    ];
    let one = (key, path, quotas, any_method());
    proptest::collection::vec(one, 1..6).prop_map(|rules| {
        let rules = rules.into_iter().enumerate().map(|(place, (key, path, quotas, method))| RuleSpec {
            key,
            matching: any_request().path(path).method(method),
            ..rule(&format!("rule-{place}"), &quotas)
        });
        rules.collect()
    })
}

/// Rule sets with rules in shadow mode, for all or some keys, and with costs from a header.
fn rule_sets_with_modes() -> impl Strategy<Value = Vec<RuleSpec>> {
    let mode = prop_oneof![
        4 => Just((Mode::Enforce, None)),
        1 => Just((Mode::Enforce, Some(50.0))),
        1 => Just((Mode::Shadow, None)),
        1 => Just((Mode::Off, None)),
    ];
    let cost = prop_oneof![
        3 => Just(CostSpec::Fixed(1)),
        1 => Just(CostSpec::FromRequest {
            from: KeySpec::Part(KeyPart::Header("x-cost".to_owned())),
            default: 1,
            max: 3,
        }),
    ];
    (rule_sets(), proptest::collection::vec((mode, cost), 6)).prop_map(|(mut rules, modes)| {
        for (rule, ((mode, percent), cost)) in rules.iter_mut().zip(modes) {
            rule.enforcement = RuleEnforcement::new(mode, percent).unwrap();
            rule.cost = cost;
        }
        rules
    })
}

fn any_method() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("GET"), Just("POST")]
}

fn requests() -> impl Strategy<Value = Vec<PolicyTestRequest>> {
    let path = prop_oneof![Just("/a"), Just("/a/b"), Just("//b/../a"), Just("/b"), Just("/c/d")];
    let user = prop_oneof![Just(""), Just("ann"), Just("bob")];
    let one = (any_method(), path, user, 1..3_u8).prop_map(|(method, path, user, last)| {
        PolicyTestRequest::new(&format!("{method} {path}"))
            .with_peer(&format!("192.0.2.{last}"))
            .with_header("x-user", user)
    });
    proptest::collection::vec(one, 1..30)
}

/// Requests, some with repeated headers that rules read.
fn requests_with_duplicates() -> impl Strategy<Value = Vec<PolicyTestRequest>> {
    let more = prop_oneof![
        6 => Just(vec![]),
        1 => Just(vec![("x-cost", "2")]),
        1 => Just(vec![("x-cost", "1"), ("x-cost", "2")]),
        1 => Just(vec![("x-user", "eve")]),
    ];
    (requests(), proptest::collection::vec(more, 30)).prop_map(|(requests, more)| {
        let add = |request: PolicyTestRequest, (name, value): &(&str, &str)| request.with_header(name, value);
        requests.into_iter().zip(more).map(|(request, more)| more.iter().fold(request, add)).collect()
    })
}

#[test]
fn dry_run_reports_the_denial_with_the_longest_wait() {
    let rules = vec![rule("minute", &["1/min"]), rule("hour", &["1/h"])];
    let (clock, manual_clock) = Clock::manual();
    manual_clock.set(Micros::from_secs(1_000_000));
    let compiler = Compiler::new(Rules::new()).clock(clock);
    let gate = compiler.compile(&policy(rules), None).unwrap();
    let request = PolicyTestRequest::new("GET /").with_peer("192.0.2.1");
    let (mut prefetch, mut dry_run) = (Prefetch::default(), DryRun::new(&gate));
    gate.prepare(&gate.view_request(&request), &mut prefetch);
    let mut denied_by = || {
        gate.dry_run(&request, (&prefetch, 0), &mut dry_run);
        dry_run.rejected_by()
    };
    assert_eq!((denied_by(), denied_by()), (None, Some(1)));
}

proptest! {
    #[test]
    fn policy_agrees_with_scan_of_limits(rules in rule_sets(), requests in requests()) {
        let (indexed, scanned) = (gate(&policy(rules.clone())), gate(&policy(rules)));
        for request in &requests {
            let one = rejection(&indexed, request).map(|rejection| rejection.rule.to_string());
            let Evaluation::Ready(verdict) = scanned.gate().check(request) else { panic!("expected an immediate result") };
            let other = verdict.denial().map(|one| one.rule(scanned.gate()).unwrap().name().to_owned());
            prop_assert_eq!(one, other, "{:?}", request);
        }
    }

    #[test]
    fn live_and_dry_runs_agree(
        rules in rule_sets_with_modes(),
        requests in requests_with_duplicates(),
        steps in proptest::collection::vec(0..40_u64, 30),
        together in 1..5_usize,
    ) {
        let (clock, manual_clock) = Clock::manual();
        let compile = |rules: &[RuleSpec]| {
            let compiler = Compiler::new(Rules::new()).clock(clock.clone());
            compiler.compile(&policy(rules.to_vec()), None).unwrap()
        };
        let (live, dry) = (compile(&rules), compile(&rules));
        let mut now = Micros::from_secs(1_000_000);
        let (mut prefetch, mut dry_run) = (Prefetch::default(), DryRun::new(&dry));
        for (requests, steps) in requests.chunks(together).zip(steps.chunks(together)) {
            prefetch.clear();
            for request in requests {
                dry.prepare(&dry.view_request(request), &mut prefetch);
            }
            dry.prefetch(&prefetch, 0..requests.len());
            for ((at, request), step) in requests.iter().enumerate().zip(steps) {
                now = now.saturating_add(Micros::from_secs(*step));
                manual_clock.set(now);
                dry.dry_run(request, (&prefetch, at), &mut dry_run);
                let rejection = rejection(&live, request).map(|rejection| (rejection.index, rejection.reason, rejection.action));
                let expected = dry_run.rejection(request).map(|rejection| (rejection.index, rejection.reason, rejection.action));
                prop_assert_eq!(rejection, expected, "{:?}", request);
            }
        }
    }
}
