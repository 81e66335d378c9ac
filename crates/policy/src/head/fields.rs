//! The header fields of a message, with their text in one buffer.

use super::{is_forwarded_header, is_hop_by_hop, list_elements};
use http::{HeaderMap, HeaderName, HeaderValue};
use std::fmt;

/// Header fields in their order, with names in lower case.
///
/// A message has few fields, so a search compares all names; that is faster than to build a map. The text of a removed field
/// remains in the buffer until [`clear`](Self::clear).
#[derive(Clone, Default)]
pub struct HeaderFields {
    text: Vec<u8>,
    fields: Vec<Field>,
    /// The kinds of all fields since the last [`clear`](Self::clear).
    kinds: FieldKinds,
}

/// A set of kinds of fields that have a meaning for the gateway. Most messages have few of them, so most searches end here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FieldKinds(u16);

impl FieldKinds {
    /// `Content-Length` and `Transfer-Encoding`.
    pub const FRAMING: Self = Self(1);
    /// `Connection`.
    pub const CONNECTION: Self = Self(1 << 1);
    /// All fields that apply to one connection only, and `Expect`.
    pub const HOP_BY_HOP: Self = Self(1 << 2);
    /// Fields that describe the client, such as `X-Forwarded-For`.
    pub const FORWARDED: Self = Self(1 << 3);
    /// Names with an underscore.
    pub const UNDERSCORE: Self = Self(1 << 4);
    /// `Date`.
    pub const DATE: Self = Self(1 << 5);

    /// The kinds of a field, by its name in lower case.
    #[inline]
    fn of(name: &[u8]) -> Self {
        // Most names begin with another letter.
        if !matches!(name.first(), Some(b'c' | b'd' | b'e' | b'f' | b'k' | b'p' | b't' | b'u' | b'x')) {
            return Self::of_characters(name);
        }
        match name {
            b"content-length" => Self::FRAMING,
            b"transfer-encoding" => Self(Self::FRAMING.0 | Self::HOP_BY_HOP.0),
            b"connection" => Self(Self::CONNECTION.0 | Self::HOP_BY_HOP.0),
            b"expect" => Self::HOP_BY_HOP,
            b"date" => Self::DATE,
            _ if is_hop_by_hop(name) => Self::HOP_BY_HOP,
            _ if is_forwarded_header(name) => Self(Self::FORWARDED.0 | Self::of_characters(name).0),
            _ => Self::of_characters(name),
        }
    }

    fn of_characters(name: &[u8]) -> Self {
        if name.contains(&b'_') { Self::UNDERSCORE } else { Self::default() }
    }
}

#[derive(Clone, Copy, Debug)]
struct Field {
    name: Span,
    value: Span,
}

/// A part of the buffer.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    end: u32,
}

impl HeaderFields {
    /// Removes all fields, and keeps the memory for the next message.
    pub fn clear(&mut self) {
        self.text.clear();
        self.fields.clear();
        self.kinds = FieldKinds::default();
    }

    /// Replaces all fields by those of `other`, and keeps the memory.
    pub fn copy_from(&mut self, other: &Self) {
        self.text.clone_from(&other.text);
        self.fields.clone_from(&other.fields);
        self.kinds = other.kinds;
    }

    /// Whether there may be a field of one of these kinds. It may have been removed.
    #[inline]
    pub fn may_contain(&self, kinds: FieldKinds) -> bool {
        self.kinds.0 & kinds.0 != 0
    }

    /// Reserves memory for this number of further fields and bytes.
    #[inline]
    pub fn reserve(&mut self, fields: usize, bytes: usize) {
        self.fields.reserve(fields);
        self.text.reserve(bytes);
    }

    /// The memory in bytes, used or not.
    #[inline]
    pub fn memory(&self) -> usize {
        self.text.capacity() + self.fields.capacity() * size_of::<Field>()
    }

    /// The number of fields.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// The number of bytes that the fields occupy in a message, with separators and line ends.
    pub fn wire_len(&self) -> usize {
        self.fields.iter().map(|field| field.name.len() + field.value.len() + 4).sum()
    }

