//! How keys are named, and what is known of the quotas of other processes.

use crate::message::Strangers;
use std::{
    borrow::Cow,
    sync::{Arc, PoisonError, RwLock},
};
use tidegate_core::Quota;
use tidegate_limiter::store::KeyRef;

/// Names of keys, and the quotas behind the tags in them.
#[derive(Debug)]
pub(crate) struct Names {
    prefix: String,
    /// Quotas that other processes write with.
    strangers: RwLock<Arc<Strangers>>,
}

impl Names {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), strangers: RwLock::default() }
    }

    /// The key in the server. What is in braces decides the slot in a cluster.
    pub(crate) fn key(&self, place: &KeyRef) -> String {
        let KeyRef { limit, key, .. } = place;
        let (prefix, rule) = (&self.prefix, without_colons(limit.name()));
        if key.len() <= LONGEST_KEY && !is_like_a_hash(key) {
            return format!("{prefix}:{{{rule}:{key}}}:{VERSION}");
        }
        let hash = redis::Script::new(key);
        format!("{prefix}:{{{rule}:#{}}}:{VERSION}", hash.get_hash())
    }

    /// Quotas that other processes write with.
    pub(crate) fn strangers(&self) -> Arc<Strangers> {
        self.strangers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn knows(&self, rule: &str, tag: u16) -> bool {
        self.strangers().contains_key(&(rule.to_owned(), tag))
    }

    /// Remembers a quota that another process writes with; `None` for a tag that nobody knows.
    pub(crate) fn meet(&self, rule: &str, tag: u16, quota: Option<Quota>) {
        let mut strangers = self.strangers.write().unwrap_or_else(PoisonError::into_inner);
        let mut known = Strangers::clone(&strangers);
        if known.len() >= MOST_STRANGERS {
            known.clear();
        }
        known.insert((rule.to_owned(), tag), quota);
        *strangers = Arc::new(known);
    }

    /// Asks again about tags that nobody knew: their quotas may be announced by then.
    pub(crate) fn forget_unknown(&self) {
        let mut strangers = self.strangers.write().unwrap_or_else(PoisonError::into_inner);
        if strangers.values().any(Option::is_none) {
            let mut known = Strangers::clone(&strangers);
            known.retain(|_, quota| quota.is_some());
            *strangers = Arc::new(known);
        }
    }

    /// A key of no meaning, to try out what the server allows.
    pub(crate) fn probe(&self) -> String {
        format!("{}:probe", self.prefix)
    }

    /// Where the text of a quota is kept, for processes that have another.
    pub(crate) fn quota(&self, rule: &str, tag: u16) -> String {
        format!("{}:quota:{rule}:{tag:04x}", self.prefix)
    }
}

/// A key that reads like the name of a longer one would share its state.
fn is_like_a_hash(key: &str) -> bool {
    key.len() == HASH_LENGTH && key.starts_with('#')
}

/// A colon ends the rule's name: in the name itself it is written otherwise.
fn without_colons(rule: &str) -> Cow<'_, str> {
    match rule.contains([':', '%']) {
        true => Cow::Owned(rule.replace('%', "%25").replace(':', "%3A")),
        false => Cow::Borrowed(rule),
    }
}

/// The layout of what is kept in a key.
const VERSION: u32 = 1;
/// Longer keys are kept as a hash.
const LONGEST_KEY: usize = 200;
/// A `#` and forty digits.
const HASH_LENGTH: usize = 41;
/// Quotas of other processes that are remembered.
const MOST_STRANGERS: usize = 64;
