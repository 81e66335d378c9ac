//! Counters over a sliding window of time, in buckets.
//!
//! ```text
//!            oldest                  newest
//!   ┄ expired │ 3 │ 0 │ 7 │ 2 │ 5 │ 1 ▏ now      total 18
//!            └──── window ───────────┘
//! ```
//!
//! The newest bucket is the one being filled, so a count stays in the window for at least its length less one
//! bucket, and at most for its length.
//!
//! A clock that steps back by less than a window counts into the newest bucket. One that steps back further
//! must have been wrong before, so the counters restart; otherwise the window would not advance until that
//! time is reached again.

use tidegate_core::{Micros, SettingError};

/// Counters of `KINDS` kinds over a window of time.
///
/// ```
/// use tidegate_overload::RollingWindow;
/// use tidegate_core::Micros;
///
/// let mut rolling = RollingWindow::<2>::new(Micros::from_secs(10), 5)?;
/// rolling.add(Micros::from_secs(1), [1, 0]);
/// rolling.add(Micros::from_secs(3), [1, 1]);
/// assert_eq!(rolling.totals(Micros::from_secs(9)), [2, 1]);
/// assert_eq!(rolling.totals(Micros::from_secs(10)), [1, 1]);
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RollingWindow<const KINDS: usize> {
    /// Microseconds per bucket.
    bucket_width: u64,
    /// A ring: the bucket of a time is its number modulo the count of buckets.
    buckets: Box<[[u64; KINDS]]>,
    /// The number of the newest bucket, counted from the epoch.
    newest: u64,
    /// Its index and start: most calls fall into the newest bucket and avoid the division.
    slot: usize,
    start: u64,
    totals: [u64; KINDS],
}

/// The maximum number of buckets of a window.
const MAX_BUCKETS: u32 = 10_000;

impl<const KINDS: usize> RollingWindow<KINDS> {
    /// Creates counters over `window` in `buckets` buckets of equal length, rounded up to whole microseconds.
    pub fn new(window: Micros, buckets: u32) -> Result<Self, SettingError> {
        check_window(window, buckets)?;
        Ok(Self::from_checked(window, buckets))
    }

    /// Like [`new`](Self::new), for settings that were validated before.
    pub(crate) fn from_checked(window: Micros, buckets: u32) -> Self {
        let buckets = buckets.max(1);
        let width = window.get().div_ceil(buckets.into()).max(1);
        Self {
            bucket_width: width,
            buckets: vec![[0; KINDS]; buckets as usize].into(),
            newest: 0,
            slot: 0,
            start: 0,
            totals: [0; KINDS],
        }
    }

    /// Adds to each counter. The cost grows with the time since the last call, up to one pass over all
    /// buckets.
    pub fn add(&mut self, now: Micros, counts: [u64; KINDS]) {
        if !self.is_newest(now) {
            self.advance(now);
        }
        if let Some(bucket) = self.buckets.get_mut(self.slot) {
            apply_each(bucket, counts, u64::saturating_add);
            apply_each(&mut self.totals, counts, u64::saturating_add);
        }
    }

    /// Subtracts what was counted at `then`, unless it has expired; never more than the bucket contains.
    pub fn subtract(&mut self, then: Micros, counts: [u64; KINDS]) {
        let number = then.get() / self.bucket_width;
        let slot = self.slot(number);
        if number > self.newest || self.newest - number >= self.len() {
            return;
        }
        if let Some(bucket) = self.buckets.get_mut(slot) {
            let before = *bucket;
            apply_each(bucket, counts, u64::saturating_sub);
            let gone = core::array::from_fn(|kind| before[kind] - bucket[kind]);
            apply_each(&mut self.totals, gone, u64::saturating_sub);
        }
    }

    /// The totals of the window at `now`.
    pub fn totals(&self, now: Micros) -> [u64; KINDS] {
        if self.is_newest(now) {
            return self.totals;
        }
        let number = now.get() / self.bucket_width;
        if self.is_out_of_window(number) {
            return [0; KINDS];
        }
        let mut totals = self.totals;
        for gone in self.expired(number) {
            let bucket = self.buckets.get(self.slot(gone)).copied().unwrap_or([0; KINDS]);
            apply_each(&mut totals, bucket, u64::saturating_sub);
        }
        totals
    }

    /// Resets all counters.
    pub fn clear(&mut self) {
        self.buckets.fill([0; KINDS]);
        self.totals = [0; KINDS];
    }

    fn advance(&mut self, now: Micros) {
        let number = now.get() / self.bucket_width;
        if self.is_out_of_window(number) {
            self.clear();
            return self.start_bucket(number);
        }
        self.totals = self.totals(now);
        for gone in self.expired(number) {
            let slot = self.slot(gone);
            if let Some(bucket) = self.buckets.get_mut(slot) {
                *bucket = [0; KINDS];
            }
        }
        self.start_bucket(self.newest.max(number));
    }

