//! The keys that are denied most, in a fixed amount of memory.

use crate::{
    sync::{Mutex, lock},
    top_keys::TopKeys,
};
use std::fmt;

/// A key that was denied often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedKey {
    /// The key as text, truncated to 128 bytes.
    pub key: String,
    /// The number of denials; an upper bound.
    pub denials: u64,
    /// How much the count may be too high.
    pub error: u64,
}

#[derive(Debug)]
pub(crate) struct DeniedKeys(Mutex<TopKeys>);

const MAX_NAME_LEN: usize = 128;

impl DeniedKeys {
    pub(crate) fn new(capacity: usize) -> Self {
        Self(Mutex::new(TopKeys::new(capacity)))
    }

    #[cold]
    pub(crate) fn record(&self, owner: u64, key: &dyn fmt::Display) {
        lock(&self.0).add(owner, 1, || short_name(key));
    }

    /// The keys with the most denials, highest first.
    pub(crate) fn top(&self) -> Vec<DeniedKey> {
        let top = lock(&self.0).top().into_iter();
        top.map(|key| DeniedKey { key: key.name, denials: key.count, error: key.error }).collect()
    }
}

/// The key as text, truncated to `MAX_NAME_LEN` bytes without formatting more than that.
pub fn short_name(key: &dyn fmt::Display) -> String {
    struct TruncatedName(String);
    impl fmt::Write for TruncatedName {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for character in text.chars() {
                if self.0.len() + character.len_utf8() > MAX_NAME_LEN {
                    return Err(fmt::Error);
                }
                self.0.push(character);
            }
            Ok(())
        }
    }
    let mut name = TruncatedName(String::new());
    let _cut_short = fmt::write(&mut name, format_args!("{key}"));
    name.0
}
