//! Cookies of a request.

use super::RequestHead;

/// Calls `each` with every value of a cookie, without quotes; names are case-sensitive.
pub fn for_each_cookie<'a>(head: &'a dyn RequestHead, name: &str, each: &mut dyn FnMut(&'a [u8])) {
    head.for_each_header("cookie", &mut |line| {
        line.split(|byte| *byte == b';').filter_map(|pair| parse_value(pair, name)).for_each(&mut *each);
    });
}

fn parse_value<'a>(pair: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let value = pair.trim_ascii().strip_prefix(name.as_bytes())?.trim_ascii_start().strip_prefix(b"=")?;
    let value = value.trim_ascii();
    Some(value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value))
}
