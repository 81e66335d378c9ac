//! The text of rejections is rendered once, and their numbers are filled in.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::{
    requests::PolicyTestRequest,
    rules::{access, header, ip, policy, rejection, rule},
    strategies::on_limits,
};
use proptest::prelude::*;
use std::sync::Arc;
use tidegate_core::Micros;
use tidegate_limiter::Clock;
use tidegate_policy::{
    compile::{Compiler, PolicyRejection, RejectAction},
    model::{CostSpec, KeySpec, OnLimit, Policy, Quotas, RuleEnforcement, RuleSpec},
};
use tidegate_rule::{HeaderStyle, Mode, RejectionTemplate, Rules, request::MissingKey};

fn rules() -> impl Strategy<Value = Vec<RuleSpec>> {
    let key = prop_oneof![Just(KeySpec::All), Just(ip()), Just(header("x-user"))];
    let quotas = prop_oneof![
        Just(vec!["3/min"]),
        Just(vec!["2/min", "4/h"]),
        Just(vec!["1/d sliding-window"]),
        Just(vec!["2 total"]),
        Just(vec!["5/s burst 2", "3 total"]),
        Just(vec![]),
    ];
    let lists = prop_oneof![
        3 => Just(None),
        1 => Just(Some(access(&["192.0.2.2/32"], &[], None))),
        1 => Just(Some(access(&[], &[], Some("1/min for 1h")))),
    ];
    let mode = prop_oneof![4 => Just(Mode::Enforce), 1 => Just(Mode::Shadow)];
    let missing = prop_oneof![Just(MissingKey::Ip), Just(MissingKey::Reject)];
    let message =
        proptest::option::of(prop_oneof![Just("Wait."), Just("\"é\" \\ \u{fdd0}"), Just("\u{fdd1}")]);
    let on_limit = prop_oneof![
        Just(OnLimit::default()),
        on_limits().prop_filter("no upstreams", |on_limit| on_limit.fallback_upstream().is_none()),
    ];
    let cost = prop_oneof![Just(CostSpec::Fixed(1)), Just(CostSpec::Fixed(2))];
    let one = (key, (quotas, cost), lists, mode, missing, message, on_limit);
    let rules = proptest::collection::vec(one, 1..6);
    rules.prop_map(|rules| {
        let rules = rules.into_iter().enumerate();
        let spec =
            rules.map(|(place, (key, (quotas, cost), access, mode, missing, message, on_limit))| RuleSpec {
                key,
                cost,
                access,
                missing,
                message: message.map(str::to_owned),
                on_limit,
                enforcement: RuleEnforcement::new(mode, None).unwrap(),
                ..rule(&format!("rule \"{place}\""), &quotas)
            });
        spec.filter(|rule| rule.access.is_some() || rule.quotas != Quotas::All(Vec::new())).collect()
    })
}

fn requests() -> impl Strategy<Value = Vec<PolicyTestRequest>> {
    let user = prop_oneof![Just(vec!["ann"]), Just(vec!["bob"]), Just(vec![]), Just(vec!["ann", "bob"])];
    let accept = prop_oneof![Just(""), Just("text/html"), Just("application/json"), Just("image/png")];
    let one = (user, accept, 1..4_u8).prop_map(|(users, accept, last)| {
        let request = PolicyTestRequest::new("GET /a").with_peer(&format!("192.0.2.{last}"));
        let request = users.iter().fold(request, |request, user| request.with_header("x-user", user));
        if accept.is_empty() { request } else { request.with_header("accept", accept) }
    });
    proptest::collection::vec(one, 1..30)
}

fn styles() -> impl Strategy<Value = HeaderStyle> {
    prop_oneof![
        Just(HeaderStyle::Ietf),
        Just(HeaderStyle::Legacy),
        Just(HeaderStyle::Draft03),
        Just(HeaderStyle::OpenAi),
        Just(HeaderStyle::Anthropic),
        Just(HeaderStyle::None)
    ]
}

fn template(rejection: &PolicyRejection) -> &Arc<RejectionTemplate> {
    match &rejection.action {
        RejectAction::Response(shared) => shared.template(),
        other => panic!("{other:?}"),
    }
}

proptest! {
    /// A gate that was just compiled has no texts yet, and renders each rejection for itself.
    #[test]
    fn filled_text_is_that_of_a_response_that_is_rendered_for_one_request(
        rules in rules(),
        style in styles(),
        requests in requests(),
        steps in proptest::collection::vec(prop_oneof![0..3_u64, 0..4_000_u64], 30),
    ) {
        let (clock, manual_clock) = Clock::manual();
        let spec = Policy { headers: style, ..policy(rules) };
        let compiler = Compiler::new(Rules::new()).clock(clock.clone()).wall_clock(clock);
        let compile = |before| compiler.compile(&spec, before);
        // Some responses are not valid for all rules.
        let Ok(used) = compile(None) else { return Ok(()) };
        let mut now = Micros::from_secs(1_000_000);
        for (request, step) in requests.iter().zip(steps) {
            now = now.saturating_add(Micros::from_secs(step));
            manual_clock.set(now);
            let Some(one) = rejection(&used, request) else { continue };
            // A denied request is not counted, except by bans.
            let unused = compile(Some(&used)).unwrap();
            let other = rejection(&unused, request);
            let Some(other) = other.filter(|other| other.reason == one.reason) else { continue };
            prop_assert_eq!(&one.action, &other.action);
            prop_assert_eq!((&one.rule, one.decision), (&other.rule, other.decision));
        }
    }
}

#[test]
fn rejections_with_other_numbers_share_their_text() {
    let (clock, manual_clock) = Clock::manual();
    let rules = vec![
        RuleSpec { key: header("x-user"), ..rule("user", &["2/h"]) },
        RuleSpec { key: ip(), ..rule("ip", &["5/h"]) },
        RuleSpec { access: Some(access(&[], &[], Some("3/min for 1h"))), key: ip(), ..rule("ban", &["9/h"]) },
    ];
    let gate = Compiler::new(Rules::new()).clock(clock).compile(&policy(rules), None).unwrap();
    let (mut templates, mut responses) = (Vec::new(), Vec::new());
    for second in 0..1_000_u64 {
        manual_clock.set(Micros::from_secs(1_000_000 + second * 7));
        let request = PolicyTestRequest::new("GET /")
            .with_peer(&format!("192.0.2.{}", second % 50))
            .with_header("x-user", &format!("{}", second % 20));
        if let Some(rejection) = rejection(&gate, &request) {
            let RejectAction::Response(shared) = &rejection.action else { panic!("{rejection:?}") };
            responses.push(format!("{:?}", shared.to_response()));
            templates.push(Arc::as_ptr(template(&rejection)).addr());
        }
    }
    let count = |list: &mut Vec<_>| {
        list.sort_unstable();
        list.dedup();
        list.len()
    };
    let count_text = |mut list: Vec<String>| {
        list.sort_unstable();
        list.dedup();
        list.len()
    };
    let (templates, responses) = (count(&mut templates), count_text(responses));
    assert!(responses > 40 && templates < 12, "{responses} responses of {templates} templates");
}
