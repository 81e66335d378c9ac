//! The names of keys in the server, and the registry of quotas that other processes use.

use crate::message::ForeignQuotas;
use std::{
    borrow::Cow,
    sync::{Arc, PoisonError, RwLock},
};
use tidegate_core::Quota;
use tidegate_limiter::store::KeyRef;

/// Builds key names, and maps the tags in stored states to quotas.
#[derive(Debug)]
pub(crate) struct KeyNames {
    prefix: String,
    /// Quotas that other processes wrote states with.
    foreign_quotas: RwLock<Arc<ForeignQuotas>>,
}

impl KeyNames {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), foreign_quotas: RwLock::default() }
    }

    /// The prefix of all keys.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The key in the server. The part in braces is the hash tag, which selects the slot in a cluster.
    pub(crate) fn key(&self, key_ref: &KeyRef) -> String {
        let KeyRef { limit, key, .. } = key_ref;
        let (prefix, rule) = (&self.prefix, escape_colons(limit.name()));
        if key.len() <= MAX_KEY_LENGTH && !is_hash_like(key) {
            return format!("{prefix}:{{{rule}:{key}}}:{LAYOUT_VERSION}");
        }
        let hash = redis::Script::new(key);
        format!("{prefix}:{{{rule}:#{}}}:{LAYOUT_VERSION}", hash.get_hash())
    }

    /// Quotas that other processes wrote states with.
    pub(crate) fn foreign_quotas(&self) -> Arc<ForeignQuotas> {
        self.foreign_quotas.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn is_registered(&self, rule: &str, tag: u16) -> bool {
        self.foreign_quotas().contains_key(&(rule.to_owned(), tag))
    }

    /// Registers the quota of another process; `None` for a tag without an announced quota.
    pub(crate) fn register(&self, rule: &str, tag: u16, quota: Option<Quota>) {
        let mut foreign_quotas = self.foreign_quotas.write().unwrap_or_else(PoisonError::into_inner);
        let mut known = ForeignQuotas::clone(&foreign_quotas);
        if known.len() >= MAX_FOREIGN_QUOTAS {
            known.clear();
        }
        known.insert((rule.to_owned(), tag), quota);
        *foreign_quotas = Arc::new(known);
    }

    /// Removes the tags without a quota, so that they are looked up again: the quota may have been announced since.
    pub(crate) fn forget_unknown(&self) {
        let mut foreign_quotas = self.foreign_quotas.write().unwrap_or_else(PoisonError::into_inner);
        if foreign_quotas.values().any(Option::is_none) {
            let mut known = ForeignQuotas::clone(&foreign_quotas);
            known.retain(|_, quota| quota.is_some());
            *foreign_quotas = Arc::new(known);
        }
    }

    /// The key that the probe script writes and deletes.
    pub(crate) fn probe_key(&self) -> String {
        format!("{}:probe", self.prefix)
    }

    /// The key that holds the text of a quota, for processes that use another quota.
    pub(crate) fn quota_key(&self, rule: &str, tag: u16) -> String {
        format!("{}:quota:{rule}:{tag:04x}", self.prefix)
    }
}

/// Whether a key looks like the hash of a longer key. Such a key is hashed too, or both would share a state.
fn is_hash_like(key: &str) -> bool {
    key.len() == HASHED_KEY_LENGTH && key.starts_with('#')
}

/// Escapes colons, because a colon ends the rule name in a key.
fn escape_colons(rule: &str) -> Cow<'_, str> {
    match rule.contains([':', '%']) {
        true => Cow::Owned(rule.replace('%', "%25").replace(':', "%3A")),
        false => Cow::Borrowed(rule),
    }
}

/// The layout of the value of a key.
const LAYOUT_VERSION: u32 = 1;
/// Longer keys are hashed.
const MAX_KEY_LENGTH: usize = 200;
/// A `#` and forty hex digits.
const HASHED_KEY_LENGTH: usize = 41;
/// The maximum number of registered quotas of other processes.
const MAX_FOREIGN_QUOTAS: usize = 64;
