//! The quota of a search as a policy in shadow mode.

use super::FindOutcome;
use http::{Method, Uri};
use tidegate_policy::{Policy, Problems};

/// Builds a policy with one rule for the path and the method of the load; `None` without a knee. The policy is written as YAML
/// and parsed, so it is valid in a file.
pub(crate) fn build_policy(outcome: &FindOutcome, method: &Method) -> Result<Option<Policy>, Problems> {
    let Some((rate, burst)) = outcome.quota() else { return Ok(None) };
    let uri: Uri = outcome.url.parse().unwrap_or_default();
    let path = escape_path(Some(uri.path()).filter(|path| !path.is_empty()).unwrap_or("/"));
    let text = format!(
        "rules:\n  - {{ name: capacity, match: {{ method: {method}, path: '{path}' }}, \
         quota: {rate}/s burst {burst}, mode: shadow }}\n"
    );
    text.parse().map(Some)
}

/// Escapes the characters that have a meaning in path patterns and in quoted YAML.
fn escape_path(path: &str) -> String {
    path.chars().fold(String::new(), |mut escaped, c| {
        match c {
            '*' | '{' | '}' | ';' | '\'' => escaped.push_str(&format!("%{:02X}", u32::from(c))),
            c => escaped.push(c),
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::{super::tests::outcome, *};
    use tidegate_policy::PolicyFormat;

    #[test]
    fn policy_has_the_quota_in_shadow_mode() {
        let policy = |url: &str, method| {
            let found = FindOutcome { url: url.to_owned(), ..outcome() };
            build_policy(&found, &method).unwrap().unwrap().print(PolicyFormat::Yaml)
        };
        let text = policy("http://a/orders/it's*?x=1", Method::POST);
        for part in ["name: capacity", "method: POST", "/orders/it's%2A", "160/s burst 32", "mode: shadow"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(policy("http://a", Method::GET).contains("path: /\n"));
        assert_eq!(build_policy(&FindOutcome { knee: None, ..outcome() }, &Method::GET).unwrap(), None);
    }
}
