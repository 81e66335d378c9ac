//! Rules that fall back to cached responses.

use crate::{
    is_credential,
    model::{Expression, KeyPart, KeySpec, RuleSpec},
};
use http::HeaderMap;
use std::collections::BTreeSet;

/// The rules of a policy with `fallback: { cache }`, and the headers by which the policy identifies users.
#[derive(Debug, Default)]
pub struct CachedFallbacks {
    /// The indexes of the rules.
    rules: BTreeSet<usize>,
    /// The headers that keys of the policy read.
    key_headers: BTreeSet<String>,
    /// Whether a key is an expression that reads headers.
    has_expression: bool,
}

impl CachedFallbacks {
    /// The fallbacks of these rules. `user` is the key that the policy defines as `user`.
    pub(super) fn new<'a>(rules: impl Iterator<Item = &'a RuleSpec>, user: Option<&KeySpec>) -> Self {
        let mut found = Self::default();
        for (index, rule) in rules.enumerate() {
            if rule.on_limit.fallback_cache().is_some() {
                found.rules.insert(index);
            }
            found.add_key(&rule.key);
        }
        user.into_iter().for_each(|user| found.add_key(user));
        found
    }

    fn add_key(&mut self, key: &KeySpec) {
        match key {
            KeySpec::Part(KeyPart::Header(name)) => {
                self.key_headers.insert(name.clone());
            }
            KeySpec::Part(KeyPart::Cel(Expression(text))) => self.has_expression |= text.contains("headers"),
            KeySpec::Composite(keys) | KeySpec::First(keys) => keys.iter().for_each(|key| self.add_key(key)),
            KeySpec::All | KeySpec::Part(_) => {}
        }
    }

    /// Whether no rule has such a fallback.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether the rule at this index has such a fallback.
    pub fn contains(&self, index: usize) -> bool {
        self.rules.contains(&index)
    }

    /// Whether the response to a request with these headers may be specific to one user.
    pub fn is_personal(&self, headers: &HeaderMap) -> bool {
        self.has_expression
            || headers
                .keys()
                .any(|name| is_credential(name.as_str()) || self.key_headers.contains(name.as_str()))
    }
}
