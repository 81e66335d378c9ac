//! Competitors that do the same work in turns, so that a slow moment of the machine hits nobody in particular.

use crate::suite::Measurement;
use std::time::Instant;

/// Calls of one competitor in one round.
const CALLS_PER_ROUND: u32 = 1_000_000;
const ROUNDS: usize = 25;

/// Times two ways to do the same thing, call by call, and compares them round by round.
pub fn compare(
    (ours, mut our_call): (&str, impl FnMut()),
    (theirs, mut their_call): (&str, impl FnMut()),
) -> Measurement {
    let (mut our_times, mut their_times, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let (us, them) = match round % 2 {
            0 => {
                let us = time(&mut our_call);
                (us, time(&mut their_call))
            }
            _ => {
                let them = time(&mut their_call);
                (time(&mut our_call), them)
            }
        };
        our_times.push(us);
        their_times.push(them);
        ratios.push(us / them);
    }
    let figures = format!("{ours} {:.1} ns, {theirs} {:.1} ns", median(&our_times), median(&their_times));
    Measurement { value: median(&ratios), figures }
}

/// Nanoseconds for each call.
fn time(call: &mut impl FnMut()) -> f64 {
    (0..CALLS_PER_ROUND / 50).for_each(|_| call());
    let start = Instant::now();
    (0..CALLS_PER_ROUND).for_each(|_| call());
    start.elapsed().as_nanos() as f64 / f64::from(CALLS_PER_ROUND)
}

/// The middle of some figures.
pub fn median(figures: &[f64]) -> f64 {
    let mut figures = figures.to_vec();
    figures.sort_unstable_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
