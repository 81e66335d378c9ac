//! Converts names of nginx to valid names of a policy.

/// Returns a valid name.
pub(super) fn sanitize_name(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { '-' } else { c }).take(100).collect();
    match clean.trim().replace("://", "-") {
        empty if empty.is_empty() => "unnamed".to_owned(),
        clean => clean,
    }
}

/// Returns a valid name of a list, which cannot be mistaken for a network.
pub(super) fn list_name(text: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || matches!(c, '_' | '-') { c } else { '-' };
    match sanitize_name(text).chars().map(plain).collect::<String>() {
        all if all == "all" => "all-clients".to_owned(),
        name => name,
    }
}

/// Returns this name, or the name with the first number that makes it unique.
pub(super) fn unused_name(name: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let numbered = (2_u32..).map(|number| format!("{name}-{number}"));
    let names = [name.to_owned()].into_iter().chain(numbered);
    names.into_iter().find(|name| !is_taken(name)).unwrap_or_else(|| name.to_owned())
}
