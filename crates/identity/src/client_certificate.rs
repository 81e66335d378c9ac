//! Client certificates: the names in a certificate that a TLS server has verified.
//!
//! ```text
//!   Name ::= SEQUENCE OF RelativeDistinguishedName        C=DE, O=Example, CN=ada   (the most significant first)
//!   RelativeDistinguishedName ::= SET OF SEQUENCE { type OBJECT IDENTIFIER, value ANY }
//! ```
//!
//! The subject is written as RFC 4514 describes: the most specific part first.

use rustls_pki_types::CertificateDer;
use std::fmt::Write as _;
use tidegate_rule::request::ClientCertificate;
use webpki::EndEntityCert;

/// Reads the names of a verified certificate in DER: its subject, its URIs, and then its DNS names. `None` if it is malformed.
pub fn parse_client_certificate(der: &[u8]) -> Option<ClientCertificate> {
    let der = CertificateDer::from(der);
    let certificate = EndEntityCert::try_from(&der).ok()?;
    let sans = certificate.valid_uri_names().chain(certificate.valid_dns_names()).map(str::to_owned);
    Some(ClientCertificate::new(write_name(certificate.subject())?, sans))
}

mod tag {
    pub(super) const BMP_STRING: u8 = 0x1e;
    pub(super) const IA5_STRING: u8 = 0x16;
    pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;
    pub(super) const PRINTABLE_STRING: u8 = 0x13;
    pub(super) const SEQUENCE: u8 = 0x30;
    pub(super) const SET: u8 = 0x31;
    pub(super) const UTF8_STRING: u8 = 0x0c;
}

/// Object identifiers in DER, and the names that OpenSSL and RFC 4514 use.
const ATTRIBUTE_NAMES: [(&[u8], &str); 11] = [
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 5], "serialNumber"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 9], "STREET"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1], "UID"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25], "DC"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1], "emailAddress"),
];

/// Writes a distinguished name, without its outer tag.
fn write_name(mut name: &[u8]) -> Option<String> {
    let mut parts = Vec::new();
    while !name.is_empty() {
        let mut set = read_value(&mut name, tag::SET)?;
        let mut part = String::new();
        while !set.is_empty() {
            let mut attribute = read_value(&mut set, tag::SEQUENCE)?;
            let kind = read_value(&mut attribute, tag::OBJECT_IDENTIFIER)?;
            if !part.is_empty() {
                part.push('+');
            }
            write_attribute(&mut part, kind, attribute)?;
        }
        parts.push(part);
    }
    parts.reverse();
    Some(parts.join(","))
}

/// Writes an attribute: `CN=ada`, or its object identifier and the encoded value if it is no known text.
fn write_attribute(to: &mut String, kind: &[u8], encoded: &[u8]) -> Option<()> {
    let known = ATTRIBUTE_NAMES.iter().find(|(known, _)| *known == kind).map(|(_, name)| *name);
    let mut rest = encoded;
    let (tag, content) = read_element(&mut rest)?;
    if !rest.is_empty() {
        return None;
    }
    match (known, decode_text(tag, content)) {
        (Some(name), Some(text)) => {
            to.push_str(name);
            to.push('=');
            write_escaped(to, &text);
        }
        (known, _) => {
            match known {
                Some(name) => to.push_str(name),
                None => write_object_identifier(to, kind)?,
            }
            to.push_str("=#");
            encoded.iter().try_for_each(|byte| write!(to, "{byte:02x}")).ok()?;
        }
    }
    Some(())
}

/// The text of a value; `None` if it is no text.
fn decode_text(tag: u8, content: &[u8]) -> Option<String> {
    match tag {
        tag::UTF8_STRING | tag::PRINTABLE_STRING | tag::IA5_STRING => {
            str::from_utf8(content).ok().map(str::to_owned)
        }
        tag::BMP_STRING => {
            let (units, rest) = content.as_chunks();
            let units = units.iter().map(|unit| u16::from_be_bytes(*unit));
            char::decode_utf16(units).collect::<Result<_, _>>().ok().filter(|_| rest.is_empty())
        }
        _ => None,
    }
}

/// Escapes as RFC 4514 describes, and control characters.
fn write_escaped(to: &mut String, text: &str) {
    let last = text.chars().count().saturating_sub(1);
    for (index, char) in text.chars().enumerate() {
        match char {
            ',' | '+' | '"' | '\\' | '<' | '>' | ';' => to.extend(['\\', char]),
            '#' if index == 0 => to.push_str("\\#"),
            ' ' if index == 0 || index == last => to.push_str("\\ "),
            char if char.is_control() => {
                for byte in char.encode_utf8(&mut [0; 4]).bytes() {
                    // Writing to a string cannot fail.
                    let _ = write!(to, "\\{byte:02X}");
                }
            }
            char => to.push(char),
        }
    }
}

