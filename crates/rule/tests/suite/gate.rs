//! A gate checks rules in memory and in stores: all are charged, or none is.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use std::{
    any::Any,
    collections::HashMap,
    future::{Future as _, poll_fn},
    net::IpAddr,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};
use tidegate_core::{Demand, Effect, Micros};
use tidegate_limiter::{
    Clock, Store, StoreError,
    store::{KeyRef, PermitMode, StoreCheck, StoreDecision, StoreFuture, StoreReply, StoreRequest},
};
use tidegate_overload::CallError;
use tidegate_rule::{
    ChargePolicy, Evaluation, Gate, Mode, RequestLimit, RuleConfig, RuleSettings, Rules, Settings,
    StoreAddress, Verdict,
    request::{self, RequestHead, key},
};

/// A store that counts in a map at a fixed time, while it is up.
#[derive(Clone, Debug, Default)]
struct FakeStore(Arc<Mutex<FakeStoreState>>);

#[derive(Debug, Default)]
struct FakeStoreState {
    counters: HashMap<(String, String), Vec<Vec<u64>>>,
    /// The number of requests.
    request_count: usize,
    is_down: bool,
    /// Whether replies are delayed.
    is_slow: bool,
}

const NOW: Micros = Micros::from_secs(1);

impl FakeStoreState {
    fn decide(&mut self, checks: &[StoreCheck]) -> Vec<StoreDecision> {
        let peeked: Vec<_> = checks.iter().map(|check| self.decide_one(check, Effect::Peek)).collect();
        let granted =
            peeked.iter().flat_map(|decision| &decision.results).all(|result| result.decision.is_granted());
        match granted {
            true => checks.iter().map(|check| self.decide_one(check, Effect::Charge)).collect(),
            false => peeked,
        }
    }

    fn decide_one(&mut self, check: &StoreCheck, effect: Effect) -> StoreDecision {
        assert!(check.permit_mode == PermitMode::Acquire && check.receipt, "a gate may refund everything");
        let demand = Demand { effect, ..check.demand };
        let steps = self.update_quotas(&check.key_ref, |quota, state| quota.decide(state, NOW, demand));
        StoreDecision { results: steps, generation: 0 }
    }

    fn update_quotas<R>(
        &mut self,
        key_ref: &KeyRef,
        mut act: impl FnMut(&tidegate_core::Quota, &mut [u64]) -> R,
    ) -> Vec<R> {
        let fresh = || key_ref.limit.quotas().iter().map(|quota| vec![0; quota.state_len()]).collect();
        let key = (key_ref.limit.name().to_owned(), key_ref.key.clone());
        let states = self.counters.entry(key).or_insert_with(fresh);
        key_ref
            .quota_indices()
            .map(|index| act(&key_ref.limit.quotas()[index], states[index].as_mut_slice()))
            .collect()
    }
}

impl Store for FakeStore {
    fn execute(&self, request: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        let mut state = self.0.lock().unwrap();
        state.request_count += 1;
        let reply = match request {
            _ if state.is_down => Err(StoreError::Unavailable("no response".to_owned())),
            StoreRequest::Decide(checks) => Ok(StoreReply::Decided(state.decide(&checks))),
            StoreRequest::Refund { key_ref, charge, cost } => {
                let mut receipts = charge.receipts.into_iter();
                state.update_quotas(&key_ref, |quota, state| {
                    let receipt = receipts.next().unwrap();
                    quota.refund(state, NOW, receipt, cost);
                });
                Ok(StoreReply::Done)
            }
            other => panic!("unexpected request: {other:?}"),
        };
        let is_slow = state.is_slow;
        Box::pin(async move {
            if is_slow {
                tokio::task::yield_now().await;
            }
            reply
        })
    }
}

/// A request with a peer address only.
struct PeerRequest;

impl RequestHead for PeerRequest {
    fn method(&self) -> &str {
        "GET"
    }
    fn path(&self) -> &str {
        "/"
    }
    fn host(&self) -> Option<&str> {
        None
    }
    fn route(&self) -> Option<&str> {
        None
    }
    fn peer(&self) -> Option<IpAddr> {
        Some([192, 0, 2, 1].into())
    }
    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }
    fn for_each_header<'a>(&'a self, _: &str, _: &mut dyn FnMut(&'a [u8])) {}
    fn extensions(&self) -> Option<&dyn Any> {
        None
    }
}

struct ResponseStatus(u16);

impl request::ResponseHead for ResponseStatus {
    fn status(&self) -> u16 {
        self.0
    }
    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }
}

struct GateFixture {
    rules: Rules,
    stores: [FakeStore; 2],
}

