//! A deterministic share of all keys.

use std::fmt::{self, Write as _};
use tidegate_core::{Fnv, Percent};

/// Whether a key is in this share of a rule's keys. The selection is the same in every process, and a larger
/// share includes the keys of a smaller one.
pub fn is_in_rollout(rule: &str, key: &dyn fmt::Display, share: Percent) -> bool {
    let position = (u128::from(key_hash(rule, key)) * 1_000_000) >> 64;
    position < u128::from(share.millionths())
}

/// A hash that identifies a key of a rule where the key itself must not be shown: the same in every process
/// and on every machine. It can be verified by guessing the key.
pub fn key_hash(rule: &str, key: &dyn fmt::Display) -> u64 {
    let mut hash = Fnv::default();
    // Writing to a hash does not fail.
    let _result = write!(hash, "{rule}\0{key}");
    let hash = hash.finish();
    // The low bits of the hash alone would follow those of the last character.
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(percent: f64) -> Percent {
        Percent::new(percent).unwrap()
    }

    fn rollout_keys(rule: &str, share: Percent) -> Vec<u32> {
        (0..10_000).filter(|key| is_in_rollout(rule, key, share)).collect()
    }

    #[test]
    fn larger_rollout_contains_smaller_rollout() {
        let (tenth, half) = (rollout_keys("login", percent(10.0)), rollout_keys("login", percent(50.0)));
        assert!((900..1_100).contains(&tenth.len()) && (4_800..5_200).contains(&half.len()));
        assert!(tenth.iter().all(|key| half.contains(key)));
        assert_eq!(rollout_keys("login", Percent::ZERO).len(), 0);
        assert_eq!(rollout_keys("login", Percent::FULL).len(), 10_000);
        let other = rollout_keys("search", percent(10.0));
        assert!(
            tenth.iter().filter(|key| other.contains(key)).count() < 200,
            "rules select keys independently"
        );
    }

    #[test]
    fn rollout_is_deterministic() {
        assert_eq!(rollout_keys("login", percent(0.05)), EXPECTED_KEYS);
    }

    /// Other implementations must select the same keys.
    const EXPECTED_KEYS: [u32; 7] = [2090, 3069, 3759, 6011, 6934, 7923, 9139];
}
