//! The law of a gate: it lets nobody in whom one of its rules would refuse, and who is refused has paid nothing.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::common::Request;
use proptest::{collection::vec, prelude::*, sample::select};
use std::time::Duration;
use tidegate_core::Decision;
use tidegate_limiter::Clock;
use tidegate_rule::{
    Charge, Declaration, Evaluation, Gate, HeldSlots, RequestLimit, Rules, Settings, Verdict,
    request::{Address, Head, Reply, key},
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

/// Which quotas, what a request costs, and what it pays after all.
type Ruled = (usize, u64, Payment);

#[derive(Clone, Copy, Debug)]
enum Payment {
    Ahead,
    OnlyFailures,
    Actual(u64),
}

#[derive(Clone, Debug)]
enum Step {
    Wait {
        millis: u64,
    },
    /// A request from one of two clients, to which this subset of the rules applies, and what it is answered.
    Ask {
        client: usize,
        to: u8,
        status: u16,
    },
    /// The first body that is still being sent has ended.
    End,
}

struct Status(u16);

impl Reply for Status {
    fn status(&self) -> u16 {
        self.0
    }

    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..700_u64).prop_map(|millis| Step::Wait { millis }),
        6 => (0..2_usize, 0..16_u8, select(&[200_u16, 401][..]))
            .prop_map(|(client, to, status)| Step::Ask { client, to, status }),
        2 => Just(Step::End),
    ]
}

fn payment() -> impl Strategy<Value = Payment> {
    prop_oneof![
        2 => Just(Payment::Ahead),
        1 => Just(Payment::OnlyFailures),
        1 => (0..9_u64).prop_map(Payment::Actual),
    ]
}

fn limit(rules: &Rules, place: usize, (quotas, cost, payment): Ruled) -> RequestLimit {
    let declared =
        QUOTAS[quotas].iter().fold(Declaration::of(NAMES[place]), |it, quota| it.quota(*quota).unwrap());
    let limit = RequestLimit::new(rules.rule(declared).unwrap())
        .key(key::peer())
        .cost(move |_| cost)
        .when(move |head: &dyn Head| head.header("to").is_some_and(|to| to[0] >> place & 1 == 1));
    match payment {
        Payment::Ahead => limit,
        Payment::OnlyFailures => limit.charge(Charge::only_if(|reply: &dyn Reply| reply.status() == 401)),
        Payment::Actual(price) => limit.charge(Charge::actual(move |_| Some(price))),
    }
}

const CLIENTS: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

fn peek(limit: &RequestLimit, client: usize, cost: u64) -> Decision {
    let limiter = limit.rule().limiter().unwrap();
    limiter.blocking().key(&Address::of(CLIENTS[client].parse().unwrap())).peek(cost)
}

/// Everything that all rules count.
fn counters(gate: &Gate) -> Vec<Decision> {
    let each = gate.limits().iter().flat_map(|limit| [0, 1].map(|client| peek(limit, client, 0)));
    each.collect()
}

fn ask(gate: &Gate, client: usize, to: u8) -> Verdict {
    match gate.check(&Request::from(CLIENTS[client]).header("to", [to])) {
        Evaluation::Ready(verdict) => verdict,
        Evaluation::Pending(_) => panic!("nobody waits, and there is no store"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn all_rules_agree_or_nothing_happens(
        ruled in vec((0..QUOTAS.len(), 0..4_u64, payment()), 1..=NAMES.len()),
        steps in vec(step(), 1..60),
    ) {
        let (clock, hand) = Clock::manual();
        let rules = Rules::new();
        rules.apply(Settings::new().clock(clock)).unwrap();
        let gate = Gate::new(ruled.iter().enumerate().map(|(place, ruled)| limit(&rules, place, *ruled)));
        let mut bodies: Vec<HeldSlots> = Vec::new();
        for step in steps {
            match step {
                Step::Wait { millis } => hand.advance(Duration::from_millis(millis)),
                Step::End if bodies.is_empty() => {}
                Step::End => drop(bodies.remove(0)),
                Step::Ask { client, to, status } => {
                    let each = gate.limits().iter().zip(&ruled).enumerate();
                    let asked = each.filter(|(place, _)| to >> place & 1 == 1);
                    let grants = |(_, (limit, (_, cost, _))): (usize, (&RequestLimit, &Ruled))| {
                        peek(limit, client, *cost).is_granted()
                    };
                    let expected = asked.into_iter().all(grants);
                    let before = counters(&gate);
                    let verdict = ask(&gate, client, to);
                    prop_assert_eq!(verdict.is_admitted(), expected, "{:?}", verdict);
                    match expected {
                        true => bodies.push(verdict.settle(&gate, &Status(status))),
                        false => {
                            drop(verdict);
                            prop_assert_eq!(counters(&gate), before);
                        }
                    }
                }
            }
        }
    }

    /// Whoever waits for as long as it is told is let in, to the microsecond and in whole seconds.
    #[test]
    fn who_waits_as_told_is_let_in(
        ruled in vec((0..QUOTAS.len(), 0..4_u64), 1..=NAMES.len()),
        waits in vec(0..900_u64, 1..40),
    ) {
        let (clock, hand) = Clock::manual();
        let rules = Rules::new();
        rules.apply(Settings::new().clock(clock)).unwrap();
        let of = |(place, (quotas, cost)): (usize, &(usize, u64))| limit(&rules, place, (*quotas, *cost, Payment::Ahead));
        let gate = Gate::new(ruled.iter().enumerate().map(of));
        for (turn, millis) in waits.into_iter().enumerate() {
            hand.advance(Duration::from_millis(millis));
            let verdict = ask(&gate, 0, 15);
                        if verdict.is_admitted() {
                continue;
            }
            let told: Option<u64> = verdict.answer(&gate).get("retry-after").map(|wait| wait.parse().unwrap());
            let exact = verdict.retry_after();
            prop_assert_eq!(told, exact.map(|wait| wait.as_secs_f64().ceil().max(1.0) as u64));
            let (Some(told), Some(exact)) = (told, exact) else {
                // More than is ever granted at once.
                hand.advance(Duration::from_secs(3_600));
                prop_assert!(!ask(&gate, 0, 15).is_admitted());
                return Ok(());
            };
            hand.advance(if turn % 2 == 0 { exact } else { Duration::from_secs(told) });
            prop_assert!(ask(&gate, 0, 15).is_admitted(), "{:?} after {:?}", verdict, exact);
        }
    }
}
