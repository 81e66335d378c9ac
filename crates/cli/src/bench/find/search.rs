//! Searches for the highest rate that keeps a target.

/// Doubles the rate until the target is missed, halves the interval between the highest rate within the target and the lowest
/// rate above it, and confirms the result by a second load at its rate.
#[derive(Clone, Debug)]
pub(crate) struct RateSearch {
    start: u64,
    max: u64,
    /// The rates within the target, in ascending order, all below `missed`.
    passed: Vec<u64>,
    /// The lowest rate that missed the target.
    missed: Option<u64>,
    is_confirmed: bool,
}

/// The search ends when the interval is less than a twentieth of its lower end.
const PRECISION: u64 = 20;

impl RateSearch {
    /// Starts at a rate, which is at least 1 and at most `max`.
    pub(crate) fn new(start: u64, max: u64) -> Self {
        let max = max.max(1);
        Self { start: start.clamp(1, max), max, passed: Vec::new(), missed: None, is_confirmed: false }
    }

    /// The rate of the next load; `None` at the end of the search.
    pub(crate) fn next_rate(&self) -> Option<u64> {
        match (self.highest_passed(), self.missed) {
            (None, None) => Some(self.start),
            (None, Some(missed)) => Some(missed / 2).filter(|rate| *rate > 0),
            (Some(passed), None) if passed < self.max => Some(passed.saturating_mul(2).min(self.max)),
            (Some(passed), Some(missed)) if missed - passed > (passed / PRECISION).max(1) => {
                let middle = (u128::from(passed) * u128::from(missed)).isqrt();
                Some(u64::try_from(middle).unwrap_or(u64::MAX).clamp(passed + 1, missed - 1))
            }
            (Some(passed), _) => (!self.is_confirmed).then_some(passed),
        }
    }

    /// Records whether the load at this rate met the target.
    pub(crate) fn record(&mut self, rate: u64, has_passed: bool) {
        if !has_passed {
            self.missed = Some(self.missed.map_or(rate, |missed| missed.min(rate)));
            self.passed.retain(|passed| *passed < rate);
            self.is_confirmed = false;
        } else if self.passed.contains(&rate) {
            self.is_confirmed = true;
        } else {
            self.passed.push(rate);
            self.passed.sort_unstable();
        }
    }

    /// The highest rate that met the target twice; `None` before the end of the search, and if no rate did.
    pub(crate) fn knee(&self) -> Option<u64> {
        self.highest_passed().filter(|_| self.is_confirmed && self.next_rate().is_none())
    }

    /// Whether the maximum rate met the target.
    pub(crate) fn is_at_max(&self) -> bool {
        self.highest_passed() == Some(self.max)
    }

    fn highest_passed(&self) -> Option<u64> {
        self.passed.last().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs a search with a server that keeps the target if `has_passed` returns true. Returns the rates.
    fn run(search: &mut RateSearch, mut has_passed: impl FnMut(u64) -> bool) -> Vec<u64> {
        let mut rates = Vec::new();
        while let Some(rate) = search.next_rate() {
            rates.push(rate);
            assert!(rates.len() < 500, "{rates:?}");
            search.record(rate, has_passed(rate));
        }
        rates
    }

    #[test]
    fn search_doubles_bisects_and_confirms() {
        let mut search = RateSearch::new(100, 1_000_000);
        let rates = run(&mut search, |rate| rate <= 500);
        assert_eq!(rates, [100, 200, 400, 800, 565, 475, 518, 496, 496]);
        assert_eq!((search.knee(), search.is_at_max()), (Some(496), false));
    }

    #[test]
    fn search_goes_down_from_a_start_above_the_knee() {
        let mut search = RateSearch::new(100, 1_000);
        assert_eq!(run(&mut search, |rate| rate <= 7), [100, 50, 25, 12, 6, 8, 7, 7]);
        assert_eq!(search.knee(), Some(7));
        let mut search = RateSearch::new(4, 1_000);
        assert_eq!(run(&mut search, |_| false), [4, 2, 1]);
        assert_eq!(search.knee(), None);
    }

    #[test]
    fn search_ends_at_the_maximum_rate() {
        let mut search = RateSearch::new(100, 300);
        assert_eq!(run(&mut search, |_| true), [100, 200, 300, 300]);
        assert_eq!((search.knee(), search.is_at_max()), (Some(300), true));
    }

    #[test]
    fn rate_that_is_not_confirmed_is_not_the_knee() {
        let mut search = RateSearch::new(100, 100);
        search.record(100, true);
        assert_eq!((search.next_rate(), search.knee()), (Some(100), None));
        search.record(100, false);
        assert_eq!(search.next_rate(), Some(50));
    }

    #[test]
    fn search_finds_any_knee_and_ends_with_any_server() {
        let property = |(start, knee, noise): (u64, u64, Vec<bool>)| {
            let mut search = RateSearch::new(start, 1_000_000);
            run(&mut search, |rate| rate <= knee);
            let found = search.knee().unwrap();
            prop_assert!(
                found <= knee && (knee - found) * PRECISION <= knee.max(PRECISION),
                "{found} for {knee}"
            );
            // A server that is sometimes slow at any rate.
            let mut noise = noise.into_iter();
            run(&mut RateSearch::new(start, 1_000_000), |_| noise.next().unwrap_or(false));
            Ok(())
        };
        let noise = prop::collection::vec(any::<bool>(), 0..100);
        let inputs = (1_u64..=1_000_000, 1_u64..=1_000_000, noise);
        tidegate_testkit::strategy::runner_with_cases(500).run(&inputs, property).unwrap();
    }
}
