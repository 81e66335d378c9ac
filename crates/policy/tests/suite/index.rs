//! The index finds what looking at every rule finds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::requests::{MatchExt as _, Request, any};
use proptest::prelude::*;
use tidegate_policy::{
    index::RuleIndex,
    matching::{Lists, Matcher, Seen},
    model::Match,
};
use tidegate_rule::request::TrustedProxies;

fn index(rules: &[Match]) -> RuleIndex {
    RuleIndex::new(rules.iter().map(|rule| Matcher::new(rule, &Lists::default()).unwrap()))
}

fn found(index: &RuleIndex, request: &Request) -> Vec<usize> {
    let mut found = Vec::new();
    index.find(&Seen::new(request, &TrustedProxies::none()), &mut found);
    found
}

#[test]
fn rules_are_found_in_their_order() {
    let index = index(&[
        any().path("/users/{id}"),
        any(),
        any().path("/**").method("POST"),
        any().path("/users/me").path("/users/*").path("/users/{who}"),
        any().host("a.test").path("/users/**"),
        any().host("*.test"),
        any().host("a.test").host("b.test"),
        any().path("/"),
        any().or(any().host("b.test")).or(any().path("/x").method("GET")).or(any().or(any().path("/y"))),
    ]);
    let cases = [
        ("GET /users/me", vec![0, 1, 3]),
        ("POST /users/me", vec![0, 1, 2, 3]),
        ("PURGE a.test/users/7", vec![0, 1, 3, 4, 5, 6]),
        ("GET A.test:80/users", vec![1, 4, 5, 6]),
        ("GET b.test/", vec![1, 5, 6, 7, 8]),
        ("GET /x", vec![1, 8]),
        ("PUT /x", vec![1]),
        ("PUT /y", vec![1, 8]),
    ];
    for (request, rules) in cases {
        assert_eq!(found(&index, &Request::of(request)), rules, "{request}");
    }
}

fn paths() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("/a"),
        Just("/b"),
        Just("/ab"),
        Just("/*"),
        Just("/a*"),
        Just("/*b"),
        Just("/{x}"),
        Just("/{y}"),
    ];
    let end = prop_oneof![Just(""), Just("/**"), Just("/{rest**}")];
    (proptest::collection::vec(part, 0..4), end).prop_map(|(parts, end)| format!("{}{end}", parts.concat()))
}

fn rules() -> impl Strategy<Value = Match> {
    (plain(), proptest::collection::vec(plain(), 0..3))
        .prop_map(|(rule, each)| each.into_iter().fold(rule, Match::or))
}

fn plain() -> impl Strategy<Value = Match> {
    let methods =
        proptest::collection::vec(prop_oneof![Just("GET"), Just("POST"), Just("PURGE"), Just("LOCK")], 0..3);
    let hosts = proptest::collection::vec(
        prop_oneof![Just("a.test"), Just("b.test"), Just("*.test"), Just("*")],
        0..3,
    );
    let paths = proptest::collection::vec(paths(), 0..3);
    (methods, hosts, paths, proptest::option::of(Just(()))).prop_map(|(methods, hosts, paths, not)| {
        let rule = methods.into_iter().fold(any(), Match::method);
        let rule = hosts.into_iter().fold(rule, Match::host);
        let rule = paths.into_iter().fold(rule, |rule, path| rule.path(&path));
        match not {
            Some(()) => rule.without(any().path("/a/**").method("GET")),
            None => rule,
        }
    })
}

fn requests() -> impl Strategy<Value = Request> {
    let method = prop_oneof![Just("GET"), Just("POST"), Just("PURGE"), Just("DELETE")];
    let host = prop_oneof![Just(""), Just("a.test"), Just("B.test:1"), Just("c.test"), Just("x")];
    let part = prop_oneof![
        Just("a"),
        Just("b"),
        Just("ab"),
        Just("aab"),
        Just(""),
        Just("."),
        Just(".."),
        Just("%61;x"),
        Just("a%2fb")
    ];
    (method, host, proptest::collection::vec(part, 0..5))
        .prop_map(|(method, host, parts)| Request::of(&format!("{method} {host}/{}", parts.join("/"))))
}

proptest! {
    #[test]
    fn the_index_finds_what_a_scan_finds(
        rules in proptest::collection::vec(rules(), 0..20),
        requests in proptest::collection::vec(requests(), 1..10),
    ) {
        let index = index(&rules);
        for request in &requests {
            let proxies = TrustedProxies::none();
            let seen = Seen::new(request, &proxies);
            let scanned: Vec<_> = (0..rules.len()).filter(|rule| index.matchers()[*rule].matches(&seen)).collect();
            prop_assert_eq!(index.first(&seen), scanned.first().copied());
            prop_assert_eq!(found(&index, request), scanned, "{:?}", request);
        }
    }
}
