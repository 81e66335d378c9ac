//! Builds the policy of a suggestion.

use super::{PathGroup, SuggestRequest};
use crate::run::ReplayError;
use std::fmt::Write as _;
use tidegate_core::Quota;
use tidegate_policy::{
    Policy,
    model::{KeyPart, KeySpec, RuleEnforcement},
};
use tidegate_rule::Mode;

/// Builds one rule for each group. The policy is written as YAML and parsed, so it is valid in a file.
pub(super) fn build_policy<'g>(
    request: &SuggestRequest,
    rules: impl Iterator<Item = (&'g PathGroup, Quota)>,
    mode: Mode,
) -> Result<Policy, ReplayError> {
    let quoted =
        |paths: &[String]| paths.iter().map(|path| format!("'{path}'")).collect::<Vec<_>>().join(", ");
    let mut text = "rules:\n".to_owned();
    for (PathGroup { name, path, except }, quota) in rules {
        let mut matching = Vec::new();
        matching.extend(path.as_ref().map(|path| format!("path: '{path}'")));
        if !except.is_empty() {
            matching.push(format!("not: {{ path: [{}] }}", quoted(except)));
        }
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "  - {{ name: '{name}', match: {{ {} }}, quota: '{quota}' }}",
            matching.join(", ")
        );
    }
    let mut policy: Policy =
        text.parse().map_err(|problems| ReplayError::Suggestion(format!("{problems}")))?;
    for rule in &mut policy.rules {
        rule.key = request.key.clone();
        rule.enforcement = RuleEnforcement::All(mode);
    }
    policy.user = has_user_part(&request.key).then(|| KeySpec::Part(KeyPart::Header("x-user".to_owned())));
    Ok(policy)
}

/// Returns the policy with all rules in enforce mode.
pub(super) fn enforce_all(policy: &Policy) -> Policy {
    let mut policy = policy.clone();
    policy.rules.iter_mut().for_each(|rule| rule.enforcement = RuleEnforcement::All(Mode::Enforce));
    policy
}

fn has_user_part(key: &KeySpec) -> bool {
    match key {
        KeySpec::All => false,
        KeySpec::Part(part) => *part == KeyPart::User,
        KeySpec::Composite(parts) | KeySpec::First(parts) => parts.iter().any(has_user_part),
    }
}
