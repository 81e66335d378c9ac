//! Kinds of quotas over real sockets, in virtual time: the policy has a manual clock.

use crate::harness::{InProcessGateway, RawClient, TestBackend, test_config};
use std::time::Duration;
use tidegate_core::Micros;
use tidegate_gateway::{Action, ConnectionInfo, FilterResult, ParsedBody, RequestFilter, UpstreamId};
use tidegate_limiter::{Clock, ManualClock};
use tidegate_policy::{
    Policy,
    compile::{Compiler, PolicyGate, PolicyResult, RejectAction},
    head::{HttpRequestHead, ParsedRequest},
};
use tidegate_rule::{Evaluation, Rules};

/// Evaluates a policy on a manual clock.
struct QuotaFilter {
    gate: PolicyGate,
    app: UpstreamId,
}

impl RequestFilter for QuotaFilter {
    fn filter(
        &self,
        head: &mut ParsedRequest,
        connection: &ConnectionInfo,
        _: Option<&ParsedBody>,
    ) -> FilterResult {
        let evaluation = self.gate.check(&HttpRequestHead::new(head, connection.peer.ip()));
        let Evaluation::Ready(result) = evaluation else { panic!("memory decides at once") };
        let action = match result {
            PolicyResult::Admitted(_) => Action::Forward(self.app),
            PolicyResult::Rejected(rejection) => match rejection.action {
                RejectAction::Response(rejection) => Action::RespondShared(rejection.into()),
                _ => panic!("the rule responds"),
            },
        };
        FilterResult::Ready(action.into())
    }
}

/// A gateway with one rule by user, at a point in time.
async fn start(server: &TestBackend, quota: &str, seconds: u64) -> (InProcessGateway, ManualClock) {
    let policy: Policy =
        format!("rules: [{{ name: each, key: header x-user, quota: {quota} }}]").parse().unwrap();
    let (clock, manual_clock) = Clock::manual();
    manual_clock.set(Micros::from_secs(seconds));
    let gate = Compiler::new(Rules::new()).clock(clock).compile(&policy, None).unwrap();
    let config = test_config(&[server]);
    let app = config.upstream_id("app").unwrap();
    (InProcessGateway::start_with_filter(config, QuotaFilter { gate, app }).await, manual_clock)
}

/// The status and `Retry-After` of a request.
async fn send(client: &mut RawClient, user: &str) -> (u16, Option<String>) {
    let response = client.request(&format!("GET / HTTP/1.1\r\nhost: a\r\nx-user: {user}\r\n\r\n")).await;
    (response.status(), response.header("retry-after").map(str::to_owned))
}

#[tokio::test]
async fn new_key_without_initial_tokens_is_refilled_from_its_first_request_on() {
    let server = TestBackend::start_echo().await;
    let (gateway, clock) = start(&server, "2/min burst 5 initial 0", 1_000_000).await;
    let mut client = gateway.connect().await;
    let retry = |seconds: &str| (429, Some(seconds.to_owned()));
    assert_eq!(send(&mut client, "ann").await, retry("30"));
    clock.advance(Duration::from_secs(29));
    assert_eq!(send(&mut client, "ann").await, retry("1"));
    clock.advance(Duration::from_secs(1));
    assert_eq!(send(&mut client, "ann").await, (200, None));
    assert_eq!(send(&mut client, "ann").await, retry("30"));
    assert_eq!(send(&mut client, "bob").await, retry("30"));
    // Full for an hour, and new after that.
    clock.advance(Duration::from_secs(150 + 3_600));
    for _ in 0..5 {
        assert_eq!(send(&mut client, "ann").await, (200, None));
    }
    clock.advance(Duration::from_secs(150 + 3_601));
    assert_eq!(send(&mut client, "ann").await, retry("30"));
}

/// 23:00 on the evening before a day of 23 hours in New York, and the last minute of February.
#[tokio::test]
async fn calendar_window_denies_until_the_next_boundary_of_the_zone() {
    let server = TestBackend::start_echo().await;
    for (quota, seconds, retry, next) in [
        ("2/day fixed-window in America/New_York", 1_772_942_400, 3_600, 23 * 3_600),
        ("2/month fixed-window in UTC", 1_772_323_140, 60, 31 * 86_400),
    ] {
        let (gateway, clock) = start(&server, quota, seconds).await;
        let mut client = gateway.connect().await;
        for retry in [retry, next] {
            assert_eq!(send(&mut client, "ann").await, (200, None), "{quota}");
            assert_eq!(send(&mut client, "ann").await, (200, None), "{quota}");
            assert_eq!(send(&mut client, "ann").await, (429, Some(retry.to_string())), "{quota}");
            clock.advance(Duration::from_secs(retry) - Duration::from_micros(1));
            assert_eq!(send(&mut client, "ann").await, (429, Some("1".to_owned())), "{quota}");
            clock.advance(Duration::from_micros(1));
        }
        assert_eq!(send(&mut client, "ann").await, (200, None), "{quota}");
    }
}