    fn start_bucket(&mut self, number: u64) {
        self.newest = number;
        self.slot = self.slot(number);
        self.start = number * self.bucket_width;
    }

    #[inline]
    fn is_newest(&self, now: Micros) -> bool {
        now.get().wrapping_sub(self.start) < self.bucket_width
    }

    /// Whether no bucket in use overlaps a window that ends with this one: far ahead or far back.
    fn is_out_of_window(&self, number: u64) -> bool {
        number.abs_diff(self.newest) >= self.len()
    }

    /// The numbers of the buckets that are reused up to `number`; empty if that is in the past.
    fn expired(&self, number: u64) -> core::ops::RangeInclusive<u64> {
        self.newest + 1..=number
    }

    fn slot(&self, number: u64) -> usize {
        (number % self.len()) as usize
    }

    fn len(&self) -> u64 {
        self.buckets.len() as u64
    }
}

/// Rejects a window that cannot be divided into `buckets` buckets.
pub(crate) fn check_window(window: Micros, buckets: u32) -> Result<(), SettingError> {
    SettingError::require_finite("a window", window)?;
    SettingError::require_in_range("a number of buckets", buckets, 1, MAX_BUCKETS)?;
    match window.get() < u64::from(buckets) {
        true => Err(SettingError::new(
            format!("a window of {window} in {buckets} buckets"),
            "use fewer buckets: each needs at least a microsecond",
        )),
        false => Ok(()),
    }
}

fn apply_each<const KINDS: usize>(
    counts: &mut [u64; KINDS],
    others: [u64; KINDS],
    change: impl Fn(u64, u64) -> u64,
) {
    for (count, other) in counts.iter_mut().zip(others) {
        *count = change(*count, other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rolling() -> RollingWindow<1> {
        RollingWindow::new(Micros::new(100), 10).unwrap()
    }

    fn at(micros: u64) -> Micros {
        Micros::new(micros)
    }

    #[test]
    fn totals_expire_one_bucket_at_a_time() {
        let mut rolling = rolling();
        for time in [0, 9, 10, 55, 99] {
            rolling.add(at(time), [1]);
        }
        for (time, total) in [(99, 5), (100, 3), (109, 3), (110, 2), (150, 1), (189, 1), (190, 0), (9_999, 0)]
        {
            assert_eq!(rolling.totals(at(time)), [total], "at {time}");
        }
        rolling.add(at(110), [1]);
        assert_eq!(rolling.totals(at(110)), [3]);
    }

    #[test]
    fn clock_step_back_keeps_totals_and_a_large_one_clears_them() {
        let mut rolling = rolling();
        rolling.add(at(500), [1]);
        rolling.add(at(420), [1]);
        assert_eq!((rolling.totals(at(420)), rolling.totals(at(599))), ([2], [2]));
        assert_eq!(rolling.totals(at(600)), [0], "both are counted at 500");
        rolling.add(at(399), [1]);
        assert_eq!(rolling.totals(at(399)), [1], "a step back by a window resets the counters");
        assert_eq!(rolling.totals(at(490)), [0]);
    }

    #[test]
    fn accepts_zero_and_max_time() {
        let mut rolling = rolling();
        rolling.add(Micros::MAX, [u64::MAX]);
        rolling.add(Micros::MAX, [1]);
        assert_eq!(rolling.totals(Micros::MAX), [u64::MAX]);
        rolling.add(Micros::ZERO, [1]);
        assert_eq!(rolling.totals(Micros::ZERO), [1]);
    }

    #[test]
    fn subtract_is_bounded_by_bucket_count() {
        let mut rolling = rolling();
        rolling.add(at(10), [2]);
        rolling.add(at(50), [1]);
        rolling.subtract(at(15), [1]);
        assert_eq!(rolling.totals(at(50)), [2]);
        rolling.subtract(at(15), [5]);
        assert_eq!(rolling.totals(at(50)), [1], "the other bucket is not touched");
        rolling.add(at(150), [1]);
        rolling.subtract(at(50), [1]);
        rolling.subtract(at(999), [1]);
        assert_eq!(rolling.totals(at(150)), [1], "expired and future buckets are not touched");
    }

    #[test]
    fn rejects_indivisible_windows() {
        for (window, buckets) in
            [(Micros::ZERO, 1), (Micros::MAX, 1), (at(100), 0), (at(9), 10), (Micros::from_secs(1), u32::MAX)]
        {
            assert!(RollingWindow::<1>::new(window, buckets).is_err(), "{window} in {buckets}");
        }
    }
}
