//! The algorithms once more, in plain words: whole seconds become microseconds, and everything is kept that ever happened.

use std::collections::HashMap;

pub(crate) const SECOND: u64 = 1_000_000;
pub(crate) const MINUTE: u64 = 60 * SECOND;
pub(crate) const HOUR: u64 = 60 * MINUTE;

/// One request of the real log.
pub(crate) struct Visit {
    pub(crate) at: u64,
    pub(crate) ip: String,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) status: u16,
}

/// The real log, read with string functions and put in the order of time.
pub(crate) fn visits(log: &str) -> Vec<Visit> {
    let mut visits: Vec<Visit> = log.lines().filter_map(visit).collect();
    visits.sort_by_key(|visit| visit.at);
    visits
}

fn visit(line: &str) -> Option<Visit> {
    let (ip, rest) = line.split_once(' ')?;
    let (_, rest) = rest.split_once('[')?;
    let (time, rest) = rest.split_once("] \"")?;
    let (request, rest) = rest.split_once("\" ")?;
    let mut words = request.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let status = rest.split(' ').next()?.parse().ok()?;
    Some(Visit {
        at: moment(time)?,
        ip: ip.to_owned(),
        method: method.to_owned(),
        path: target.split('?').next()?.to_owned(),
        status,
    })
}

/// `17/May/2015:10:05:03 +0000`; all of it is in one month, in UTC.
fn moment(text: &str) -> Option<u64> {
    let rest = text.strip_suffix(" +0000")?;
    let (date, clock) = rest.split_once(':')?;
    let day: u64 = date.strip_suffix("/May/2015")?.parse().ok()?;
    let mut parts = clock.split(':').map(str::parse::<u64>);
    let (hour, minute, second) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    // The first of May 2015 was the 16556th day since the epoch.
    let days = 16_556 + day - 1;
    Some((days * 86_400 + hour * 3_600 + minute * 60 + second) * SECOND)
}

/// What a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Go,
    Wait,
    No,
}

/// Each key's own state under a quota.
pub(crate) trait Counter {
    /// Whether a request of now goes, and if it does, remembers it.
    fn ask(&mut self, now: u64) -> Answer;
}

/// A counter for each key.
pub(crate) struct Each<C> {
    counters: HashMap<String, C>,
    make: fn() -> C,
}

impl<C: Counter> Each<C> {
    pub(crate) fn of(make: fn() -> C) -> Self {
        Self { counters: HashMap::new(), make }
    }

    pub(crate) fn ask(&mut self, key: &str, now: u64) -> Answer {
        self.counters.entry(key.to_owned()).or_insert_with(self.make).ask(now)
    }
}

/// A bucket of tokens that starts full: `rate` of them come in each period, up to `burst`. Counted in parts of a token, one
/// for each microsecond of the period.
pub(crate) struct Tokens {
    pub(crate) rate: u128,
    pub(crate) period: u128,
    pub(crate) burst: u128,
    pub(crate) parts: u128,
    pub(crate) last: u64,
}

impl Tokens {
    pub(crate) fn full(rate: u128, period: u64, burst: u128) -> Self {
        let period = u128::from(period);
        Self { rate, period, burst, parts: burst * period, last: 0 }
    }
}

impl Counter for Tokens {
    fn ask(&mut self, now: u64) -> Answer {
        let since = u128::from(now - self.last);
        self.parts = (self.parts + since * self.rate).min(self.burst * self.period);
        self.last = now;
        if self.parts < self.period {
            return Answer::No;
        }
        self.parts -= self.period;
        Answer::Go
    }
}

/// A queue that is worked off at a steady pace: one is served at once, others wait behind it, and when there is no place
/// left they go away. Whoever waits is served when its turn comes, unless that takes longer than it has patience.
pub(crate) struct Line {
    /// Microseconds between two turns.
    pub(crate) pace: u64,
    pub(crate) places: u64,
    pub(crate) patience: u64,
    /// When the next turn is.
    pub(crate) next: u64,
}

impl Counter for Line {
    fn ask(&mut self, now: u64) -> Answer {
        let turn = self.next.max(now);
        let wait = turn - now;
        // As many turns as lie ahead are places that are taken.
        if wait > self.places * self.pace || wait > self.patience {
            return Answer::No;
        }
        self.next = turn + self.pace;
        if wait == 0 { Answer::Go } else { Answer::Wait }
    }
}

/// So many in each window of the calendar.
pub(crate) struct Windows {
    pub(crate) limit: u64,
    pub(crate) period: u64,
    pub(crate) window: u64,
    pub(crate) count: u64,
}

impl Counter for Windows {
    fn ask(&mut self, now: u64) -> Answer {
        let window = now / self.period;
        if window != self.window {
            (self.window, self.count) = (window, 0);
        }
        if self.count >= self.limit {
            return Answer::No;
        }
        self.count += 1;
        Answer::Go
    }
}

/// This window of the calendar, and as much of the one before as still reaches into the last period. The part of the window
/// before is rounded up: a fraction of a request is in the way as a whole one.
pub(crate) struct Fading {
    pub(crate) limit: u64,
    pub(crate) period: u64,
    /// How many went, by window.
    pub(crate) counts: HashMap<u64, u64>,
}

