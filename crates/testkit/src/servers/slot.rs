//! The slot of a key in a cluster.

/// The number of slots of a cluster.
pub(super) const SLOT_COUNT: u16 = 16_384;

/// The slot of a key: that of its hash tag, which is the part in the first braces, or of the whole key.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    crc16(hash_tag(key)) % SLOT_COUNT
}

fn hash_tag(key: &[u8]) -> &[u8] {
    let inside = key.iter().position(|&byte| byte == b'{').map(|open| &key[open + 1..]);
    let tag = inside.and_then(|rest| rest.iter().position(|&byte| byte == b'}').map(|close| &rest[..close]));
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_slots_match_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, like) in [
            ("{user1000}.following", "user1000"),
            ("foo{}{bar}", "foo{}{bar}"),
            ("foo{{bar}}zap", "{bar"),
            ("foo{bar}{zap}", "bar"),
            ("foo{bar", "foo{bar"),
        ] {
            assert_eq!(hash_tag(key.as_bytes()), like.as_bytes());
            assert_eq!(slot_of(key.as_bytes()), crc16(like.as_bytes()) % SLOT_COUNT);
        }
    }
}
