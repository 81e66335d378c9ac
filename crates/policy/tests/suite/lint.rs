//! What is hardly meant, and what is fine.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::{
    requests::{MatchExt as _, Request, any},
    rules::{gate, header, ip, policy, refusal, rule},
};
use proptest::prelude::*;
use tidegate_limiter::Outage;
use tidegate_policy::{
    Lint, lint,
    model::{Charge, Cost, Due, Enforcement, Key, Match, Part, Policy, Quotas, Route, Rule, Stores},
};
use tidegate_rule::Mode;

fn found(policy: &Policy) -> Vec<(String, Lint)> {
    lint(policy).into_iter().map(|advice| (advice.rule, advice.lint)).collect()
}

fn capture(name: &str) -> Key {
    Key::Part(Part::Capture(name.to_owned()))
}

#[test]
fn a_limit_behind_a_tighter_one_is_never_reached() {
    let all = || Rule { key: ip(), ..rule("all", &["10/min"]) };
    let login = |quota: &str| Rule { key: ip(), matching: any().path("/login"), ..rule("login", &[quota]) };
    let unreachable = |rules: Vec<Rule>| found(&policy(rules));
    let expected = vec![("login".to_owned(), Lint::Unreachable)];
    assert_eq!(unreachable(vec![all(), login("20/min")]), expected);
    assert_eq!(unreachable(vec![login("20/min"), all()]), expected);
    assert_eq!(
        unreachable(vec![all(), login("10/min")]),
        expected,
        "of two that are the same, the wider stays"
    );
    assert_eq!(unreachable(vec![login("10/min"), all()]), expected);
    let twice = vec![Rule { name: "first".to_owned(), ..login("10/min") }, login("10/min")];
    assert_eq!(unreachable(twice), expected, "and else the first");
    let together = Rule { key: Key::All, ..all() };
    assert_eq!(unreachable(vec![together, login("20/min")]), expected);
    let by_both = Rule { key: Key::Every(vec![header("x-user"), ip()]), ..login("20/min") };
    assert_eq!(unreachable(vec![all(), by_both]), expected);

    let either = any().or(any().path("/login")).or(any().path("/logout"));
    assert_eq!(unreachable(vec![Rule { matching: either, ..all() }, login("20/min")]), expected);

    let fine = [
        vec![Rule { matching: any().path("/login/**").or(any().method("PUT")), ..all() }, login("20/min")],
        vec![all(), login("5/min")],
        vec![all(), login("20/h")],
        vec![all(), login("100/min burst 5")],
        vec![all(), login("20/min fixed-window")],
        vec![Rule { key: header("x-user"), ..all() }, login("20/min")],
        vec![Rule { matching: any().method("GET"), ..all() }, login("20/min")],
        vec![Rule { matching: any().without(any().path("/login")), ..all() }, login("20/min")],
        vec![Rule { enforcement: Enforcement::All(Mode::Shadow), ..all() }, login("20/min")],
        vec![Rule { charge: Some(Charge::If(vec![Due::Hundred(4)])), ..all() }, login("20/min")],
        vec![all(), Rule { cost: Cost::Fixed(3), ..login("20/min") }],
    ];
    for rules in fine {
        assert_eq!(found(&policy(rules.clone())), [], "{rules:?}");
    }
    assert_eq!(found(&policy([rule("two", &["5/min", "9/min"])])), [("two".to_owned(), Lint::Unreachable)]);
    assert_eq!(found(&policy([rule("two", &["5/s", "100/min"])])), []);
}

#[test]
fn a_cost_that_is_never_granted_is_told() {
    let costs =
        |cost: Cost, quota: &str| !found(&policy([Rule { cost, ..rule("one", &[quota]) }])).is_empty();
    let header = |most| Cost::Found { part: Part::Header("x-cost".to_owned()), otherwise: 1, most };
    assert!(costs(Cost::Fixed(11), "100/min burst 10"));
    assert!(!costs(Cost::Fixed(10), "100/min burst 10"));
    assert!(costs(header(11), "10/min fixed-window"));
    assert!(!costs(header(10), "10/min fixed-window"));
    assert!(costs(Cost::Fixed(4), "3 at once"));
    assert!(!costs(Cost::Fixed(400), "3/s smooth"), "it is waited for");
}

#[test]
fn a_rule_that_nothing_matches_is_told() {
    let cases = [
        (any().path("/a/b").without(any().path("/a/**")), true),
        (any().path("/a").without(any().method("GET")), false),
        (any().path("/a/../b"), true),
        (any().host("b.test").path("/api/x"), true),
        (any().host("b.test"), false),
        (any().host("*.test").path("/api/x"), false),
        (any().path("/other"), true),
        (any().method("PUT").path("/api/x"), true),
        (
            Match { headers: [("x".to_owned(), tidegate_policy::model::Values(Vec::new()))].into(), ..any() },
            true,
        ),
        (any(), false),
    ];
    let route = Route::forward(any().host("a.test").path("/api/**").method("GET"), "app");
    let second = Route::forward(any().path("/a/**"), "app");
    for (matching, is_told) in cases {
        let rules = policy([Rule { matching: matching.clone(), ..rule("one", &["1/s"]) }]);
        let routed = Policy { routes: vec![route.clone(), second.clone()], ..rules };
        assert_eq!(found(&routed).contains(&("one".to_owned(), Lint::NeverMatches)), is_told, "{matching:?}");
    }
}

