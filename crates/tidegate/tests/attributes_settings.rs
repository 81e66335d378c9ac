//! What settings and facts do to functions with attributes. All share the settings of the program, so one story is told
//! after the other.

#![cfg(feature = "macros")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]
#![allow(clippy::await_holding_lock, reason = "each test has a thread and a runtime of its own")]

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
    Clock, FailureMode, Limited, Report, Rules, breaker, concurrency,
    core::Micros,
    limit,
    limiter::{
        StoreError,
        store::{StoreDecision, StoreFuture, StoreReply, StoreRequest},
    },
    rule::{Facts, Mode, RuleSettings, Settings, StoreAddress},
};
use tidegate_testkit::servers::wait_until;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// These settings, until the story is told.
fn under(settings: Settings) -> MutexGuard<'static, ()> {
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    Rules::global().apply(settings).unwrap();
    guard
}

fn of_ten<T>(mut call: impl FnMut() -> Result<T, Limited>) -> usize {
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
fn operations_change_numbers_without_a_build() {
    let _story = under(Settings::new());
    assert_eq!(of_ten(elsewhere), 10, "no numbers anywhere");
    assert_eq!(of_ten(login), 3);
    assert_eq!(login().unwrap_err().to_string(), "slow down");

    let login_settings = RuleSettings::new().quota("10/h burst 8").unwrap().message("later");
    let settings = Settings::new().quota("elsewhere", "10/h burst 2").unwrap().rule("login", login_settings);
    Rules::global().apply(settings).unwrap();
    assert_eq!(of_ten(elsewhere), 2);
    assert_eq!(of_ten(login), 5, "three were taken already");
    assert_eq!(login().unwrap_err().to_string(), "later");

    for mode in [Mode::Off, Mode::Shadow] {
        Rules::global()
            .apply(Settings::new().mode(mode).quota("elsewhere", "10/h burst 2").unwrap())
            .unwrap();
        assert_eq!((of_ten(elsewhere), of_ten(login)), (10, 10), "{mode}");
    }
}

#[limit("10/h burst 1", shadow)]
fn dry_run() -> Result<(), Limited> {
    Ok(())
}

#[breaker(over = 1, rule = "fragile")]
fn fragile() -> Result<(), Failed> {
    Err(Failed::Here)
}

#[breaker(over = 1, shadow, rule = "fragile dry run", or = |_| Failed::Before)]
fn fragile_dry_run() -> Result<(), Failed> {
    Err(Failed::Here)
}

#[derive(Debug, PartialEq)]
enum Failed {
    Here,
    Before,
}

impl From<Limited> for Failed {
    fn from(_: Limited) -> Self {
        Self::Before
    }
}

#[test]
fn a_dry_run_refuses_nothing_and_breakers_follow_settings() {
    let _story = under(Settings::new());
    assert_eq!(of_ten(dry_run), 10);
    assert_eq!([fragile(), fragile()], [Err(Failed::Here), Err(Failed::Before)]);
    assert_eq!([fragile_dry_run(), fragile_dry_run()], [Err(Failed::Here), Err(Failed::Here)]);
    Rules::global().apply(Settings::new().rule("fragile", RuleSettings::new().mode(Mode::Off))).unwrap();
    assert_eq!(fragile(), Err(Failed::Here));
    Rules::global().apply(Settings::new().mode(Mode::Off)).unwrap();
    assert_eq!(fragile(), Err(Failed::Here));
    Rules::global().apply(Settings::new()).unwrap();
    assert_eq!(fragile(), Err(Failed::Before));
}

#[limit("10/h burst 3", key = ip)]
async fn by_ip() -> Result<(), Limited> {
    Ok(())
}

#[limit("10/h burst 3", key = (user, path))]
fn by_user(path: &str) -> Result<(), Limited> {
    Ok(())
}

/// An argument of that name wins over the word.
#[limit("10/h burst 3", key = user)]
fn by_argument(user: u64) -> Result<(), Limited> {
    Ok(())
}

#[tokio::test]
async fn facts_of_the_request_name_buckets() {
    let _story = under(Settings::new());
    let from = |address: &str| Facts::default().with_ip(address.parse::<IpAddr>().unwrap());
    let mut passed = Vec::new();
    for address in ["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"] {
        let mut count = 0;
        for _ in 0..5 {
            count += usize::from(from(address).scope(by_ip()).await.is_ok());
        }
        passed.push(count);
    }
    assert_eq!(passed, [3, 3, 3, 0], "one network of IPv6 is one client");
    let alice = Facts::default().with_user("alice");
    assert_eq!(alice.clone().scope_blocking(|| of_ten(|| by_user("/a"))), 3);
    assert_eq!(alice.clone().scope_blocking(|| of_ten(|| by_user("/b"))), 3);
    assert_eq!(of_ten(|| by_user("/a")), 3, "whom nobody knows");
    assert_eq!(alice.scope_blocking(|| of_ten(|| by_argument(1)) + of_ten(|| by_argument(2))), 6);
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
async fn a_call_waits_for_its_turn_as_long_as_it_may() {
    let clock = Clock::tokio();
    let _story = under(Settings::new().clock(clock.clone()));
    let start = clock.now();
    let (a, b, c, d) = tokio::join!(patient(), patient(), patient(), patient());
    assert!(a.is_ok() && b.is_ok() && c.is_ok() && d.is_err());
    assert_eq!(clock.now().since(start), Micros::from_millis(200));

    let takes = Duration::from_millis(200);
    let (a, b, c) = tokio::join!(patient_slot(takes), patient_slot(takes), patient_slot(takes));
    assert!(a.is_ok() && b.is_ok() && c.is_err());
}

#[limit("10/s burst 1", wait = "1s")]
fn blocking() -> Result<(), Limited> {
    Ok(())
}

/// Whether it asks before the clock is moved or after, there is something for it then.
#[test]
fn a_thread_waits_too() {
    let (clock, hand) = Clock::manual();
    let _story = under(Settings::new().clock(clock));
    blocking().unwrap();
    let waiting = thread::spawn(blocking);
    hand.advance(Duration::from_millis(100));
    waiting.join().unwrap().unwrap();
}

/// A store that counts as the core does, and can be away.
#[derive(Debug, Default)]
struct Ledger {
    state: Mutex<BTreeMap<String, Vec<u64>>>,
    /// What was taken and has not come back.
    taken: AtomicU64,
    is_away: AtomicBool,
}

impl tidegate::Store for Ledger {
    fn execute(&self, request: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        let reply = self.reply(request);
        Box::pin(async move {
            tokio::task::yield_now().await;
            reply
        })
    }
}

impl Ledger {
    fn reply(&self, request: StoreRequest) -> Result<StoreReply, StoreError> {
        if self.is_away.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable("as told".to_owned()));
        }
        let mut state = self.state.lock().unwrap();
        match request {
            StoreRequest::Decide(inquiries) => {
                let [inquiry] = &inquiries[..] else { panic!("one at a time") };
                let quota = inquiry.key_ref.limit.quotas()[0];
                let words =
                    state.entry(name_of(&inquiry.key_ref)).or_insert_with(|| vec![0; quota.state_len()]);
                let step = quota.decide(&mut words[..], Micros::from_secs(1_000_000), inquiry.demand);
                self.taken.fetch_add(step.receipt.cost, Ordering::Relaxed);
                Ok(StoreReply::Decided(vec![StoreDecision { steps: vec![step], generation: 0 }]))
            }
            StoreRequest::Refund { key_ref: place, charge, cost } => {
                let quota = place.limit.quotas()[0];
                let words = state.entry(name_of(&place)).or_insert_with(|| vec![0; quota.state_len()]);
                quota.refund(&mut words[..], Micros::from_secs(1_000_000), charge.receipts[0], cost);
                self.taken.fetch_sub(cost, Ordering::Relaxed);
                Ok(StoreReply::Done)
            }
            _ => Ok(StoreReply::Done),
        }
    }

    /// What goes back to a store goes on a thread of its own: here is who waits until all but this is back.
    fn gets_back_all_but(&self, kept: u64) {
        let ask = || match self.taken.load(Ordering::Relaxed) {
            taken if taken == kept => Ok(()),
            taken => Err(format!("{taken} are taken")),
        };
        wait_until("it is given back", ask).unwrap();
    }

    fn keys(&self) -> Vec<String> {
        self.state.lock().unwrap().keys().cloned().collect()
    }
}