/// Two stores, and memory.
fn gate_fixture(others: impl FnOnce(Settings) -> Settings) -> GateFixture {
    let stores = [FakeStore::default(), FakeStore::default()];
    let instance = |store: &FakeStore| StoreAddress::Instance(Arc::new(store.clone()));
    let settings = Settings::new()
        .named_store("here", StoreAddress::Memory)
        .named_store("first", instance(&stores[0]))
        .named_store("second", instance(&stores[1]));
    let rules = Rules::new();
    rules.apply(others(settings)).unwrap();
    GateFixture { rules, stores }
}

impl GateFixture {
    fn limit(&self, name: &'static str, store: &'static str, quota: &str) -> RequestLimit {
        let declaration = RuleConfig::new(name).quota(quota).unwrap().store(store);
        RequestLimit::new(self.rules.declare(declaration).unwrap()).key(key::peer())
    }

    fn request_counts(&self) -> [usize; 2] {
        [0, 1].map(|which: usize| self.stores[which].0.lock().unwrap().request_count)
    }
}

async fn remaining(limit: &RequestLimit, key: &str) -> u64 {
    let limiter = limit.rule().limiter().unwrap();
    if limiter.is_in_memory() {
        let address = request::AddressKey::new([192, 0, 2, 1].into());
        return limiter.blocking().key(&address).peek(0).remaining();
    }
    // Not through the limiter: the fake store supports only the requests of gates.
    let claims = tidegate_limiter::reserve_all(vec![limiter.prepare(key).cost(0)]).await;
    claims[0].as_ref().unwrap().decision().remaining()
}

/// Waits until this much is left: refunds to a store are asynchronous.
async fn wait_for_remaining(limit: &RequestLimit, expected: u64, why: &str) {
    let mut last = remaining(limit, "192.0.2.1").await;
    for _ in 0..100_000 {
        if last == expected {
            return;
        }
        tokio::task::yield_now().await;
        last = remaining(limit, "192.0.2.1").await;
    }
    panic!("{last} left of {limit:?}, not {expected}: {why}");
}

async fn check_gate(gate: &Gate) -> Verdict {
    match gate.check(&PeerRequest) {
        Evaluation::Ready(verdict) => verdict,
        Evaluation::Pending(pending) => pending.await,
    }
}

#[tokio::test]
async fn rules_of_one_store_share_one_round_trip() {
    let fixture = gate_fixture(|settings| settings);
    let gate = Gate::new([
        fixture.limit("minute", "first", "2/min"),
        fixture.limit("hour", "first", "5/h"),
        fixture.limit("here", "here", "9/h"),
    ]);
    for (index, is_admitted) in [true, true, false].into_iter().enumerate() {
        let verdict = check_gate(&gate).await;
        assert_eq!(verdict.is_admitted(), is_admitted);
        assert_eq!(fixture.request_counts(), [index + 1, 0]);
    }
    let left =
        [remaining(&gate.limits()[1], "192.0.2.1").await, remaining(&gate.limits()[2], "192.0.2.1").await];
    assert_eq!(left, [3, 7], "a denial in the store charges nothing in memory");
}

#[tokio::test]
async fn denial_refunds_other_stores() {
    let fixture = gate_fixture(|settings| settings);
    let gate = Gate::new([
        fixture.limit("second", "second", "1/h"),
        fixture.limit("first", "first", "5/h"),
        fixture.limit("here", "here", "5/h"),
    ]);
    assert!(check_gate(&gate).await.is_admitted());
    let verdict = check_gate(&gate).await;
    assert_eq!(verdict.to_limited(&gate).unwrap().rule(), "second");
    drop(verdict);
    for (limit, expected) in gate.limits().iter().zip([0, 4, 4]) {
        wait_for_remaining(limit, expected, "a denial").await;
    }
}

#[tokio::test]
async fn store_charge_depends_on_response() {
    let fixture = gate_fixture(|settings| settings);
    let only_failures = ChargePolicy::only_if(|reply: &dyn request::ResponseHead| reply.status() == 401);
    let gate = Gate::new([fixture.limit("logins", "first", "3/h").charge(only_failures)]);
    for (status, expected) in [(200, 3), (401, 2), (200, 2)] {
        let verdict = check_gate(&gate).await;
        assert!(verdict.settle(&gate, &ResponseStatus(status)).is_empty());
        wait_for_remaining(&gate.limits()[0], expected, &status.to_string()).await;
    }
    drop(check_gate(&gate).await);
    wait_for_remaining(&gate.limits()[0], 1, "a disconnect is charged").await;
}

