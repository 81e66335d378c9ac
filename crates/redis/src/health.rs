//! The availability of a server. Every decision checks it before it waits for a reply, and every change is logged.
//!
//! ```text
//!   CONNECTING ──connected──▶ AVAILABLE ──disconnect, no reply, repeated late replies───▶ UNAVAILABLE
//!       │                         ▲                                                        │   ▲
//!       │                         └──── reconnected, and the hold-off is over ─────────────┘   │
//!       └───────────────────────────── connecting failed ──────────────────────────────────────┘
//! ```
//!
//! One late reply changes nothing. A store that fails again soon after a recovery stays unavailable for longer each
//! time, so that neither decisions nor the log flap.

use crate::{
    error::{ConnectError, advice},
    events,
};
use std::{
    collections::HashMap,
    fmt,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};
use tidegate_core::Micros;
use tidegate_limiter::{Clock, FailureMode};
use tokio::sync::Notify;

/// Consecutive replies after the deadline that make a server unavailable.
const MAX_LATE_CALLS: u32 = 8;
/// A failure this soon after a recovery is a relapse.
const RELAPSE_WINDOW: Micros = Micros::from_secs(60);
/// The least duration of the first relapse. It doubles with each relapse, up to the maximum.
const MIN_HOLD_OFF: Micros = Micros::from_millis(250);
const MAX_HOLD_OFF: Micros = Micros::from_secs(10);
/// The interval between two log events for rejections of the same cause.
const REJECTION_LOG_INTERVAL: Micros = Micros::from_secs(60);

/// The availability of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerAvailability {
    /// The first connection attempt is in progress: decisions wait, up to their deadline.
    Connecting,
    Available,
    /// Decisions use the failure mode at once, without a call.
    Unavailable(ConnectError),
}

/// Tracks the availability of one server and logs its changes.
#[derive(Debug)]
pub(crate) struct RedisHealth {
    /// The server, for the log.
    server: String,
    modes: std::sync::Arc<FailureModes>,
    clock: Clock,
    state: Mutex<HealthState>,
    is_available: AtomicBool,
    changed: Notify,
    late_calls: AtomicU32,
    outages: AtomicU64,
    rejections: Mutex<Rejections>,
    is_rejecting: AtomicBool,
}

#[derive(Debug)]
struct HealthState {
    status: ServerAvailability,
    /// The advice of each cause logged during this outage, so that each is logged once.
    logged: Vec<String>,
    unavailable_since: Micros,
    recovered_at: Option<Micros>,
    hold_off: Micros,
}

#[derive(Debug, Default)]
struct Rejections {
    /// The cause of the last rejection; cleared by the next decision.
    last_cause: Option<String>,
    /// By advice: the time of the last log event, and the number of rejections suppressed since.
    logged: HashMap<&'static str, (Micros, u64)>,
}

/// The failure modes of the limiters that use a store.
#[derive(Debug, Default)]
pub(crate) struct FailureModes(AtomicU8);

impl FailureModes {
    pub(crate) fn add(&self, mode: FailureMode) {
        let bit = match mode {
            FailureMode::Open => 1,
            FailureMode::Closed => 2,
            FailureMode::Local { .. } => 4,
        };
        self.0.fetch_or(bit, Ordering::Relaxed);
    }
}

impl fmt::Display for FailureModes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0.load(Ordering::Relaxed);
        let names = [(1, "open"), (2, "closed"), (4, "local")];
        let names: Vec<_> = names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(","))
    }
}

