//! The default name of a limit: the name of the function with its module or type. It depends only on the path
//! of the function.
//!
//! | declared in | named |
//! |---|---|
//! | `shop::quote` | `quote` |
//! | `shop::api::orders::quote` | `orders::quote` |
//! | `shop::Orders::place` | `Orders::place` |
//! | `<shop::Orders as shop::Sells>::place` | `Orders::place` |
//! | `<shop::quote as actix_web::…>::register::quote` | `quote` |

use super::RuleConfig;
use std::any::type_name;

/// The declaration for the function that contains `within`; the suffix distinguishes its attributes.
#[track_caller]
pub fn config_for_function<T>(_within: T, suffix: &str) -> RuleConfig {
    let path = function_path(type_name::<T>());
    RuleConfig::for_function(format!("{}{suffix}", default_name(&path)), format!("{path}{suffix}"))
}

/// The declaration for the type of which the function is a method.
#[track_caller]
pub fn config_for_type<T>(_within: T, suffix: &str) -> RuleConfig {
    let path = function_path(type_name::<T>());
    let segments = segments(&path);
    let owner = segments.iter().rev().nth(1).copied().unwrap_or(&path);
    let end = segments.last().map_or(path.len(), |function| path.len() - function.len());
    let owner_path = path[..end].trim_end_matches("::");
    let name = last_name(self_type(owner).unwrap_or(owner));
    RuleConfig::for_function(format!("{name}{suffix}"), format!("{owner_path}{suffix}"))
}

/// The default name of a function with this path.
fn default_name(path: &str) -> String {
    let mut segments = segments(path);
    // Unnamed constants.
    segments.retain(|segment| *segment != "_");
    let Some((function, before)) = segments.split_last() else { return path.to_owned() };
    // actix-web turns a handler into a type, and moves the function into one of its methods.
    let mut types = before.iter().filter_map(|segment| self_type(segment));
    if let Some(handler) = types.find(|handler| last_name(handler) == *function) {
        return default_name(handler);
    }
    let owner = match *before {
        // The crate name is left out.
        [] | [_] => before.last().and_then(|owner| self_type(owner)),
        [.., owner] => Some(self_type(owner).unwrap_or(owner)),
    };
    match owner {
        Some(owner) => format!("{}::{function}", last_name(owner)),
        None => (*function).to_owned(),
    }
}

/// The path without the item inside the function. Futures are closures of their function.
fn function_path(path: &str) -> String {
    let mut named = segments(path);
    named.pop();
    named.retain(|segment| *segment != "{{closure}}");
    named.join("::")
}

/// The segments of a path; angle brackets are part of their segment.
fn segments(path: &str) -> Vec<&str> {
    let (mut segments, mut depth, mut start) = (Vec::new(), 0_u32, 0);
    let bytes = path.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'<' => depth += 1,
            b'>' if at == 0 || bytes[at - 1] != b'-' => depth = depth.saturating_sub(1),
            b':' if depth == 0 && bytes.get(at + 1) == Some(&b':') => {
                segments.push(&path[start..at]);
                start = at + 2;
            }
            _ => {}
        }
    }
    segments.push(&path[start..]);
    segments
}

/// The self type of an impl block: `Orders` of `<Orders as Sells>`, `<impl Sells for Orders>` and `<impl
/// Orders>`. `None` if the segment is a plain name.
fn self_type(segment: &str) -> Option<&str> {
    let inner = segment.strip_prefix('<')?.strip_suffix('>')?;
    Some(match inner.strip_prefix("impl ") {
        Some(block) => block.rsplit_once(" for ").map_or(block, |(_, owner)| owner),
        None => inner.rsplit_once(" as ").map_or(inner, |(owner, _)| owner),
    })
}

/// The last segment of a path, without its parameters.
fn last_name(path: &str) -> &str {
    let last = segments(path).last().copied().unwrap_or(path);
    last.split('<').next().filter(|name| !name.is_empty()).unwrap_or(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_name_depends_on_the_path_of_the_function_only() {
        let table = [
            ("shop::quote", "quote"),
            ("shop::api::quote", "api::quote"),
            ("shop::api::orders::quote", "orders::quote"),
            ("shop::quote::quote", "quote::quote"),
            ("shop::Orders::place", "Orders::place"),
            ("shop::api::Orders::place", "Orders::place"),
            ("shop::Orders<alloc::vec::Vec<u8>>::place", "Orders::place"),
            ("shop::Orders<fn(a::B) -> c::D>::place", "Orders::place"),
            ("<shop::Orders as shop::Sells<a::B>>::place", "Orders::place"),
            ("shop::api::<impl shop::Sells for shop::Orders<T>>::place", "Orders::place"),
            ("shop::api::<impl shop::Orders>::place", "Orders::place"),
            ("<actixapp::quote as actix_web::service::HttpServiceFactory>::register::quote", "quote"),
            ("<shop::api::quote as actix_web::service::HttpServiceFactory>::register::quote", "api::quote"),
            (
                "shop::api::<impl actix_web::service::HttpServiceFactory for shop::quote>::register::quote",
                "quote",
            ),
            ("shop::main::inner", "main::inner"),
            ("shop::_::quote", "quote"),
        ];
        for (path, name) in table {
            assert_eq!(default_name(path), name, "{path}");
        }
    }

    #[test]
    fn path_of_a_function_has_no_closures() {
        let table = [
            ("shop::quote::__tidegate_declare", "shop::quote"),
            ("shop::api::quote::{{closure}}::__tidegate_declare", "shop::api::quote"),
            ("shop::_::quote::{{closure}}::{{closure}}::__tidegate_declare", "shop::_::quote"),
            (
                "<shop::Orders as shop::Sells>::place::__tidegate_declare",
                "<shop::Orders as shop::Sells>::place",
            ),
        ];
        for (path, expected) in table {
            assert_eq!(function_path(path), expected, "{path}");
        }
    }
}
