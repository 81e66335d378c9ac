//! Finds the smallest burst within the target for a chosen rate.

use super::{
    target::Allowance,
    trial::{Candidate, Trial, round_quota},
};

/// Returns the chosen rate of each group with smaller bursts.
pub(super) fn smaller_bursts(chosen: &[Trial]) -> Vec<Vec<Candidate>> {
    let of_group = |chosen: &Trial| {
        let parts = [0.75, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05];
        let bursts = parts.map(|part| round_quota(chosen.burst as f64 * part));
        let mut candidates: Vec<Candidate> = bursts
            .into_iter()
            .filter(|burst| *burst < chosen.burst)
            .map(|burst| Candidate { burst, ..chosen.candidate() })
            .collect();
        candidates.dedup();
        candidates
    };
    chosen.iter().map(of_group).collect()
}

/// Returns the trial with the smallest burst within the target, or the previous choice.
pub(super) fn choose(chosen: &[Trial], bursts: &[Vec<Trial>], allowed: &[Allowance]) -> Vec<Trial> {
    let of_group = |((chosen, bursts), allowed): ((&Trial, &Vec<Trial>), &Allowance)| {
        let within = bursts.iter().filter(|trial| allowed.permits(trial));
        within.min_by_key(|trial| trial.burst).unwrap_or(chosen).clone()
    };
    chosen.iter().zip(bursts).zip(allowed).map(of_group).collect()
}
