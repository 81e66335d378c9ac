//! A policy decides as its limits do when each is looked at.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::requests::{MatchExt as _, Request, any};
use crate::rules::{gate, header, ip, policy, refusal, rule};
use proptest::prelude::*;
use tidegate_policy::model::{Key, Rule};
use tidegate_rule::Asked;

fn said() -> impl Strategy<Value = Vec<Rule>> {
    let key = prop_oneof![
        Just(Key::All),
        Just(ip()),
        Just(header("x-user")),
        Just(Key::Every(vec![ip(), header("x-user")]))
    ];
    let path = prop_oneof![Just("/**"), Just("/a"), Just("/{x}"), Just("/a/*"), Just("/b/**")];
    let quotas = prop_oneof![Just(vec!["3/min"]), Just(vec!["2/min", "4/h"]), Just(vec!["1/min"])];
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
}
