//! A policy decides as its limits do when each is looked at.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::{
    requests::{MatchExt as _, Request, any},
    rules::{gate, header, ip, policy, refusal, rule},
};
use proptest::prelude::*;
use tidegate_core::Micros;
use tidegate_limiter::Clock;
use tidegate_policy::{
    compile::{Ahead, Compiler, Foresight},
    model::{Enforcement, Key, Rule},
};
use tidegate_rule::{Asked, Mode, Rules};

fn said() -> impl Strategy<Value = Vec<Rule>> {
    let key = prop_oneof![
        Just(Key::All),
        Just(ip()),
        Just(header("x-user")),
        Just(Key::Every(vec![ip(), header("x-user")]))
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
        let rules = rules.into_iter().enumerate().map(|(place, (key, path, quotas, method))| Rule {
            key,
            matching: any().path(path).method(method),
            ..rule(&format!("rule-{place}"), &quotas)
        });
        rules.collect()
    })
}

/// The same with rules that only look on, or look on for some.
fn said_in_modes() -> impl Strategy<Value = Vec<Rule>> {
    let mode = prop_oneof![
        4 => Just((Mode::Enforce, None)),
        1 => Just((Mode::Enforce, Some(50.0))),
        1 => Just((Mode::Shadow, None)),
        1 => Just((Mode::Off, None)),
    ];
    (said(), proptest::collection::vec(mode, 6)).prop_map(|(mut rules, modes)| {
        for (rule, (mode, percent)) in rules.iter_mut().zip(modes) {
            rule.enforcement = Enforcement::of(mode, percent).unwrap();
        }
        rules
    })
}

fn any_method() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("GET"), Just("POST")]
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let path = prop_oneof![Just("/a"), Just("/a/b"), Just("//b/../a"), Just("/b"), Just("/c/d")];
    let user = prop_oneof![Just(""), Just("ann"), Just("bob")];
    let one = (any_method(), path, user, 1..3_u8).prop_map(|(method, path, user, last)| {
        Request::of(&format!("{method} {path}")).from(&format!("192.0.2.{last}")).header("x-user", user)
    });
    proptest::collection::vec(one, 1..30)
}

#[test]
fn of_several_who_refuse_the_one_is_foreseen_that_is_waited_for_longest() {
    let said = vec![rule("minute", &["1/min"]), rule("hour", &["1/h"])];
    let (clock, hand) = Clock::manual();
    hand.set(Micros::from_secs(1_000_000));
    let compiler = Compiler::new(Rules::new()).clock(clock);
    let gate = compiler.compile(&policy(said), None).unwrap();
    let request = Request::of("GET /").from("192.0.2.1");
    let (mut ahead, mut foresight) = (Ahead::default(), Foresight::default());
    gate.approach(&gate.see(&request), &mut ahead);
    let mut refused_by = || {
        gate.foresee(&request, (&ahead, 0), &mut foresight);
        foresight.refusal()
    };
    assert_eq!((refused_by(), refused_by()), (None, Some(1)));
}

proptest! {
    #[test]
    fn a_policy_decides_as_a_scan_of_its_limits_does(said in said(), requests in requests()) {
        let (indexed, scanned) = (gate(&policy(said.clone())), gate(&policy(said)));
        for request in &requests {
            let one = refusal(&indexed, request).map(|refusal| refusal.rule.to_string());
            let Asked::Now(rulings) = scanned.gate().ask(request) else { panic!("everything is at hand") };
            let verdict = scanned.gate().verdict(&rulings);
            let other = verdict.refusal().map(|refusal| refusal.name().to_owned());
            prop_assert_eq!(one, other, "{:?}", request);
        }
    }

    #[test]
    fn a_policy_does_what_was_foreseen(
        said in said_in_modes(),
        requests in requests(),
        steps in proptest::collection::vec(0..40_u64, 30),
        together in 1..5_usize,
    ) {
        let (clock, hand) = Clock::manual();
        let made = |said: &[Rule]| {
            let compiler = Compiler::new(Rules::new()).clock(clock.clone());
            compiler.compile(&policy(said.to_vec()), None).unwrap()
        };
        let (asked, foreseen) = (made(&said), made(&said));
        let mut now = Micros::from_secs(1_000_000);
        let (mut ahead, mut foresight) = (Ahead::default(), Foresight::default());
        for (requests, steps) in requests.chunks(together).zip(steps.chunks(together)) {
            ahead.clear();
            for request in requests {
                foreseen.approach(&foreseen.see(request), &mut ahead);
            }
            foreseen.fetch(&ahead, 0..requests.len());
            for ((at, request), step) in requests.iter().enumerate().zip(steps) {
                now = now.plus(Micros::from_secs(*step));
                hand.set(now);
                foreseen.foresee(request, (&ahead, at), &mut foresight);
                let done = refusal(&asked, request).map(|refusal| refusal.place);
                prop_assert_eq!(done, foresight.refusal(), "{:?}", request);
            }
        }
    }
}