impl Counter for Fading {
    fn ask(&mut self, now: u64) -> Answer {
        let window = now / self.period;
        let of =
            |window: Option<u64>| window.and_then(|window| self.counts.get(&window)).copied().unwrap_or(0);
        let left = self.period - now % self.period;
        let faded = of(window.checked_sub(1)) * left;
        // count + faded / period + 1 <= limit, without a fraction.
        if (of(Some(window)) + 1) * self.period + faded > self.limit * self.period {
            return Answer::No;
        }
        *self.counts.entry(window).or_default() += 1;
        Answer::Go
    }
}

/// Every moment at which one went: no more than the limit in any period.
pub(crate) struct Moments {
    pub(crate) limit: usize,
    pub(crate) period: u64,
    pub(crate) went: Vec<u64>,
}

impl Counter for Moments {
    fn ask(&mut self, now: u64) -> Answer {
        let recent = self.went.iter().filter(|moment| now - **moment < self.period).count();
        if recent >= self.limit {
            return Answer::No;
        }
        self.went.push(now);
        Answer::Go
    }
}

/// So many parts of a period, counted each by itself. All that reach into the last period count as a whole, the oldest of
/// them too: never more than the limit, whatever the moment.
pub(crate) struct Parts {
    pub(crate) limit: u64,
    pub(crate) part: u64,
    pub(crate) parts: u64,
    /// How many went, by part.
    pub(crate) counts: HashMap<u64, u64>,
}

impl Counter for Parts {
    fn ask(&mut self, now: u64) -> Answer {
        let part = now / self.part;
        let reach = part.saturating_sub(self.parts)..=part;
        let recent: u64 = reach.filter_map(|part| self.counts.get(&part)).sum();
        if recent >= self.limit {
            return Answer::No;
        }
        *self.counts.entry(part).or_default() += 1;
        Answer::Go
    }
}

/// Guava's smooth limiter, asked by somebody who does not wait: whoever comes before the next free moment is turned away;
/// whoever goes pays with what was saved up while nobody came, a second's worth at most, and else with the time of the next.
pub(crate) struct Smooth {
    pub(crate) per_second: f64,
    pub(crate) stored: f64,
    pub(crate) next: f64,
    pub(crate) has_started: bool,
}

impl Counter for Smooth {
    fn ask(&mut self, now: u64) -> Answer {
        let now = now as f64;
        let between = 1e6 / self.per_second;
        if !self.has_started {
            (self.has_started, self.next) = (true, now);
        }
        if self.next > now {
            return Answer::No;
        }
        self.stored = (self.stored + (now - self.next) / between).min(self.per_second);
        let fresh = (1.0 - self.stored).max(0.0);
        self.stored -= 1.0 - fresh;
        self.next = now + (fresh * between).trunc();
        Answer::Go
    }
}

impl Tokens {
    /// The parts of tokens that there would be then.
    pub(crate) fn parts_at(&self, now: u64) -> u128 {
        (self.parts + u128::from(now - self.last) * self.rate).min(self.burst * self.period)
    }
}

impl Smooth {
    /// Nobody has come for a long time.
    pub(crate) fn rested(per_second: f64) -> Self {
        Self { per_second, stored: per_second, next: 0.0, has_started: false }
    }
}

/// Guava's limiter that warms up, asked by somebody who does not wait: what is saved up costs more the more of it there is,
/// up to a factor.
pub(crate) struct WarmUp {
    between: f64,
    warm_up: f64,
    most: f64,
    threshold: f64,
    slope: f64,
    stored: f64,
    next: Option<f64>,
}

impl WarmUp {
    /// Nobody has come for a long time.
    pub(crate) fn cold(per_second: f64, warm_up: f64, factor: f64) -> Self {
        let (between, warm_up) = (1e6 / per_second, warm_up * 1e6);
        let threshold = 0.5 * warm_up / between;
        let most = threshold + 2.0 * warm_up / (between + between * factor);
        let slope = (between * factor - between) / (most - threshold);
        Self { between, warm_up, most, threshold, slope, stored: most, next: None }
    }

    /// What taking `count` costs beyond a free one: the area under the line from what is stored downwards.
    fn price(&self, count: f64) -> f64 {
        let above = (self.stored - self.threshold).max(0.0);
        let taken = above.min(count);
        let height = |above: f64| self.between + above * self.slope;
        let slanted = taken * (height(above) + height(above - taken)) / 2.0;
        slanted + self.between * (count - taken)
    }
}

impl Counter for WarmUp {
    fn ask(&mut self, now: u64) -> Answer {
        let now = now as f64;
        let next = *self.next.get_or_insert(now);
        if next > now {
            return Answer::No;
        }
        self.stored = (self.stored + (now - next) / (self.warm_up / self.most)).min(self.most);
        let from_stored = self.stored.min(1.0);
        let price = self.price(from_stored).trunc() + ((1.0 - from_stored) * self.between).trunc();
        self.stored -= from_stored;
        self.next = Some(now + price);
        Answer::Go
    }
}
