//! Query parameters of a request.

use super::RequestHead;
use std::borrow::Cow;

/// The parameters of a query in order, with decoded names and raw values: `a` has `1` and `2+3` in
/// `a=1&b&a=2+3`.
pub fn query_parameters(query: &str) -> impl Iterator<Item = (Cow<'_, [u8]>, &[u8])> {
    query.split('&').map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (percent_decode(name.as_bytes(), PlusDecoding::Space), value.as_bytes())
    })
}

/// Calls `each` with every value of a parameter, decoded once. A parameter without `=` has an empty value.
pub fn for_each_query<'a>(head: &'a dyn RequestHead, name: &str, each: &mut dyn FnMut(Cow<'a, [u8]>)) {
    let parameters = query_parameters(head.query().unwrap_or_default());
    for (_, value) in parameters.filter(|(parameter, _)| **parameter == *name.as_bytes()) {
        each(percent_decode(value, PlusDecoding::Space));
    }
}

/// How `+` is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlusDecoding {
    /// Itself, as in a path.
    Literal,
    /// A space, as in form encoding.
    Space,
}

/// Decodes percent escapes once: `%2F` becomes `/`. Invalid escapes are left unchanged.
pub fn percent_decode(text: &[u8], plus: PlusDecoding) -> Cow<'_, [u8]> {
    let is_escaped = |byte: &u8| *byte == b'%' || (*byte == b'+' && plus == PlusDecoding::Space);
    let Some(first) = text.iter().position(is_escaped) else { return text.into() };
    let mut plain = Vec::with_capacity(text.len());
    plain.extend_from_slice(&text[..first]);
    let mut rest = &text[first..];
    while let [byte, behind @ ..] = rest {
        let (byte, behind) = match (byte, behind) {
            (b'%', [high, low, behind @ ..]) => match (hex_digit(*high), hex_digit(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, behind),
                _ => (b'%', &rest[1..]),
            },
            (b'+', behind) if plus == PlusDecoding::Space => (b' ', behind),
            (byte, behind) => (*byte, behind),
        };
        plain.push(byte);
        rest = behind;
    }
    plain.into()
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::{PlusDecoding, percent_decode};

    #[test]
    fn percent_decode_runs_once() {
        let cases: [(&str, &[u8]); 8] = [
            ("plain", b"plain"),
            ("%2Flogin%2f", b"/login/"),
            ("%252F", b"%2F"),
            ("100%", b"100%"),
            ("%2", b"%2"),
            ("%zz%4", b"%zz%4"),
            ("a+b%2B", b"a b+"),
            ("%ff", b"\xff"),
        ];
        for (text, plain) in cases {
            assert_eq!(*percent_decode(text.as_bytes(), PlusDecoding::Space), *plain, "{text}");
        }
        assert_eq!(*percent_decode(b"a+b", PlusDecoding::Literal), *b"a+b");
    }
}
