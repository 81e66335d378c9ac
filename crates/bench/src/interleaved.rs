//! Alternating rounds of two competitors, so that a slow phase of the machine does not favour one of them.

use crate::suite::Measurement;
use std::time::Instant;

/// The calls of one competitor in one round.
const CALLS_PER_ROUND: u32 = 1_000_000;
const ROUNDS: usize = 25;

/// Measures two competitors and returns the median of their ratios per round.
pub fn compare(
    (ours, mut our_call): (&str, impl FnMut()),
    (theirs, mut their_call): (&str, impl FnMut()),
) -> Measurement {
    let (mut our_times, mut their_times, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let (our_time, their_time) = match round % 2 {
            0 => {
                let our_time = time(&mut our_call);
                (our_time, time(&mut their_call))
            }
            _ => {
                let their_time = time(&mut their_call);
                (time(&mut our_call), their_time)
            }
        };
        our_times.push(our_time);
        their_times.push(their_time);
        ratios.push(our_time / their_time);
    }
    let (our_time, their_time) = (median(&our_times), median(&their_times));
    Measurement::from_rounds(&ratios, format!("{ours} {our_time:.1} ns, {theirs} {their_time:.1} ns"))
}

/// Returns the nanoseconds per call.
fn time(call: &mut impl FnMut()) -> f64 {
    (0..CALLS_PER_ROUND / 50).for_each(|_| call());
    let start = Instant::now();
    (0..CALLS_PER_ROUND).for_each(|_| call());
    start.elapsed().as_nanos() as f64 / f64::from(CALLS_PER_ROUND)
}

/// Returns the median; NaN for an empty slice.
pub fn median(figures: &[f64]) -> f64 {
    let [_, median, _] = quartiles(figures);
    median
}

/// Returns the 25th percentile, the median and the 75th percentile, with linear interpolation; NaN for an empty slice.
pub fn quartiles(figures: &[f64]) -> [f64; 3] {
    let mut figures = figures.to_vec();
    figures.sort_unstable_by(f64::total_cmp);
    [0.25, 0.5, 0.75].map(|part| {
        let position = part * figures.len().saturating_sub(1) as f64;
        match (figures.get(position.floor() as usize), figures.get(position.ceil() as usize)) {
            (Some(low), Some(high)) => low + (high - low) * position.fract(),
            _ => f64::NAN,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_interpolated() {
        assert_eq!(quartiles(&[5.0, 1.0, 3.0, 2.0, 4.0]), [2.0, 3.0, 4.0]);
        assert_eq!(quartiles(&[2.0, 1.0]), [1.25, 1.5, 1.75]);
        assert!(median(&[]).is_nan());
    }
}
