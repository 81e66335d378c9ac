//! Cookies of a request.

use super::Head;

/// The first cookie of this name that has a value.
pub(super) fn find<'a>(head: &'a dyn Head, name: &str) -> Option<&'a [u8]> {
    let mut found = None;
    head.each_header("cookie", &mut |line| {
        if found.is_none() {
            found = line.split(|byte| *byte == b';').find_map(|pair| value(pair, name));
        }
    });
    found
}

fn value<'a>(pair: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let value = pair.trim_ascii().strip_prefix(name.as_bytes())?.trim_ascii_start().strip_prefix(b"=")?;
    let value = value.trim_ascii();
    let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
    Some(value).filter(|value| !value.is_empty())
}