fn write_object_identifier(to: &mut String, encoded: &[u8]) -> Option<()> {
    let mut arcs: Vec<u64> = Vec::new();
    let mut arc = 0_u64;
    for byte in encoded {
        arc = arc.checked_mul(128)? + u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            arcs.push(std::mem::take(&mut arc));
        }
    }
    // The first number has the first two arcs.
    let (first, rest) = arcs.split_first()?;
    let top = (first / 40).min(2);
    write!(to, "{top}.{}", first - top * 40).ok()?;
    rest.iter().try_for_each(|arc| write!(to, ".{arc}")).ok()
}

/// Reads an element with this tag from the front.
fn read_value<'a>(from: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    read_element(from).filter(|(found, _)| *found == tag).map(|(_, content)| content)
}

/// Reads the tag and the content of an element from the front.
fn read_element<'a>(from: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (tag, rest) = from.split_first()?;
    let (length, rest) = rest.split_first()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(*length), rest),
        0x81 => rest.split_first().map(|(length, rest)| (usize::from(*length), rest))?,
        0x82 => {
            rest.split_first_chunk().map(|(length, rest)| (usize::from(u16::from_be_bytes(*length)), rest))?
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    *from = rest;
    Some((*tag, content))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An element with a short length.
    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        [&[tag, u8::try_from(content.len()).unwrap_or(0)], content].concat()
    }

    fn attribute(kind: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        element(tag::SEQUENCE, &[element(tag::OBJECT_IDENTIFIER, kind), element(tag, value)].concat())
    }

    fn common_name(tag: u8, value: &[u8]) -> Option<String> {
        write_name(&element(tag::SET, &attribute(&[0x55, 4, 3], tag, value)))
    }

    #[test]
    fn names_are_written_as_in_rfc_4514() {
        let parts = [
            attribute(&[0x55, 4, 6], tag::PRINTABLE_STRING, b"DE"),
            attribute(&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25], tag::IA5_STRING, b"example"),
            [
                attribute(&[0x55, 4, 11], tag::UTF8_STRING, b"Sales"),
                attribute(&[0x55, 4, 3], tag::UTF8_STRING, "J. \u{f6}".as_bytes()),
            ]
            .concat(),
        ];
        let name: Vec<u8> = parts.iter().flat_map(|part| element(tag::SET, part)).collect();
        assert_eq!(write_name(&name).as_deref(), Some("OU=Sales+CN=J. \u{f6},DC=example,C=DE"));
        assert_eq!(write_name(&[]).as_deref(), Some(""));
    }

    #[test]
    fn special_characters_are_escaped() {
        for (value, expected) in [
            ("a,O=b", "CN=a\\,O=b"),
            ("\"+\\<>;", "CN=\\\"\\+\\\\\\<\\>\\;"),
            ("#a", "CN=\\#a"),
            (" a b ", "CN=\\ a b\\ "),
            ("a\0b\u{85}", "CN=a\\00b\\C2\\85"),
            ("a#", "CN=a#"),
        ] {
            assert_eq!(common_name(tag::UTF8_STRING, value.as_bytes()).as_deref(), Some(expected));
        }
        assert_eq!(common_name(tag::BMP_STRING, &[0, 0x61, 0x30, 0x42]).as_deref(), Some("CN=a\u{3042}"));
    }

    #[test]
    fn other_values_are_written_in_hexadecimal() {
        // An integer, and text that is not UTF-8.
        assert_eq!(common_name(2, &[7]).as_deref(), Some("CN=#020107"));
        assert_eq!(common_name(tag::UTF8_STRING, &[0xff]).as_deref(), Some("CN=#0c01ff"));
        let unknown = attribute(&[0x2a, 0x86, 0x48, 0x03], tag::UTF8_STRING, b"a");
        assert_eq!(write_name(&element(tag::SET, &unknown)).as_deref(), Some("1.2.840.3=#0c0161"));
    }

    #[test]
    fn malformed_names_are_rejected() {
        let valid = element(tag::SET, &attribute(&[0x55, 4, 3], tag::UTF8_STRING, b"ada"));
        assert!(write_name(&valid).is_some());
        for end in 1..valid.len() {
            assert_eq!(write_name(&valid[..end]), None, "{end}");
        }
        for length in [&[0x80][..], &[0x83, 0, 0, 1, 0], &[0x82, 1], &[0x81], &[]] {
            assert_eq!(write_name(&[&[tag::SET], length].concat()), None);
        }
        assert!(parse_client_certificate(b"").is_none() && parse_client_certificate(&valid).is_none());
    }
}
