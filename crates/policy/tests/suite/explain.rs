//! What a policy would do with a request, in words.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::requests::{MatchExt as _, Request, any};
use crate::rules::{access, header, ip, policy, rule};
use std::{collections::BTreeMap, path::Path, time::Duration};
use tidegate_engine::Outage;
use tidegate_policy::{
    explain,
    model::{Enforcement, OnLimit, Policy, Quotas, Route, Rule, Stores, Tiers},
};
use tidegate_rule::Mode;

fn said() -> Policy {
    let tiers = Tiers {
        by: header("x-plan"),
        each: vec![("gold".to_owned(), "1000/s".parse().unwrap())],
        otherwise: "10/s".parse().unwrap(),
    };
    let named = BTreeMap::from([("far".to_owned(), "redis://:hunter2@far".to_owned())]);
    Policy {
        routes: vec![Route::forward(any(), "app")],
        stores: Stores { default: Some("redis://:$SECRET@db".to_owned()), named, ..Stores::default() },
        rules: vec![
            Rule {
                key: ip(),
                matching: any().method("POST").path("/login"),
                on_outage: Some(Outage::Closed),
                ..rule("login", &["5/min", "20/h fixed-window"])
            },
            Rule {
                key: header("x-user"),
                quotas: Quotas::Tiers(tiers),
                on_limit: OnLimit::Drop,
                ..rule("plans", &[])
            },
            Rule {
                store: Some("far".to_owned()),
                enforcement: Enforcement::All(Mode::Shadow),
                ..rule("all", &["3 at once"])
            },
            Rule { access: Some(access(&["198.51.100.0/24"], &[], None)), ..rule("lists", &[]) },
            Rule { wait: Duration::from_secs(2), ..rule("shaped", &["1/s leaky-bucket queue 5"]) },
            Rule { enforcement: Enforcement::All(Mode::Off), ..rule("old", &["1/s"]) },
            Rule { matching: any().header("x-plan", "free"), ..rule("free", &["1/s"]) },
        ],
        ..Policy::default()
    }
}

#[test]
fn every_rule_says_what_it_would_do_and_why_not() {
    let request = Request::of("POST a.test//login").header("x-plan", "gold");
    let told = explain(&said(), &request, Path::new("")).unwrap().to_string();
    let expected = "\
POST a.test//login from 192.0.2.1
  goes to `app`
rule `login` applies
  path     /login
  key      192.0.2.1
  mode     enforce
  cost     1
  counted  in the default store: the bound holds for all processes together; while it is unavailable nothing is admitted
  quota    5/min
    bound  at most 5 at once and 5/min on top: 10 in any 1min
    spent  429, retry-after: 12, content-type: application/problem+json
  quota    20/h fixed-window
    bound  at most 40 in any 1h
    spent  429, retry-after: 3599, content-type: application/problem+json
rule `plans` applies
  key      everybody together
  mode     enforce
  tier     gold
  cost     1
  counted  in the default store: the bound holds for all processes together; while it is unavailable each \
process counts by itself what it admits: at worst the bound times the number of processes
  quota    1000/s
    bound  at most 1000 at once and 1000/s on top: 2000 in any 1s
    spent  the connection is closed
rule `all` applies
  key      everybody together
  mode     shadow
  cost     1
  counted  in the store `far`: the bound holds for all processes together; while it is unavailable each \
process counts by itself what it admits: at worst the bound times the number of processes
  quota    3 at once
    bound  at most 3 in flight
    spent  let through, and noted
rule `lists` applies
  key      everybody together
  mode     enforce
  also     lists
";
    assert!(told.starts_with(expected), "{told}");
    assert!(told.contains("rule `old` is off\n"), "{told}");
    assert!(told.ends_with("rule `free` does not apply: it wants another header `x-plan`\n"), "{told}");
    assert!(!told.contains("redis") && !told.contains("hunter2") && !told.contains("SECRET"), "{told}");
}

#[test]
fn what_cannot_be_compiled_cannot_be_explained() {
    let wrong = policy([Rule { matching: any().when("1 +"), ..rule("one", &["1/s"]) }]);
    assert!(explain(&wrong, &Request::of("GET /"), Path::new("")).is_err());
}
