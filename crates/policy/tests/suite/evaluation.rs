//! Which requests a policy admits, and what happens to denied ones.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::{
    requests::{MatchExt as _, PolicyTestRequest, StatusResponse, any_request},
    rules::{
        access, count_admitted, expect_ready, gate, header, ip, policy, rejecting_rule, rejection, rule,
    },
};
use std::{collections::BTreeMap, time::Duration};
use tidegate_bandwidth::Bandwidth;
use tidegate_core::Percent;
use tidegate_limiter::{Capacity, Clock, Overflow};
use tidegate_policy::{
    compile::{Compiler, LivePolicy, PolicyGate, PolicyResult, RejectAction, RejectReason},
    model::{
        AdaptiveSpec, BandwidthSpec, BreakerSpec, BreakerWindow, FallbackResponse, KeyPart, KeySpec, OnLimit,
        Policy, PrioritySpec, QueueOrder, QueueSpec, Quotas, Reject, RouteSpec, RuleEnforcement, RuleSpec,
    },
};
use tidegate_rule::{Evaluation, Mode, RejectionResponse, Rules, request::MissingKey};

fn denial_response(gate: &PolicyGate, request: &PolicyTestRequest) -> RejectionResponse {
    match rejection(gate, request).unwrap().action {
        RejectAction::Response(answer) => answer.to_response(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn on_limit_action_is_applied() {
    let over = |on_limit: OnLimit| {
        let upstreams = BTreeMap::from([("spare".to_owned(), upstream())]);
        let spec = Policy { upstreams, ..policy([RuleSpec { on_limit, ..rule("one", &["1/min"]) }]) };
        let gate = gate(&spec);
        assert_eq!(rejecting_rule(&gate, &PolicyTestRequest::new("GET /")), "");
        gate
    };
    let request = PolicyTestRequest::new("GET /");
    let reject = Reject {
        status: Some(503),
        headers: BTreeMap::from([("x-reason".to_owned(), "quota".to_owned())]),
        body: Some("Slow down.".to_owned()),
        bodies: vec![
            ("application/json".to_owned(), r#"{"error":"slow"}"#.to_owned()),
            ("text/html".to_owned(), "<p>Slow down.</p>".to_owned()),
        ],
    };
    let rejecting = over(OnLimit::Reject(reject));
    let response = |accept: &str| {
        let answer = denial_response(&rejecting, &request.clone().with_header("accept", accept));
        assert_eq!(
            (answer.status, answer.get("x-reason"), answer.get("retry-after")),
            (503, Some("quota"), Some("60"))
        );
        (answer.get("content-type").unwrap().to_owned(), answer.body)
    };
    assert_eq!(response("text/html, */*;q=0.1").0, "application/json", "the first that the client accepts");
    assert_eq!(response("text/html").1, "<p>Slow down.</p>");
    assert_eq!(response("image/png"), ("text/plain; charset=utf-8".to_owned(), "Slow down.".to_owned()));

    let redirect =
        denial_response(&over(OnLimit::Redirect { location: "/busy".to_owned(), status: 303 }), &request);
    assert_eq!((redirect.status, redirect.get("location")), (303, Some("/busy")));
    let headers = BTreeMap::from([("content-type".to_owned(), "application/json".to_owned())]);
    let empty =
        OnLimit::Fallback(FallbackResponse::Body { status: 200, headers, body: "[]".to_owned() }.into());
    let empty = denial_response(&over(empty), &request);
    assert_eq!(
        (empty.status, empty.get("content-type"), &*empty.body),
        (200, Some("application/json"), "[]")
    );
    let action_of = |on_limit: OnLimit| rejection(&over(on_limit), &request).unwrap().action;
    assert_eq!(action_of(OnLimit::Drop), RejectAction::Drop);
    let spare = OnLimit::Fallback(FallbackResponse::Upstream("spare".to_owned()).into());
    assert_eq!(action_of(spare), RejectAction::Upstream("spare".into()));

    let nowhere = OnLimit::Fallback(FallbackResponse::Upstream("nowhere".to_owned()).into());
    let spec = policy([RuleSpec { on_limit: nowhere, ..rule("one", &["1/min"]) }]);
    let error = Compiler::new(Rules::new()).compile(&spec, None).unwrap_err();
    assert!(error.to_string().starts_with("rule `one`: unknown upstream `nowhere`"), "{error}");
}

fn upstream() -> tidegate_policy::model::Upstream {
    use tidegate_policy::model::{Balance, Protocol, Retries, Timeouts, Upstream};
    Upstream {
        servers: Vec::new(),
        balance: Balance::default(),
        protocol: Protocol::default(),
        timeouts: Timeouts::default(),
        keep_alive: 1,
        max_fails: 3,
        fail_timeout: Duration::from_secs(10),
        health: None,
        breaker: None,
        retries: Retries { max: 0, budget: Percent::ZERO },
    }
}

#[test]
fn access_lists_apply_before_limits() {
    let lists = access(&["198.51.100.0/24"], &["198.51.100.7"], None);
    let internal = access(&["all"], &["10.0.0.0/8"], None);
    let gate = gate(&policy([
        RuleSpec { key: ip(), access: Some(lists), ..rule("everybody", &["2/min"]) },
        RuleSpec { matching: any_request().path("/admin/**"), access: Some(internal), ..rule("admin", &[]) },
    ]));
    let from = |peer: &str| PolicyTestRequest::new("GET /").with_peer(peer);
    assert_eq!(count_admitted(&gate, &from("192.0.2.1")), 2);
    assert_eq!(count_admitted(&gate, &from("198.51.100.7")), 10);
    let rejected = rejection(&gate, &from("198.51.100.8")).unwrap();
    assert_eq!((&*rejected.rule, rejected.reason), ("everybody", RejectReason::DenyListed));
    assert!(matches!(rejected.action, RejectAction::Response(answer) if answer.status() == 403));
    let admin = PolicyTestRequest::new("GET /admin");
    assert_eq!(rejecting_rule(&gate, &admin.clone().with_peer("192.0.2.9")), "admin");
    assert_eq!(rejecting_rule(&gate, &admin.clone().with_peer("10.1.1.1")), "");
    assert_eq!(
        rejecting_rule(&gate, &PolicyTestRequest { peer: None, ..admin }),
        "everybody",
        "unknown client"
    );
}

#[test]
fn repeated_denials_ban_client() {
    let (clock, manual_clock) = Clock::manual();
    let banning = access(&[], &[], Some("3/min for 1h"));
    let spec = policy([RuleSpec { key: ip(), access: Some(banning), ..rule("login", &["1/s"]) }]);
    let live = LivePolicy::new(Compiler::new(Rules::new()).clock(clock), &spec).unwrap();
    let request = PolicyTestRequest::new("POST /login");
    let reason = || rejection(&live.current(), &request).map(|rejection| rejection.reason);
    let reasons = [reason(), reason(), reason(), reason(), reason()];
    let limited = Some(RejectReason::Limited);
    assert_eq!(reasons[..3], [None, limited, limited]);
    assert_eq!(reasons[4], Some(RejectReason::Banned), "{reasons:?}");
    // A ban survives a change of the policy, and expires on time.
    live.replace(&policy([RuleSpec { message: Some("No.".to_owned()), ..spec.rules[0].clone() }])).unwrap();
    assert_eq!(reason(), Some(RejectReason::Banned));
    manual_clock.advance(Duration::from_secs(3_600));
    assert_eq!(reason(), None);
}

#[test]
fn ban_follows_the_key_of_its_rule() {
    let banning = || Some(access(&[], &[], Some("2/min for 1h")));
    let user = RuleSpec { key: header("x-user"), access: banning(), ..rule("login", &["1/s"]) };
    let repeat = |gate: &PolicyGate, request: PolicyTestRequest| {
        (0..5).fold(None, |_, _| rejection(gate, &request).map(|rejection| rejection.reason))
    };
    let request = |name: &str| PolicyTestRequest::new("POST /login").with_header("x-user", name);
    let login = gate(&policy([user]));
    assert_eq!(repeat(&login, request("mallory")), Some(RejectReason::Banned));
    assert_eq!(rejecting_rule(&login, &request("ann")), "", "another user behind the same address");
    assert_eq!(
        rejection(&login, &request("mallory").with_peer("203.0.113.9")).unwrap().reason,
        RejectReason::Banned,
        "the same user from another address",
    );
    // Without the key, the address is counted and banned.
    assert_eq!(repeat(&login, PolicyTestRequest::new("POST /login")), Some(RejectReason::Banned));
    assert_eq!(rejecting_rule(&login, &PolicyTestRequest::new("POST /login").with_peer("203.0.113.9")), "");
    assert_eq!(rejecting_rule(&login, &request("bob")), "");

    // A client is not banned for the requests of others: a key that identifies no client bans addresses.
    let paths =
        [KeySpec::All, KeySpec::Part(KeyPart::Path), KeySpec::First(vec![header("x-user"), KeySpec::All])];
    for key in paths {
        let shared = RuleSpec { key: key.clone(), access: banning(), ..rule("all", &["1/s"]) };
        let shared = gate(&policy([shared]));
        assert_eq!(
            repeat(&shared, PolicyTestRequest::new("POST /login")),
            Some(RejectReason::Banned),
            "{key:?}"
        );
        let other =
            rejection(&shared, &PolicyTestRequest::new("POST /login").with_peer("203.0.113.9")).unwrap();
        assert_eq!(other.reason, RejectReason::Limited, "{key:?}");
    }
}

#[test]
fn requests_without_a_key_are_counted_by_address() {
    let spec = |missing| policy([RuleSpec { key: header("x-user"), missing, ..rule("one", &["1/min"]) }]);
    let by_default =
        Policy { trusted_proxies: vec!["10.0.0.1/32".parse().unwrap()], ..spec(MissingKey::default()) };
    let gate_of = gate;
    let gate = gate_of(&by_default);
    let from = |client: &str| {
        PolicyTestRequest::new("GET /").with_peer("10.0.0.1").with_header("x-forwarded-for", client)
    };
    assert_eq!(rejecting_rule(&gate, &from("192.0.2.1")), "");
    assert_eq!(
        rejecting_rule(&gate, &from("192.0.2.2")),
        "",
        "one client does not use up the quota of another"
    );
    assert_eq!(rejecting_rule(&gate, &from("192.0.2.1")), "one");
    assert_eq!(rejecting_rule(&gate, &from("192.0.2.9").with_header("x-user", "192.0.2.3")), "");
    assert_eq!(rejecting_rule(&gate, &from("192.0.2.3")), "", "users and addresses have separate counters");
    let shared = gate_of(&spec(MissingKey::Shared));
    assert_eq!(rejecting_rule(&shared, &PolicyTestRequest::new("GET /").with_peer("192.0.2.1")), "");
    assert_eq!(rejecting_rule(&shared, &PolicyTestRequest::new("GET /").with_peer("192.0.2.2")), "one");
}

#[test]
fn breaker_opens_after_failures() {
    let breaker = BreakerSpec {
        failure_rate: Some(Percent::new(50.0).unwrap()),
        slow_call_rate: None,
        slow_call_duration: None,
        window_size: Some(BreakerWindow::Calls(2)),
        min_calls: Some(2),
        open_duration: Some(Duration::from_secs(5)),
        half_open_calls: Some(1),
        ..BreakerSpec::default()
    };
    let spec = policy([RuleSpec { breaker: Some(breaker), ..rule("app", &["100/min"]) }]);
    let gate = gate(&spec);
    let request = PolicyTestRequest::new("GET /");
    for reply in [StatusResponse(200), StatusResponse(500)] {
        let PolicyResult::Admitted(admission) = expect_ready(gate.check(&request)) else {
            panic!("expected an admission")
        };
        assert!(admission.has_pending());
        drop(admission.settle(&reply));
    }
    let rejected = rejection(&gate, &request).unwrap();
    assert_eq!(
        (rejected.reason, rejected.retry_after),
        (RejectReason::Overloaded, Some(Duration::from_secs(5)))
    );
    assert!(matches!(rejected.action, RejectAction::Response(answer) if answer.status() == 503));
}

#[test]
fn low_priority_is_shed_first() {
    let adaptive = AdaptiveSpec { target: Duration::from_millis(100), min: Some(10), max: Some(10) };
    let by = PrioritySpec::FromRequest {
        key: crate::rules::header("x-class"),
        default: "low".to_owned(),
        reserve: None,
    };
    let gate = gate(&policy([RuleSpec { adaptive: Some(adaptive), priority: Some(by), ..rule("app", &[]) }]));
    let mut admissions = Vec::new();
    let mut send = |class: &str| match expect_ready(
        gate.check(&PolicyTestRequest::new("GET /").with_header("x-class", class)),
    ) {
        PolicyResult::Admitted(admission) => {
            admissions.push(admission);
            true
        }
        PolicyResult::Rejected(rejection) => {
            assert_eq!(rejection.reason, RejectReason::Overloaded);
            false
        }
    };
    for _ in 0..20 {
        send("critical");
    }
    assert!(!send("nonsense"));
    admissions.clear();
    assert!(matches!(expect_ready(gate.check(&PolicyTestRequest::new("GET /"))), PolicyResult::Admitted(_)));
}

#[test]
fn bandwidth_is_limited_per_key() {
    let rates = BandwidthSpec { down: Some("1MB/s".parse().unwrap()), up: None };
    let spec = policy([RuleSpec { key: ip(), bandwidth: Some(rates), ..rule("slow", &[]) }]);
    let live = LivePolicy::new(Compiler::new(Rules::new()), &spec).unwrap();
    let PolicyResult::Admitted(admission) =
        expect_ready(live.current().check(&PolicyTestRequest::new("GET /")))
    else {
        panic!("expected an admission")
    };
    assert_eq!((admission.response_rates().len(), admission.request_rates().len()), (1, 0));
    let faster = BandwidthSpec { down: Some("2MB/s".parse().unwrap()), up: Some("1kB/s".parse().unwrap()) };
    live.replace(&policy([RuleSpec { bandwidth: Some(faster), ..spec.rules[0].clone() }])).unwrap();
    let rate = admission.response_rates()[0].quota().rate().unwrap();
    assert_eq!(rate.amount(), 2_000_000, "transfers in progress use the new rate");
}

#[tokio::test(start_paused = true)]
async fn queued_request_holds_no_guard_permits() {
    let adaptive = AdaptiveSpec { target: Duration::from_millis(100), min: Some(2), max: Some(2) };
    let queue = QueueSpec { max: 1, max_total: None, order: QueueOrder::Fifo };
    let spec = policy([RuleSpec {
        adaptive: Some(adaptive),
        wait: Duration::from_secs(5),
        queue: Some(queue),
        ..rule("one", &["1 at once"])
    }]);
    let gate = Compiler::new(Rules::new()).compile(&spec, None).unwrap();
    let send = || match gate.check(&PolicyTestRequest::new("GET /")) {
        Evaluation::Pending(pending) => pending,
        Evaluation::Ready(result) => panic!("{result:?}"),
    };
    let PolicyResult::Admitted(first) = send().await else { panic!("expected an admission") };
    // If waiting requests counted as in flight, the third would exceed the limit.
    let (second, third) = (tokio::spawn(send()), tokio::spawn(send()));
    tokio::task::yield_now().await;
    drop(first.settle(&StatusResponse(200)));
    let (second, third) = (second.await.unwrap(), third.await.unwrap());
    let waited = [second, third];
    let is_limited = |result: &&PolicyResult| matches!(result, PolicyResult::Rejected(rejection) if rejection.reason == RejectReason::QueueFull);
    assert_eq!(waited.iter().filter(is_limited).count(), 1);
    let admitted = waited.iter().filter(|result| matches!(result, PolicyResult::Admitted(_))).count();
    assert_eq!(admitted, 1, "queue of one: {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn full_adaptive_limit_queues_by_priority() {
    let adaptive = AdaptiveSpec { target: Duration::from_secs(100), min: Some(1), max: Some(1) };
    let by = PrioritySpec::FromRequest {
        key: crate::rules::header("x-class"),
        default: "low".to_owned(),
        reserve: None,
    };
    let spec = policy([RuleSpec {
        adaptive: Some(adaptive),
        priority: Some(by),
        wait: Duration::from_secs(5),
        ..rule("app", &["100/min"])
    }]);
    let gate = Compiler::new(Rules::new()).clock(Clock::tokio()).compile(&spec, None).unwrap();
    let send = |class: &str| gate.check(&PolicyTestRequest::new("GET /").with_header("x-class", class));
    let PolicyResult::Admitted(first) = expect_ready(send("low")) else { panic!("expected an admission") };
    let wait = |class: &str| match send(class) {
        Evaluation::Pending(pending) => tokio::spawn(pending),
        Evaluation::Ready(result) => panic!("{result:?}"),
    };
    let (low, high) = (wait("low"), wait("high"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(first.settle(&StatusResponse(200)));
    let PolicyResult::Admitted(high) = high.await.unwrap() else { panic!("expected an admission") };
    assert!(!low.is_finished());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let PolicyResult::Rejected(low) = low.await.unwrap() else { panic!("expected a timeout") };
    assert_eq!(low.reason, RejectReason::Overloaded);
    drop(high.settle(&StatusResponse(200)));
    assert!(matches!(expect_ready(send("low")), PolicyResult::Admitted(_)));
}

#[test]
fn reload_keeps_unchanged_state() {
    let (clock, _manual_clock) = Clock::manual();
    let breaker = BreakerSpec {
        failure_rate: None,
        slow_call_rate: None,
        slow_call_duration: None,
        window_size: Some(BreakerWindow::Calls(1)),
        min_calls: Some(1),
        open_duration: None,
        half_open_calls: None,
        ..BreakerSpec::default()
    };
    let guarded =
        RuleSpec { matching: any_request().path("/app"), breaker: Some(breaker), ..rule("app", &[]) };
    let spec = |quota: &str| {
        policy([
            RuleSpec { matching: any_request().path("/same"), ..rule("same", &["3/min"]) },
            RuleSpec { matching: any_request().path("/more"), ..rule("more", &[quota]) },
            guarded.clone(),
        ])
    };
    let live = LivePolicy::new(Compiler::new(Rules::new()).clock(clock), &spec("3/min")).unwrap();
    let count = |path: &str| count_admitted(&live.current(), &PolicyTestRequest::new(&format!("GET {path}")));
    assert_eq!([count("/same"), count("/more")], [3, 3]);
    let PolicyResult::Admitted(app) = expect_ready(live.current().check(&PolicyTestRequest::new("GET /app")))
    else {
        panic!("expected an admission")
    };
    app.fail();
    assert_eq!(count("/app"), 0);

    for _ in 0..3 {
        live.replace(&spec("5/min")).unwrap();
        live.replace(&spec("3/min")).unwrap();
    }
    assert_eq!([count("/same"), count("/more"), count("/app")], [0, 0, 0]);
    live.replace(&spec("5/min")).unwrap();
    assert_eq!([count("/same"), count("/more")], [0, 2], "usage is carried over");

    let mut wrong = spec("100/min");
    wrong.rules[0].quotas = tidegate_policy::model::Quotas::All(vec!["100/min".parse().unwrap()]);
    wrong.rules[2].store = Some("nowhere".to_owned());
    assert!(live.replace(&wrong).is_err());
    wrong.rules[2] = RuleSpec { matching: any_request().when("nonsense"), ..rule("x", &["1/s"]) };
    assert!(live.replace(&wrong).is_err());
    assert_eq!([count("/same"), count("/more"), count("/app")], [0, 0, 0], "nothing has changed");

    live.replace(&policy([])).unwrap();
    live.replace(&spec("3/min")).unwrap();
    assert_eq!([count("/same"), count("/more")], [3, 3], "counters of removed rules are dropped");
}

#[test]
fn reload_under_load_keeps_counters() {
    let (clock, _manual_clock) = Clock::manual();
    let spec = |other: usize| {
        let busy = RuleSpec {
            key: ip(),
            matching: any_request().path("/busy"),
            ..rule("busy", &["300/h", "1000 at once"])
        };
        policy([
            busy,
            RuleSpec {
                matching: any_request().path("/other"),
                ..rule(&format!("other-{}", other % 3), &["1/s"])
            },
        ])
    };
    let live = LivePolicy::new(Compiler::new(Rules::new()).clock(clock), &spec(0)).unwrap();
    let admitted = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    let gate = live.current();
                    if let PolicyResult::Admitted(admission) =
                        expect_ready(gate.check(&PolicyTestRequest::new("GET /busy")))
                    {
                        drop(admission.settle(&StatusResponse(200)));
                        admitted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                }
            });
        }
        for other in 1..=100 {
            live.replace(&spec(other)).unwrap();
        }
    });
    assert_eq!(admitted.into_inner(), 300);
}

#[test]
fn schedule_scales_quotas_across_reload() {
    let (clock, manual_clock) = Clock::manual();
    let scheduled = |quota: &str, schedule: &str| {
        policy([RuleSpec { schedule: Some(schedule.parse().unwrap()), ..rule("one", &[quota]) }])
    };
    let compiler = Compiler::new(Rules::new()).clock(clock.clone());
    let midnight = |hours: u64| Duration::from_secs(hours * 3_600);
    let now = Duration::from(clock.now()).as_secs() % 86_400;
    manual_clock.advance(midnight(24) - Duration::from_secs(now));
    let live = LivePolicy::new(compiler, &scheduled("2/min", "09:00-18:00 x3")).unwrap();
    let quota = || live.current().gate().limits()[0].rule().quotas()[0].to_string();
    assert_eq!(quota(), "2/min");
    manual_clock.advance(midnight(10));
    live.current().update_schedules();
    assert_eq!(quota(), "6/min");
    live.replace(&scheduled("3/min", "09:00-18:00 x3")).unwrap();
    assert_eq!(quota(), "9/min");
    // A rejected policy changes nothing, not even temporarily.
    let mut wrong = scheduled("4/min", "09:00-18:00 x3");
    wrong.rules[0].store = Some("nowhere".to_owned());
    assert!(live.replace(&wrong).is_err());
    assert_eq!(quota(), "9/min");
    manual_clock.advance(midnight(9));
    live.current().update_schedules();
    assert_eq!(quota(), "3/min");
}

/// A policy that was built in code is checked too.
#[test]
fn schedule_of_a_total_is_rejected() {
    let schedule = Some("09:00-18:00 x2".parse().unwrap());
    let totals = policy([RuleSpec { schedule, ..rule("trial", &["5/s", "9 total"]) }]);
    let error = Compiler::new(Rules::new()).compile(&totals, None).unwrap_err().to_string();
    assert_eq!(
        error,
        "rule `trial`: `schedule` changes quotas for a time, but `9 total` never refills; remove `schedule`, or use a rate"
    );
}

/// A change of quotas settles the open reservations of a limiter, so a refund shows that there was none.
#[test]
fn reload_does_not_lift_a_schedule() {
    let (clock, manual_clock) = Clock::manual();
    let scheduled = |schedule: Option<&str>| {
        let schedule = schedule.map(|schedule| schedule.parse().unwrap());
        policy([RuleSpec { schedule, ..rule("one", &["10 per 52w"]) }])
    };
    let (rules, day) = (Rules::new(), Some("09:00-18:00 x0.5"));
    let compiler = Compiler::new(rules.clone()).clock(clock);
    let live = LivePolicy::new(compiler, &scheduled(day)).unwrap();
    manual_clock.advance(Duration::from_secs(10 * 3_600));
    live.current().update_schedules();
    let limiter = rules.list()[0].limiter().unwrap();
    let reserve = || limiter.blocking().key("ann").reserve(5, Duration::ZERO);
    let reserved = reserve();
    assert!(reserved.decision().is_allowed());
    live.replace(&scheduled(day)).unwrap();
    let mut wrong = scheduled(day);
    wrong.rules[0].store = Some("nowhere".to_owned());
    assert!(live.replace(&wrong).is_err());
    drop(reserved);
    let reserved = reserve();
    assert!(reserved.decision().is_allowed(), "the reservation was refunded");
    reserved.keep();

    live.replace(&scheduled(None)).unwrap();
    assert_eq!(rules.list()[0].quotas()[0].to_string(), "10 per 52w");
}

#[test]
fn schedule_scales_bandwidth_across_reload() {
    let (clock, manual_clock) = Clock::manual();
    let scheduled = |down: &str| {
        let bandwidth =
            BandwidthSpec { down: Some(down.parse().unwrap()), up: Some("1kB/s".parse().unwrap()) };
        let schedule = Some("09:00-18:00 x3; 18:00-24:00 x0.5".parse().unwrap());
        policy([RuleSpec { key: ip(), bandwidth: Some(bandwidth), schedule, ..rule("slow", &[]) }])
    };
    let hours = |hours: u64| Duration::from_secs(hours * 3_600);
    let live = LivePolicy::new(Compiler::new(Rules::new()).clock(clock), &scheduled("100kB/s")).unwrap();
    let PolicyResult::Admitted(admission) =
        expect_ready(live.current().check(&PolicyTestRequest::new("GET /")))
    else {
        panic!("expected an admission")
    };
    // Transfers in progress follow the schedule.
    let rates = || {
        let amount = |rates: &[Bandwidth]| rates[0].quota().rate().unwrap().amount();
        (amount(admission.response_rates()), amount(admission.request_rates()))
    };
    assert_eq!(rates(), (100_000, 1_000));
    manual_clock.advance(hours(10));
    live.current().update_schedules();
    assert_eq!(rates(), (300_000, 3_000));
    live.replace(&scheduled("200kB/s burst 1MB after 5MB")).unwrap();
    assert_eq!(rates(), (600_000, 3_000));
    assert_eq!(admission.response_rates()[0].quota().limit(), 3_000_000, "the burst is scaled too");
    // A rejected policy changes nothing.
    let mut wrong = scheduled("4MB/s");
    wrong.rules[0].store = Some("nowhere".to_owned());
    wrong.rules[0].quotas = Quotas::All(vec!["1/s".parse().unwrap()]);
    assert!(live.replace(&wrong).is_err());
    assert_eq!(rates(), (600_000, 3_000));
    manual_clock.advance(hours(9));
    live.current().update_schedules();
    assert_eq!(rates(), (100_000, 500));
    manual_clock.advance(hours(6));
    live.current().update_schedules();
    assert_eq!(rates(), (200_000, 1_000));
    // A policy that was built in code is checked too.
    let error = live.replace(&scheduled("1B/s")).unwrap_err().to_string();
    assert_eq!(
        error,
        "rule `slow`: bandwidth `1B/s` x0.5 is less than one byte per second; use a higher rate, or a larger factor in `schedule`"
    );
}

#[test]
fn bandwidth_keys_are_bounded_by_capacity() {
    let spec = |key, capacity| {
        let bandwidth = BandwidthSpec { down: Some("1kB/s".parse().unwrap()), up: None };
        let overflow = Overflow::Share;
        policy([RuleSpec { key, bandwidth: Some(bandwidth), capacity, overflow, ..rule("slow", &[]) }])
    };
    /// The number of different rates of 50 requests in flight: a change of one changes those that share it.
    fn count_rates(gate: &PolicyGate) -> usize {
        let admissions: Vec<_> = (0..50)
            .map(|user| {
                let request = PolicyTestRequest::new("GET /").with_header("x-user", &format!("user-{user}"));
                match expect_ready(gate.check(&request)) {
                    PolicyResult::Admitted(admission) => admission,
                    PolicyResult::Rejected(rejection) => panic!("{rejection:?}"),
                }
            })
            .collect();
        let rates = || admissions.iter().map(|admission| &admission.response_rates()[0]);
        for (index, rate) in rates().enumerate() {
            rate.change(format!("{}kB/s", index + 2).as_str()).unwrap();
        }
        rates().map(|rate| rate.quota().to_string()).collect::<std::collections::BTreeSet<_>>().len()
    }
    assert_eq!(count_rates(&gate(&spec(header("x-user"), None))), 50);
    assert_eq!(count_rates(&gate(&spec(header("x-user"), Some(Capacity::Keys(10))))), 11);
    assert_eq!(count_rates(&gate(&spec(KeySpec::Part(KeyPart::Request), Some(Capacity::Keys(10))))), 50);
}

#[test]
fn shadow_and_off_rules_deny_nothing() {
    for mode in [Mode::Shadow, Mode::Off] {
        let denied = access(&["all"], &[], None);
        let spec = RuleSpec {
            access: Some(denied),
            enforcement: RuleEnforcement::All(mode),
            ..rule("one", &["1/min"])
        };
        assert_eq!(count_admitted(&gate(&policy([spec])), &PolicyTestRequest::new("GET /")), 10, "{mode}");
    }
}

#[test]
fn first_matching_route_is_used() {
    let route = |matching, upstream: &str| RouteSpec::forward(matching, upstream);
    let routes = vec![
        route(any_request().path("/api/**"), "api"),
        route(any_request().host("a.test"), "a"),
        route(any_request(), "rest"),
    ];
    let gate = gate(&Policy { routes, ..Policy::default() });
    let upstream_of = |request: &str| {
        gate.find_route(&PolicyTestRequest::new(request))
            .and_then(|route| route.upstream().map(str::to_owned))
            .unwrap()
    };
    assert_eq!(
        [upstream_of("GET a.test//api/x"), upstream_of("GET a.test/"), upstream_of("GET b.test/apis")],
        ["api", "a", "rest"]
    );
    assert!(crate::rules::gate(&Policy::default()).find_route(&PolicyTestRequest::new("GET /")).is_none());
}
