//! Applies a policy to rules that are declared in code: by attributes, or by layers built in code.
//!
//! The code determines which calls such a rule counts, and provides the key. The policy replaces everything else.

use super::{
    CompiledRule, Compiler, PolicyError, breaker_settings,
    guards::{NORMAL_CLASS, build_error_rates, check_load},
    load::{PolicyMonitor, PreparedMonitor, follow, scale_policy},
    rules::{CompiledPolicy, build_rule_settings},
};
use crate::{
    model::{KeyPart, KeySpec, Policy, Quotas, RuleEnforcement, RuleSpec},
    read::RULE,
};
use std::sync::Arc;
use tidegate_core::SettingError;
use tidegate_overload::{Features, error_rate::KeyedErrorRate};
use tidegate_rule::{CallCheck, LoadScale, RuleSettings, request::AddressKey, site::SiteKey};

/// The policy keys that apply to a rule declared in code. `key` and `mode` do so in part.
const SUPPORTED_KEYS: [&str; 18] = [
    "name",
    "key",
    "quota",
    "quotas",
    "mode",
    "store",
    "failure-mode",
    "wait",
    "message",
    "inherit",
    "capacity",
    "overflow",
    "breaker",
    "prefetch",
    "shed",
    "feature",
    "scale",
    "while-failing",
];

/// The policy keys that are ignored for a rule declared in code.
const IGNORED_KEYS: [&str; 1] = ["match"];

impl Compiler {
    /// Applies a policy to the rules declared in code: completely, or not at all if there is a problem. A rule of the policy
    /// replaces the quotas, mode, store, failure-mode, wait and message of the rule with the same name in code; a rule that code
    /// does not declare has no effect. A setting that a rule in code does not support is an error; if code declares that rule
    /// later, the error is logged then, and the rule stays as declared.
    ///
    /// [`Rules::apply`](tidegate_rule::Rules::apply) describes which counters are retained.
    pub fn apply(&self, policy: &Policy) -> Result<(), PolicyError> {
        self.apply_after(policy, &Features::default()).map(drop)
    }

    /// Like [`apply`](Self::apply), with the overrides of the features of the policy before. Returns the features of this one.
    pub fn apply_after(&self, policy: &Policy, before: &Features) -> Result<Features, PolicyError> {
        let made = CompiledPolicy::build_after(policy, self, None, before)?;
        let monitor = PreparedMonitor::start(made.monitor)?;
        if let Some(monitor) = &monitor {
            made.features.follow(&monitor.monitor);
        }
        let background = Arc::new((monitor, made.features.clone()));
        let mut settings = made.settings;
        for (rule, compiled) in policy.rules.iter().zip(&made.rules) {
            // Invalid breakers were reported above.
            if let Ok(mut rule_settings) = code_rule_settings(rule) {
                rule_settings.call_check = call_check(compiled, &background);
                rule_settings.scale = load_scale(rule, background.0.as_deref());
                rule_settings.while_failing = self.error_rates(rule);
                settings = settings.rule(&rule.name, rule_settings);
            }
        }
        self.rules.apply(settings).map_err(|error| PolicyError::from_settings_error(&error))?;
        Ok(made.features)
    }
}

impl Compiler {
    /// The error rates of the keys of a rule. Code provides the keys, so their number is that of the `capacity`.
    fn error_rates(&self, rule: &RuleSpec) -> Option<Arc<KeyedErrorRate>> {
        // Invalid settings were reported before.
        build_error_rates(rule.while_failing.as_ref()?, rule.capacity, self.clock.as_ref()).ok()
    }
}

/// How the quotas of a rule follow the load.
fn load_scale(rule: &RuleSpec, monitor: Option<&PolicyMonitor>) -> Option<LoadScale> {
    let (scale, monitor) = (rule.scale.as_ref()?, monitor?.monitor.clone());
    // Invalid settings were reported before.
    Some(LoadScale { monitor, policy: scale_policy(scale).ok()? })
}

/// What the checks of calls follow. They keep it running.
type Background = (Option<Arc<PolicyMonitor>>, Features);

/// The check of every call of a rule that follows a feature or the load. A call without a request has the normal priority.
fn call_check(rule: &CompiledRule, background: &Arc<Background>) -> Option<CallCheck> {
    let (feature, shedder, background) = (rule.feature.clone(), rule.shedder.clone(), background.clone());
    if let (Some(shedder), Some(monitor)) = (&shedder, &background.0) {
        follow(shedder, &monitor.monitor);
    }
    if feature.is_none() && shedder.is_none() {
        return None;
    }
    Some(CallCheck::new(move || {
        let _running = &background;
        check_load(feature.as_ref(), shedder.as_deref(), NORMAL_CLASS)
    }))
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
        KeySpec::Part(KeyPart::Ip { prefix_len: AddressKey::IPV6_PREFIX_LEN }) => {
            settings.key = Some(SiteKey::Ip);
        }
        KeySpec::Part(KeyPart::User) => settings.key = Some(SiteKey::User),
        _ => {
            let problem = "this key needs an HTTP request, which a rule declared in code does not have";
            let fix = "use `ip` or `user`, or remove `key` and provide the key in code";
            settings = settings.unsupported("key", SettingError::new(problem, fix));
        }
    }
    if let RuleEnforcement::Percent(_) = rule.enforcement {
        let problem = "percentage of keys is not supported for a rule declared in code";
        let fix = "use `enforce`, `shadow` or `off`";
        settings = settings.unsupported("mode", SettingError::new(problem, fix));
    }
    for key in RULE.present_keys(rule).filter(|key| !SUPPORTED_KEYS.contains(key)) {
        if IGNORED_KEYS.contains(&key) {
            settings.unused_keys.push(key);
        } else {
            let problem =
                format!("`{key}` needs an HTTP request, which a rule declared in code does not have");
            settings = settings.unsupported(key, SettingError::new(problem, "move it to another rule"));
        }
    }
    Ok(settings)
}
