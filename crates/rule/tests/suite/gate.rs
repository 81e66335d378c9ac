//! A gate asks rules in memory and in stores: all of them, or nothing is taken.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

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
    store::{KeyRef, SlotMode, StoreCheck, StoreDecision, StoreFuture, StoreReply, StoreRequest},
};
use tidegate_overload::CallError;
use tidegate_rule::{
    ChargePolicy, Evaluation, Gate, Mode, RequestLimit, RuleConfig, RuleSettings, Rules, Settings,
    StoreAddress, Verdict,
    request::{self, RequestHead, key},
};

/// A store that counts in a map, at a moment that stands still, as long as it is up.
#[derive(Clone, Debug, Default)]
struct FakeStore(Arc<Mutex<FakeStoreState>>);

#[derive(Debug, Default)]
struct FakeStoreState {
    counters: HashMap<(String, String), Vec<Vec<u64>>>,
    /// How many requests came.
    request_count: usize,
    is_down: bool,
    /// What it decides is known only later.
    is_slow: bool,
}

const NOW: Micros = Micros::from_secs(1);

impl FakeStoreState {
    fn decide(&mut self, asks: &[StoreCheck]) -> Vec<StoreDecision> {
        let looks: Vec<_> = asks.iter().map(|ask| self.decide_one(ask, Effect::Probe)).collect();
        let granted = looks.iter().flat_map(|look| &look.steps).all(|step| step.decision.is_granted());
        match granted {
            true => asks.iter().map(|ask| self.decide_one(ask, Effect::Charge)).collect(),
            false => looks,
        }
    }

    fn decide_one(&mut self, ask: &StoreCheck, effect: Effect) -> StoreDecision {
        assert!(ask.slot_mode == SlotMode::Acquire && ask.receipt, "a gate may give everything back");
        let demand = Demand { effect, ..ask.demand };
        let steps = self.update_quotas(&ask.key_ref, |quota, words| quota.decide(words, NOW, demand));
        StoreDecision { steps, generation: 0 }
    }

    fn update_quotas<R>(
        &mut self,
        place: &KeyRef,
        mut act: impl FnMut(&tidegate_core::Quota, &mut [u64]) -> R,
    ) -> Vec<R> {
        let fresh = || place.limit.quotas().iter().map(|quota| vec![0; quota.state_len()]).collect();
        let key = (place.limit.name().to_owned(), place.key.clone());
        let states = self.counters.entry(key).or_insert_with(fresh);
        place
            .quota_indices()
            .map(|index| act(&place.limit.quotas()[index], states[index].as_mut_slice()))
            .collect()
    }
}