#[test]
fn a_login_is_not_left_open() {
    let stores =
        Stores { default: Some("redis://db".to_owned()), on_outage: Some(Outage::Open), ..Stores::default() };
    let login = Rule { matching: any().path("/api/Sign-In"), ..rule("one", &["5/min"]) };
    let said = |rule: Rule, stores: &Stores| found(&Policy { stores: stores.clone(), ..policy([rule]) });
    assert_eq!(said(login.clone(), &stores), [("one".to_owned(), Lint::OpenLogin)]);
    assert_eq!(said(Rule { on_outage: Some(Outage::Closed), ..login.clone() }, &stores), []);
    assert_eq!(said(rule("search", &["5/min"]), &stores), []);
    assert_eq!(
        said(rule("password-reset", &["5/min"]), &stores),
        [("password-reset".to_owned(), Lint::OpenLogin)]
    );
    let without = [(String::new(), Lint::WithoutEffect)];
    assert_eq!(said(login, &Stores { default: None, ..stores }), without, "memory is never away");
}

#[test]
fn a_key_that_requests_do_not_have_is_told() {
    let told = |key: Key, matching: Match| {
        let said = policy([Rule { key, matching, ..rule("one", &["5/min"]) }]);
        lint(&said).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(
        told(capture("id"), any().path("/users/{name}")),
        "rule `one`: none of its paths has a `{id}`; name a segment of its path so (key-not-carried)"
    );
    assert!(told(capture("id"), any().path("/users/{id}").path("/users")).contains("only some of its paths"));
    assert_eq!(told(capture("id"), any().path("/users/{id}").path("/a/{id**}")), "");
    assert!(told(Key::Part(Part::User), any()).contains("nothing says who the user is"));
    assert!(told(Key::Part(Part::Route), any()).contains("no path that could be its `route`"));
    let session = Key::Part(Part::Cookie("session".to_owned()));
    assert!(
        told(session.clone(), any().without(any().cookie("session", "*")))
            .contains("leaves out all requests")
    );
    assert_eq!(told(session, any().without(any().cookie("session", "*").path("/x"))), "");
    assert!(told(Key::First(vec![ip(), header("x-user")]), any()).contains("is never looked at"));
    assert_eq!(told(Key::First(vec![header("x-user"), ip()]), any()), "");
}

#[test]
fn rules_that_are_off_are_left_alone() {
    let off = Rule { enforcement: Enforcement::All(Mode::Off), ..rule("one", &["5/min", "9/min"]) };
    assert_eq!(found(&policy([off])), []);
    assert_eq!(found(&policy([Rule { quotas: Quotas::All(Vec::new()), ..rule("lists", &[]) }])), []);
}

fn matches() -> impl Strategy<Value = Match> {
    let path = prop_oneof![
        Just("/a"),
        Just("/{x}"),
        Just("/a/**"),
        Just("/*"),
        Just("/a*"),
        Just("/a/b"),
        Just("/**")
    ];
    let method = proptest::option::of(prop_oneof![Just("GET"), Just("POST")]);
    let host = proptest::option::of(prop_oneof![Just("a.test"), Just("*.test")]);
    let not = proptest::option::of(prop_oneof![Just("/a"), Just("/a/**"), Just("/b")]);
    (path, method, host, not).prop_map(|(path, method, host, not)| {
        let matching = method.map_or(any(), |method| any().method(method)).path(path);
        let matching = host.map_or(matching.clone(), |host| matching.host(host));
        not.map_or(matching.clone(), |not| matching.without(any().path(not)))
    })
}

fn requests() -> impl Strategy<Value = Request> {
    let path = prop_oneof![Just("/a"), Just("/b"), Just("/a/b"), Just("/ab"), Just("/a/b/c"), Just("/")];
    let method = prop_oneof![Just("GET"), Just("POST"), Just("PUT")];
    let host = prop_oneof![Just("a.test"), Just("b.test"), Just("")];
    (path, method, host).prop_map(|(path, method, host)| Request::of(&format!("{method} {host}{path}")))
}

proptest! {
    /// Without the rules that are said to be dead, everything is decided as before.
    #[test]
    fn what_is_found_is_so(
        rules in proptest::collection::vec((matches(), 1..4_u64), 2..5),
        requests in proptest::collection::vec(requests(), 1..40),
    ) {
        let rules = rules.into_iter().enumerate().map(|(place, (matching, limit))| Rule {
            matching, ..rule(&format!("rule-{place}"), &[&format!("{limit}/min")])
        });
        let policy = policy(rules);
        let dead = found(&policy);
        let alive = Policy {
            rules: policy.rules.iter().filter(|rule| !dead.iter().any(|(name, _)| *name == rule.name)).cloned().collect(),
            ..Policy::default()
        };
        let (with, without) = (gate(&policy), gate(&alive));
        for request in &requests {
            prop_assert_eq!(
                refusal(&with, request).is_some(), refusal(&without, request).is_some(), "{:?}", request
            );
        }
    }
}
