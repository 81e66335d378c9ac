//! Compares a real nginx with the policy imported from its configuration: same requests, same times, same results.
//!
//! faketime gives nginx a clock that only the test advances, so both decide at the same millisecond and the results do not
//! depend on the speed of the machine. Without faketime these tests are skipped.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::requests::PolicyTestRequest;
use std::{future::poll_fn, task::Poll, time::Duration};
use tidegate_core::{Decision, Outcome};
use tidegate_import::ImportedPolicy;
use tidegate_limiter::{Clock, ManualClock};
use tidegate_policy::{
    DiskFiles,
    compile::{Compiler, PolicyGate, PolicyResult, RejectAction},
};
use tidegate_rule::{Evaluation, Mode, PendingEvaluation, Rules};
use tidegate_testkit::servers::{NginxServer, SentHttpRequest};

/// An nginx and a gate with the same clock.
struct NginxComparison {
    nginx: NginxServer,
    gate: PolicyGate,
    clock: ManualClock,
    now: u64,
    waiting: Vec<PendingRequest>,
    /// The results of nginx and of the policy for each request, in send order.
    results: Vec<(RequestEnd, RequestEnd)>,
    /// The number of requests that rules in shadow mode would have denied.
    shadow_denials: usize,
    /// The delays of rules in shadow mode, in microseconds.
    shadow_delays: Vec<u64>,
}

/// A request whose result is missing from nginx or from the policy.
struct PendingRequest {
    index: usize,
    started_at: u64,
    nginx: Option<SentHttpRequest>,
    policy: Option<PendingEvaluation<PolicyResult>>,
}

/// The status of a request, and its delay in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RequestEnd {
    status: u16,
    delay: u64,
}

const UNFINISHED: RequestEnd = RequestEnd { status: 0, delay: u64::MAX };

impl NginxComparison {
    fn start(http: &str) -> Option<Self> {
        let Some(nginx) = NginxServer::start_with_manual_clock(http).unwrap() else {
            tidegate_testkit::servers::skip_without("faketime");
            return None;
        };
        let imported = ImportedPolicy::nginx(nginx.config(), &DiskFiles).unwrap();
        let (clock, manual_clock) = Clock::manual();
        let gate = Compiler::new(Rules::new()).clock(clock).compile(&imported.policy, None).unwrap();
        Some(Self {
            nginx,
            gate,
            clock: manual_clock,
            now: 0,
            waiting: Vec::new(),
            results: Vec::new(),
            shadow_denials: 0,
            shadow_delays: Vec::new(),
        })
    }

    /// Sends a request to both.
    async fn get(&mut self, path: &str) {
        let (place, mut theirs) = (self.results.len(), self.nginx.get(path).unwrap());
        self.results.push((UNFINISHED, UNFINISHED));
        let mut waiting = PendingRequest { index: place, started_at: self.now, nginx: None, policy: None };
        match theirs.poll().unwrap() {
            Some(status) => self.results[place].0 = RequestEnd { status, delay: 0 },
            None => waiting.nginx = Some(theirs),
        }
        let listener = format!("port-{}", self.nginx.address().port());
        let request = PolicyTestRequest::new(&format!("GET localhost{path}")).with_peer("127.0.0.1");
        let request = PolicyTestRequest { listener: Some(listener.to_string()), ..request };
        match self.gate.check(&request) {
            Evaluation::Ready(result) => {
                self.results[place].1 = RequestEnd { status: self.status(&result), delay: 0 }
            }
            Evaluation::Pending(mut pending) => match poll(&mut pending).await {
                Poll::Ready(result) => {
                    self.results[place].1 = RequestEnd { status: self.status(&result), delay: 0 }
                }
                Poll::Pending => waiting.policy = Some(pending),
            },
        }
        if waiting.nginx.is_some() || waiting.policy.is_some() {
            self.waiting.push(waiting);
        }
    }

    fn status(&mut self, result: &PolicyResult) -> u16 {
        match result {
            PolicyResult::Admitted(admission) => {
                let verdict = admission.verdict();
                let dry = verdict.decisions().filter(|one| one.mode == Mode::Shadow);
                for outcome in dry.filter_map(|one| one.decision().map(Decision::outcome)) {
                    match outcome {
                        Outcome::Allow => {}
                        Outcome::Delay(wait) => self.shadow_delays.push(wait.get()),
                        Outcome::Deny(_) => self.shadow_denials += 1,
                    }
                }
                200
            }
            PolicyResult::Rejected(refusal) => match &refusal.action {
                RejectAction::Response(answer) => answer.status(),
                other => panic!("{other:?}"),
            },
        }
    }

