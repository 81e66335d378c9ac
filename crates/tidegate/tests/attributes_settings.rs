//! Settings and request context for functions with attributes. All tests share the global settings, so they run one at a time.

#![cfg(feature = "macros")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]
#![allow(clippy::await_holding_lock, reason = "each test has its own thread and runtime")]

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};
use tidegate::{
    CallOutcome, Clock, FailureMode, Limited, Rules, breaker, concurrency,
    core::Micros,
    limit,
    limiter::{
        StoreError,
        store::{StoreDecision, StoreFuture, StoreReply, StoreRequest},
    },
    rule::{Mode, RequestContext, RuleSettings, Settings, StoreAddress},
};
use tidegate_testkit::servers::wait_until;

static TEST_LOCK: Mutex<()> = Mutex::new(());

/// Applies settings for the duration of a test.
fn apply_settings(settings: Settings) -> MutexGuard<'static, ()> {
    let guard = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    Rules::global().apply(settings).unwrap();
    guard
}

fn passed_of_ten<T>(mut call: impl FnMut() -> Result<T, Limited>) -> usize {
    (0..10).filter(|_| call().is_ok()).count()
}

#[limit(rule = "elsewhere")]
fn elsewhere() -> Result<(), Limited> {
    Ok(())
}

#[limit("10/h burst 3", rule = "login", message = "slow down")]
fn login() -> Result<(), Limited> {
    Ok(())
}

#[test]
fn settings_change_quotas_at_runtime() {
    let _guard = apply_settings(Settings::new());
    assert_eq!(passed_of_ten(elsewhere), 10, "no quota is configured");
    assert_eq!(passed_of_ten(login), 3);
    assert_eq!(login().unwrap_err().to_string(), "slow down");

    let login_settings = RuleSettings::new().quota("10/h burst 8").unwrap().message("later");
    let settings = Settings::new().quota("elsewhere", "10/h burst 2").unwrap().rule("login", login_settings);
    Rules::global().apply(settings).unwrap();
    assert_eq!(passed_of_ten(elsewhere), 2);
    assert_eq!(passed_of_ten(login), 5, "three are already used");
    assert_eq!(login().unwrap_err().to_string(), "later");

    for mode in [Mode::Off, Mode::Shadow] {
        Rules::global()
            .apply(Settings::new().mode(mode).quota("elsewhere", "10/h burst 2").unwrap())
            .unwrap();
        assert_eq!((passed_of_ten(elsewhere), passed_of_ten(login)), (10, 10), "{mode}");
    }
}

#[limit("10/h burst 1", shadow)]
fn dry_run() -> Result<(), Limited> {
    Ok(())
}

#[breaker(window_size = 1, rule = "fragile")]
fn fragile() -> Result<(), FragileError> {
    Err(FragileError::Inner)
}

#[breaker(window_size = 1, shadow, rule = "fragile dry run", map_err = |_| FragileError::Rejected)]
fn fragile_dry_run() -> Result<(), FragileError> {
    Err(FragileError::Inner)
}

#[derive(Debug, PartialEq)]
enum FragileError {
    Inner,
    Rejected,
}

impl From<Limited> for FragileError {
    fn from(_: Limited) -> Self {
        Self::Rejected
    }
}

#[test]
fn shadow_mode_never_denies_and_breakers_follow_settings() {
    let _guard = apply_settings(Settings::new());
    assert_eq!(passed_of_ten(dry_run), 10);
    assert_eq!([fragile(), fragile()], [Err(FragileError::Inner), Err(FragileError::Rejected)]);
    assert_eq!([fragile_dry_run(), fragile_dry_run()], [Err(FragileError::Inner), Err(FragileError::Inner)]);
    Rules::global().apply(Settings::new().rule("fragile", RuleSettings::new().mode(Mode::Off))).unwrap();
    assert_eq!(fragile(), Err(FragileError::Inner));
    Rules::global().apply(Settings::new().mode(Mode::Off)).unwrap();
    assert_eq!(fragile(), Err(FragileError::Inner));
    Rules::global().apply(Settings::new()).unwrap();
    assert_eq!(fragile(), Err(FragileError::Rejected));
}

