//! Sets of public keys in JSON (RFC 7517).

use super::algorithm::{JwtAlgorithm, PublicKey};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::signature::RsaPublicKeyComponents;
use serde_json::{Map, Value};
use std::fmt;
use tidegate_core::SettingError;

/// The maximum size of a key set in bytes.
pub const MAX_KEY_SET_SIZE: usize = 1024 * 1024;

/// The maximum number of keys in a set.
const MAX_KEYS: usize = 256;

/// The maximum number of keys that are tried for a token that does not name its key.
const MAX_CANDIDATES: usize = 8;

/// The smallest modulus of an RSA key, in bytes.
const MIN_RSA_BYTES: usize = 256;

/// The keys that verify tokens.
#[derive(Default)]
pub struct JwtKeySet {
    keys: Vec<VerificationKey>,
    skipped: Vec<String>,
}

struct VerificationKey {
    id: Option<String>,
    /// The only algorithm that it verifies, if it names one.
    algorithm: Option<JwtAlgorithm>,
    key: PublicKey,
}

impl JwtKeySet {
    /// Parses `{"keys": […]}`. Keys that cannot verify tokens are skipped, so that a server may add keys of new types. Returns
    /// an error if no key is left.
    pub fn parse(json: &[u8]) -> Result<Self, SettingError> {
        let fix = "use a JSON Web Key Set, as in `{\"keys\": [{\"kty\": \"RSA\", …}]}`";
        if json.len() > MAX_KEY_SET_SIZE {
            return Err(SettingError::new(
                format!("key set of {} bytes", json.len()),
                format!("use at most {MAX_KEY_SET_SIZE} bytes"),
            ));
        }
        let set: Value = serde_json::from_slice(json)
            .map_err(|error| SettingError::new(format!("invalid JSON in a key set: {error}"), fix))?;
        let Some(list) = set.get("keys").and_then(Value::as_array) else {
            return Err(SettingError::new("key set without `keys`", fix));
        };
        if list.len() > MAX_KEYS {
            let problem = format!("key set of {} keys", list.len());
            return Err(SettingError::new(problem, format!("use at most {MAX_KEYS} keys")));
        }
        let mut set = Self::default();
        for (index, key) in list.iter().enumerate() {
            match VerificationKey::parse(key) {
                Ok(key) => set.keys.push(key),
                Err(problem) => set.skipped.push(format!("keys[{index}]: {problem}")),
            }
        }
        if set.keys.is_empty() {
            let problem = match set.skipped.first() {
                None => "empty key set".to_owned(),
                Some(first) => format!("key set without a usable key; {first}"),
            };
            return Err(SettingError::new(
                problem,
                "add a public key of RSA, P-256, P-384 or Ed25519, or a secret",
            ));
        }
        Ok(set)
    }

    /// The number of usable keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether it has no usable key.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The keys that were skipped, each with its index and the reason.
    pub fn skipped(&self) -> &[String] {
        &self.skipped
    }

    /// Whether one of the keys made this signature.
    pub(super) fn verify(
        &self,
        algorithm: JwtAlgorithm,
        id: Option<&str>,
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), KeySetError> {
        let is_candidate = |key: &&VerificationKey| {
            let has_id = match (id, &key.id) {
                (Some(id), Some(own)) => id == own,
                _ => true,
            };
            has_id && key.supports(algorithm)
        };
        let mut candidates = self.keys.iter().filter(is_candidate).take(MAX_CANDIDATES).peekable();
        if candidates.peek().is_none() {
            return Err(KeySetError::UnknownKey);
        }
        match candidates.any(|candidate| candidate.key.verify(algorithm, message, signature)) {
            true => Ok(()),
            false => Err(KeySetError::WrongSignature),
        }
    }
}

/// Shows no secret.
impl fmt::Debug for JwtKeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<_> = self.keys.iter().map(|key| key.id.as_deref().unwrap_or("")).collect();
        f.debug_struct("JwtKeySet").field("ids", &ids).field("skipped", &self.skipped).finish()
    }
}

