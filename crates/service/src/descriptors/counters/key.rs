//! The key of a descriptor's counter.

use ring::digest::{Context, SHA256};
use std::fmt;
use tidegate_policy::descriptors::DescriptorEntry;

/// A domain and entries. In memory it is hashed directly. In a store each part is written with its length before it, so that
/// different keys have different texts. A long key is written as its hash: clients choose the values, and a key that is too
/// long must not cause an error, since Envoy allows a request on errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DescriptorKey<'a> {
    pub(crate) domain: &'a str,
    pub(crate) entries: &'a [DescriptorEntry],
}

impl fmt::Display for DescriptorKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.parts().map(str::len).sum::<usize>() <= MAX_PLAIN_KEY_LEN {
            return self.parts().try_for_each(|part| write!(f, "{}:{part}", part.len()));
        }
        let mut hash = Context::new(&SHA256);
        for part in self.parts() {
            hash.update(&(part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        f.write_str("sha256:")?;
        hash.finish().as_ref().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl<'a> DescriptorKey<'a> {
    fn parts(self) -> impl Iterator<Item = &'a str> {
        let entries = self.entries.iter().flat_map(|entry| [entry.key.as_str(), entry.value.as_str()]);
        [self.domain].into_iter().chain(entries)
    }
}

/// The maximum length in bytes of a key that is stored without hashing.
const MAX_PLAIN_KEY_LEN: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn different_keys_have_different_text() {
        let entry =
            |(key, value): &(&str, &str)| DescriptorEntry { key: (*key).into(), value: (*value).into() };
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
                DescriptorKey { domain, entries: &entries }.to_string()
            })
            .collect();
        assert_eq!(written.len(), keys.len(), "{written:?}");
    }

    #[test]
    fn long_key_is_hashed() {
        let written = |parts: &[&str]| {
            let entry = |value: &&str| DescriptorEntry { key: "user".to_owned(), value: (*value).to_owned() };
            let entries: Vec<_> = parts.iter().map(entry).collect();
            DescriptorKey { domain: "shop", entries: &entries }.to_string()
        };
        let (long, longer) = ("a".repeat(20_000), "a".repeat(20_001));
        let keys = [written(&[&long]), written(&[&longer]), written(&[&long, ""]), written(&["", &long])];
        for key in &keys {
            assert!(key.starts_with("sha256:") && key.len() == 71, "{key}");
        }
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
        assert_eq!(written(&[&long]), keys[0]);
        assert_eq!(written(&["alice"]), "4:shop4:user5:alice");
    }
}