#[limit("10/h burst 3", key = ip)]
async fn by_ip() -> Result<(), Limited> {
    Ok(())
}

#[limit("10/h burst 3", key = (user, path))]
fn by_user(path: &str) -> Result<(), Limited> {
    Ok(())
}

/// An argument with the name of a keyword takes precedence.
#[limit("10/h burst 3", key = user)]
fn by_argument(user: u64) -> Result<(), Limited> {
    Ok(())
}

#[tokio::test]
async fn request_context_provides_keys() {
    let _guard = apply_settings(Settings::new());
    let from = |address: &str| RequestContext::default().with_ip(address.parse::<IpAddr>().unwrap());
    let mut passed = Vec::new();
    for address in ["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"] {
        let mut count = 0;
        for _ in 0..5 {
            count += usize::from(from(address).scope(by_ip()).await.is_ok());
        }
        passed.push(count);
    }
    assert_eq!(passed, [3, 3, 3, 0], "an IPv6 network is one client");
    let alice = RequestContext::default().with_user("alice");
    assert_eq!(alice.clone().scope_blocking(|| passed_of_ten(|| by_user("/a"))), 3);
    assert_eq!(alice.clone().scope_blocking(|| passed_of_ten(|| by_user("/b"))), 3);
    assert_eq!(passed_of_ten(|| by_user("/a")), 3, "calls without a user");
    assert_eq!(
        alice.scope_blocking(|| passed_of_ten(|| by_argument(1)) + passed_of_ten(|| by_argument(2))),
        6
    );
}

#[limit("10/s burst 1", wait = "250ms")]
async fn patient() -> Result<(), Limited> {
    Ok(())
}

#[concurrency(1, wait = "250ms")]
async fn patient_slot(takes: Duration) -> Result<(), Limited> {
    tokio::time::sleep(takes).await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn call_waits_up_to_max_wait() {
    let clock = Clock::tokio();
    let _guard = apply_settings(Settings::new().clock(clock.clone()));
    let start = clock.now();
    let (a, b, c, d) = tokio::join!(patient(), patient(), patient(), patient());
    assert!(a.is_ok() && b.is_ok() && c.is_ok() && d.is_err());
    assert_eq!(clock.now().saturating_sub(start), Micros::from_millis(200));

    let takes = Duration::from_millis(200);
    let (a, b, c) = tokio::join!(patient_slot(takes), patient_slot(takes), patient_slot(takes));
    assert!(a.is_ok() && b.is_ok() && c.is_err());
}

#[limit("10/s burst 1", wait = "1s")]
fn blocking() -> Result<(), Limited> {
    Ok(())
}

/// The call is admitted whether it starts before or after the clock advances.
#[test]
fn blocking_call_waits() {
    let (clock, manual_clock) = Clock::manual();
    let _guard = apply_settings(Settings::new().clock(clock));
    blocking().unwrap();
    let waiting = thread::spawn(blocking);
    manual_clock.advance(Duration::from_millis(100));
    waiting.join().unwrap().unwrap();
}

/// A store that uses the algorithms of the core, and can be made unavailable.
#[derive(Debug, Default)]
struct RecordingStore {
    state: Mutex<BTreeMap<String, Vec<u64>>>,
    /// Tokens that are taken and not refunded.
    outstanding: AtomicU64,
    is_unavailable: AtomicBool,
}

impl tidegate::Store for RecordingStore {
    fn execute(&self, request: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        let reply = self.reply(request);
        Box::pin(async move {
            tokio::task::yield_now().await;
            reply
        })
    }
}

impl RecordingStore {
    fn reply(&self, request: StoreRequest) -> Result<StoreReply, StoreError> {
        if self.is_unavailable.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable("as configured".to_owned()));
        }
        let mut state = self.state.lock().unwrap();
        match request {
            StoreRequest::Decide(inquiries) => {
                let [inquiry] = &inquiries[..] else { panic!("expected one check") };
                let quota = inquiry.key_ref.limit.quotas()[0];
                let quota_state =
                    state.entry(key_name(&inquiry.key_ref)).or_insert_with(|| vec![0; quota.state_len()]);
                let result = quota.decide(&mut quota_state[..], Micros::from_secs(1_000_000), inquiry.demand);
                self.outstanding.fetch_add(result.receipt.cost, Ordering::Relaxed);
                Ok(StoreReply::Decided(vec![StoreDecision { results: vec![result], generation: 0 }]))
            }
            StoreRequest::Refund { key_ref: place, charge, cost } => {
                let quota = place.limit.quotas()[0];
                let quota_state = state.entry(key_name(&place)).or_insert_with(|| vec![0; quota.state_len()]);
                quota.refund(&mut quota_state[..], Micros::from_secs(1_000_000), charge.receipts[0], cost);
                self.outstanding.fetch_sub(cost, Ordering::Relaxed);
                Ok(StoreReply::Done)
            }
            _ => Ok(StoreReply::Done),
        }
    }

    /// Waits until `expected` tokens are outstanding, because refunds are sent by another thread.
    fn wait_for_outstanding(&self, expected: u64) {
        let ask = || match self.outstanding.load(Ordering::Relaxed) {
            taken if taken == expected => Ok(()),
            taken => Err(format!("{taken} are taken")),
        };
        wait_until("the tokens are refunded", ask).unwrap();
    }

    fn keys(&self) -> Vec<String> {
        self.state.lock().unwrap().keys().cloned().collect()
    }
}

