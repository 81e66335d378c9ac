//! The worst window: exact, over the moments themselves and not over the columns of a chart.

use super::{axis::Axis, run::Passage};
use tidegate_core::Micros;

/// A stretch of time and what went in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// Its first moment.
    pub(crate) start: Micros,
    /// What went from `start` on, up to but without the moment at its end.
    pub(crate) cost: u64,
}

/// The first of the stretches of `length` in which most went. Passages are in order of time.
pub(crate) fn worst(passages: &[Passage], length: Micros) -> Option<Stretch> {
    let mut trailing = Trailing::new(passages, length);
    let mut worst: Option<Stretch> = None;
    while let Some(cost) = trailing.step() {
        if worst.is_none_or(|worst| cost > worst.cost) {
            worst = Some(Stretch { start: trailing.oldest(), cost });
        }
    }
    worst
}

/// For every column of `axis`, the most that went in the stretch of `length` that ends there.
pub(crate) fn trailing(passages: &[Passage], length: Micros, axis: &Axis) -> Vec<u64> {
    let mut trailing = Trailing::new(passages, length);
    let mut next = trailing.next_at();
    let column = |index: usize| {
        let end = axis.edge(index + 1);
        trailing.forget(axis.edge(index));
        let mut most = trailing.sum;
        while next.is_some_and(|at| at < end) {
            most = most.max(trailing.step().unwrap_or(0));
            next = trailing.next_at();
        }
        most
    };
    (0..axis.bins()).map(column).collect()
}

/// The sum of what went within the last `length`, moving from one passage to the next.
struct Trailing<'a> {
    passages: &'a [Passage],
    length: Micros,
    first: usize,
    next: usize,
    sum: u64,
}

impl<'a> Trailing<'a> {
    fn new(passages: &'a [Passage], length: Micros) -> Self {
        Self { passages, length, first: 0, next: 0, sum: 0 }
    }

    /// Adds the next passage, and tells the sum.
    fn step(&mut self) -> Option<u64> {
        let passage = self.passages.get(self.next)?;
        self.forget(passage.at);
        self.next += 1;
        self.sum = self.sum.saturating_add(passage.cost);
        Some(self.sum)
    }

    /// Forgets what is too old at `now`.
    fn forget(&mut self, now: Micros) {
        while self.first < self.next && now.since(self.passages[self.first].at) >= self.length {
            self.sum = self.sum.saturating_sub(self.passages[self.first].cost);
            self.first += 1;
        }
    }

    fn oldest(&self) -> Micros {
        self.passages.get(self.first).map_or(Micros::ZERO, |passage| passage.at)
    }

    fn next_at(&self) -> Option<Micros> {
        self.passages.get(self.next).map(|passage| passage.at)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::run::Pace, *};

    fn passages(moments: &[u64]) -> Vec<Passage> {
        moments.iter().map(|&at| Passage { at: Micros::new(at), cost: 1, pace: Pace::AtOnce }).collect()
    }

    #[test]
    fn a_window_ends_before_its_last_moment() {
        for (moments, start, cost) in
            [(&[0, 10][..], 0, 1), (&[0, 9], 0, 2), (&[0, 5, 9, 10, 14, 15], 5, 4), (&[7, 7, 7], 7, 3)]
        {
            let worst = worst(&passages(moments), Micros::new(10));
            assert_eq!(worst, Some(Stretch { start: Micros::new(start), cost }), "{moments:?}");
        }
        assert_eq!(worst(&[], Micros::new(10)), None);
    }

    #[test]
    fn the_trailing_sum_peaks_at_the_worst_window() {
        let axis = Axis::over(Micros::ZERO, Micros::new(30), 10);
        let sums = trailing(&passages(&[0, 5, 9, 10, 14, 15]), Micros::new(10), &axis);
        assert_eq!(sums, [1, 2, 2, 3, 4, 4, 4, 2, 1, 0]);
    }
}