    /// Advances the clock, in steps of one millisecond while requests are waiting.
    async fn advance_to(&mut self, time: u64) {
        while self.now < time {
            let next = if self.waiting.is_empty() { time } else { self.now + 1 };
            self.clock.advance(Duration::from_millis(next - self.now));
            self.now = next;
            self.nginx.set_clock(Duration::from_millis(next)).unwrap();
            for mut waiting in std::mem::take(&mut self.waiting) {
                let after = next - waiting.started_at;
                if let Some(status) = waiting.nginx.as_mut().and_then(|theirs| theirs.poll().unwrap()) {
                    self.results[waiting.index].0 = RequestEnd { status, delay: after };
                    waiting.nginx = None;
                }
                if let Some(pending) = &mut waiting.policy
                    && let Poll::Ready(result) = poll(pending).await
                {
                    self.results[waiting.index].1 = RequestEnd { status: self.status(&result), delay: after };
                    waiting.policy = None;
                }
                if waiting.nginx.is_some() || waiting.policy.is_some() {
                    self.waiting.push(waiting);
                }
            }
        }
    }

    /// Asserts equal results. nginx rounds delays down to whole milliseconds; a policy does not.
    fn assert_equal(&self, schedule: &str) {
        for (place, (theirs, ours)) in self.results.iter().enumerate() {
            let late = ours.delay.wrapping_sub(theirs.delay);
            assert!(
                theirs.status == ours.status && late <= 1,
                "{schedule}: request {place}: nginx {theirs:?}, policy {ours:?}\n{:?}\n{}",
                self.results,
                self.nginx.log()
            );
        }
        assert_eq!(
            self.shadow_denials,
            self.nginx.log().matches("limiting requests, dry run").count(),
            "{schedule}"
        );
    }

    fn statuses(&self) -> Vec<u16> {
        self.results.iter().map(|(theirs, _)| theirs.status).collect()
    }

    fn delays(&self) -> Vec<u64> {
        self.results.iter().map(|(theirs, _)| theirs.delay).collect()
    }
}

async fn poll(pending: &mut PendingEvaluation<PolicyResult>) -> Poll<PolicyResult> {
    poll_fn(|context| Poll::Ready(pending.as_mut().poll(context))).await
}

/// Runs a schedule such as `0: a a b; 99: a` (in milliseconds) until all requests have ended.
async fn run_schedule(http: &str, schedule: &str) -> Option<NginxComparison> {
    let mut pair = NginxComparison::start(http)?;
    for step in schedule.split(';') {
        let (time, paths) = step.split_once(':').unwrap();
        pair.advance_to(time.trim().parse().unwrap()).await;
        for path in paths.split_whitespace() {
            pair.get(&format!("/{path}")).await;
        }
    }
    let end = pair.now + 3_000;
    pair.advance_to(end).await;
    pair.assert_equal(schedule);
    Some(pair)
}

/// Returns a server with these limits for the locations.
fn server_config(zones: &str, locations: &[(&str, &str)]) -> String {
    let locations: String = locations
        .iter()
        .map(|(path, limits)| format!("location /{path} {{ {limits} empty_gif; }}\n"))
        .collect();
    format!("{zones}\nserver {{ listen 127.0.0.1:PORT; server_name test;\n{locations} }}")
}

const TEN_PER_SECOND_ZONE: &str =
    "limit_req_zone $binary_remote_addr zone=one:1m rate=10r/s; limit_req_status 429;";

#[tokio::test]
async fn no_burst_spaces_requests() {
    let http = server_config(TEN_PER_SECOND_ZONE, &[("a", "limit_req zone=one;")]);
    let Some(pair) =
        run_schedule(&http, "0: a a; 99: a; 100: a; 199: a; 200: a; 301: a; 400: a; 401: a").await
    else {
        return;
    };
    assert_eq!(pair.statuses(), [200, 429, 429, 200, 429, 200, 200, 429, 200]);
}