#[tokio::test]
async fn store_slots_are_released_on_drop() {
    let fixture = gate_fixture(|settings| settings);
    let gate = Gate::new([fixture.limit("jobs", "first", "1 at once"), fixture.limit("here", "here", "9/h")]);
    let verdict = check_gate(&gate).await;
    assert!(verdict.is_admitted());
    let slots = verdict.settle(&gate, &ResponseStatus(200));
    assert!(!check_gate(&gate).await.is_admitted());
    drop(slots);
    wait_for_remaining(&gate.limits()[0], 1, "released").await;
    assert!(check_gate(&gate).await.is_admitted());
    assert_eq!(remaining(&gate.limits()[1], "").await, 7);
}

/// The store has decided, but the request is cancelled before the reply arrives.
#[tokio::test]
async fn cancelled_check_releases_store_reservations() {
    let fixture = gate_fixture(|settings| settings);
    let waits =
        RuleConfig::new("line").quota("1 at once").unwrap().store("first").wait(Duration::from_secs(9));
    let gate = Gate::new([
        fixture.limit("jobs", "first", "1 at once"),
        fixture.limit("calls", "first", "5/h"),
        RequestLimit::new(fixture.rules.declare(waits).unwrap()).key(key::peer()),
    ]);
    fixture.stores[0].0.lock().unwrap().is_slow = true;
    // Cancelled after one step, after two, and so on, until it completes.
    for steps in 1.. {
        let Evaluation::Pending(pending) = gate.check(&PeerRequest) else {
            panic!("the store replies later")
        };
        let mut pending = Box::pin(pending);
        let mut is_done = false;
        for _ in 0..steps {
            is_done = poll_fn(|context| Poll::Ready(pending.as_mut().poll(context).is_ready())).await;
            if is_done {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(pending);
        if is_done {
            assert!(steps > 2, "two round trips of several steps");
            break;
        }
        for (limit, whole) in gate.limits().iter().zip([1, 5, 1]) {
            wait_for_remaining(limit, whole, &format!("cancelled after {steps}")).await;
        }
    }
}

#[tokio::test]
async fn shadow_and_off_rules_do_not_deny() {
    let with_mode = |mode| RuleSettings::new().mode(mode);
    let fixture = gate_fixture(|settings| {
        settings.rule("shadow", with_mode(Mode::Shadow)).rule("off", with_mode(Mode::Off))
    });
    let gate = Gate::new([
        fixture.limit("shadow", "first", "1/h"),
        fixture.limit("off", "second", "1/h"),
        fixture.limit("real", "here", "2/h"),
    ]);
    for expected in [true, true, false] {
        let verdict = check_gate(&gate).await;
        assert_eq!(verdict.is_admitted(), expected);
    }
    assert_eq!(fixture.request_counts(), [2, 0], "a denied request does not reach shadow rules");
    let verdict = check_gate(&gate).await;
    assert_eq!(
        verdict.decisions().map(|one| one.rule(&gate).unwrap().name().to_owned()).collect::<Vec<_>>(),
        ["real"]
    );
}

#[tokio::test]
async fn unavailable_store_applies_failure_mode() {
    let fixture = gate_fixture(|settings| settings.failure_mode(tidegate_limiter::FailureMode::Closed));
    let gate = Gate::new([fixture.limit("there", "first", "5/h"), fixture.limit("here", "here", "5/h")]);
    fixture.stores[0].0.lock().unwrap().is_down = true;
    let verdict = check_gate(&gate).await;
    let limited = verdict.to_limited(&gate).unwrap();
    assert_eq!(
        (limited.rule(), limited.cause()),
        ("there", &CallError::StoreUnavailable(Micros::from_secs(1)))
    );
    assert_eq!(remaining(&gate.limits()[1], "").await, 5);
}

/// The client did not exceed a limit, and there are no quota headers.
#[tokio::test]
async fn fail_closed_rule_is_unavailable_without_store() {
    let fixture = gate_fixture(|settings| settings.failure_mode(tidegate_limiter::FailureMode::Closed));
    fixture.stores[0].0.lock().unwrap().is_down = true;
    let waits = |name: &'static str, quota: &str| {
        RuleConfig::new(name).quota(quota).unwrap().store("first").wait(Duration::from_secs(9))
    };
    let line = fixture.rules.declare(waits("line", "1 at once")).unwrap();
    let waiting = fixture.rules.declare(waits("waiting", "1/h")).unwrap();
    for limit in [
        fixture.limit("calls", "first", "5/h"),
        fixture.limit("jobs", "first", "1 at once"),
        RequestLimit::new(line.clone()),
        RequestLimit::new(waiting.clone()),
    ] {
        let gate = Gate::from(limit);
        let verdict = check_gate(&gate).await;
        let response = verdict.rejection_response(&gate);
        assert_eq!((response.status, response.get("retry-after")), (503, Some("1")), "{gate:?}");
        assert_eq!(response.get("ratelimit"), None, "{gate:?}");
        assert!(response.body.contains("temporary-reduced-capacity") && !response.body.contains("violated"));
        let limited = verdict.to_limited(&gate).unwrap();
        assert!(matches!(limited.cause(), CallError::StoreUnavailable(_)), "{limited}");
        assert!(limited.decision().is_none());
    }
    // The same through the API of attributes.
    for limited in
        [line.acquire("alice").await.map(drop).unwrap_err(), waiting.admit("alice", 1).await.unwrap_err()]
    {
        assert_eq!(*limited.cause(), CallError::StoreUnavailable(Micros::from_secs(1)));
        let name = limited.rule().to_owned();
        assert_eq!(limited.to_string(), format!("{name}: store unavailable; retry in 1s"));
        assert_eq!(limited.client_message(), "the server cannot take this call now");
    }
}

/// The local share is a limit like any other.
#[tokio::test]
async fn local_fallback_denial_is_a_limit() {
    let fixture =
        gate_fixture(|settings| settings.failure_mode(tidegate_limiter::FailureMode::Local { nodes: 1 }));
    fixture.stores[0].0.lock().unwrap().is_down = true;
    let gate = Gate::from(fixture.limit("calls", "first", "1/h"));
    assert!(check_gate(&gate).await.is_admitted());
    let verdict = check_gate(&gate).await;
    assert_eq!(verdict.rejection_response(&gate).status, 429);
    assert!(verdict.to_limited(&gate).unwrap().decision().unwrap().is_degraded());
}

/// A store has its own clock, but waiting uses the clock of the rules.
#[tokio::test]
async fn manual_clock_wakes_store_waiters() {
    let (clock, manual_clock) = Clock::manual();
    let fixture = gate_fixture(|settings| settings.clock(clock));
    let declaration = |name: &'static str, quota: &str| {
        let declaration = RuleConfig::new(name).quota(quota).unwrap().store("first");
        RequestLimit::new(fixture.rules.declare(declaration.wait(Duration::from_secs(9))).unwrap())
            .key(key::peer())
    };
    let gate = Gate::new([declaration("calls", "1/s")]);
    assert!(check_gate(&gate).await.is_admitted());
    let Evaluation::Pending(pending) = gate.check(&PeerRequest) else { panic!("the store replies later") };
    let task = tokio::spawn(pending);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!task.is_finished());
    manual_clock.advance(Duration::from_secs(1));
    assert!(task.await.unwrap().is_admitted());

    // A slot and a rate: neither is lost when the token is not available in time.
    let both = RuleConfig::new("both").quota("1/h").unwrap().quota("1 at once").unwrap().store("first");
    let both = RequestLimit::new(fixture.rules.declare(both.wait(Duration::from_secs(3_000))).unwrap());
    let gate = Gate::from(both.key(key::peer()));
    let slots = check_gate(&gate).await.settle(&gate, &ResponseStatus(200));
    assert!(!slots.is_empty());
    let Evaluation::Pending(pending) = gate.check(&PeerRequest) else { panic!("the store replies later") };
    let mut pending = Box::pin(pending);
    for _ in 0..100 {
        let is_done = poll_fn(|context| Poll::Ready(pending.as_mut().poll(context).is_ready())).await;
        assert!(!is_done, "still waiting for the slot");
        tokio::task::yield_now().await;
    }
    drop(slots);
    let verdict = loop {
        manual_clock.advance(Duration::from_millis(1));
        let polled = poll_fn(|context| Poll::Ready(pending.as_mut().poll(context))).await;
        match polled {
            Poll::Ready(verdict) => break verdict,
            Poll::Pending => tokio::task::yield_now().await,
        }
    };
    let response = verdict.rejection_response(&gate);
    assert_eq!((response.status, response.get("retry-after")), (429, Some("3600")));
}

#[tokio::test]
async fn concurrency_tier_limits_with_and_without_wait() {
    for wait in [Duration::ZERO, Duration::from_millis(5)] {
        let rules = Rules::new();
        let plans =
            RuleConfig::new("plans").tiers(["1 at once", "3 at once"].map(|quota| quota.parse().unwrap()));
        let limit = RequestLimit::new(rules.declare(plans.wait(wait)).unwrap()).tier(|_| 1);
        let gate = Gate::from(limit);
        let mut verdicts = Vec::new();
        for admitted in [true, true, true, false] {
            let verdict = check_gate(&gate).await;
            assert_eq!(verdict.is_admitted(), admitted, "{wait:?}, {} verdicts", verdicts.len());
            verdicts.push(verdict);
        }
    }
}
