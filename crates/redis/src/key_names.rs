//! How keys are named, and what is known of the quotas of other processes.

use crate::message::ForeignQuotas;
use std::{
    borrow::Cow,
    sync::{Arc, PoisonError, RwLock},
};
use tidegate_core::Quota;
use tidegate_limiter::store::KeyRef;

/// Names of keys, and the quotas behind the tags in them.
#[derive(Debug)]
pub(crate) struct KeyNames {
    prefix: String,
    /// Quotas that other processes write with.
    foreign_quotas: RwLock<Arc<ForeignQuotas>>,
}

impl KeyNames {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), foreign_quotas: RwLock::default() }
    }

    /// The key in the server. What is in braces decides the slot in a cluster.
    pub(crate) fn key(&self, place: &KeyRef) -> String {
        let KeyRef { limit, key, .. } = place;
        let (prefix, rule) = (&self.prefix, escape_colons(limit.name()));
        if key.len() <= MAX_KEY_LENGTH && !is_hash_like(key) {
            return format!("{prefix}:{{{rule}:{key}}}:{LAYOUT_VERSION}");
        }
        let hash = redis::Script::new(key);
        format!("{prefix}:{{{rule}:#{}}}:{LAYOUT_VERSION}", hash.get_hash())
    }

    /// Quotas that other processes write with.
    pub(crate) fn foreign_quotas(&self) -> Arc<ForeignQuotas> {
        self.foreign_quotas.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn is_registered(&self, rule: &str, tag: u16) -> bool {
        self.foreign_quotas().contains_key(&(rule.to_owned(), tag))
    }

    /// Remembers a quota that another process writes with; `None` for a tag that nobody knows.
    pub(crate) fn register(&self, rule: &str, tag: u16, quota: Option<Quota>) {
        let mut foreign_quotas = self.foreign_quotas.write().unwrap_or_else(PoisonError::into_inner);
        let mut known = ForeignQuotas::clone(&foreign_quotas);
        if known.len() >= MAX_FOREIGN_QUOTAS {
            known.clear();
        }
        known.insert((rule.to_owned(), tag), quota);
        *foreign_quotas = Arc::new(known);
    }

    /// Asks again about tags that nobody knew: their quotas may be announced by then.
    pub(crate) fn forget_unknown(&self) {
        let mut foreign_quotas = self.foreign_quotas.write().unwrap_or_else(PoisonError::into_inner);
        if foreign_quotas.values().any(Option::is_none) {
            let mut known = ForeignQuotas::clone(&foreign_quotas);
            known.retain(|_, quota| quota.is_some());
            *foreign_quotas = Arc::new(known);
        }
    }

    /// A key of no meaning, to try out what the server allows.
    pub(crate) fn probe_key(&self) -> String {
        format!("{}:probe", self.prefix)
    }

    /// Where the text of a quota is kept, for processes that have another.
    pub(crate) fn quota_key(&self, rule: &str, tag: u16) -> String {
        format!("{}:quota:{rule}:{tag:04x}", self.prefix)
    }
}

/// A key that reads like the name of a longer one would share its state.
fn is_hash_like(key: &str) -> bool {
    key.len() == HASHED_KEY_LENGTH && key.starts_with('#')
}

/// A colon ends the rule's name: in the name itself it is written otherwise.
fn escape_colons(rule: &str) -> Cow<'_, str> {
    match rule.contains([':', '%']) {
        true => Cow::Owned(rule.replace('%', "%25").replace(':', "%3A")),
        false => Cow::Borrowed(rule),
    }
}

/// The layout of what is kept in a key.
const LAYOUT_VERSION: u32 = 1;
/// Longer keys are kept as a hash.
const MAX_KEY_LENGTH: usize = 200;
/// A `#` and forty digits.
const HASHED_KEY_LENGTH: usize = 41;
/// Quotas of other processes that are remembered.
const MAX_FOREIGN_QUOTAS: usize = 64;
