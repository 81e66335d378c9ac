//! What may be a credential: nobody is shown the value of it.

use crate::model::{Expression, Glob, Key, Match, Part, Policy, Rule, Values};
use std::collections::BTreeMap;

/// Words of names that stand for credentials, as a part of a name, or as a word of its own in one.
const PARTS: [&str; 9] = [
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
const WORDS: [&str; 9] = ["auth", "jwt", "key", "pass", "passwd", "pwd", "sid", "sig", "bearer"];

/// What stands for a value that is not shown.
const HIDDEN: &str = "…";

/// Whether what a header, a cookie or a parameter of this name holds may be a credential: `authorization`, `x-api-key`,
/// `access_token`.
pub fn is_credential(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let mut words = name.split(|sign: char| !sign.is_ascii_alphanumeric());
    PARTS.iter().any(|part| name.contains(part)) || words.any(|word| WORDS.contains(&word))
}

/// Whether a key may hold a credential. Cookies are taken for one, whatever their name is.
pub(crate) fn is_in_key(key: &Key, user: Option<&Key>) -> bool {
    match key {
        Key::All => false,
        Key::Part(part) => match part {
            Part::Cookie(_) => true,
            Part::Header(name) | Part::Query(name) => is_credential(name),
            Part::Cel(expression) => is_in_expression(expression),
            Part::User => user.is_some_and(|user| is_in_key(user, None)),
            _ => false,
        },
        Key::Every(keys) | Key::First(keys) => keys.iter().any(|key| is_in_key(key, user)),
    }
}

fn is_in_expression(Expression(text): &Expression) -> bool {
    text.split(|sign: char| !sign.is_ascii_alphanumeric() && !"-_".contains(sign)).any(is_credential)
}

/// A policy without the values of credentials that its rules and routes match.
pub fn without_credentials(policy: &Policy) -> Policy {
    let rule = |rule: &Rule| Rule { matching: hidden(&rule.matching), ..rule.clone() };
    let mut shown = Policy { rules: policy.rules.iter().map(rule).collect(), ..policy.clone() };
    shown.routes.iter_mut().for_each(|route| route.matching = hidden(&route.matching));
    shown
}

fn hidden(matching: &Match) -> Match {
    let values = |values: &BTreeMap<String, Values>, is_any: bool| {
        let value = |(name, values): (&String, &Values)| {
            let is_hidden = is_any || is_credential(name);
            let values = if is_hidden { Values(vec![Glob(HIDDEN.to_owned())]) } else { values.clone() };
            (name.clone(), values)
        };
        values.iter().map(value).collect()
    };
    let when = matching.when.as_ref().map(|when| match is_in_expression(when) {
        true => Expression(HIDDEN.into()),
        false => when.clone(),
    });
    Match {
        headers: values(&matching.headers, false),
        queries: values(&matching.queries, false),
        cookies: values(&matching.cookies, true),
        not: matching.not.as_ref().map(|not| Box::new(hidden(not))),
        any: matching.any.iter().map(hidden).collect(),
        when,
        ..matching.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_credentials_are_known() {
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
