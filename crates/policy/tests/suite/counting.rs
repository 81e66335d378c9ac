//! Keys, costs, tiers and charges.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::{
    requests::{MatchExt as _, PolicyTestRequest, any_request},
    rules::{count_admitted, expect_ready, gate, header, ip, policy, rejecting_rule, rejection, rule},
};
use tidegate_core::Percent;
use tidegate_policy::{
    compile::{Compiler, PolicyResult, RejectAction, RejectReason},
    model::{
        BandwidthSpec, ChargeSpec, CostSpec, Expression, KeyPart, KeySpec, Policy, Quotas, RuleEnforcement,
        RuleSpec, SettleSource, SettleSpec, StatusPattern, Tiers,
    },
};
use tidegate_rule::{
    Rules,
    request::{MissingKey, ResponseHead},
};

struct TestResponse(u16, Option<&'static str>);

impl ResponseHead for TestResponse {
    fn status(&self) -> u16 {
        self.0
    }
    fn header(&self, _: &str) -> Option<&[u8]> {
        self.1.map(str::as_bytes)
    }
}

#[test]
fn matching_rules_count_requests() {
    let gate = gate(&policy([
        RuleSpec { key: ip(), ..rule("everybody", &["4/min"]) },
        RuleSpec {
            key: ip(),
            matching: any_request().method("POST").path("/login"),
            ..rule("login", &["2/min"])
        },
    ]));
    let (page, login) = (PolicyTestRequest::new("GET /page"), PolicyTestRequest::new("POST //%6Cogin/;x"));
    assert_eq!([rejecting_rule(&gate, &login), rejecting_rule(&gate, &login)], ["", ""]);
    assert_eq!(rejecting_rule(&gate, &login), "login");
    // A request that one rule denies is not charged by the others.
    assert_eq!([rejecting_rule(&gate, &page), rejecting_rule(&gate, &page)], ["", ""]);
    assert_eq!(rejecting_rule(&gate, &page), "everybody");
    let rejection = rejection(&gate, &login).unwrap();
    assert_eq!((&*rejection.rule, rejection.reason), ("login", RejectReason::Limited), "the longer wait");
    let RejectAction::Response(answer) = rejection.action else { panic!("expected a response") };
    assert_eq!((answer.status(), answer.header("retry-after").as_deref()), (429, Some("30")));
    assert_eq!(rejecting_rule(&gate, &page.clone().with_peer("192.0.2.2")), "");
}

/// For each key: whether two requests have different values.
#[test]
fn keys_are_read_from_their_source() {
    let part = |part: KeyPart| KeySpec::Part(part);
    let cel = |text: &str| KeySpec::Part(KeyPart::Cel(Expression(text.into())));
    let plain = PolicyTestRequest::new("GET a.test/users/7/x?q=1")
        .with_header("x-user", "ann")
        .with_header("cookie", "s=1");
    let (user, x_user) = (part(KeyPart::User), header("x-user"));
    let cases = [
        (KeySpec::All, PolicyTestRequest::new("GET b.test/users/8/y"), false),
        (ip(), plain.clone().with_peer("192.0.2.99"), true),
        (part(KeyPart::Method), PolicyTestRequest { method: "PUT".to_owned(), ..plain.clone() }, true),
        (
            part(KeyPart::Host),
            PolicyTestRequest { host: Some("A.TEST:80".to_owned()), ..plain.clone() },
            false,
        ),
        (part(KeyPart::Path), PolicyTestRequest { path: "/users/%37/x".to_owned(), ..plain.clone() }, true),
        (part(KeyPart::Route), PolicyTestRequest { path: "/users/8/z".to_owned(), ..plain.clone() }, false),
        (part(KeyPart::Route), PolicyTestRequest { path: "/other".to_owned(), ..plain.clone() }, true),
        (
            part(KeyPart::Capture("id".to_owned())),
            PolicyTestRequest { path: "/users/%37;v/x".to_owned(), ..plain.clone() },
            false,
        ),
        (
            part(KeyPart::Capture("id".to_owned())),
            PolicyTestRequest { path: "/users/8/x".to_owned(), ..plain.clone() },
            true,
        ),
        (
            part(KeyPart::Query("q".to_owned())),
            PolicyTestRequest { query: Some("q=2".to_owned()), ..plain.clone() },
            true,
        ),
        (
            part(KeyPart::Query("q".to_owned())),
            PolicyTestRequest { query: Some("a&q=%31".to_owned()), ..plain.clone() },
            false,
        ),
        (
            part(KeyPart::Cookie("s".to_owned())),
            PolicyTestRequest { headers: Vec::new(), ..plain.clone() },
            true,
        ),
        (user.clone(), PolicyTestRequest { path: "/users/9/x".to_owned(), ..plain.clone() }, false),
        (KeySpec::Composite(vec![user.clone(), ip()]), plain.clone().with_peer("192.0.2.99"), true),
        (KeySpec::First(vec![header("x-none"), x_user, ip()]), plain.clone().with_peer("192.0.2.99"), false),
        (
            cel("request.path.split('/')[1]"),
            PolicyTestRequest { path: "/users/9".to_owned(), ..plain.clone() },
            false,
        ),
        (
            cel("request.path.split('/')[2]"),
            PolicyTestRequest { path: "/users/9".to_owned(), ..plain.clone() },
            true,
        ),
        (
            cel("size(request.path)"),
            PolicyTestRequest { path: "/users/8/y".to_owned(), ..plain.clone() },
            false,
        ),
    ];
    for (key, other, differs) in cases {
        let spec = RuleSpec { key, ..rule("one", &["1/min"]) };
        let spec = RuleSpec { matching: any_request().path("/users/{id}/**").path("/{rest**}"), ..spec };
        let policy = Policy { user: Some(header("x-user")), ..policy([spec.clone()]) };
        let gate = gate(&policy);
        assert_eq!(rejecting_rule(&gate, &plain), "");
        assert_eq!(rejecting_rule(&gate, &plain), "one");
        assert_eq!(rejecting_rule(&gate, &other).is_empty(), differs, "{:?} {other:?}", spec.key);
    }
}

#[test]
fn missing_key_is_shared_skipped_or_rejected() {
    let gate_of =
        |missing| gate(&policy([RuleSpec { key: header("x-user"), missing, ..rule("one", &["1/min"]) }]));
    let request = PolicyTestRequest::new("GET /");
    assert_eq!(count_admitted(&gate_of(MissingKey::Shared), &request), 1);
    assert_eq!(count_admitted(&gate_of(MissingKey::Skip), &request), 10);
    let rejected = rejection(&gate_of(MissingKey::Reject), &request).unwrap();
    assert_eq!(rejected.reason, RejectReason::NoKey);
    assert!(matches!(rejected.action, RejectAction::Response(answer) if answer.status() == 400));
}

#[test]
fn per_request_quota_is_rejected() {
    let spec = policy([RuleSpec { key: KeySpec::Part(KeyPart::Request), ..rule("one", &["1/min"]) }]);
    let error = Compiler::new(Rules::new()).compile(&spec, None).unwrap_err().to_string();
    assert!(error.contains("quota with the key `request` limits nothing"), "{error}");
    let rates = BandwidthSpec { down: Some("1kB/s".parse().unwrap()), up: None };
    let spec = policy([RuleSpec {
        key: KeySpec::Part(KeyPart::Request),
        bandwidth: Some(rates),
        ..rule("one", &[])
    }]);
    let gate = gate(&spec);
    let rates = || match expect_ready(gate.check(&PolicyTestRequest::new("GET /"))) {
        PolicyResult::Admitted(admission) => admission.response_rates().to_vec(),
        PolicyResult::Rejected(rejection) => panic!("{rejection:?}"),
    };
    assert_eq!((rates().len(), rates().len()), (1, 1));
}

#[test]
fn cost_is_fixed_or_read_from_request() {
    let costs = |cost: CostSpec| gate(&policy([RuleSpec { cost, ..rule("one", &["10/min burst 10"]) }]));
    let from = || KeySpec::Part(KeyPart::Header("x-cost".to_owned()));
    let found = || CostSpec::FromRequest { from: from(), default: 2, max: 5 };
    assert_eq!(count_admitted(&costs(CostSpec::Fixed(3)), &PolicyTestRequest::new("GET /")), 3);
    let cases =
        [(None, 5), (Some("1"), 10), (Some("5"), 2), (Some("900"), 2), (Some("-1"), 5), (Some("0"), 10)];
    for (cost, count) in cases {
        let request = PolicyTestRequest::new("GET /");
        let request = cost.map_or(request.clone(), |cost| request.with_header("x-cost", cost));
        assert_eq!(count_admitted(&costs(found()), &request), count, "{cost:?}");
    }
}

#[test]
fn tier_is_selected_by_request() {
    let tiers = Tiers {
        key: header("x-plan"),
        quotas: vec![
            ("gold".to_owned(), "5/min".parse().unwrap()),
            ("free".to_owned(), "2/min".parse().unwrap()),
        ],
        default: "1/min".parse().unwrap(),
    };
    let gate = gate(&policy([RuleSpec { key: ip(), quotas: Quotas::Tiers(tiers), ..rule("plans", &[]) }]));
    for (last, plan, count) in [(1, "gold", 5), (2, "free", 2), (3, "platinum", 1), (4, "", 1)] {
        let request =
            PolicyTestRequest::new("GET /").with_peer(&format!("192.0.2.{last}")).with_header("x-plan", plan);
        assert_eq!(count_admitted(&gate, &request), count, "{plan}");
    }
}

#[test]
fn charge_depends_on_response() {
    let settled = |charge: Option<ChargeSpec>, settle: Option<SettleSpec>, reply: TestResponse| {
        let gate = gate(&policy([RuleSpec { charge, settle, ..rule("one", &["3/min"]) }]));
        let PolicyResult::Admitted(admission) =
            expect_ready(gate.check(&PolicyTestRequest::new("POST /login")))
        else {
            panic!("expected an admission")
        };
        drop(admission.settle(&reply));
        3 - count_admitted(&gate, &PolicyTestRequest::new("POST /login"))
    };
    let charged = |charge: ChargeSpec, reply: TestResponse| settled(Some(charge), None, reply);
    let failed = || ChargeSpec::If(vec![StatusPattern::Status(401), StatusPattern::Class(5)]);
    assert_eq!(charged(failed(), TestResponse(200, None)), 0);
    assert_eq!(
        [charged(failed(), TestResponse(401, None)), charged(failed(), TestResponse(503, None))],
        [1, 1]
    );
    assert_eq!(charged(ChargeSpec::Unless(vec![StatusPattern::Class(500)]), TestResponse(502, None)), 0);
    assert_eq!(charged(ChargeSpec::Unless(vec![StatusPattern::Class(500)]), TestResponse(404, None)), 1);
    let by_header = |max_debt| SettleSpec { source: SettleSource::Header("x-cost".to_owned()), max_debt };
    assert_eq!(settled(None, Some(by_header(None)), TestResponse(200, Some("2"))), 2);
    assert_eq!(settled(None, Some(by_header(None)), TestResponse(200, Some("many"))), 1);
    assert_eq!(settled(None, Some(by_header(Some(1))), TestResponse(200, Some("3"))), 2);
    assert_eq!(settled(None, Some(by_header(Some(0))), TestResponse(200, Some("3"))), 1);
    assert_eq!(settled(None, Some(by_header(Some(0))), TestResponse(200, Some("0"))), 0);
    // The condition applies first.
    let refund = || ChargeSpec::Unless(vec![StatusPattern::Class(5)]);
    assert_eq!(settled(Some(refund()), Some(by_header(None)), TestResponse(502, Some("2"))), 0);
    assert_eq!(settled(Some(refund()), Some(by_header(None)), TestResponse(200, Some("2"))), 2);
}

#[test]
fn percentage_mode_enforces_a_share_of_keys() {
    let part = RuleEnforcement::Percent(Percent::new(30.0).unwrap());
    let gate = gate(&policy([RuleSpec { key: ip(), enforcement: part, ..rule("new", &["1/min"]) }]));
    let limited = |last: u32| {
        let request = PolicyTestRequest::new("GET /").with_peer(&format!("192.0.2.{last}"));
        count_admitted(&gate, &request) == 1
    };
    let chosen: Vec<_> = (0..100).filter(|last| limited(*last)).collect();
    assert!((15..45).contains(&chosen.len()), "{chosen:?}");
    let expected: Vec<_> = (0..100_u32)
        .filter(|last| {
            tidegate_rule::is_in_rollout("new", &format!("192.0.2.{last}"), Percent::new(30.0).unwrap())
        })
        .collect();
    assert_eq!(chosen, expected);
}

#[test]
fn failing_expressions_are_counted() {
    let user = KeySpec::Part(KeyPart::Cel(Expression("request.headers['x-user']".into())));
    let gate = gate(&policy([
        RuleSpec { key: user, ..rule("key", &["9/min"]) },
        RuleSpec { matching: any_request().when("request.size / 0 > 1"), ..rule("when", &["9/min"]) },
        rule("plain", &["9/min"]),
    ]));
    rejecting_rule(&gate, &PolicyTestRequest::new("GET /").with_header("x-user", "ann"));
    rejecting_rule(&gate, &PolicyTestRequest::new("GET /"));
    let failures: Vec<_> =
        gate.expression_failures().map(|(part, failures)| (part.to_string(), failures)).collect();
    assert_eq!(failures, [("rule `key`".to_owned(), 1), ("rule `when`".to_owned(), 2)]);
}

#[test]
fn single_ip_rule_keeps_fast_path() {
    let plain = policy([RuleSpec { key: ip(), ..rule("one", &["1/min"]) }]);
    let peer = || Some(std::net::IpAddr::from([192, 0, 2, 1]));
    assert!(gate(&plain).gate().peer_key(peer).is_some());
    let behind = Policy { trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()], ..plain };
    assert!(gate(&behind).gate().peer_key(peer).is_none());
    let forwarded =
        PolicyTestRequest::new("GET /").with_peer("10.0.0.1").with_header("x-forwarded-for", "203.0.113.7");
    let behind = gate(&behind);
    assert_eq!(rejecting_rule(&behind, &forwarded), "");
    assert_eq!(
        rejecting_rule(&behind, &PolicyTestRequest::new("GET /").with_peer("203.0.113.7")),
        "one",
        "the same client"
    );
}