/// Why no key verified a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeySetError {
    UnknownKey,
    WrongSignature,
}

impl VerificationKey {
    fn parse(key: &Value) -> Result<Self, String> {
        let Some(key) = key.as_object() else { return Err("expected a map".to_owned()) };
        if key.get("use").is_some_and(|purpose| purpose != "sig") {
            return Err("`use` is not `sig`".to_owned());
        }
        let verifies = |operations: &Value| {
            operations.as_array().is_some_and(|operations| operations.iter().any(|one| one == "verify"))
        };
        if key.get("key_ops").is_some_and(|operations| !verifies(operations)) {
            return Err("`key_ops` does not contain `verify`".to_owned());
        }
        let algorithm = match text(key, "alg") {
            None => None,
            Some(name) => Some(
                JwtAlgorithm::from_name(name)
                    .ok_or_else(|| format!("unsupported `alg` {}", name.escape_debug()))?,
            ),
        };
        let public = match (text(key, "kty"), text(key, "crv")) {
            (Some("oct"), _) => PublicKey::Secret(bytes(key, "k")?),
            (Some("RSA"), _) => {
                let n = bytes(key, "n")?;
                if n.len() < MIN_RSA_BYTES {
                    return Err(format!(
                        "RSA key of {} bits; the minimum is {}",
                        n.len() * 8,
                        MIN_RSA_BYTES * 8
                    ));
                }
                PublicKey::Rsa(RsaPublicKeyComponents { n, e: bytes(key, "e")? })
            }
            (Some("EC"), Some("P-256")) => PublicKey::P256(point(key, 32)?),
            (Some("EC"), Some("P-384")) => PublicKey::P384(point(key, 48)?),
            (Some("OKP"), Some("Ed25519")) => PublicKey::Ed25519(sized_bytes(key, "x", 32)?),
            (Some(kind), curve) => {
                let curve = curve.map(|curve| format!(" {}", curve.escape_debug())).unwrap_or_default();
                return Err(format!("unsupported key type {}{curve}", kind.escape_debug()));
            }
            (None, _) => return Err("missing `kty`".to_owned()),
        };
        let parsed = Self { id: text(key, "kid").map(str::to_owned), algorithm, key: public };
        match JwtAlgorithm::ALL.into_iter().any(|algorithm| parsed.supports(algorithm)) {
            true => Ok(parsed),
            false => Err("the key is too short, or `alg` does not fit its type".to_owned()),
        }
    }

    fn supports(&self, algorithm: JwtAlgorithm) -> bool {
        self.algorithm.is_none_or(|own| own == algorithm) && self.key.supports(algorithm)
    }
}

fn text<'a>(key: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    key.get(name).and_then(Value::as_str)
}

/// Decodes an integer or a key. Leading zeros of an integer are removed.
fn bytes(key: &Map<String, Value>, name: &str) -> Result<Vec<u8>, String> {
    let text = text(key, name).ok_or_else(|| format!("missing `{name}`"))?;
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| format!("`{name}` is not in base64url"))?;
    let zeros =
        if name == "n" || name == "e" { bytes.iter().take_while(|byte| **byte == 0).count() } else { 0 };
    Ok(bytes.get(zeros..).unwrap_or_default().to_vec())
}

fn sized_bytes(key: &Map<String, Value>, name: &str, length: usize) -> Result<Vec<u8>, String> {
    let bytes = bytes(key, name)?;
    match bytes.len() == length {
        true => Ok(bytes),
        false => Err(format!("`{name}` has {} bytes instead of {length}", bytes.len())),
    }
}

/// An uncompressed point.
fn point(key: &Map<String, Value>, length: usize) -> Result<Vec<u8>, String> {
    Ok([vec![4], sized_bytes(key, "x", length)?, sized_bytes(key, "y", length)?].concat())
}
