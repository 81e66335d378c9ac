//! The index finds the same rules as a scan.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::requests::{MatchExt as _, PolicyTestRequest, any_request};
use proptest::prelude::*;
use tidegate_policy::{
    index::RuleIndex,
    matching::{Lists, Matcher, RequestView},
    model::Match,
};
use tidegate_rule::request::TrustedProxies;

fn index(rules: &[Match]) -> RuleIndex {
    RuleIndex::new(rules.iter().map(|rule| Matcher::new(rule, &Lists::default()).unwrap()))
}

fn find_rules(index: &RuleIndex, request: &PolicyTestRequest) -> Vec<usize> {
    let mut found = Vec::new();
    index.find(&RequestView::new(request, &TrustedProxies::none()), &mut found);
    found
}

#[test]
fn index_returns_rules_in_order() {
    let index = index(&[
        any_request().path("/users/{id}"),
        any_request(),
        any_request().path("/**").method("POST"),
        any_request().path("/users/me").path("/users/*").path("/users/{who}"),
        any_request().host("a.test").path("/users/**"),
        any_request().host("*.test"),
        any_request().host("a.test").host("b.test"),
        any_request().path("/"),
        any_request()
            .or(any_request().host("b.test"))
            .or(any_request().path("/x").method("GET"))
            .or(any_request().or(any_request().path("/y"))),
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
        assert_eq!(find_rules(&index, &PolicyTestRequest::new(request)), rules, "{request}");
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
    (plain_matches(), proptest::collection::vec(plain_matches(), 0..3))
        .prop_map(|(rule, each)| each.into_iter().fold(rule, Match::or))
}

fn plain_matches() -> impl Strategy<Value = Match> {
    let methods =
        proptest::collection::vec(prop_oneof![Just("GET"), Just("POST"), Just("PURGE"), Just("LOCK")], 0..3);
    let hosts = proptest::collection::vec(
        prop_oneof![Just("a.test"), Just("b.test"), Just("*.test"), Just("*")],
        0..3,
    );
    let paths = proptest::collection::vec(paths(), 0..3);
    (methods, hosts, paths, proptest::option::of(Just(()))).prop_map(|(methods, hosts, paths, not)| {
        let rule = methods.into_iter().fold(any_request(), Match::method);
        let rule = hosts.into_iter().fold(rule, Match::host);
        let rule = paths.into_iter().fold(rule, |rule, path| rule.path(&path));
        match not {
            Some(()) => rule.without(any_request().path("/a/**").method("GET")),
            None => rule,
        }
    })
}

fn requests() -> impl Strategy<Value = PolicyTestRequest> {
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
    (method, host, proptest::collection::vec(part, 0..5)).prop_map(|(method, host, parts)| {
        PolicyTestRequest::new(&format!("{method} {host}/{}", parts.join("/")))
    })
}

proptest! {
    #[test]
    fn index_agrees_with_scan(
        rules in proptest::collection::vec(rules(), 0..20),
        requests in proptest::collection::vec(requests(), 1..10),
    ) {
        let index = index(&rules);
        for request in &requests {
            let proxies = TrustedProxies::none();
            let view = RequestView::new(request, &proxies);
            let scanned: Vec<_> = (0..rules.len()).filter(|rule| index.matchers()[*rule].matches(&view)).collect();
            prop_assert_eq!(index.find_first(&view), scanned.first().copied());
            prop_assert_eq!(find_rules(&index, request), scanned, "{:?}", request);
        }
    }
}
