//! Outliers: keys with far more requests than all others. A quota that admits them does not protect against abuse.

/// At most one in this many keys is an outlier; at least one key may be.
const OUTLIER_SHARE_DIVISOR: usize = 50;
/// The minimum number of keys for outliers to be detected.
const MIN_KEYS: usize = 20;
/// An outlier has more than this many times the requests of the others.
const OUTLIER_FACTOR: u64 = 4;
/// An outlier has more requests than this: three requests are not abuse, even if all others send one.
const MIN_REQUESTS: u64 = 20;

/// Returns the largest peak of a key that is not an outlier, given the peaks of all keys in ascending order.
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
        assert_eq!(with(63, &[39]), 0, "less than four times the others");
        assert_eq!(with(63, &[500, 600]), 0, "two of 65 keys are too many");
        assert_eq!(with(10, &[1_200]), 0, "too few keys");
        assert_eq!(with(0, &[]), 0);
    }
}
