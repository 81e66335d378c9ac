//! Finds the knee in the distribution of rates: the point between typical and heavy keys.

/// The knee of a distribution of rates: most keys are at or below it, and a few are far above.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Knee {
    /// The rate at the knee.
    pub rate: u64,
    /// The share of keys at or below it.
    pub share: f64,
    /// The number of keys above it.
    pub above: u64,
}

/// Finds the point that is farthest below the straight line from the first to the last rate, on a logarithmic scale. The
/// rates must be in ascending order.
pub(super) fn find_knee(rising: &[u64]) -> Knee {
    let (Some(first), Some(last)) = (rising.first(), rising.last()) else { return Knee::default() };
    let height = |rate: u64| (rate.max(1) as f64).ln();
    let (low, high) = (height(*first), height(*last));
    let count = rising.len() as f64;
    let below = |(place, rate): (usize, &u64)| {
        let line = low + (high - low) * (place + 1) as f64 / count;
        (line - height(*rate), *rate)
    };
    let farthest = rising.iter().enumerate().map(below).max_by(|a, b| a.0.total_cmp(&b.0));
    let rate = farthest.map_or(*last, |(_, rate)| rate);
    let within = rising.partition_point(|other| *other <= rate);
    Knee { rate, share: within as f64 / count, above: (rising.len() - within) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knee_precedes_heavy_keys() {
        let mut rates: Vec<u64> = (0..950).map(|key| 1 + key % 10).collect();
        rates.extend((0..50).map(|key| 100 + key * 10));
        rates.sort_unstable();
        let knee = find_knee(&rates);
        assert_eq!((knee.rate, knee.above), (10, 50));
        assert!((knee.share - 0.95).abs() < 0.001);
    }

    #[test]
    fn equal_rates_have_no_key_above_knee() {
        assert_eq!(find_knee(&[7; 20]), Knee { rate: 7, share: 1.0, above: 0 });
        assert_eq!(find_knee(&[]), Knee::default());
    }
}