#[test]
fn compile_reports_all_problems() {
    let spec = policy([
        RuleSpec { key: KeySpec::Part(KeyPart::User), ..rule("user", &["1/min"]) },
        RuleSpec { key: KeySpec::Part(KeyPart::Capture("id".to_owned())), ..rule("capture", &["1/min"]) },
        RuleSpec { matching: any_request().when("size ("), ..rule("when", &["1/min"]) },
        RuleSpec { matching: any_request().client("internal"), ..rule("list", &["1/min"]) },
        rule("fine", &["1/min"]),
        rule("fine", &[]),
    ]);
    let error = Compiler::new(Rules::new()).compile(&spec, None).unwrap_err();
    let message = error.to_string();
    let lines: Vec<_> = message.lines().collect();
    assert_eq!(lines.len(), 5, "{message}");
    assert_eq!(lines[4], "rule `fine`: duplicate rule name; rename one of the rules");
    assert_eq!(
        lines[0],
        "rule `user`: the policy does not define `user`; define it, as in `user: header x-user`"
    );
    assert_eq!(lines[1], "rule `capture`: no path captures `id`; add `{id}` to the path of its `match`");
    assert!(lines[2].starts_with("rule `when`: invalid expression `size (`"), "{}", lines[2]);
    assert_eq!(lines[3], "rule `list`: unknown list `internal`; use one of all");
    let other_store = policy([RuleSpec { store: Some("far".to_owned()), ..rule("one", &["1/min"]) }]);
    let error = Compiler::new(Rules::new()).compile(&other_store, None).unwrap_err();
    assert!(error.to_string().contains("rule `one`: unknown store `far`"), "{error}");
}
