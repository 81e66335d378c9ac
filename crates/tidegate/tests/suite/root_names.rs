//! The number of names in the root of the crate is bounded.

#![allow(clippy::unwrap_used, reason = "this is how a test fails")]

const LIB_SOURCE: &str = include_str!("../../src/lib.rs");
const MAX_ROOT_NAMES: usize = 32;

/// Returns the names that `pub use` exports in the root, without modules.
fn root_names() -> Vec<&'static str> {
    let mut names = Vec::new();
    let mut rest = LIB_SOURCE;
    while let Some(at) = rest.find("\npub use ") {
        let (item, behind) = rest[at + 9..].split_once(';').unwrap();
        rest = behind;
        let is_module = item.contains(" as ") || item.ends_with("::site");
        let list = item
            .split_once('{')
            .map_or_else(|| item.rsplit("::").next().unwrap(), |(_, list)| list.trim_end_matches('}'));
        if !is_module {
            names.extend(list.split(',').map(str::trim).filter(|name| !name.is_empty()));
        }
    }
    names
}

#[test]
fn number_of_root_names_is_bounded() {
    let names = root_names();
    assert!(names.contains(&"Limiter") && names.contains(&"limit"), "{names:?}");
    assert!(names.len() <= MAX_ROOT_NAMES, "{} names: {names:?}", names.len());
}
