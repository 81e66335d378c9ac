//! Suggestions for mistyped words.

use alloc::{vec, vec::Vec};
use core::mem;

/// Returns the known word that is closest to a mistyped one, if the edit distance is small enough.
///
/// ```
/// use tidegate_core::suggest::closest;
///
/// let known = ["store", "prefix", "on-limit"];
/// assert_eq!(closest("stroe", known), Some("store"));
/// assert_eq!(closest("On_Limit", known), Some("on-limit"));
/// assert_eq!(closest("banana", known), None);
/// ```
///
/// An added, missing, wrong or transposed letter is one edit; a word matches with one edit per three letters, and
/// at least one. Case and underscores for hyphens do not count. The first of equally close words wins.
pub fn closest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    closest_of(word, &mut known.into_iter())
}

/// Compiled once for all iterators.
fn closest_of<'a>(word: &str, known: &mut dyn Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = normalize(word)?;
    let near = |known: &'a str| {
        let letters = normalize(known)?;
        let mistakes = edit_distance(&word, &letters);
        (mistakes <= (letters.len() / 3).max(1)).then_some((mistakes, known))
    };
    let nearest = known.filter_map(near).min_by_key(|(mistakes, _)| *mistakes);
    nearest.map(|(_, known)| known)
}

/// Lower case with hyphens; `None` for an implausibly long word, to bound the time of a comparison.
fn normalize(word: &str) -> Option<Vec<char>> {
    const MAX_LEN: usize = 64;
    let plain =
        word.chars().flat_map(char::to_lowercase).map(|letter| if letter == '_' { '-' } else { letter });
    let letters: Vec<char> = plain.take(MAX_LEN + 1).collect();
    (letters.len() <= MAX_LEN).then_some(letters)
}

/// The edit distance (Damerau-Levenshtein, optimal string alignment).
fn edit_distance(from: &[char], to: &[char]) -> usize {
    let mut before = vec![0; to.len() + 1];
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut next = vec![i + 1; to.len() + 1];
        for (j, b) in to.iter().enumerate() {
            next[j + 1] = (row[j] + usize::from(a != b)).min(row[j + 1] + 1).min(next[j] + 1);
            if i > 0 && j > 0 && *a == to[j - 1] && from[i - 1] == *b {
                next[j + 1] = next[j + 1].min(before[j - 1] + 1);
            }
        }
        before = mem::replace(&mut row, next);
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closest_finds_the_nearest_word() {
        let known = ["mode", "store", "stores", "prefix", "on-limit", "reload", "rules"];
        for (word, expected) in [
            ("store", Some("store")),
            ("stroe", Some("store")),
            ("on_limit", Some("on-limit")),
            ("Mode", Some("mode")),
            ("prefx", Some("prefix")),
            ("moed", Some("mode")),
            ("mdoee", None),
            ("banana", None),
            ("", None),
        ] {
            assert_eq!(closest(word, known), expected, "{word}");
        }
        assert_eq!(closest(&"x".repeat(1_000_000), known), None);
        assert_eq!(closest("store", []), None);
    }

    #[test]
    fn edit_distance_counts_edits() {
        for (one, other, count) in [
            ("", "", 0),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("flaw", "lawn", 2),
            ("kee", "key", 1),
            ("cots", "cost", 1),
        ] {
            let [one, other] = [one, other].map(|word| normalize(word).unwrap());
            assert_eq!(edit_distance(&one, &other), count, "{one:?} {other:?}");
            assert_eq!(edit_distance(&other, &one), count, "{other:?} {one:?}");
        }
    }
}
