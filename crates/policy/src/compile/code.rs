//! A policy for rules that code declares: those of attributes, and those of layers that are built in code.
//!
//! Such a rule is asked by the program, as the decision API is asked: its place in the code says which calls count, and the
//! code gives the key. The policy replaces everything else.

use super::{
    Compiler, PolicyError, breaker_settings,
    rules::{CompiledPolicy, build_rule_settings},
};
use crate::{
    model::{KeyPart, KeySpec, Policy, Quotas, RuleEnforcement, RuleSpec},
    read::RULE,
};
use std::sync::Arc;
use tidegate_core::SettingError;
use tidegate_rule::{RuleSettings, request::AddressKey, site::SiteKey};

/// The keys of a rule that apply to a rule declared in code. `key` and `mode` do in part.
const SUPPORTED_KEYS: [&str; 13] = [
    "name",
    "key",
    "quota",
    "quotas",
    "mode",
    "store",
    "on-outage",
    "wait",
    "message",
    "inherit",
    "capacity",
    "overflow",
    "breaker",
];

/// Those that have no meaning there, and change no decision.
const IGNORED_KEYS: [&str; 1] = ["match"];

impl Compiler {
    /// Applies a policy to the rules that code declares: all of it, or nothing if there is a problem. A rule of the policy
    /// replaces the quotas, mode, store, on-outage, wait and message of the rule of the code with the same name; one that
    /// code does not declare has no effect. What a rule of the code cannot honour is an error; if code declares that rule
    /// later, it is logged then, and the rule stays as declared.
    ///
    /// Counters are kept as [`Rules::apply`](tidegate_rule::Rules::apply) describes.
    pub fn apply(&self, policy: &Policy) -> Result<(), PolicyError> {
        let mut settings = CompiledPolicy::build(policy, self, None)?.settings;
        for rule in &policy.rules {
            // Invalid breakers were reported above.
            if let Ok(its) = code_rule_settings(rule) {
                settings = settings.rule(&rule.name, its);
            }
        }
        self.rules.apply(settings).map_err(|error| PolicyError::from_settings_error(&error))
    }
}

fn code_rule_settings(rule: &RuleSpec) -> Result<RuleSettings, SettingError> {
    let mut settings = build_rule_settings(rule).mode(rule.enforcement.mode()).wait(rule.wait);
    if let Some(message) = &rule.message {
        settings = settings.message(message.as_str());
    }
    if let Quotas::All(quotas) = &rule.quotas {
        settings.quotas.clone_from(quotas);
    }
    settings.capacity = rule.capacity;
    settings.overflow = Some(rule.overflow);
    settings.carry_over = Some(rule.carry_over);
    settings.breaker = rule.breaker.as_ref().map(breaker_settings).transpose()?.map(Arc::new);
    match &rule.key {
        KeySpec::All => {}
        KeySpec::Part(KeyPart::Ip { bits: AddressKey::IPV6_PREFIX_BITS }) => settings.key = Some(SiteKey::Ip),
        KeySpec::Part(KeyPart::User) => settings.key = Some(SiteKey::User),
        _ => {
            let problem = "this key is found in requests, and a rule declared in code has none";
            let fix = "count by `ip` or `user`, or leave `key` out, and the code gives the key";
            settings = settings.unsupported("key", SettingError::new(problem, fix));
        }
    }
    if let RuleEnforcement::Percent(_) = rule.enforcement {
        let problem = "a rule declared in code is enforced for all keys or for none";
        let fix = "write `enforce`, `shadow` or `off`";
        settings = settings.unsupported("mode", SettingError::new(problem, fix));
    }
    for key in RULE.present_keys(rule).filter(|key| !SUPPORTED_KEYS.contains(key)) {
        if IGNORED_KEYS.contains(&key) {
            settings.unused_keys.push(key);
        } else {
            let problem = format!("`{key}` applies to requests, and a rule declared in code has none");
            settings = settings.unsupported(key, SettingError::new(problem, "give it to a rule of its own"));
        }
    }
    Ok(settings)
}