    /// Appends a field. Its name is converted to lower case.
    #[inline]
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        let name = self.append_text(name);
        let lower_case = &mut self.text[name.start as usize..name.end as usize];
        lower_case.make_ascii_lowercase();
        self.kinds.0 |= FieldKinds::of(lower_case).0;
        let value = self.append_text(value);
        self.fields.push(Field { name, value });
    }

    /// Replaces all fields of this name by one.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        self.remove(name);
        self.push(name, value);
    }

    /// Removes all fields of this name, in lower case.
    pub fn remove(&mut self, name: &[u8]) {
        self.retain(|known, _| known != name);
    }

    /// Keeps the fields for which `keep` returns true.
    #[inline]
    pub fn retain(&mut self, mut keep: impl FnMut(&[u8], &[u8]) -> bool) {
        let text = &self.text;
        self.fields.retain(|field| keep(field.name.of(text), field.value.of(text)));
    }

    /// Removes the fields that `Connection` names (RFC 9110, 7.6.1), if `is_removable` returns true for their name.
    pub fn remove_connection_options(&mut self, is_removable: impl Fn(&[u8]) -> bool) {
        let mut options: Vec<_> = self
            .get_all(b"connection")
            .flat_map(list_elements)
            .filter(|option| !option.is_empty())
            .map(<[u8]>::to_ascii_lowercase)
            .collect();
        options.sort_unstable();
        self.retain(|name, _| {
            !is_removable(name) || options.binary_search_by(|option| option.as_slice().cmp(name)).is_err()
        });
    }

    /// All fields: names in lower case, and values.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|field| (field.name.of(&self.text), field.value.of(&self.text)))
    }

    /// The first value of a field, by its name in lower case.
    #[inline]
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.get_all(name).next()
    }

    /// All values of a field, by its name in lower case.
    #[inline]
    pub fn get_all(&self, name: &[u8]) -> impl Iterator<Item = &[u8]> {
        self.iter().filter(move |(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Whether there is a field of this name, in lower case.
    #[inline]
    pub fn contains(&self, name: &[u8]) -> bool {
        self.get(name).is_some()
    }

    /// The fields as a map. A field that the map cannot represent is omitted.
    pub fn to_map(&self) -> HeaderMap {
        let mut map = HeaderMap::with_capacity(self.fields.len());
        for (name, value) in self.iter() {
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
                map.append(name, value);
            }
        }
        map
    }

    #[inline]
    fn append_text(&mut self, text: &[u8]) -> Span {
        let start = self.text.len();
        self.text.extend_from_slice(text);
        Span::new(start, self.text.len())
    }
}

impl Span {
    #[inline]
    fn new(start: usize, end: usize) -> Self {
        // A head is shorter than 4 GiB. A longer one would have empty fields, not those of another.
        Self { start: u32::try_from(start).unwrap_or(u32::MAX), end: u32::try_from(end).unwrap_or(0) }
    }

    #[inline]
    fn of(self, text: &[u8]) -> &[u8] {
        text.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    #[inline]
    fn len(self) -> usize {
        (self.end as usize).saturating_sub(self.start as usize)
    }
}

impl From<&HeaderMap> for HeaderFields {
    fn from(map: &HeaderMap) -> Self {
        let mut fields = Self::default();
        fields.extend_from_map(map);
        fields
    }
}

impl HeaderFields {
    /// Appends all fields of a map.
    pub fn extend_from_map(&mut self, map: &HeaderMap) {
        map.iter().for_each(|(name, value)| self.push(name.as_str().as_bytes(), value.as_bytes()));
    }
}

impl fmt::Debug for HeaderFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        f.debug_map().entries(self.iter().map(|(name, value)| (text(name), text(value)))).finish()
    }
}

/// Equal if the same fields are in the same order.
impl PartialEq for HeaderFields {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for HeaderFields {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_those_of_the_name() {
        for (name, kinds) in [
            ("content-length", FieldKinds::FRAMING),
            ("connection", FieldKinds(FieldKinds::CONNECTION.0 | FieldKinds::HOP_BY_HOP.0)),
            ("expect", FieldKinds::HOP_BY_HOP),
            ("keep-alive", FieldKinds::HOP_BY_HOP),
            ("proxy-connection", FieldKinds::HOP_BY_HOP),
            ("te", FieldKinds::HOP_BY_HOP),
            ("upgrade", FieldKinds::HOP_BY_HOP),
            ("forwarded", FieldKinds::FORWARDED),
            ("x-real-ip", FieldKinds::FORWARDED),
            ("date", FieldKinds::DATE),
            ("host", FieldKinds::default()),
            ("cookie", FieldKinds::default()),
            ("a_b", FieldKinds::UNDERSCORE),
            ("x_user", FieldKinds::UNDERSCORE),
            ("x-forwarded-user_name", FieldKinds(FieldKinds::FORWARDED.0 | FieldKinds::UNDERSCORE.0)),
        ] {
            assert_eq!(FieldKinds::of(name.as_bytes()), kinds, "{name}");
        }
        // The first letters are those of all names with a kind.
        let is_known = |name: &[u8]| is_hop_by_hop(name) || is_forwarded_header(name);
        for name in
            [&b"connection"[..], b"keep-alive", b"proxy-authenticate", b"te", b"upgrade", b"x-request-id"]
        {
            assert!(is_known(name) && FieldKinds::of(name) != FieldKinds::default());
        }
    }

    #[test]
    fn fields_are_found_replaced_and_removed_by_lower_case_names() {
        let mut fields = HeaderFields::default();
        fields.push(b"Host", b"a");
        fields.push(b"X-A", b"1");
        fields.push(b"x-a", b"2");
        assert_eq!(fields.get_all(b"x-a").collect::<Vec<_>>(), [b"1", b"2"]);
        fields.set(b"x-a", b"3");
        assert_eq!(fields.iter().collect::<Vec<_>>(), [(&b"host"[..], &b"a"[..]), (b"x-a", b"3")]);
        assert_eq!(fields.wire_len(), "host: a\r\nx-a: 3\r\n".len());
        assert_eq!(HeaderFields::from(&fields.to_map()), fields);
        fields.remove(b"host");
        assert!(!fields.contains(b"host") && fields.len() == 1);
        let mut copy = HeaderFields::default();
        copy.push(b"x-old", b"1");
        copy.copy_from(&fields);
        assert_eq!((&copy, copy.may_contain(FieldKinds::FRAMING)), (&fields, false));
        fields.clear();
        assert!(fields.is_empty());
    }
}