#[tokio::test]
async fn nodelay_burst_passes_at_once() {
    let http = server_config(TEN_PER_SECOND_ZONE, &[("a", "limit_req zone=one burst=5 nodelay;")]);
    let schedule =
        "0: a a a a a a a a a; 99: a; 100: a a; 350: a a a a; 1350: a a a a a a a a a a; 1351: a; 1450: a a";
    let Some(pair) = run_schedule(&http, schedule).await else { return };
    assert_eq!(pair.statuses()[..9], [200, 200, 200, 200, 200, 200, 429, 429, 429]);
}

#[tokio::test]
async fn burst_is_queued() {
    let http = server_config(TEN_PER_SECOND_ZONE, &[("a", "limit_req zone=one burst=5;")]);
    let schedule = "0: a a a a a a a a; 50: a; 100: a a; 250: a; 900: a; 905: a; 910: a a a a a a";
    let Some(pair) = run_schedule(&http, schedule).await else { return };
    assert_eq!(pair.delays()[..8], [0, 100, 200, 300, 400, 500, 0, 0]);
    assert_eq!(pair.statuses()[6..8], [429, 429]);
}

#[tokio::test]
async fn delay_part_of_burst_passes_at_once() {
    let zone = "limit_req_zone $binary_remote_addr zone=one:1m rate=20r/s;";
    let http = server_config(zone, &[("a", "limit_req zone=one burst=4 delay=2;")]);
    let Some(pair) = run_schedule(&http, "0: a a a a a a a; 30: a; 60: a a; 170: a a a a").await else {
        return;
    };
    assert_eq!(pair.delays()[..7], [0, 0, 0, 50, 100, 0, 0]);
    assert_eq!(pair.statuses()[..7], [200, 200, 200, 200, 200, 503, 503]);
}

/// Intervals of 1/7 s are not whole milliseconds.
#[tokio::test]
async fn delays_match_to_millisecond() {
    let zone = "limit_req_zone $binary_remote_addr zone=one:1m rate=7r/s;";
    let http = server_config(zone, &[("a", "limit_req zone=one burst=3;")]);
    let Some(pair) = run_schedule(&http, "0: a a a a a; 143: a; 286: a a; 1000: a a; 1142: a; 1143: a").await
    else {
        return;
    };
    assert_eq!(pair.delays()[..4], [0, 142, 285, 428]);
}

#[tokio::test]
async fn zones_are_charged_atomically() {
    let zones = "limit_req_zone $binary_remote_addr zone=b:1m rate=2r/s;
        limit_req_zone $server_name zone=c:1m rate=1r/s;";
    let both = "limit_req zone=b burst=3 nodelay; limit_req zone=c;";
    let http = server_config(zones, &[("both", both), ("b", "limit_req zone=b burst=3 nodelay;")]);
    let schedule = "0: both both both both both both b b b b; 400: both b; 1000: both both b b; 2000: both";
    let Some(pair) = run_schedule(&http, schedule).await else { return };
    assert_eq!(pair.statuses()[..10], [200, 503, 503, 503, 503, 503, 200, 200, 200, 503]);
}

#[tokio::test]
async fn longest_delay_applies() {
    let zones = "limit_req_zone $binary_remote_addr zone=slow:1m rate=5r/s;
        limit_req_zone $host zone=fast:1m rate=20r/s;";
    let both = "limit_req zone=fast burst=2; limit_req zone=slow burst=2;";
    let http = server_config(zones, &[("both", both), ("fast", "limit_req zone=fast burst=2;")]);
    let Some(pair) = run_schedule(&http, "0: both both both both fast fast; 210: both fast fast").await
    else {
        return;
    };
    assert_eq!(pair.delays()[..4], [0, 200, 400, 0]);
    assert_eq!(pair.statuses()[3], 503);
}

#[tokio::test]
async fn locations_share_zone() {
    let limit = "limit_req zone=one burst=2 nodelay;";
    let http = server_config(TEN_PER_SECOND_ZONE, &[("a", limit), ("b/", limit), ("free", "")]);
    let Some(pair) = run_schedule(&http, "0: a b/ a b/x free a; 100: b/ a; 150: free b/ a; 200: ab").await
    else {
        return;
    };
    assert_eq!(pair.statuses()[..6], [200, 200, 200, 429, 200, 429]);
}

