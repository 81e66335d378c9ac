//! Properties of a gate: it admits a request only if all its rules do, and a denied request is charged
//! nothing.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use crate::common::TestRequest;
use proptest::{collection::vec, prelude::*, sample::select};
use std::time::Duration;
use tidegate_core::Decision;
use tidegate_limiter::Clock;
use tidegate_rule::{
    ChargePolicy, Evaluation, Gate, RequestLimit, RequestPermits, RuleConfig, Rules, Settings, Verdict,
    request::{AddressKey, RequestHead, ResponseHead, key},
};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const QUOTAS: [&[&str]; 8] = [
    &["5/s"],
    &["3/s burst 9"],
    &["4/s sliding-log"],
    &["6/s sliding-window"],
    &["7/s fixed-window"],
    &["3 at once"],
    &["8/s", "2 at once"],
    &["2/s", "9/min"],
];

/// The index of the quotas, the cost of a request, and its final charge.
type LimitParams = (usize, u64, ChargeKind);

#[derive(Clone, Copy, Debug)]
enum ChargeKind {
    Upfront,
    OnlyFailures,
    Actual(u64),
}

#[derive(Clone, Debug)]
enum GateStep {
    Wait {
        millis: u64,
    },
    /// A request from one of two clients, to which this subset of the rules applies, and the status of its
    /// response.
    Check {
        client: usize,
        limit_mask: u8,
        status: u16,
    },
    /// The oldest body that is still being sent ends.
    End,
}

struct StatusCode(u16);

impl ResponseHead for StatusCode {
    fn status(&self) -> u16 {
        self.0
    }

    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }
}

fn step() -> impl Strategy<Value = GateStep> {
    prop_oneof![
        2 => (0..700_u64).prop_map(|millis| GateStep::Wait { millis }),
        6 => (0..2_usize, 0..16_u8, select(&[200_u16, 401][..]))
            .prop_map(|(client, to, status)| GateStep::Check { client, limit_mask: to, status }),
        2 => Just(GateStep::End),
    ]
}

fn charge_kind() -> impl Strategy<Value = ChargeKind> {
    prop_oneof![
        2 => Just(ChargeKind::Upfront),
        1 => Just(ChargeKind::OnlyFailures),
        1 => (0..9_u64).prop_map(ChargeKind::Actual),
    ]
}

fn limit(rules: &Rules, index: usize, (quotas, cost, payment): LimitParams) -> RequestLimit {
    let declared =
        QUOTAS[quotas].iter().fold(RuleConfig::new(NAMES[index]), |it, quota| it.quota(*quota).unwrap());
    let limit = RequestLimit::new(rules.declare(declared).unwrap())
        .key(key::peer())
        .cost(move |_| cost)
        .condition(move |head: &dyn RequestHead| head.header("to").is_some_and(|to| to[0] >> index & 1 == 1));
    match payment {
        ChargeKind::Upfront => limit,
        ChargeKind::OnlyFailures => {
            limit.charge(ChargePolicy::only_if(|reply: &dyn ResponseHead| reply.status() == 401))
        }
        ChargeKind::Actual(price) => limit.charge(ChargePolicy::actual(move |_| Some(price))),
    }
}

const CLIENTS: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

fn peek(limit: &RequestLimit, client: usize, cost: u64) -> Decision {
    let limiter = limit.rule().limiter().unwrap();
    limiter.blocking().key(&AddressKey::new(CLIENTS[client].parse().unwrap())).peek(cost)
}

/// The state of all counters.
fn counters(gate: &Gate) -> Vec<Decision> {
    let each = gate.limits().iter().flat_map(|limit| [0, 1].map(|client| peek(limit, client, 0)));
    each.collect()
}

fn check_gate(gate: &Gate, client: usize, to: u8) -> Verdict {
    match gate.check(&TestRequest::from_peer(CLIENTS[client]).header("to", [to])) {
        Evaluation::Ready(verdict) => verdict,
        Evaluation::Pending(_) => panic!("there is no wait and no store"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn rules_charge_all_or_none(
        params in vec((0..QUOTAS.len(), 0..4_u64, charge_kind()), 1..=NAMES.len()),
        steps in vec(step(), 1..60),
    ) {
        let (clock, manual_clock) = Clock::manual();
        let rules = Rules::new();
        rules.apply(Settings::new().clock(clock)).unwrap();
        let gate = Gate::new(params.iter().enumerate().map(|(index, params)| limit(&rules, index, *params)));
        let mut bodies: Vec<RequestPermits> = Vec::new();
        for step in steps {
            match step {
                GateStep::Wait { millis } => manual_clock.advance(Duration::from_millis(millis)),
                GateStep::End if bodies.is_empty() => {}
                GateStep::End => drop(bodies.remove(0)),
                GateStep::Check { client, limit_mask, status } => {
                    let each = gate.limits().iter().zip(&params).enumerate();
                    let selected = each.filter(|(index, _)| limit_mask >> index & 1 == 1);
                    let grants = |(_, (limit, (_, cost, _))): (usize, (&RequestLimit, &LimitParams))| {
                        peek(limit, client, *cost).is_granted()
                    };
                    let expected = selected.into_iter().all(grants);
                    let before = counters(&gate);
                    let verdict = check_gate(&gate, client, limit_mask);
                    prop_assert_eq!(verdict.is_admitted(), expected, "{:?}", verdict);
                    match expected {
                        true => bodies.push(verdict.settle(&gate, &StatusCode(status))),
                        false => {
                            drop(verdict);
                            prop_assert_eq!(counters(&gate), before);
                        }
                    }
                }
            }
        }
    }

    /// A request is admitted after the advised wait, in microseconds and in whole seconds.
    #[test]
    fn request_is_admitted_after_retry_after(
        params in vec((0..QUOTAS.len(), 0..4_u64), 1..=NAMES.len()),
        waits in vec(0..900_u64, 1..40),
    ) {
        let (clock, manual_clock) = Clock::manual();
        let rules = Rules::new();
        rules.apply(Settings::new().clock(clock)).unwrap();
        let of = |(index, (quotas, cost)): (usize, &(usize, u64))| limit(&rules, index, (*quotas, *cost, ChargeKind::Upfront));
        let gate = Gate::new(params.iter().enumerate().map(of));
        for (round, millis) in waits.into_iter().enumerate() {
            manual_clock.advance(Duration::from_millis(millis));
            let verdict = check_gate(&gate, 0, 15);
                        if verdict.is_admitted() {
                continue;
            }
            let seconds: Option<u64> = verdict.rejection_response(&gate).get("retry-after").map(|wait| wait.parse().unwrap());
            let exact = verdict.retry_after();
            prop_assert_eq!(seconds, exact.map(|wait| wait.as_secs_f64().ceil().max(1.0) as u64));
            let (Some(seconds), Some(exact)) = (seconds, exact) else {
                // The cost exceeds the quota.
                manual_clock.advance(Duration::from_secs(3_600));
                prop_assert!(!check_gate(&gate, 0, 15).is_admitted());
                return Ok(());
            };
            manual_clock.advance(if round % 2 == 0 { exact } else { Duration::from_secs(seconds) });
            prop_assert!(check_gate(&gate, 0, 15).is_admitted(), "{:?} after {:?}", verdict, exact);
        }
    }
}
