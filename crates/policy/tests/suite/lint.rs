//! Policies with likely mistakes, and policies without.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::{
    requests::{MatchExt as _, PolicyTestRequest, any_request},
    rules::{gate, header, ip, policy, rejection, rule},
};
use proptest::prelude::*;
use tidegate_limiter::FailureMode;
use tidegate_policy::{
    Lint, lint,
    model::{
        ChargeSpec, CostSpec, KeyPart, KeySpec, Match, Policy, Quotas, RouteSpec, RuleEnforcement, RuleSpec,
        StatusPattern, Stores,
    },
};
use tidegate_rule::Mode;

fn run_lint(policy: &Policy) -> Vec<(String, Lint)> {
    lint(policy).into_iter().map(|warning| (warning.rule, warning.lint)).collect()
}

fn capture(name: &str) -> KeySpec {
    KeySpec::Part(KeyPart::Capture(name.to_owned()))
}

#[test]
fn total_by_keys_without_bound_is_reported() {
    let trial =
        |key: KeySpec, quotas: &[&str]| run_lint(&policy(vec![RuleSpec { key, ..rule("trial", quotas) }]));
    let expected = [("trial".to_owned(), Lint::KeysNeverExpire)];
    assert_eq!(trial(ip(), &["10 total"]), expected);
    assert_eq!(trial(KeySpec::First(vec![header("x-user"), ip()]), &["5/min", "10 total"]), expected);
    assert_eq!(trial(header("x-user"), &["10 total"]), []);
    assert_eq!(trial(KeySpec::All, &["10 total"]), []);
    assert_eq!(trial(ip(), &["10/w"]), []);
}

#[test]
fn quotas_with_other_starts_or_time_zones_are_not_redundant() {
    let lints = |quotas: &[&str]| run_lint(&policy(vec![RuleSpec { key: ip(), ..rule("api", quotas) }]));
    let expected = [("api".to_owned(), Lint::Unreachable)];
    assert_eq!(lints(&["10/min initial 5", "20/min"]), expected);
    assert_eq!(lints(&["10/min", "20/min initial 5"]), []);
    assert_eq!(lints(&["10/d fixed-window in UTC", "20/d fixed-window in UTC"]), expected);
    assert_eq!(lints(&["10/d fixed-window in UTC", "20/d fixed-window in Asia/Shanghai"]), []);
    assert_eq!(lints(&["10/min fixed-window", "10/min fixed-window from-first-hit"]), []);
    assert_eq!(lints(&["10/min sliding-strict 60", "10/min sliding-strict 10"]), []);
    assert_eq!(lints(&["3 at once lease 1min", "3 at once lease 1h"]), []);
    assert_eq!(lints(&["3 at once", "3 at once lease 1h"]), expected);
}

