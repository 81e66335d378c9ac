//! Which keys are denied most, in a fixed amount of memory.

use crate::sync::{Mutex, lock};
use std::{collections::HashMap, fmt};

/// A key that was denied often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedKey {
    /// The key as it is written out, cut after 128 characters.
    pub key: String,
    /// How often it was denied; at most this often.
    pub denials: u64,
    /// By how much the count may be too high.
    pub error: u64,
}

/// The space-saving sketch: a newcomer takes the place, and the count, of the key that was denied least.
#[derive(Debug)]
pub(crate) struct Denied {
    places: usize,
    keys: Mutex<HashMap<u64, DeniedKey>>,
}

const LONGEST_NAME: usize = 128;

impl Denied {
    pub(crate) fn new(places: usize) -> Self {
        Self { places, keys: Mutex::new(HashMap::new()) }
    }

    #[cold]
    pub(crate) fn note(&self, owner: u64, key: &dyn fmt::Display) {
        let mut keys = lock(&self.keys);
        if let Some(known) = keys.get_mut(&owner) {
            known.denials += 1;
            return;
        }
        let mut error = 0;
        if keys.len() >= self.places {
            let least =
                keys.iter().min_by_key(|(_, key)| key.denials).map(|(owner, key)| (*owner, key.denials));
            if let Some((owner, denials)) = least {
                keys.remove(&owner);
                error = denials;
            }
        }
        let name = short_name(key);
        keys.insert(owner, DeniedKey { key: name, denials: error + 1, error });
    }

    /// The keys that were denied most, most first.
    pub(crate) fn top(&self) -> Vec<DeniedKey> {
        let mut top: Vec<_> = lock(&self.keys).values().cloned().collect();
        top.sort_by(|a, b| b.denials.cmp(&a.denials).then_with(|| a.key.cmp(&b.key)));
        top
    }
}

/// The key as it is written out, without ever building more of it than is kept.
pub(crate) fn short_name(key: &dyn fmt::Display) -> String {
    struct Short(String);
    impl fmt::Write for Short {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for character in text.chars() {
                if self.0.len() + character.len_utf8() > LONGEST_NAME {
                    return Err(fmt::Error);
                }
                self.0.push(character);
            }
            Ok(())
        }
    }
    let mut name = Short(String::new());
    let _cut_short = fmt::write(&mut name, format_args!("{key}"));
    name.0
}
