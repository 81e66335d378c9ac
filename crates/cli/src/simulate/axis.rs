//! The time axis of all charts: columns and ticks of round lengths.

use super::{
    run::{AdmissionKind, AdmittedRequest},
    time::{DAY, HOUR, MINUTE, SECOND, axis_label},
};
use tidegate_core::Micros;
use tidegate_simulation::SimulatedRequest;

/// A time range, divided into columns of one round length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    start: Micros,
    bins: u64,
    bin: Micros,
}

/// A mark on the axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tick {
    pub(crate) at: Micros,
    pub(crate) label: String,
}

/// The admitted cost of each column.
#[derive(Clone, Debug, Default)]
pub(crate) struct Columns {
    /// Admitted at once.
    pub(crate) allowed: Vec<u64>,
    /// Admitted after a wait.
    pub(crate) delayed: Vec<u64>,
}

/// The purpose of a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepKind {
    /// Columns: any divisor of the next unit.
    Column,
    /// Ticks: only familiar lengths.
    Tick,
}

impl Axis {
    /// From `start` to `end`, in at most `max + 1` columns.
    pub(crate) fn new(start: Micros, end: Micros, max: usize) -> Self {
        let bin = round_up(end.saturating_sub(start).get().div_ceil(max.max(1) as u64), StepKind::Column);
        let first = start.get() / bin;
        let bins = end.get().div_ceil(bin).saturating_sub(first).max(1);
        Self { start: Micros::new(first * bin), bins, bin: Micros::new(bin) }
    }

    /// From zero, with this number and length of columns.
    pub(crate) fn with_bins(bins: usize, bin: Micros) -> Self {
        Self { start: Micros::ZERO, bins: bins as u64, bin }
    }

    /// The number of columns.
    pub(crate) fn bins(&self) -> usize {
        self.bins as usize
    }

    /// The length of a column.
    pub(crate) fn bin(&self) -> Micros {
        self.bin
    }

    /// The start of the axis.
    pub(crate) fn start(&self) -> Micros {
        self.start
    }

    /// The end of the axis.
    pub(crate) fn end(&self) -> Micros {
        self.edge(self.bins())
    }

    /// The left edge of a column.
    pub(crate) fn edge(&self, index: usize) -> Micros {
        self.start.saturating_add(Micros::new(self.bin.get().saturating_mul(index as u64)))
    }

    /// The column of a time; `None` if it is not on the axis.
    pub(crate) fn column(&self, at: Micros) -> Option<usize> {
        let index = at.saturating_sub(self.start).get() / self.bin.get();
        (at >= self.start && index < self.bins).then_some(index as usize)
    }

    /// The position of a time on the axis: 0 at its start, 1 at its end and after.
    pub(crate) fn fraction(&self, at: Micros) -> f64 {
        let length = self.end().saturating_sub(self.start).get() as f64;
        (at.saturating_sub(self.start).get() as f64 / length).min(1.0)
    }

    /// About `max` ticks at round times, relative to the origin.
    pub(crate) fn ticks(&self, max: usize) -> Vec<Tick> {
        let length = self.end().saturating_sub(self.start);
        let step = round_up(length.get().div_ceil(max.max(1) as u64), StepKind::Tick);
        let origin = self.origin();
        let first = self.start.saturating_sub(origin).get().div_ceil(step) * step;
        let last = self.end().saturating_sub(origin).get();
        let times = (first..=last).step_by(usize::try_from(step).unwrap_or(usize::MAX));
        let longest = Micros::new(last);
        let tick = |at| Tick {
            at: origin.saturating_add(Micros::new(at)),
            label: axis_label(Micros::new(at), longest),
        };
        times.map(tick).collect()
    }

    /// The time that labels are relative to: zero, or the start of an axis with absolute times, such as a log.
    pub(crate) fn origin(&self) -> Micros {
        if self.start > self.end().saturating_sub(self.start) { self.start } else { Micros::ZERO }
    }

    /// The offered cost of each column.
    pub(crate) fn offered_columns(&self, arrivals: &[SimulatedRequest]) -> Vec<u64> {
        let mut bins = vec![0; self.bins()];
        for arrival in arrivals {
            if let Some(column) = self.column(arrival.at) {
                bins[column] = u64::saturating_add(bins[column], arrival.cost);
            }
        }
        bins
    }

    /// The admitted cost of each column.
    pub(crate) fn admitted_columns(&self, admitted: &[AdmittedRequest]) -> Columns {
        let mut columns = Columns { allowed: vec![0; self.bins()], delayed: vec![0; self.bins()] };
        for request in admitted {
            if let Some(column) = self.column(request.at) {
                let bins = match request.kind {
                    AdmissionKind::Immediate => &mut columns.allowed,
                    AdmissionKind::Delayed => &mut columns.delayed,
                };
                bins[column] = bins[column].saturating_add(request.cost);
            }
        }
        columns
    }
}

impl Columns {
    /// The admitted cost of a column.
    pub(crate) fn total(&self, column: usize) -> u64 {
        self.allowed[column].saturating_add(self.delayed[column])
    }

    /// The maximum admitted cost of a column.
    pub(crate) fn max(&self) -> u64 {
        (0..self.allowed.len()).map(|column| self.total(column)).max().unwrap_or(0)
    }
}

/// The next round length.
fn round_up(micros: u64, kind: StepKind) -> u64 {
    let (tens, sixties, hours): (&[u64], &[u64], &[u64]) = match kind {
        StepKind::Column => {
            (&[1, 2, 3, 4, 5, 6, 8], &[1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30], &[1, 2, 3, 4, 6, 8, 12])
        }
        StepKind::Tick => (&[1, 2, 5], &[1, 2, 5, 10, 15, 20, 30], &[1, 2, 3, 6, 12]),
    };
    let times = |unit: u64, steps: &[u64]| steps.iter().map(|step| unit * step).collect::<Vec<_>>();
    let powers = |unit: u64| (0..6).flat_map(move |power| times(unit * 10_u64.pow(power), tens));
    // Decimal steps for fractions of a second and for days; divisors of 60 and 24 in between.
    let lengths =
        powers(1).chain(times(SECOND, sixties)).chain(times(MINUTE, sixties)).chain(times(HOUR, hours));
    lengths.chain(powers(DAY)).find(|length| *length >= micros).unwrap_or(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_columns_are_round_and_cover_the_range() {
        let axis = Axis::new(Micros::ZERO, Micros::from_secs(120), 76);
        assert_eq!((axis.bin(), axis.bins()), (Micros::from_secs(2), 60));
        assert_eq!(axis.column(Micros::from_secs(119)), Some(59));
        assert_eq!(axis.column(Micros::from_secs(120)), None);
        for end in [1, 7, 999, 1_000_001, 123_456_789, u64::MAX] {
            let end = Micros::new(end);
            let axis = Axis::new(Micros::ZERO, end, 60);
            assert!(axis.bins() <= 61 && axis.end() >= end, "{axis:?}");
        }
    }

    #[test]
    fn ticks_are_relative_to_a_distant_start() {
        let labels =
            |axis: Axis| axis.ticks(6).into_iter().map(|tick| tick.label).collect::<Vec<_>>().join(" ");
        let far = Micros::from_secs(1_700_000_000);
        let minute = Micros::from_secs(60);
        assert_eq!(labels(Axis::new(Micros::ZERO, minute, 60)), "0:00 0:10 0:20 0:30 0:40 0:50 1:00");
        assert_eq!(
            labels(Axis::new(far, far.saturating_add(Micros::from_secs(6)), 60)),
            "0s 1s 2s 3s 4s 5s 6s"
        );
    }
}
