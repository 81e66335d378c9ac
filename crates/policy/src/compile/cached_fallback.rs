//! Rules that fall back to cached responses.

use crate::{
    is_credential,
    model::{KeyPart, KeySpec, RuleSpec},
};
use http::HeaderMap;

/// A rule with `fallback: { cache }`.
#[derive(Debug)]
pub struct CachedFallback {
    /// The headers that its key reads.
    key_headers: Vec<String>,
    /// Whether its key is an expression, which may read any header.
    has_expression: bool,
}

impl CachedFallback {
    /// `None` if the rule has no such fallback. `user` is the key that the policy defines as `user`.
    pub(super) fn of_rule(rule: &RuleSpec, user: Option<&KeySpec>) -> Option<Self> {
        rule.on_limit.fallback_cache()?;
        let mut found = Self { key_headers: Vec::new(), has_expression: false };
        found.add_key(&rule.key, user);
        Some(found)
    }

    fn add_key(&mut self, key: &KeySpec, user: Option<&KeySpec>) {
        match key {
            KeySpec::Part(KeyPart::Header(name)) => self.key_headers.push(name.clone()),
            KeySpec::Part(KeyPart::Cel(_)) => self.has_expression = true,
            KeySpec::Part(KeyPart::User) => user.into_iter().for_each(|user| self.add_key(user, None)),
            KeySpec::Composite(keys) | KeySpec::First(keys) => {
                keys.iter().for_each(|key| self.add_key(key, user));
            }
            KeySpec::All | KeySpec::Part(_) => {}
        }
    }

    /// Whether the response to a request with these headers may be specific to one user.
    pub fn is_personal(&self, headers: &HeaderMap) -> bool {
        self.has_expression
            || headers.keys().any(|name| {
                is_credential(name.as_str()) || self.key_headers.iter().any(|key| key == name.as_str())
            })
    }
}
