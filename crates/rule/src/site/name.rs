//! The name of a limit that its attribute does not name: that of the function, as short as clients should read it.
//!
//! | declared in | named |
//! |---|---|
//! | `shop::api::quote` | `quote` |
//! | `shop::Orders::place` | `Orders::place` |
//! | `<shop::Orders as shop::Sells>::place` | `Orders::place` |
//! | `<shop::quote as actix_web::…>::register::quote` | `quote` |

use super::Declaration;
use std::any::type_name;

/// The declaration of the function that `within` was declared in, with a suffix that tells its attributes apart.
#[track_caller]
pub fn declaration_of<T>(_within: T, suffix: &str) -> Declaration {
    let path = function_path(type_name::<T>());
    let segments = segments(&path);
    let (function, owner) = match segments[..] {
        [.., owner, function] => (function, owner_type(owner)),
        _ => (&*path, None),
    };
    let name = match owner {
        Some(owner) => format!("{owner}::{function}{suffix}"),
        None => format!("{function}{suffix}"),
    };
    Declaration::of_function(name, format!("{path}{suffix}"))
}

/// The declaration of the type that this function is a method of.
#[track_caller]
pub fn declaration_of_owner<T>(_within: T, suffix: &str) -> Declaration {
    let path = function_path(type_name::<T>());
    let segments = segments(&path);
    let owner = segments.iter().rev().nth(1).copied().unwrap_or(&path);
    let end = segments.last().map_or(path.len(), |function| path.len() - function.len());
    let owner_path = path[..end].trim_end_matches("::");
    let name = owner_type(owner).unwrap_or(owner);
    Declaration::of_function(format!("{name}{suffix}"), format!("{owner_path}{suffix}"))
}

/// The path without the item inside the function. Futures are closures of their function.
fn function_path(path: &str) -> String {
    let path = path.replace("::{{closure}}", "");
    path.rsplit_once("::").map_or(path.clone(), |(function, _)| function.to_owned())
}

/// The segments of a path; what stands in angle brackets belongs to its segment.
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

/// The name of a type, without its path and its parameters; `None` if the segment is a module or a function.
fn owner_type(segment: &str) -> Option<&str> {
    let inner = segment.strip_prefix('<').and_then(|inner| inner.strip_suffix('>'));
    let path = match inner.map(|inner| (inner, inner.strip_prefix("impl "))) {
        None => segment,
        Some((_, Some(block))) => block.rsplit_once(" for ").map_or(block, |(_, owner)| owner),
        Some((inner, None)) => inner.rsplit_once(" as ").map_or(inner, |(owner, _)| owner),
    };
    let last = segments(path).last().copied()?;
    let name = last.split('<').next().filter(|name| !name.is_empty()).unwrap_or(last);
    name.starts_with(|first: char| !first.is_lowercase()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_names_are_those_of_functions_and_methods() {
        let table = [
            ("shop::quote", "quote"),
            ("shop::api::quote", "quote"),
            ("shop::Orders::place", "Orders::place"),
            ("shop::Orders<alloc::vec::Vec<u8>>::place", "Orders::place"),
            ("shop::Orders<fn(a::B) -> c::D>::place", "Orders::place"),
            ("<shop::Orders as shop::Sells<a::B>>::place", "Orders::place"),
            ("shop::api::<impl shop::Sells for shop::Orders<T>>::place", "Orders::place"),
            ("shop::api::<impl shop::Orders>::place", "Orders::place"),
            ("<shop::quote as actix_web::service::HttpServiceFactory>::register::quote", "quote"),
            ("shop::main::inner", "inner"),
        ];
        for (path, name) in table {
            let segments = segments(path);
            let [.., owner, function] = segments[..] else { panic!("{path}") };
            let short = owner_type(owner).map_or(function.to_owned(), |owner| format!("{owner}::{function}"));
            assert_eq!(short, name, "{path}");
        }
    }
}
