//! Keys that do far more than all others: a quota that follows them protects against nobody.

/// The part of all keys that may be outliers, one in this many; at least one key may be.
const OUTLIER_SHARE_DIVISOR: usize = 50;
/// With fewer keys nobody can be told from the others.
const MIN_KEYS: usize = 20;
/// How many times more than the others an outlier does.
const OUTLIER_FACTOR: u64 = 4;
/// An outlier does at least this much: three requests among ones are no abuse.
const MIN_REQUESTS: u64 = 20;

/// The most that a key may do in a window without being an outlier, given the most of each key in rising order.
pub(super) fn outlier_threshold(rising: &[u64]) -> u64 {
    let others = rising.len() - (rising.len() / OUTLIER_SHARE_DIVISOR).max(1).min(rising.len());
    match others.checked_sub(1).and_then(|last| rising.get(last)) {
        Some(most) if rising.len() >= MIN_KEYS => (most * OUTLIER_FACTOR).max(MIN_REQUESTS),
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_keys_far_above_all_others_are_outliers() {
        let with = |count: usize, rates: &[u64]| {
            let mut rising: Vec<u64> = (0..count).map(|key| 1 + key as u64 % 10).collect();
            rising.extend(rates);
            rising.sort_unstable();
            let bound = outlier_threshold(&rising);
            rising.iter().filter(|rate| **rate > bound).count()
        };
        assert_eq!(with(63, &[1_200]), 1);
        assert_eq!(with(198, &[60, 150, 400, 1_000]), 4);
        assert_eq!(with(63, &[39]), 0, "four times as much is not far");
        assert_eq!(with(63, &[500, 600]), 0, "two of 65 are not few");
        assert_eq!(with(10, &[1_200]), 0, "too few to compare with");
        assert_eq!(with(0, &[]), 0);
    }
}
