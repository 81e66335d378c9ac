//! Simple reference implementations of the algorithms, in microseconds and with the complete history.

use std::collections::HashMap;

pub(crate) const SECOND: u64 = 1_000_000;
pub(crate) const MINUTE: u64 = 60 * SECOND;
pub(crate) const HOUR: u64 = 60 * MINUTE;

/// One request of the real log.
pub(crate) struct RealRequest {
    pub(crate) time: u64,
    pub(crate) ip: String,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) status: u16,
}

/// Parses the real log with string functions, and sorts it by time.
pub(crate) fn parse_log(log: &str) -> Vec<RealRequest> {
    let mut requests: Vec<RealRequest> = log.lines().filter_map(parse_line).collect();
    requests.sort_by_key(|request| request.time);
    requests
}

fn parse_line(line: &str) -> Option<RealRequest> {
    let (ip, rest) = line.split_once(' ')?;
    let (_, rest) = rest.split_once('[')?;
    let (time, rest) = rest.split_once("] \"")?;
    let (request, rest) = rest.split_once("\" ")?;
    let mut words = request.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let status = rest.split(' ').next()?.parse().ok()?;
    Some(RealRequest {
        time: parse_time(time)?,
        ip: ip.to_owned(),
        method: method.to_owned(),
        path: target.split('?').next()?.to_owned(),
        status,
    })
}

/// Parses `17/May/2015:10:05:03 +0000`; the whole log is in one month, in UTC.
fn parse_time(text: &str) -> Option<u64> {
    let rest = text.strip_suffix(" +0000")?;
    let (date, clock) = rest.split_once(':')?;
    let day: u64 = date.strip_suffix("/May/2015")?.parse().ok()?;
    let mut parts = clock.split(':').map(str::parse::<u64>);
    let (hour, minute, second) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    // The first of May 2015 was the 16556th day since the epoch.
    let days = 16_556 + day - 1;
    Some((days * 86_400 + hour * 3_600 + minute * 60 + second) * SECOND)
}

/// The decision for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReferenceDecision {
    Admit,
    Delay,
    Deny,
}

/// The state of one key under a quota.
pub(crate) trait ReferenceCounter {
    /// Checks a request, and records it if it is admitted.
    fn check(&mut self, now: u64) -> ReferenceDecision;
}

/// A counter for each key.
pub(crate) struct PerKey<C> {
    counters: HashMap<String, C>,
    make: fn() -> C,
}

impl<C: ReferenceCounter> PerKey<C> {
    pub(crate) fn new(make: fn() -> C) -> Self {
        Self { counters: HashMap::new(), make }
    }

    pub(crate) fn check(&mut self, key: &str, now: u64) -> ReferenceDecision {
        self.counters.entry(key.to_owned()).or_insert_with(self.make).check(now)
    }
}

/// A token bucket that starts full: `rate` tokens are added per period, up to `burst`. A token has one unit for each
/// microsecond of the period.
pub(crate) struct ReferenceTokenBucket {
    pub(crate) rate: u128,
    pub(crate) period: u128,
    pub(crate) burst: u128,
    pub(crate) units: u128,
    pub(crate) last: u64,
}

impl ReferenceTokenBucket {
    pub(crate) fn full(rate: u128, period: u64, burst: u128) -> Self {
        let period = u128::from(period);
        Self { rate, period, burst, units: burst * period, last: 0 }
    }
}

impl ReferenceCounter for ReferenceTokenBucket {
    fn check(&mut self, now: u64) -> ReferenceDecision {
        let since = u128::from(now - self.last);
        self.units = (self.units + since * self.rate).min(self.burst * self.period);
        self.last = now;
        if self.units < self.period {
            return ReferenceDecision::Deny;
        }
        self.units -= self.period;
        ReferenceDecision::Admit
    }
}

/// A queue that is drained at a constant rate. A request is denied if the queue is full or its wait would exceed
/// `max_wait`.
pub(crate) struct ReferenceLeakyBucket {
    /// Microseconds between two admitted requests.
    pub(crate) interval: u64,
    pub(crate) queue_len: u64,
    pub(crate) max_wait: u64,
    /// The time of the next free slot.
    pub(crate) next: u64,
}

impl ReferenceCounter for ReferenceLeakyBucket {
    fn check(&mut self, now: u64) -> ReferenceDecision {
        let slot = self.next.max(now);
        let wait = slot - now;
        // The number of slots ahead is the number of queued requests.
        if wait > self.queue_len * self.interval || wait > self.max_wait {
            return ReferenceDecision::Deny;
        }
        self.next = slot + self.interval;
        if wait == 0 { ReferenceDecision::Admit } else { ReferenceDecision::Delay }
    }
}

/// At most `limit` requests in each calendar window.
pub(crate) struct ReferenceFixedWindow {
    pub(crate) limit: u64,
    pub(crate) period: u64,
    pub(crate) window: u64,
    pub(crate) count: u64,
}

impl ReferenceCounter for ReferenceFixedWindow {
    fn check(&mut self, now: u64) -> ReferenceDecision {
        let window = now / self.period;
        if window != self.window {
            (self.window, self.count) = (window, 0);
        }
        if self.count >= self.limit {
            return ReferenceDecision::Deny;
        }
        self.count += 1;
        ReferenceDecision::Admit
    }
}

/// The current calendar window, plus the share of the previous one that overlaps the last period. That share is rounded up
/// to whole requests.
pub(crate) struct ReferenceSlidingWindow {
    pub(crate) limit: u64,
    pub(crate) period: u64,
    /// Admitted requests by window.
    pub(crate) counts: HashMap<u64, u64>,
}

