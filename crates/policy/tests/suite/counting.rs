//! For whom requests are counted, at what cost, and of which tier.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::{
    requests::{MatchExt as _, Request, any},
    rules::{admitted, gate, header, ip, now, policy, refusal, refuser, rule},
};
use tidegate_core::Share;
use tidegate_policy::{
    compile::{Compiler, DenyReason, PolicyResult, RejectAction},
    model::{Bandwidth, Charge, Cost, Due, Enforcement, Expression, Key, Part, Policy, Quotas, Rule, Tiers},
};
use tidegate_rule::{
    Rules,
    request::{Missing, Reply},
};

struct Status(u16, Option<&'static str>);

impl Reply for Status {
    fn status(&self) -> u16 {
        self.0
    }
    fn header(&self, _: &str) -> Option<&[u8]> {
        self.1.map(str::as_bytes)
    }
}

#[test]
fn requests_are_counted_by_what_they_are_about() {
    let gate = gate(&policy([
        Rule { key: ip(), ..rule("everybody", &["4/min"]) },
        Rule { key: ip(), matching: any().method("POST").path("/login"), ..rule("login", &["2/min"]) },
    ]));
    let (page, login) = (Request::of("GET /page"), Request::of("POST //%6Cogin/;x"));
    assert_eq!([refuser(&gate, &login), refuser(&gate, &login)], ["", ""]);
    assert_eq!(refuser(&gate, &login), "login");
    // What one refuses, the others have not been charged for.
    assert_eq!([refuser(&gate, &page), refuser(&gate, &page)], ["", ""]);
    assert_eq!(refuser(&gate, &page), "everybody");
    let refusal = refusal(&gate, &login).unwrap();
    assert_eq!((&*refusal.rule, refusal.reason), ("login", DenyReason::Limited), "the longer wait");
    let RejectAction::Answer(answer) = refusal.action else { panic!("an answer") };
    assert_eq!((answer.status, answer.get("retry-after")), (429, Some("30")));
    assert_eq!(refuser(&gate, &page.clone().from("192.0.2.2")), "");
}

/// A rule with this key tells two requests apart, or it does not.
#[test]
fn keys_are_found_where_the_policy_says() {
    let part = |part: Part| Key::Part(part);
    let cel = |text: &str| Key::Part(Part::Cel(Expression(text.into())));
    let plain = Request::of("GET a.test/users/7/x?q=1").header("x-user", "ann").header("cookie", "s=1");
    let (user, x_user) = (part(Part::User), header("x-user"));
    let cases = [
        (Key::All, Request::of("GET b.test/users/8/y"), false),
        (ip(), plain.clone().from("192.0.2.99"), true),
        (part(Part::Method), Request { method: "PUT".to_owned(), ..plain.clone() }, true),
        (part(Part::Host), Request { host: Some("A.TEST:80".to_owned()), ..plain.clone() }, false),
        (part(Part::Path), Request { path: "/users/%37/x".to_owned(), ..plain.clone() }, true),
        (part(Part::Route), Request { path: "/users/8/z".to_owned(), ..plain.clone() }, false),
        (part(Part::Route), Request { path: "/other".to_owned(), ..plain.clone() }, true),
        (
            part(Part::Capture("id".to_owned())),
            Request { path: "/users/%37;v/x".to_owned(), ..plain.clone() },
            false,
        ),
        (
            part(Part::Capture("id".to_owned())),
            Request { path: "/users/8/x".to_owned(), ..plain.clone() },
            true,
        ),
        (part(Part::Query("q".to_owned())), Request { query: Some("q=2".to_owned()), ..plain.clone() }, true),
        (
            part(Part::Query("q".to_owned())),
            Request { query: Some("a&q=%31".to_owned()), ..plain.clone() },
            false,
        ),
        (part(Part::Cookie("s".to_owned())), Request { headers: Vec::new(), ..plain.clone() }, true),
        (user.clone(), Request { path: "/users/9/x".to_owned(), ..plain.clone() }, false),
        (Key::Every(vec![user.clone(), ip()]), plain.clone().from("192.0.2.99"), true),
        (Key::First(vec![header("x-none"), x_user, ip()]), plain.clone().from("192.0.2.99"), false),
        (cel("request.path.split('/')[1]"), Request { path: "/users/9".to_owned(), ..plain.clone() }, false),
        (cel("request.path.split('/')[2]"), Request { path: "/users/9".to_owned(), ..plain.clone() }, true),
        (cel("size(request.path)"), Request { path: "/users/8/y".to_owned(), ..plain.clone() }, false),
    ];
    for (key, other, differs) in cases {
        let said = Rule { key, ..rule("one", &["1/min"]) };
        let said = Rule { matching: any().path("/users/{id}/**").path("/{rest**}"), ..said };
        let policy = Policy { user: Some(header("x-user")), ..policy([said.clone()]) };
        let gate = gate(&policy);
        assert_eq!(refuser(&gate, &plain), "");
        assert_eq!(refuser(&gate, &plain), "one");
        assert_eq!(refuser(&gate, &other).is_empty(), differs, "{:?} {other:?}", said.key);
    }
}

#[test]
fn a_request_without_a_key_shares_one_or_is_let_through_or_refused() {
    let gate_of =
        |missing| gate(&policy([Rule { key: header("x-user"), missing, ..rule("one", &["1/min"]) }]));
    let request = Request::of("GET /");
    assert_eq!(admitted(&gate_of(Missing::Share), &request), 1);
    assert_eq!(admitted(&gate_of(Missing::Skip), &request), 10);
    let refused = refusal(&gate_of(Missing::Refuse), &request).unwrap();
    assert_eq!(refused.reason, DenyReason::NoKey);
    assert!(matches!(refused.action, RejectAction::Answer(answer) if answer.status == 400));
}

#[test]
fn a_quota_for_each_request_limits_nothing() {
    let said = policy([Rule { key: Key::Part(Part::Request), ..rule("one", &["1/min"]) }]);
    let error = Compiler::new(Rules::new()).compile(&said, None).unwrap_err().to_string();
    assert!(error.contains("a quota that each request has for itself limits nothing"), "{error}");
    let rates = Bandwidth { down: Some("1kB/s".parse().unwrap()), up: None };
    let said = policy([Rule { key: Key::Part(Part::Request), bandwidth: Some(rates), ..rule("one", &[]) }]);
    let gate = gate(&said);
    let taken = || match now(gate.check(&Request::of("GET /"))) {
        PolicyResult::Admitted(admission) => admission.down().to_vec(),
        PolicyResult::Refused(refusal) => panic!("{refusal:?}"),
    };
    assert_eq!((taken().len(), taken().len()), (1, 1));
}

#[test]
fn requests_cost_what_the_policy_says() {
    let costs = |cost: Cost| gate(&policy([Rule { cost, ..rule("one", &["10/min burst 10"]) }]));
    let found = || Cost::Found { part: Part::Header("x-cost".to_owned()), otherwise: 2, most: 5 };
    assert_eq!(admitted(&costs(Cost::Fixed(3)), &Request::of("GET /")), 3);
    let cases =
        [(None, 5), (Some("1"), 10), (Some("5"), 2), (Some("900"), 2), (Some("-1"), 5), (Some("0"), 10)];
    for (cost, count) in cases {
        let request = Request::of("GET /");
        let request = cost.map_or(request.clone(), |cost| request.header("x-cost", cost));
        assert_eq!(admitted(&costs(found()), &request), count, "{cost:?}");
    }
}

#[test]
fn tiers_are_those_that_a_request_names() {
    let tiers = Tiers {
        by: header("x-plan"),
        each: vec![
            ("gold".to_owned(), "5/min".parse().unwrap()),
            ("free".to_owned(), "2/min".parse().unwrap()),
        ],
        otherwise: "1/min".parse().unwrap(),
    };
    let gate = gate(&policy([Rule { key: ip(), quotas: Quotas::Tiers(tiers), ..rule("plans", &[]) }]));
    for (last, plan, count) in [(1, "gold", 5), (2, "free", 2), (3, "platinum", 1), (4, "", 1)] {
        let request = Request::of("GET /").from(&format!("192.0.2.{last}")).header("x-plan", plan);
        assert_eq!(admitted(&gate, &request), count, "{plan}");
    }
}

#[test]
fn what_is_paid_depends_on_the_answer() {
    let paid = |charge: Charge, reply: Status| {
        let gate = gate(&policy([Rule { charge: Some(charge), ..rule("one", &["3/min"]) }]));
        let PolicyResult::Admitted(admission) = now(gate.check(&Request::of("POST /login"))) else {
            panic!("let through")
        };
        drop(admission.settle(&reply));
        3 - admitted(&gate, &Request::of("POST /login"))
    };
    let failed = || Charge::If(vec![Due::Status(401), Due::Hundred(5)]);
    assert_eq!(paid(failed(), Status(200, None)), 0);
    assert_eq!([paid(failed(), Status(401, None)), paid(failed(), Status(503, None))], [1, 1]);
    assert_eq!(paid(Charge::Unless(vec![Due::Hundred(500)]), Status(502, None)), 0);
    assert_eq!(paid(Charge::Unless(vec![Due::Hundred(500)]), Status(404, None)), 1);
    assert_eq!(paid(Charge::Header("x-cost".to_owned()), Status(200, Some("2"))), 2);
    assert_eq!(paid(Charge::Header("x-cost".to_owned()), Status(200, Some("many"))), 1);
}

#[test]
fn a_rule_is_enforced_for_some_keys_and_watched_for_the_others() {
    let part = Enforcement::Part(Share::percent(30.0).unwrap());
    let gate = gate(&policy([Rule { key: ip(), enforcement: part, ..rule("new", &["1/min"]) }]));
    let limited = |last: u32| {
        let request = Request::of("GET /").from(&format!("192.0.2.{last}"));
        admitted(&gate, &request) == 1
    };
    let chosen: Vec<_> = (0..100).filter(|last| limited(*last)).collect();
    assert!((15..45).contains(&chosen.len()), "{chosen:?}");
    let expected: Vec<_> = (0..100_u32)
        .filter(|last| {
            tidegate_rule::is_chosen("new", &format!("192.0.2.{last}"), Share::percent(30.0).unwrap())
        })
        .collect();
    assert_eq!(chosen, expected);
}

#[test]
fn failing_expressions_are_counted() {
    let user = Key::Part(Part::Cel(Expression("request.headers['x-user']".into())));
    let gate = gate(&policy([
        Rule { key: user, ..rule("key", &["9/min"]) },
        Rule { matching: any().when("request.size / 0 > 1"), ..rule("when", &["9/min"]) },
        rule("plain", &["9/min"]),
    ]));
    refuser(&gate, &Request::of("GET /").header("x-user", "ann"));
    refuser(&gate, &Request::of("GET /"));
    let failures: Vec<_> = gate.failures().map(|(part, failures)| (part.to_string(), failures)).collect();
    assert_eq!(failures, [("rule `key`".to_owned(), 1), ("rule `when`".to_owned(), 2)]);
}

#[test]
fn one_rule_by_address_keeps_its_fast_path() {
    let plain = policy([Rule { key: ip(), ..rule("one", &["1/min"]) }]);
    let peer = || Some(std::net::IpAddr::from([192, 0, 2, 1]));
    assert!(gate(&plain).gate().peer_key(peer).is_some());
    let behind = Policy { trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()], ..plain };
    assert!(gate(&behind).gate().peer_key(peer).is_none());
    let forwarded = Request::of("GET /").from("10.0.0.1").header("x-forwarded-for", "203.0.113.7");
    let behind = gate(&behind);
    assert_eq!(refuser(&behind, &forwarded), "");
    assert_eq!(refuser(&behind, &Request::of("GET /").from("203.0.113.7")), "one", "the same client");
}