fn key_name(place: &tidegate::limiter::store::KeyRef) -> String {
    format!("{} {}", place.limit.name(), place.key)
}

#[limit("10/h burst 3", key = (tenant, route), rule = "stored")]
fn stored(tenant: u32, route: &str) -> Result<(), Limited> {
    Ok(())
}

#[limit("10/h burst 3", key = name, rule = "stored async")]
async fn stored_async(name: &str) -> Result<(), Limited> {
    Ok(())
}

#[concurrency(2, rule = "stored slots", store = "sessions")]
async fn stored_slots(depth: u32) -> Result<(), Limited> {
    match depth {
        0 => Ok(()),
        depth => Box::pin(stored_slots(depth - 1)).await,
    }
}

#[limit("10/h burst 2", rule = "stored stack", store = "sessions")]
#[breaker(window_size = 1, rule = "stored breaker", classify = |_| CallOutcome::Failure)]
async fn stored_stack() -> Result<(), Limited> {
    Ok(())
}

#[tokio::test]
async fn counters_use_configured_store() {
    let (ledger, sessions) = (Arc::new(RecordingStore::default()), Arc::new(RecordingStore::default()));
    let settings = Settings::new()
        .store(ledger.clone())
        .named_store("sessions", StoreAddress::Instance(sessions.clone()))
        .failure_mode(FailureMode::Closed);
    let _guard = apply_settings(settings);
    let blocking = thread::spawn(|| (passed_of_ten(|| stored(1, "/a|b")), passed_of_ten(|| stored(1, "/c"))));
    let passed = tokio::task::spawn_blocking(|| blocking.join().unwrap()).await.unwrap();
    assert_eq!(passed, (3, 3));
    for expected in [true, true, true, false] {
        assert_eq!(stored_async("x").await.is_ok(), expected);
    }
    assert_eq!(ledger.keys(), ["stored 1|/a\\|b", "stored 1|/c", "stored async x"]);

    for _ in 0..3 {
        assert!(stored_slots(1).await.is_ok());
        sessions.wait_for_outstanding(0);
        assert!(stored_slots(2).await.is_err());
        sessions.wait_for_outstanding(0);
    }
    stored_stack().await.unwrap();
    for _ in 0..5 {
        assert_eq!(stored_stack().await.unwrap_err().rule(), "stored breaker", "the token is refunded");
        sessions.wait_for_outstanding(1);
    }
    assert_eq!(sessions.keys(), ["stored slots ", "stored stack "]);

    ledger.is_unavailable.store(true, Ordering::Relaxed);
    assert!(stored_async("y").await.is_err(), "closed while the store is unavailable");
    Rules::global().apply(Settings::new()).unwrap();
    assert_eq!(passed_of_ten(|| stored(1, "/c")), 3, "in memory the counters start from zero");
}