impl ReferenceCounter for ReferenceSlidingWindow {
    fn check(&mut self, now: u64) -> ReferenceDecision {
        let window = now / self.period;
        let of =
            |window: Option<u64>| window.and_then(|window| self.counts.get(&window)).copied().unwrap_or(0);
        let left = self.period - now % self.period;
        let faded = of(window.checked_sub(1)) * left;
        // count + faded / period + 1 <= limit, in integers.
        if (of(Some(window)) + 1) * self.period + faded > self.limit * self.period {
            return ReferenceDecision::Deny;
        }
        *self.counts.entry(window).or_default() += 1;
        ReferenceDecision::Admit
    }
}

/// The times of all admitted requests: at most `limit` in any period.
pub(crate) struct ReferenceSlidingLog {
    pub(crate) limit: usize,
    pub(crate) period: u64,
    pub(crate) admitted: Vec<u64>,
}

impl ReferenceCounter for ReferenceSlidingLog {
    fn check(&mut self, now: u64) -> ReferenceDecision {
        let recent = self.admitted.iter().filter(|time| now - **time < self.period).count();
        if recent >= self.limit {
            return ReferenceDecision::Deny;
        }
        self.admitted.push(now);
        ReferenceDecision::Admit
    }
}

/// A period in sub-windows with separate counters. All sub-windows that overlap the last period count completely, so the
/// limit is never exceeded in any period.
pub(crate) struct ReferenceSlidingStrict {
    pub(crate) limit: u64,
    pub(crate) sub_window: u64,
    pub(crate) sub_windows: u64,
    /// Admitted requests by sub-window.
    pub(crate) counts: HashMap<u64, u64>,
}

impl ReferenceCounter for ReferenceSlidingStrict {
    fn check(&mut self, now: u64) -> ReferenceDecision {
        let part = now / self.sub_window;
        let reach = part.saturating_sub(self.sub_windows)..=part;
        let recent: u64 = reach.filter_map(|part| self.counts.get(&part)).sum();
        if recent >= self.limit {
            return ReferenceDecision::Deny;
        }
        *self.counts.entry(part).or_default() += 1;
        ReferenceDecision::Admit
    }
}

/// Guava's `SmoothBursty` without waiting: requests before the next free time are denied. An admitted request uses a stored
/// permit, of which at most one second's worth is stored, or else delays the next request.
pub(crate) struct ReferenceSmooth {
    pub(crate) per_second: f64,
    pub(crate) stored: f64,
    pub(crate) next: f64,
    pub(crate) has_started: bool,
}

impl ReferenceCounter for ReferenceSmooth {
    fn check(&mut self, now: u64) -> ReferenceDecision {
        let now = now as f64;
        let between = 1e6 / self.per_second;
        if !self.has_started {
            (self.has_started, self.next) = (true, now);
        }
        if self.next > now {
            return ReferenceDecision::Deny;
        }
        self.stored = (self.stored + (now - self.next) / between).min(self.per_second);
        let fresh = (1.0 - self.stored).max(0.0);
        self.stored -= 1.0 - fresh;
        self.next = now + (fresh * between).trunc();
        ReferenceDecision::Admit
    }
}

impl ReferenceTokenBucket {
    /// Returns the units at a time.
    pub(crate) fn units_at(&self, now: u64) -> u128 {
        (self.units + u128::from(now - self.last) * self.rate).min(self.burst * self.period)
    }
}

impl ReferenceSmooth {
    /// Returns the state after a long idle time.
    pub(crate) fn idle(per_second: f64) -> Self {
        Self { per_second, stored: per_second, next: 0.0, has_started: false }
    }
}

/// Guava's `SmoothWarmingUp` without waiting: stored permits cost more the more of them are stored, up to a factor.
pub(crate) struct ReferenceWarmUp {
    interval: f64,
    warm_up: f64,
    max_stored: f64,
    threshold: f64,
    slope: f64,
    stored: f64,
    next: Option<f64>,
}

impl ReferenceWarmUp {
    /// Returns the state after a long idle time.
    pub(crate) fn cold(per_second: f64, warm_up: f64, factor: f64) -> Self {
        let (between, warm_up) = (1e6 / per_second, warm_up * 1e6);
        let threshold = 0.5 * warm_up / between;
        let most = threshold + 2.0 * warm_up / (between + between * factor);
        let slope = (between * factor - between) / (most - threshold);
        Self { interval: between, warm_up, max_stored: most, threshold, slope, stored: most, next: None }
    }

    /// Returns the time that `count` stored permits cost: the area under the cost function.
    fn cost(&self, count: f64) -> f64 {
        let above = (self.stored - self.threshold).max(0.0);
        let taken = above.min(count);
        let height = |above: f64| self.interval + above * self.slope;
        let slanted = taken * (height(above) + height(above - taken)) / 2.0;
        slanted + self.interval * (count - taken)
    }
}

impl ReferenceCounter for ReferenceWarmUp {
    fn check(&mut self, now: u64) -> ReferenceDecision {
        let now = now as f64;
        let next = *self.next.get_or_insert(now);
        if next > now {
            return ReferenceDecision::Deny;
        }
        self.stored = (self.stored + (now - next) / (self.warm_up / self.max_stored)).min(self.max_stored);
        let from_stored = self.stored.min(1.0);
        let price = self.cost(from_stored).trunc() + ((1.0 - from_stored) * self.interval).trunc();
        self.stored -= from_stored;
        self.next = Some(now + price);
        ReferenceDecision::Admit
    }
}