#[test]
fn limit_behind_tighter_one_is_unreachable() {
    let all = || RuleSpec { key: ip(), ..rule("all", &["10/min"]) };
    let login = |quota: &str| RuleSpec {
        key: ip(),
        matching: any_request().path("/login"),
        ..rule("login", &[quota])
    };
    let unreachable = |rules: Vec<RuleSpec>| run_lint(&policy(rules));
    let expected = vec![("login".to_owned(), Lint::Unreachable)];
    assert_eq!(unreachable(vec![all(), login("20/min")]), expected);
    assert_eq!(unreachable(vec![login("20/min"), all()]), expected);
    assert_eq!(
        unreachable(vec![all(), login("10/min")]),
        expected,
        "of two equal quotas, the narrower rule is reported"
    );
    assert_eq!(unreachable(vec![login("10/min"), all()]), expected);
    let twice = vec![RuleSpec { name: "first".to_owned(), ..login("10/min") }, login("10/min")];
    assert_eq!(unreachable(twice), expected, "of two equal rules, the second is reported");
    let together = RuleSpec { key: KeySpec::All, ..all() };
    assert_eq!(unreachable(vec![together, login("20/min")]), expected);
    let by_both = RuleSpec { key: KeySpec::Composite(vec![header("x-user"), ip()]), ..login("20/min") };
    assert_eq!(unreachable(vec![all(), by_both]), expected);

    let either = any_request().or(any_request().path("/login")).or(any_request().path("/logout"));
    assert_eq!(unreachable(vec![RuleSpec { matching: either, ..all() }, login("20/min")]), expected);

    let fine = [
        vec![
            RuleSpec { matching: any_request().path("/login/**").or(any_request().method("PUT")), ..all() },
            login("20/min"),
        ],
        vec![all(), login("5/min")],
        vec![all(), login("20/h")],
        vec![all(), login("100/min burst 5")],
        vec![all(), login("20/min fixed-window")],
        vec![RuleSpec { key: header("x-user"), ..all() }, login("20/min")],
        vec![RuleSpec { matching: any_request().method("GET"), ..all() }, login("20/min")],
        vec![
            RuleSpec { matching: any_request().without(any_request().path("/login")), ..all() },
            login("20/min"),
        ],
        vec![RuleSpec { enforcement: RuleEnforcement::All(Mode::Shadow), ..all() }, login("20/min")],
        vec![
            RuleSpec { charge: Some(ChargeSpec::If(vec![StatusPattern::Class(4)])), ..all() },
            login("20/min"),
        ],
        vec![all(), RuleSpec { cost: CostSpec::Fixed(3), ..login("20/min") }],
    ];
    for rules in fine {
        assert_eq!(run_lint(&policy(rules.clone())), [], "{rules:?}");
    }
    assert_eq!(
        run_lint(&policy([rule("two", &["5/min", "9/min"])])),
        [("two".to_owned(), Lint::Unreachable)]
    );
    assert_eq!(run_lint(&policy([rule("two", &["5/s", "100/min"])])), []);
}

#[test]
fn cost_over_burst_is_reported() {
    let costs = |cost: CostSpec, quota: &str| {
        !run_lint(&policy([RuleSpec { cost, ..rule("one", &[quota]) }])).is_empty()
    };
    let header = |max| CostSpec::FromRequest {
        from: KeySpec::Part(KeyPart::Header("x-cost".to_owned())),
        default: 1,
        max,
    };
    assert!(costs(CostSpec::Fixed(11), "100/min burst 10"));
    assert!(!costs(CostSpec::Fixed(10), "100/min burst 10"));
    assert!(costs(header(11), "10/min fixed-window"));
    assert!(!costs(header(10), "10/min fixed-window"));
    assert!(costs(CostSpec::Fixed(4), "3 at once"));
    assert!(!costs(CostSpec::Fixed(400), "3/s smooth"), "a request waits for it");
}

#[test]
fn rule_that_never_matches_is_reported() {
    let cases = [
        (any_request().path("/a/b").without(any_request().path("/a/**")), true),
        (any_request().path("/a").without(any_request().method("GET")), false),
        (any_request().path("/a/../b"), true),
        (any_request().host("b.test").path("/api/x"), true),
        (any_request().host("b.test"), false),
        (any_request().host("*.test").path("/api/x"), false),
        (any_request().path("/other"), true),
        (any_request().method("PUT").path("/api/x"), true),
        (
            Match {
                headers: [("x".to_owned(), tidegate_policy::model::ValueGlobs(Vec::new()))].into(),
                ..any_request()
            },
            true,
        ),
        (any_request(), false),
    ];
    let route = RouteSpec::forward(any_request().host("a.test").path("/api/**").method("GET"), "app");
    let second = RouteSpec::forward(any_request().path("/a/**"), "app");
    for (matching, is_reported) in cases {
        let rules = policy([RuleSpec { matching: matching.clone(), ..rule("one", &["1/s"]) }]);
        let routed = Policy { routes: vec![route.clone(), second.clone()], ..rules };
        assert_eq!(
            run_lint(&routed).contains(&("one".to_owned(), Lint::NeverMatches)),
            is_reported,
            "{matching:?}"
        );
    }
}

