//! Recognizes credentials, whose values must not be shown.

use crate::model::{Expression, Glob, KeyPart, KeySpec, Match, Policy, RuleSpec, ValueGlobs};
use std::collections::BTreeMap;
use tidegate_rule::body::JsonPointer;

/// Strings that mark a name as a credential: anywhere in the name, or as a separate word.
const CREDENTIAL_SUBSTRINGS: [&str; 9] = [
    "authorization",
    "credential",
    "password",
    "secret",
    "session",
    "signature",
    "token",
    "apikey",
    "cookie",
];
const CREDENTIAL_WORDS: [&str; 9] = ["auth", "jwt", "key", "pass", "passwd", "pwd", "sid", "sig", "bearer"];

/// Replaces a value that is not shown.
const REDACTED: &str = "…";

/// Whether a header, cookie, query parameter or entry of a descriptor of this name may contain a credential: `authorization`, `x-api-key`,
/// `access_token`.
pub fn is_credential(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let mut words = name.split(|sign: char| !sign.is_ascii_alphanumeric());
    CREDENTIAL_SUBSTRINGS.iter().any(|part| name.contains(part))
        || words.any(|word| CREDENTIAL_WORDS.contains(&word))
}

/// Whether a key may contain a credential. All cookies are treated as credentials.
pub(crate) fn key_has_credential(key: &KeySpec, user: Option<&KeySpec>) -> bool {
    match key {
        KeySpec::All => false,
        KeySpec::Part(part) => match part {
            KeyPart::Cookie(_) => true,
            KeyPart::Header(name) | KeyPart::Query(name) | KeyPart::Descriptor(name) => is_credential(name),
            KeyPart::Body(pointer) => pointer.tokens().last().is_some_and(|name| is_credential(name)),
            KeyPart::Cel(expression) => expression_has_credential(expression),
            KeyPart::User => user.is_some_and(|user| key_has_credential(user, None)),
            _ => false,
        },
        KeySpec::Composite(keys) | KeySpec::First(keys) => {
            keys.iter().any(|key| key_has_credential(key, user))
        }
    }
}

fn expression_has_credential(Expression(text): &Expression) -> bool {
    text.split(|sign: char| !sign.is_ascii_alphanumeric() && !"-_".contains(sign)).any(is_credential)
}

/// Returns the policy without the values of credentials that its rules and routes match.
pub fn redact_credentials(policy: &Policy) -> Policy {
    let rule = |rule: &RuleSpec| RuleSpec { matching: redact_match(&rule.matching), ..rule.clone() };
    let mut shown = Policy { rules: policy.rules.iter().map(rule).collect(), ..policy.clone() };
    shown.routes.iter_mut().for_each(|route| route.matching = redact_match(&route.matching));
    shown
}

fn redact_match(matching: &Match) -> Match {
    let values = |values: &BTreeMap<String, ValueGlobs>, is_any: bool| {
        let value = |(name, values): (&String, &ValueGlobs)| {
            let is_hidden = is_any || is_credential(name);
            let values = if is_hidden { ValueGlobs(vec![Glob(REDACTED.to_owned())]) } else { values.clone() };
            (name.clone(), values)
        };
        values.iter().map(value).collect()
    };
    let claim = |(claim, values): (&JsonPointer, &ValueGlobs)| {
        let values = match claim.tokens().iter().any(|name| is_credential(name)) {
            true => ValueGlobs(vec![Glob(REDACTED.to_owned())]),
            false => values.clone(),
        };
        (claim.clone(), values)
    };
    let when = matching.when.as_ref().map(|when| match expression_has_credential(when) {
        true => Expression(REDACTED.into()),
        false => when.clone(),
    });
    Match {
        headers: values(&matching.headers, false),
        queries: values(&matching.queries, false),
        cookies: values(&matching.cookies, true),
        descriptor: values(&matching.descriptor, false),
        claims: matching.claims.iter().map(claim).collect(),
        not: matching.not.as_ref().map(|not| Box::new(redact_match(not))),
        any: matching.any.iter().map(redact_match).collect(),
        when,
        ..matching.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credential_names_are_recognized() {
        for name in [
            "authorization",
            "Proxy-Authorization",
            "x-api-key",
            "api_key",
            "apikey",
            "access_token",
            "X-Auth-Token",
            "jwt",
            "cookie",
            "sid",
            "client_secret",
            "x-amz-signature",
        ] {
            assert!(is_credential(name), "{name}");
        }
        for name in ["x-user", "x-tenant", "page", "author", "keyboard", "x-plan", "side", "x-forwarded-for"]
        {
            assert!(!is_credential(name), "{name}");
        }
    }
}