fn name_of(place: &tidegate::limiter::store::KeyRef) -> String {
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
#[breaker(over = 1, rule = "stored breaker", failure = |_| Report::Failure)]
async fn stored_stack() -> Result<(), Limited> {
    Ok(())
}

#[tokio::test]
async fn counters_live_where_the_settings_say() {
    let (ledger, sessions) = (Arc::new(Ledger::default()), Arc::new(Ledger::default()));
    let settings = Settings::new()
        .store(ledger.clone())
        .named_store("sessions", StoreAddress::Given(sessions.clone()))
        .on_outage(FailureMode::Closed);
    let _story = under(settings);
    let blocking = thread::spawn(|| (of_ten(|| stored(1, "/a|b")), of_ten(|| stored(1, "/c"))));
    let passed = tokio::task::spawn_blocking(|| blocking.join().unwrap()).await.unwrap();
    assert_eq!(passed, (3, 3));
    for expected in [true, true, true, false] {
        assert_eq!(stored_async("x").await.is_ok(), expected);
    }
    assert_eq!(ledger.keys(), ["stored 1|/a\\|b", "stored 1|/c", "stored async x"]);

    for _ in 0..3 {
        assert!(stored_slots(1).await.is_ok());
        sessions.gets_back_all_but(0);
        assert!(stored_slots(2).await.is_err());
        sessions.gets_back_all_but(0);
    }
    stored_stack().await.unwrap();
    for _ in 0..5 {
        assert_eq!(stored_stack().await.unwrap_err().rule(), "stored breaker", "and the token is back");
        sessions.gets_back_all_but(1);
    }
    assert_eq!(sessions.keys(), ["stored slots ", "stored stack "]);

    ledger.is_away.store(true, Ordering::Relaxed);
    assert!(stored_async("y").await.is_err(), "closed while the store is away");
    Rules::global().apply(Settings::new()).unwrap();
    assert_eq!(of_ten(|| stored(1, "/c")), 3, "in memory it starts anew");
}