impl RedisHealth {
    pub(crate) fn new(server: String, modes: std::sync::Arc<FailureModes>) -> Self {
        Self {
            server,
            modes,
            clock: Clock::system(),
            state: Mutex::new(HealthState {
                status: ServerAvailability::Available,
                logged: Vec::new(),
                unavailable_since: Micros::ZERO,
                recovered_at: None,
                hold_off: Micros::ZERO,
            }),
            is_available: AtomicBool::new(true),
            changed: Notify::new(),
            late_calls: AtomicU32::new(0),
            outages: AtomicU64::new(0),
            rejections: Mutex::default(),
            is_rejecting: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_available(&self) -> bool {
        self.is_available.load(Ordering::Acquire)
    }

    pub(crate) fn status(&self) -> ServerAvailability {
        if self.is_available() { ServerAvailability::Available } else { self.state().status.clone() }
    }

    /// Waits for the first connection attempt; returns the cause if the server is unavailable.
    pub(crate) async fn ready(&self) -> Result<(), ConnectError> {
        loop {
            let changed = self.changed.notified();
            match self.status() {
                ServerAvailability::Available => return Ok(()),
                ServerAvailability::Unavailable(cause) => return Err(cause),
                ServerAvailability::Connecting => changed.await,
            }
        }
    }

    /// Waits until the server is available.
    pub(crate) async fn wait_until_available(&self) {
        loop {
            let changed = self.changed.notified();
            if self.is_available() {
                return;
            }
            changed.await;
        }
    }

    /// Waits for the next recovery from an outage.
    pub(crate) async fn wait_recovered(&self) {
        let before = self.last_recovery();
        loop {
            let changed = self.changed.notified();
            if self.last_recovery() != before {
                return;
            }
            changed.await;
        }
    }

    /// Why the server does not decide at present, if it does not.
    pub(crate) fn last_error(&self) -> Option<String> {
        match self.status() {
            ServerAvailability::Connecting => Some("connecting".to_owned()),
            ServerAvailability::Unavailable(cause) => Some(cause.to_string()),
            ServerAvailability::Available => self.rejections().last_cause.clone(),
        }
    }

    /// The number of times that the server became unavailable.
    pub(crate) fn outages(&self) -> u64 {
        self.outages.load(Ordering::Relaxed)
    }

    /// Records that the first connection attempt starts.
    pub(crate) fn mark_connecting(&self) {
        let mut state = self.state();
        state.status = ServerAvailability::Connecting;
        self.is_available.store(false, Ordering::Release);
    }

    /// Records the latency of a call. Returns whether it makes the server unavailable.
    pub(crate) fn record_latency(&self, took: Duration, deadline: Duration) -> bool {
        if took <= deadline {
            if self.late_calls.load(Ordering::Relaxed) != 0 {
                self.late_calls.store(0, Ordering::Relaxed);
            }
            return false;
        }
        let late = self.late_calls.fetch_add(1, Ordering::Relaxed) + 1;
        late >= MAX_LATE_CALLS
            && self.mark_unavailable(&ConnectError::from_message(&format!(
                "{late} consecutive replies took longer than {deadline:?}"
            )))
    }

    /// Records a decision that the server made.
    pub(crate) fn record_decision(&self) {
        if self.is_rejecting.load(Ordering::Relaxed) && self.is_rejecting.swap(false, Ordering::Relaxed) {
            self.rejections().last_cause = None;
        }
    }

    /// Records a decision that the server rejected, for example because its memory is full or a key has another type.
    /// Logs once per cause and minute.
    pub(crate) fn record_rejection(&self, cause: &str) {
        let (now, advice) = (self.clock.now(), advice(cause));
        let mut rejections = self.rejections();
        rejections.last_cause = Some(format!("{cause}; {advice}"));
        self.is_rejecting.store(true, Ordering::Relaxed);
        let suppressed = match rejections.logged.get_mut(advice) {
            Some((at, count)) if now.saturating_sub(*at) < REJECTION_LOG_INTERVAL => {
                *count += 1;
                return;
            }
            Some((_, count)) => *count,
            None => 0,
        };
        rejections.logged.insert(advice, (now, 0));
        drop(rejections);
        events::StoreRejectsDecisions { store: &self.server, cause, advice, mode: &self.modes, suppressed }
            .emit();
    }

    /// Records that the server is unavailable, and logs each cause once. Returns whether it was available before.
    pub(crate) fn mark_unavailable(&self, cause: &ConnectError) -> bool {
        let (now, advice) = (self.clock.now(), cause.advice());
        let mut state = self.state();
        let was_available = state.status == ServerAvailability::Available;
        if !matches!(state.status, ServerAvailability::Unavailable(_)) {
            let is_relapse = state.recovered_at.is_some_and(|at| now.saturating_sub(at) < RELAPSE_WINDOW);
            state.hold_off = match is_relapse {
                true => state.hold_off.saturating_add(state.hold_off).clamp(MIN_HOLD_OFF, MAX_HOLD_OFF),
                false => Micros::ZERO,
            };
            state.unavailable_since = now;
            state.logged.clear();
            self.outages.fetch_add(1, Ordering::Relaxed);
        }
        state.status = ServerAvailability::Unavailable(cause.clone());
        self.is_available.store(false, Ordering::Release);
        let is_new = !state.logged.iter().any(|known| known == advice);
        if is_new {
            state.logged.push(advice.to_owned());
        }
        drop(state);
        self.changed.notify_waiters();
        if is_new {
            let (store, cause, mode) = (&self.server, cause.problem(), &self.modes);
            events::StoreUnavailable { store, cause, advice, mode }.emit();
        }
        was_available
    }

    /// Whether the server may become available again: after a relapse the hold-off must pass first.
    pub(crate) fn is_hold_off_over(&self) -> bool {
        let state = self.state();
        self.clock.now().saturating_sub(state.unavailable_since) >= state.hold_off
    }

    /// Records that the server is available, and logs the end of an outage.
    pub(crate) fn mark_available(&self) {
        self.recover(None);
    }

    /// Records that another server replaces this one, which ends its outage.
    pub(crate) fn mark_replaced(&self, by: &str) {
        if matches!(self.status(), ServerAvailability::Unavailable(_)) {
            self.recover(Some(by));
        }
    }

    fn recover(&self, by: Option<&str>) {
        let now = self.clock.now();
        let mut state = self.state();
        let before = std::mem::replace(&mut state.status, ServerAvailability::Available);
        self.late_calls.store(0, Ordering::Relaxed);
        self.is_available.store(true, Ordering::Release);
        let seconds = now.saturating_sub(state.unavailable_since).get() as f64 / 1e6;
        if let ServerAvailability::Unavailable(_) = before {
            state.recovered_at = Some(now);
        }
        drop(state);
        self.changed.notify_waiters();
        if let ServerAvailability::Unavailable(cause) = before {
            let (store, server) = (&self.server, by.unwrap_or(&self.server));
            events::StoreRecovered { store, server, seconds, cause: cause.problem() }.emit();
        }
    }

    fn last_recovery(&self) -> Option<Micros> {
        self.state().recovered_at
    }

    fn rejections(&self) -> MutexGuard<'_, Rejections> {
        self.rejections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, HealthState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
