//! The worst window: computed exactly from the requests, not from the columns of a chart.

use super::{axis::Axis, run::AdmittedRequest};
use tidegate_core::Micros;

/// A window and the cost admitted in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BusiestWindow {
    /// The start of the window.
    pub(crate) start: Micros,
    /// The admitted cost; the end of the window is exclusive.
    pub(crate) cost: u64,
}

/// Returns the first window of `length` with the highest admitted cost. Requests must be ordered by time.
pub(crate) fn busiest_window(admitted: &[AdmittedRequest], length: Micros) -> Option<BusiestWindow> {
    let mut trailing = TrailingSum::new(admitted, length);
    let mut worst: Option<BusiestWindow> = None;
    while let Some(cost) = trailing.advance() {
        if worst.is_none_or(|worst| cost > worst.cost) {
            worst = Some(BusiestWindow { start: trailing.oldest(), cost });
        }
    }
    worst
}

/// For every column of `axis`, the highest cost in a window of `length` that ends in the column.
pub(crate) fn trailing_sums(admitted: &[AdmittedRequest], length: Micros, axis: &Axis) -> Vec<u64> {
    let mut trailing = TrailingSum::new(admitted, length);
    let mut next = trailing.next_at();
    let column = |index: usize| {
        let end = axis.edge(index + 1);
        trailing.evict(axis.edge(index));
        let mut max = trailing.sum;
        while next.is_some_and(|at| at < end) {
            max = max.max(trailing.advance().unwrap_or(0));
            next = trailing.next_at();
        }
        max
    };
    (0..axis.bins()).map(column).collect()
}

/// The cost admitted within the last `length`, advancing from request to request.
struct TrailingSum<'a> {
    admitted: &'a [AdmittedRequest],
    length: Micros,
    first: usize,
    next: usize,
    sum: u64,
}

impl<'a> TrailingSum<'a> {
    fn new(admitted: &'a [AdmittedRequest], length: Micros) -> Self {
        Self { admitted, length, first: 0, next: 0, sum: 0 }
    }

    /// Adds the next request and returns the sum.
    fn advance(&mut self) -> Option<u64> {
        let request = self.admitted.get(self.next)?;
        self.evict(request.at);
        self.next += 1;
        self.sum = self.sum.saturating_add(request.cost);
        Some(self.sum)
    }

    /// Removes requests that are too old at `now`.
    fn evict(&mut self, now: Micros) {
        while self.first < self.next && now.saturating_sub(self.admitted[self.first].at) >= self.length {
            self.sum = self.sum.saturating_sub(self.admitted[self.first].cost);
            self.first += 1;
        }
    }

    fn oldest(&self) -> Micros {
        self.admitted.get(self.first).map_or(Micros::ZERO, |request| request.at)
    }

    fn next_at(&self) -> Option<Micros> {
        self.admitted.get(self.next).map(|request| request.at)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::run::AdmissionKind, *};

    fn admitted_at(times: &[u64]) -> Vec<AdmittedRequest> {
        times
            .iter()
            .map(|&at| AdmittedRequest { at: Micros::new(at), cost: 1, kind: AdmissionKind::Immediate })
            .collect()
    }

    #[test]
    fn window_excludes_its_end() {
        for (times, start, cost) in
            [(&[0, 10][..], 0, 1), (&[0, 9], 0, 2), (&[0, 5, 9, 10, 14, 15], 5, 4), (&[7, 7, 7], 7, 3)]
        {
            let worst = busiest_window(&admitted_at(times), Micros::new(10));
            assert_eq!(worst, Some(BusiestWindow { start: Micros::new(start), cost }), "{times:?}");
        }
        assert_eq!(busiest_window(&[], Micros::new(10)), None);
    }

    #[test]
    fn trailing_sum_peaks_at_busiest_window() {
        let axis = Axis::new(Micros::ZERO, Micros::new(30), 10);
        let sums = trailing_sums(&admitted_at(&[0, 5, 9, 10, 14, 15]), Micros::new(10), &axis);
        assert_eq!(sums, [1, 2, 2, 3, 4, 4, 4, 2, 1, 0]);
    }
}
