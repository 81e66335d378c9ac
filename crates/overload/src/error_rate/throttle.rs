//! Thread-safe throttles that follow errors: at random, and by a quota.

use crate::{
    CallOutcome, ClientThrottleSettings, ErrorRateSettings, Rejection,
    call_guard::{CallGuard, RecordOutcome},
    error_rate,
};
use std::fmt;
use tidegate_core::{Micros, Outcome, Quota, Retry, SettingError};
use tidegate_limiter::{
    BuildError, Clock, DirectLimiter,
    sync::{Mutex, lock},
};

/// Sheds calls at random; the fewer are accepted, the more are shed. See [`error_rate`] for the formula.
///
/// ```
/// use tidegate_overload::{ClientThrottle, ClientThrottleSettings, CallGuard};
///
/// let throttle = ClientThrottle::new(ClientThrottleSettings::builder().build()?);
/// throttle.try_acquire()?.succeed();
/// assert_eq!(throttle.shed_probability(), 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ClientThrottle {
    state: Mutex<error_rate::ClientThrottleState>,
    clock: Clock,
}

/// The data about a call that a [`ClientThrottle`] needs when it ends.
#[derive(Debug)]
pub struct ClientThrottleEntry {
    started_at: Micros,
}

impl ClientThrottle {
    /// Creates a throttle on the system clock.
    pub fn new(settings: ClientThrottleSettings) -> Self {
        Self::with_clock(settings, Clock::default())
    }

    /// Creates a throttle on this clock.
    pub fn with_clock(settings: ClientThrottleSettings, clock: Clock) -> Self {
        Self { state: Mutex::new(error_rate::ClientThrottleState::new(settings)), clock }
    }

    /// The probability, from 0 to 1, that the next call is shed.
    pub fn shed_probability(&self) -> f64 {
        let machine = lock(&self.state);
        machine.shed_probability(self.clock.now())
    }

    /// Calls in the window, shed ones included, and accepted ones.
    pub fn counts(&self) -> [u64; 2] {
        let machine = lock(&self.state);
        machine.counts(self.clock.now())
    }
}

impl CallGuard for ClientThrottle {
    fn admit(&self) -> Result<ClientThrottleEntry, Rejection> {
        let random = fastrand::f64();
        let mut machine = lock(&self.state);
        let started_at = self.clock.now();
        machine.try_acquire(started_at, random)?;
        Ok(ClientThrottleEntry { started_at })
    }
}

impl RecordOutcome for ClientThrottle {
    type Entry = ClientThrottleEntry;

    fn record(&self, entry: ClientThrottleEntry, report: CallOutcome) {
        let mut machine = lock(&self.state);
        machine.record(entry.started_at, report, self.clock.now());
    }
}

impl fmt::Debug for ClientThrottle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientThrottle({}, {:?})", self.shed_probability(), self.clock)
    }
}

/// A quota that applies only while there are many calls and too many of them fail. Otherwise all calls are
/// admitted.
///
/// ```
/// use std::time::Duration;
/// use tidegate_overload::{ErrorRateSettings, ErrorThrottle, CallGuard};
///
/// let settings = ErrorRateSettings::builder()
///     .window(Duration::from_secs(10))
///     .request_threshold(2)
///     .error_threshold("50%".parse()?)
///     .build()?;
/// let throttle = ErrorThrottle::new(settings, "1/min")?;
/// for _ in 0..3 {
///     throttle.try_acquire()?.fail();
/// }
/// throttle.try_acquire()?.fail(); // the one per minute
/// assert!(throttle.try_acquire().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ErrorThrottle {
    rate: Mutex<error_rate::ErrorRate>,
    throttle: DirectLimiter,
    clock: Clock,
}

impl ErrorThrottle {
    /// Creates a throttle on the system clock. The quota must be a rate such as `10/s`.
    pub fn new<Q>(settings: ErrorRateSettings, quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        Self::with_clock(settings, quota, Clock::default())
    }

    /// Creates a throttle on this clock.
    pub fn with_clock<Q>(settings: ErrorRateSettings, quota: Q, clock: Clock) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        Self::from_parts(settings, quota.try_into()?, clock)
    }

    fn from_parts(settings: ErrorRateSettings, quota: Quota, clock: Clock) -> Result<Self, BuildError> {
        if quota.rate().is_none() {
            let problem = format!("`{quota}` does not limit a rate");
            return Err(SettingError::new(problem, "give a rate, as in `10/s`").into());
        }
        let throttle = DirectLimiter::builder().clock(clock.clone()).build(quota)?;
        Ok(Self { rate: Mutex::new(error_rate::ErrorRate::new(settings)), throttle, clock })
    }

    /// Whether the quota applies now.
    pub fn is_limiting(&self) -> bool {
        let machine = lock(&self.rate);
        machine.is_exceeded(self.clock.now())
    }

    /// Calls in the window, completed ones, and failed ones.
    pub fn counts(&self) -> [u64; 3] {
        let machine = lock(&self.rate);
        machine.counts(self.clock.now())
    }

    /// Counts a call and returns whether the quota applies to it.
    fn record_request(&self) -> bool {
        let mut machine = lock(&self.rate);
        let now = self.clock.now();
        let is_exceeded = machine.is_exceeded(now);
        machine.record_request(now);
        is_exceeded
    }
}

impl CallGuard for ErrorThrottle {
    fn admit(&self) -> Result<(), Rejection> {
        if !self.record_request() {
            return Ok(());
        }
        match self.throttle.check().outcome() {
            Outcome::Allow => Ok(()),
            Outcome::Delay(wait) => Err(Rejection::QuotaExceeded(Retry::After(wait))),
            Outcome::Deny(retry) => Err(Rejection::QuotaExceeded(retry)),
        }
    }
}

impl RecordOutcome for ErrorThrottle {
    type Entry = ();

    fn record(&self, (): (), report: CallOutcome) {
        if report != CallOutcome::Ignored {
            let mut machine = lock(&self.rate);
            machine.record(report, self.clock.now());
        }
    }
}

impl fmt::Debug for ErrorThrottle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_limiting() { "limiting" } else { "idle" };
        write!(f, "ErrorThrottle({state}, {:?})", self.throttle)
    }
}