#[tokio::test]
async fn dry_run_charges_and_admits_all() {
    let dry = "limit_req zone=one burst=2; limit_req_dry_run on;";
    let http = server_config(TEN_PER_SECOND_ZONE, &[("a", dry)]);
    let Some(pair) = run_schedule(&http, "0: a a a a a; 99: a; 100: a a; 201: a; 500: a a a a a").await
    else {
        return;
    };
    assert!(pair.statuses().iter().all(|status| *status == 200));
    assert_eq!(pair.shadow_denials, 6);
    // nginx logs the excess in thousandths of a request; at 10r/s, one thousandth is 100 µs.
    let log = pair.nginx.log();
    let delays = log.split("delaying request, dry run, excess: ").skip(1);
    let excess = delays.map(|rest| rest.split(',').next().unwrap().replace('.', "").parse::<u64>().unwrap());
    assert_eq!(pair.shadow_delays, excess.map(|thousandths| thousandths * 100).collect::<Vec<_>>(), "{log}");
}

#[tokio::test]
async fn levels_inherit_limits_unless_they_have_some() {
    let http = format!(
        "{TEN_PER_SECOND_ZONE} limit_req_zone $binary_remote_addr zone=two:1m rate=1r/s;
        server {{ listen 127.0.0.1:PORT; limit_req zone=one burst=1 nodelay;
            location / {{ empty_gif; }}
            location /a/ {{ limit_req zone=two; empty_gif; location /a/b/ {{ empty_gif; }} }}
        }}"
    );
    let Some(pair) = run_schedule(&http, "0: x x x a/ a/ a/b/ x; 100: x a/; 1000: a/b/ a/b/ a/").await else {
        return;
    };
    assert_eq!(pair.statuses()[..7], [200, 200, 429, 200, 429, 429, 429]);
}

/// Pseudo-random times, paths and zones.
#[tokio::test]
async fn random_schedule_matches_nginx() {
    let zones = "limit_req_zone $binary_remote_addr zone=one:1m rate=10r/s;
        limit_req_zone $binary_remote_addr zone=two:1m rate=25r/s;
        limit_req_zone $server_name zone=three:1m rate=40r/s;";
    let http = server_config(
        zones,
        &[
            ("a", "limit_req zone=one burst=3 delay=1;"),
            ("b", "limit_req zone=two burst=4 nodelay;"),
            ("c", "limit_req zone=two burst=4 nodelay; limit_req zone=three burst=2;"),
            ("d", "limit_req zone=three burst=2; limit_req zone=one burst=3 delay=1;"),
        ],
    );
    let Some(mut pair) = NginxComparison::start(&http) else { return };
    let mut series = 12_345_u64;
    let mut next = |below: u64| {
        series = series.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (series >> 33) % below
    };
    for _ in 0..250 {
        let pause = [0, 0, 1, 7, 25, 40, 99, 100][usize::try_from(next(8)).unwrap()];
        let time = pair.now + pause;
        pair.advance_to(time).await;
        pair.get(["/a", "/b", "/c", "/d"][usize::try_from(next(4)).unwrap()]).await;
    }
    let end = pair.now + 1_000;
    pair.advance_to(end).await;
    pair.assert_equal("random");
    let rejected = pair.statuses().iter().filter(|status| **status == 503).count();
    let delayed = pair.delays().iter().filter(|delay| **delay > 0).count();
    assert!(rejected > 20 && delayed > 20, "{rejected} rejected, {delayed} delayed");
}

/// A known difference: nginx counts `1r/m` as 0.016 per second and admits the next request after 62.5 s.
#[tokio::test]
async fn nginx_rounds_minute_rates() {
    let zone = "limit_req_zone $binary_remote_addr zone=one:1m rate=1r/m;";
    let Some(mut pair) = NginxComparison::start(&server_config(zone, &[("a", "limit_req zone=one;")])) else {
        return;
    };
    for time in [0, 59_999, 60_000, 62_499, 62_500] {
        pair.advance_to(time).await;
        pair.get("/a").await;
    }
    let ours: Vec<u16> = pair.results.iter().map(|(_, ours)| ours.status).collect();
    assert_eq!(pair.statuses(), [200, 503, 503, 503, 200]);
    assert_eq!(ours, [200, 503, 200, 503, 503]);
}
