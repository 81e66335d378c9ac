//! As what a descriptor is counted.

use std::fmt;
use tidegate_policy::descriptors::Entry;

/// A domain and entries. In memory it is hashed as what it is; in a store it is written out with the length of each part in
/// front of it, so that no two of them are written alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CountedKey<'a> {
    pub(crate) domain: &'a str,
    pub(crate) entries: &'a [Entry],
}

impl fmt::Display for CountedKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.iter().flat_map(|entry| [entry.key.as_str(), entry.value.as_str()]);
        for part in [self.domain].into_iter().chain(entries) {
            write!(f, "{}:{part}", part.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_keys_are_written_alike() {
        let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
        let keys: [(&str, &[(&str, &str)]); 9] = [
            ("a", &[("b", "c")]),
            ("a", &[("b", ""), ("c", "")]),
            ("a", &[("b_c", "")]),
            ("ab", &[("", "c")]),
            ("", &[("ab", "c")]),
            ("a", &[("b1", ":c")]),
            ("a", &[("b", "1:c")]),
            ("a1", &[(":b", "c")]),
            ("a", &[("b", "c1:d0:")]),
        ];
        let written: HashSet<String> = keys
            .iter()
            .map(|(domain, entries)| {
                let entries: Vec<_> = entries.iter().map(entry).collect();
                CountedKey { domain, entries: &entries }.to_string()
            })
            .collect();
        assert_eq!(written.len(), keys.len(), "{written:?}");
    }
}