impl Store for FakeStore {
    fn execute(&self, request: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        let mut state = self.0.lock().unwrap();
        state.request_count += 1;
        let reply = match request {
            _ if state.is_down => Err(StoreError::Unavailable("no answer".to_owned())),
            StoreRequest::Decide(asks) => Ok(StoreReply::Decided(state.decide(&asks))),
            StoreRequest::Refund { key_ref: place, charge, cost } => {
                let mut receipts = charge.receipts.into_iter();
                state.update_quotas(&place, |quota, words| {
                    let receipt = receipts.next().unwrap();
                    quota.refund(words, NOW, receipt, cost);
                });
                Ok(StoreReply::Done)
            }
            other => panic!("not asked by a gate: {other:?}"),
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

/// A request of which only the key is known.
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

/// Two stores, and memory beside them.
fn gate_fixture(others: impl FnOnce(Settings) -> Settings) -> GateFixture {
    let shelves = [FakeStore::default(), FakeStore::default()];
    let given = |shelf: &FakeStore| StoreAddress::Instance(Arc::new(shelf.clone()));
    let settings = Settings::new()
        .named_store("here", StoreAddress::Memory)
        .named_store("first", given(&shelves[0]))
        .named_store("second", given(&shelves[1]));
    let rules = Rules::new();
    rules.apply(others(settings)).unwrap();
    GateFixture { rules, stores: shelves }
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
    // Not through the limiter: our store answers nobody but gates.
    let claims = tidegate_limiter::reserve_all(vec![limiter.prepare(key).cost(0)]).await;
    claims[0].as_ref().unwrap().decision().remaining()
}

/// Waits until that much is left: what is given back to a store is on its way, on whatever thread.
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
        Evaluation::Pending(asking) => asking.await,
    }
}

#[tokio::test]
async fn rules_of_one_store_share_one_round_trip() {
    let world = gate_fixture(|settings| settings);
    let gate = Gate::new([
        world.limit("minute", "first", "2/min"),
        world.limit("hour", "first", "5/h"),
        world.limit("here", "here", "9/h"),
    ]);
    for (place, is_admitted) in [true, true, false].into_iter().enumerate() {
        let verdict = check_gate(&gate).await;
        assert_eq!(verdict.is_admitted(), is_admitted);
        assert_eq!(world.request_counts(), [place + 1, 0]);
    }
    let left =
        [remaining(&gate.limits()[1], "192.0.2.1").await, remaining(&gate.limits()[2], "192.0.2.1").await];
    assert_eq!(left, [3, 7], "who was refused in the store paid nothing in memory either");
}

#[tokio::test]
async fn denial_refunds_other_stores() {
    let world = gate_fixture(|settings| settings);
    let gate = Gate::new([
        world.limit("second", "second", "1/h"),
        world.limit("first", "first", "5/h"),
        world.limit("here", "here", "5/h"),
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
    let world = gate_fixture(|settings| settings);
    let only_failures = ChargePolicy::only_if(|reply: &dyn request::ResponseHead| reply.status() == 401);
    let gate = Gate::new([world.limit("logins", "first", "3/h").charge(only_failures)]);
    for (status, expected) in [(200, 3), (401, 2), (200, 2)] {
        let verdict = check_gate(&gate).await;
        assert!(verdict.settle(&gate, &ResponseStatus(status)).is_empty());
        wait_for_remaining(&gate.limits()[0], expected, &status.to_string()).await;
    }
    drop(check_gate(&gate).await);
    wait_for_remaining(&gate.limits()[0], 1, "who hangs up pays").await;
}

#[tokio::test]
async fn store_slots_are_released_on_drop() {
    let world = gate_fixture(|settings| settings);
    let gate = Gate::new([world.limit("jobs", "first", "1 at once"), world.limit("here", "here", "9/h")]);
    let verdict = check_gate(&gate).await;
    assert!(verdict.is_admitted());
    let slots = verdict.settle(&gate, &ResponseStatus(200));
    assert!(!check_gate(&gate).await.is_admitted());
    drop(slots);
    wait_for_remaining(&gate.limits()[0], 1, "given back").await;
    assert!(check_gate(&gate).await.is_admitted());
    assert_eq!(remaining(&gate.limits()[1], "").await, 7);
}

/// The store has decided, and its word is on the way; the client is gone before it is heard.
#[tokio::test]
async fn cancelled_check_releases_store_reservations() {
    let world = gate_fixture(|settings| settings);
    let waits =
        RuleConfig::new("line").quota("1 at once").unwrap().store("first").wait(Duration::from_secs(9));
    let gate = Gate::new([
        world.limit("jobs", "first", "1 at once"),
        world.limit("calls", "first", "5/h"),
        RequestLimit::new(world.rules.declare(waits).unwrap()).key(key::peer()),
    ]);
    world.stores[0].0.lock().unwrap().is_slow = true;
    // Given up after one step, after two, and so on, until there is nothing left to be given up.
    for steps in 1.. {
        let Evaluation::Pending(asking) = gate.check(&PeerRequest) else { panic!("a store is asked later") };
        let mut asking = Box::pin(asking);
        let mut is_done = false;
        for _ in 0..steps {
            is_done = poll_fn(|context| Poll::Ready(asking.as_mut().poll(context).is_ready())).await;
            if is_done {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(asking);
        if is_done {
            assert!(steps > 2, "two trips, and each of them takes a while");
            break;
        }
        for (limit, whole) in gate.limits().iter().zip([1, 5, 1]) {
            wait_for_remaining(limit, whole, &format!("given up after {steps}")).await;
        }
    }
}

#[tokio::test]
async fn shadow_and_off_rules_do_not_deny() {
    let quiet = |mode| RuleSettings::new().mode(mode);
    let world =
        gate_fixture(|settings| settings.rule("shadow", quiet(Mode::Shadow)).rule("off", quiet(Mode::Off)));
    let gate = Gate::new([
        world.limit("shadow", "first", "1/h"),
        world.limit("off", "second", "1/h"),
        world.limit("real", "here", "2/h"),
    ]);
    for expected in [true, true, false] {
        let verdict = check_gate(&gate).await;
        assert_eq!(verdict.is_admitted(), expected);
    }
    assert_eq!(world.request_counts(), [2, 0], "a refused request is no business of a shadow");
    let verdict = check_gate(&gate).await;
    assert_eq!(
        verdict.decisions().map(|one| one.rule(&gate).unwrap().name().to_owned()).collect::<Vec<_>>(),
        ["real"]
    );
}

#[tokio::test]
async fn unavailable_store_applies_failure_mode() {
    let world = gate_fixture(|settings| settings.on_outage(tidegate_limiter::FailureMode::Closed));
    let gate = Gate::new([world.limit("there", "first", "5/h"), world.limit("here", "here", "5/h")]);
    world.stores[0].0.lock().unwrap().is_down = true;
    let verdict = check_gate(&gate).await;
    let limited = verdict.to_limited(&gate).unwrap();
    assert_eq!(
        (limited.rule(), limited.cause()),
        ("there", &CallError::StoreUnavailable(Micros::from_secs(1)))
    );
    assert_eq!(remaining(&gate.limits()[1], "").await, 5);
}

/// It is not the client who did too much, and there are no numbers to tell.
#[tokio::test]
async fn fail_closed_rule_is_unavailable_without_store() {
    let world = gate_fixture(|settings| settings.on_outage(tidegate_limiter::FailureMode::Closed));
    world.stores[0].0.lock().unwrap().is_down = true;
    let waits = |name: &'static str, quota: &str| {
        RuleConfig::new(name).quota(quota).unwrap().store("first").wait(Duration::from_secs(9))
    };
    let line = world.rules.declare(waits("line", "1 at once")).unwrap();
    let patient = world.rules.declare(waits("patient", "1/h")).unwrap();
    for limit in [
        world.limit("calls", "first", "5/h"),
        world.limit("jobs", "first", "1 at once"),
        RequestLimit::new(line.clone()),
        RequestLimit::new(patient.clone()),
    ] {
        let gate = Gate::from(limit);
        let verdict = check_gate(&gate).await;
        let answer = verdict.rejection_response(&gate);
        assert_eq!((answer.status, answer.get("retry-after")), (503, Some("1")), "{gate:?}");
        assert_eq!(answer.get("ratelimit"), None, "{gate:?}");
        assert!(answer.body.contains("temporary-reduced-capacity") && !answer.body.contains("violated"));
        let limited = verdict.to_limited(&gate).unwrap();
        assert!(matches!(limited.cause(), CallError::StoreUnavailable(_)), "{limited}");
        assert!(limited.decision().is_none());
    }
    // What attributes ask.
    for limited in
        [line.acquire("alice").await.map(drop).unwrap_err(), patient.admit("alice", 1).await.unwrap_err()]
    {
        assert_eq!(*limited.cause(), CallError::StoreUnavailable(Micros::from_secs(1)));
        let name = limited.rule().to_owned();
        assert_eq!(limited.to_string(), format!("{name}: the store that counts is away, try again in 1s"));
        assert_eq!(limited.client_message(), "the server cannot take this call now");
    }
}

/// The share of this process is a limit like any other.
#[tokio::test]
async fn local_fallback_denial_is_a_limit() {
    let world =
        gate_fixture(|settings| settings.on_outage(tidegate_limiter::FailureMode::Local { nodes: 1 }));
    world.stores[0].0.lock().unwrap().is_down = true;
    let gate = Gate::from(world.limit("calls", "first", "1/h"));
    assert!(check_gate(&gate).await.is_admitted());
    let verdict = check_gate(&gate).await;
    assert_eq!(verdict.rejection_response(&gate).status, 429);
    assert!(verdict.to_limited(&gate).unwrap().decision().unwrap().is_degraded());
}

/// A store has a clock of its own, but its word is waited for by that of the rules.
#[tokio::test]
async fn manual_clock_wakes_store_waiters() {
    let (clock, manual_clock) = Clock::manual();
    let world = gate_fixture(|settings| settings.clock(clock));
    let declaration = |name: &'static str, quota: &str| {
        let declaration = RuleConfig::new(name).quota(quota).unwrap().store("first");
        RequestLimit::new(world.rules.declare(declaration.wait(Duration::from_secs(9))).unwrap())
            .key(key::peer())
    };
    let gate = Gate::new([declaration("calls", "1/s")]);
    assert!(check_gate(&gate).await.is_admitted());
    let Evaluation::Pending(asking) = gate.check(&PeerRequest) else { panic!("a store is asked later") };
    let task = tokio::spawn(asking);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!task.is_finished());
    manual_clock.advance(Duration::from_secs(1));
    assert!(task.await.unwrap().is_admitted());

    // Slots beside a rate: neither is lost when the token does not come in time.
    let both = RuleConfig::new("both").quota("1/h").unwrap().quota("1 at once").unwrap().store("first");
    let both = RequestLimit::new(world.rules.declare(both.wait(Duration::from_secs(3_000))).unwrap());
    let gate = Gate::from(both.key(key::peer()));
    let slots = check_gate(&gate).await.settle(&gate, &ResponseStatus(200));
    assert!(!slots.is_empty());
    let Evaluation::Pending(asking) = gate.check(&PeerRequest) else { panic!("a store is asked later") };
    let mut asking = Box::pin(asking);
    for _ in 0..100 {
        let is_done = poll_fn(|context| Poll::Ready(asking.as_mut().poll(context).is_ready())).await;
        assert!(!is_done, "it waits for the slot");
        tokio::task::yield_now().await;
    }
    drop(slots);
    let verdict = loop {
        manual_clock.advance(Duration::from_millis(1));
        let polled = poll_fn(|context| Poll::Ready(asking.as_mut().poll(context))).await;
        match polled {
            Poll::Ready(verdict) => break verdict,
            Poll::Pending => tokio::task::yield_now().await,
        }
    };
    let answer = verdict.rejection_response(&gate);
    assert_eq!((answer.status, answer.get("retry-after")), (429, Some("3600")));
}

#[tokio::test]
async fn concurrency_tier_limits_with_and_without_wait() {
    for wait in [Duration::ZERO, Duration::from_millis(5)] {
        let rules = Rules::new();
        let plans =
            RuleConfig::new("plans").tiers(["1 at once", "3 at once"].map(|quota| quota.parse().unwrap()));
        let limit = RequestLimit::new(rules.declare(plans.wait(wait)).unwrap()).tier(|_| 1);
        let gate = Gate::from(limit);
        let mut held = Vec::new();
        for admitted in [true, true, true, false] {
            let verdict = check_gate(&gate).await;
            assert_eq!(verdict.is_admitted(), admitted, "{wait:?}, {} held", held.len());
            held.push(verdict);
        }
    }
}
