//! Key sets: keys that are skipped, and sets that are rejected.

use tidegate_identity::jwt::{JwtKeySet, MAX_KEY_SET_SIZE};
use tidegate_testkit::tokens::{TokenIssuer, encode, key_set};

fn problem(json: &str) -> String {
    JwtKeySet::parse(json.as_bytes()).unwrap_err().problem().to_owned()
}

#[test]
fn keys_that_cannot_verify_are_skipped() {
    let usable = TokenIssuer::new("ES256", "usable").unwrap().jwk();
    let point = encode(&[7; 32]);
    let skipped = [
        ("7", "expected a map"),
        ("{}", "missing `kty`"),
        (r#"{"kty":"EC","crv":"P-521"}"#, "unsupported key type EC P-521"),
        (r#"{"kty":"AKP"}"#, "unsupported key type AKP"),
        (r#"{"kty":"RSA","use":"enc"}"#, "`use` is not `sig`"),
        (r#"{"kty":"RSA","key_ops":["encrypt"]}"#, "`key_ops` does not contain `verify`"),
        (r#"{"kty":"RSA","alg":"RSA-OAEP"}"#, "unsupported `alg` RSA-OAEP"),
        (r#"{"kty":"RSA","e":"AQAB"}"#, "missing `n`"),
        (r#"{"kty":"RSA","n":"a+b/","e":"AQAB"}"#, "`n` is not in base64url"),
        (
            &format!(r#"{{"kty":"RSA","n":"{}","e":"AQAB"}}"#, encode(&[9; 128])),
            "RSA key of 1024 bits; the minimum is 2048",
        ),
        (
            &format!(r#"{{"kty":"EC","crv":"P-256","x":"{point}","y":"{}"}}"#, encode(&[7; 31])),
            "`y` has 31 bytes instead of 32",
        ),
        (
            &format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{}"}}"#, encode(&[7; 33])),
            "`x` has 33 bytes instead of 32",
        ),
        (r#"{"kty":"oct","k":"c2hvcnQ"}"#, "the key is too short, or `alg` does not fit its type"),
        (
            &format!(r#"{{"kty":"oct","alg":"RS256","k":"{}"}}"#, encode(&[7; 64])),
            "the key is too short, or `alg` does not fit its type",
        ),
    ];
    for (key, reason) in skipped {
        let set = JwtKeySet::parse(format!(r#"{{"keys":[{key},{usable}]}}"#).as_bytes()).unwrap();
        assert_eq!(set.len(), 1, "{key}");
        assert_eq!(set.skipped(), [format!("keys[0]: {reason}")]);
        assert_eq!(
            problem(&format!(r#"{{"keys":[{key}]}}"#)),
            format!("key set without a usable key; keys[0]: {reason}")
        );
    }
}

#[test]
fn invalid_sets_are_rejected() {
    assert_eq!(problem(r#"{"keys":[]}"#), "empty key set");
    assert_eq!(problem("[]"), "key set without `keys`");
    assert_eq!(problem(r#"{"keys":{}}"#), "key set without `keys`");
    assert!(problem("<html>").starts_with("invalid JSON in a key set"));
    let issuer = TokenIssuer::new("ES256", "one").unwrap();
    assert_eq!(problem(&key_set(&vec![&issuer; 257])), "key set of 257 keys");
    assert_eq!(JwtKeySet::parse(key_set(&vec![&issuer; 256]).as_bytes()).unwrap().len(), 256);
    let large = format!("{}{}", issuer.key_set(), " ".repeat(MAX_KEY_SET_SIZE));
    assert_eq!(problem(&large), format!("key set of {} bytes", large.len()));
    let large = format!("{}{}", issuer.key_set(), " ".repeat(10 * 1024 * 1024));
    assert_eq!(problem(&large), format!("key set of {} bytes", large.len()));
}
