//! A part of all keys, always the same one.

use std::fmt::{self, Write as _};
use tidegate_core::{Fnv, Percent};

/// Whether a key is in this part of a rule's keys: always the same ones, in every process. A key that is in one part is in
/// every larger one, too.
pub fn is_in_rollout(rule: &str, key: &dyn fmt::Display, share: Percent) -> bool {
    let place = (u128::from(key_hash(rule, key)) * 1_000_000) >> 64;
    place < u128::from(share.millionths())
}

/// A number that stands for a key of a rule where the key itself is not told: the same in every process and on every
/// machine. Whoever can guess the key can tell that it is this one.
pub fn key_hash(rule: &str, key: &dyn fmt::Display) -> u64 {
    let mut hash = Fnv::default();
    // It cannot fail.
    let _written = write!(hash, "{rule}\0{key}");
    let hash = hash.finish();
    // The low bits of this hash alone would follow those of the last letter.
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
            "rules choose apart from each other"
        );
    }

    #[test]
    fn rollout_is_deterministic() {
        assert_eq!(rollout_keys("login", percent(0.05)), EXPECTED_KEYS);
    }

    /// Another program must find these, too.
    const EXPECTED_KEYS: [u32; 7] = [2090, 3069, 3759, 6011, 6934, 7923, 9139];
}