#[test]
fn open_login_is_reported() {
    let stores = Stores {
        default: Some("redis://db".to_owned()),
        failure_mode: Some(FailureMode::Open),
        ..Stores::default()
    };
    let login = RuleSpec { matching: any_request().path("/api/Sign-In"), ..rule("one", &["5/min"]) };
    let lints_of =
        |rule: RuleSpec, stores: &Stores| run_lint(&Policy { stores: stores.clone(), ..policy([rule]) });
    assert_eq!(lints_of(login.clone(), &stores), [("one".to_owned(), Lint::OpenLogin)]);
    assert_eq!(lints_of(RuleSpec { failure_mode: Some(FailureMode::Closed), ..login.clone() }, &stores), []);
    assert_eq!(lints_of(rule("search", &["5/min"]), &stores), []);
    assert_eq!(
        lints_of(rule("password-reset", &["5/min"]), &stores),
        [("password-reset".to_owned(), Lint::OpenLogin)]
    );
    let without = [(String::new(), Lint::WithoutEffect)];
    assert_eq!(lints_of(login, &Stores { default: None, ..stores }), without, "memory is never unavailable");
}

#[test]
fn key_missing_in_requests_is_reported() {
    let warnings = |key: KeySpec, matching: Match| {
        let policy = policy([RuleSpec { key, matching, ..rule("one", &["5/min"]) }]);
        lint(&policy).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(
        warnings(capture("id"), any_request().path("/users/{name}")),
        "rule `one`: none of its paths has `{id}`; add it to the path (key-not-carried)"
    );
    assert!(
        warnings(capture("id"), any_request().path("/users/{id}").path("/users"))
            .contains("only some of its paths")
    );
    assert_eq!(warnings(capture("id"), any_request().path("/users/{id}").path("/a/{id**}")), "");
    assert!(warnings(KeySpec::Part(KeyPart::User), any_request()).contains("does not define `user`"));
    assert!(warnings(KeySpec::Part(KeyPart::Route), any_request()).contains("`route` needs a path"));
    let session = KeySpec::Part(KeyPart::Cookie("session".to_owned()));
    assert!(
        warnings(session.clone(), any_request().without(any_request().cookie("session", "*")))
            .contains("excludes all requests")
    );
    assert_eq!(warnings(session, any_request().without(any_request().cookie("session", "*").path("/x"))), "");
    assert!(warnings(KeySpec::First(vec![ip(), header("x-user")]), any_request()).contains("are never used"));
    assert_eq!(warnings(KeySpec::First(vec![header("x-user"), ip()]), any_request()), "");
}

#[test]
fn disabled_rules_are_not_linted() {
    let off = RuleSpec { enforcement: RuleEnforcement::All(Mode::Off), ..rule("one", &["5/min", "9/min"]) };
    assert_eq!(run_lint(&policy([off])), []);
    assert_eq!(run_lint(&policy([RuleSpec { quotas: Quotas::All(Vec::new()), ..rule("lists", &[]) }])), []);
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
        let matching = method.map_or(any_request(), |method| any_request().method(method)).path(path);
        let matching = host.map_or(matching.clone(), |host| matching.host(host));
        not.map_or(matching.clone(), |not| matching.without(any_request().path(not)))
    })
}

fn requests() -> impl Strategy<Value = PolicyTestRequest> {
    let path = prop_oneof![Just("/a"), Just("/b"), Just("/a/b"), Just("/ab"), Just("/a/b/c"), Just("/")];
    let method = prop_oneof![Just("GET"), Just("POST"), Just("PUT")];
    let host = prop_oneof![Just("a.test"), Just("b.test"), Just("")];
    (path, method, host)
        .prop_map(|(path, method, host)| PolicyTestRequest::new(&format!("{method} {host}{path}")))
}

proptest! {
    /// Removing the rules that are reported as unreachable changes no decision.
    #[test]
    fn removing_unreachable_rules_changes_nothing(
        rules in proptest::collection::vec((matches(), 1..4_u64), 2..5),
        requests in proptest::collection::vec(requests(), 1..40),
    ) {
        let rules = rules.into_iter().enumerate().map(|(index, (matching, limit))| RuleSpec {
            matching, ..rule(&format!("rule-{index}"), &[&format!("{limit}/min")])
        });
        let policy = policy(rules);
        let dead = run_lint(&policy);
        let alive = Policy {
            rules: policy.rules.iter().filter(|rule| !dead.iter().any(|(name, _)| *name == rule.name)).cloned().collect(),
            ..Policy::default()
        };
        let (with, without) = (gate(&policy), gate(&alive));
        for request in &requests {
            prop_assert_eq!(
                rejection(&with, request).is_some(), rejection(&without, request).is_some(), "{:?}", request
            );
        }
    }
}