#[test]
fn all_that_is_wrong_is_told() {
    let said = policy([
        Rule { key: Key::Part(Part::User), ..rule("user", &["1/min"]) },
        Rule { key: Key::Part(Part::Capture("id".to_owned())), ..rule("capture", &["1/min"]) },
        Rule { matching: any().when("size ("), ..rule("when", &["1/min"]) },
        Rule { matching: any().client("office"), ..rule("list", &["1/min"]) },
        rule("fine", &["1/min"]),
        rule("fine", &[]),
    ]);
    let error = Compiler::new(Rules::new()).compile(&said, None).unwrap_err();
    let told = error.to_string();
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines.len(), 5, "{told}");
    assert_eq!(lines[4], "rule `fine`: two rules have this name; give one another name");
    assert_eq!(
        lines[0],
        "rule `user`: nothing says who the user is; say it under `user`, as in `user: header x-user`"
    );
    assert_eq!(
        lines[1],
        "rule `capture`: no path has a `id` to be captured; write `{id}` in the path of its `match`"
    );
    assert!(lines[2].starts_with("rule `when`: `size (` is no expression"), "{}", lines[2]);
    assert_eq!(lines[3], "rule `list`: unknown list `office`; use one of all");
    let elsewhere = policy([Rule { store: Some("far".to_owned()), ..rule("one", &["1/min"]) }]);
    let error = Compiler::new(Rules::new()).compile(&elsewhere, None).unwrap_err();
    assert!(error.to_string().contains("rule `one` names the store `far`"), "{error}");
}
