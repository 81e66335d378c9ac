//! API keys: random secrets whose hashes are in a file.
//!
//! ```text
//!   request ──▶ CredentialSource ──key──▶ SHA-256 ──▶ entry with this hash ──▶ expiry ──▶ name, tier
//! ```
//!
//! A key has 256 random bits, so a fast hash protects it: all keys cannot be tried.

use crate::source::{CredentialSource, FoundCredential};
use arc_swap::ArcSwap;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    digest::{SHA256, SHA256_OUTPUT_LEN, digest},
    rand::{SecureRandom as _, SystemRandom},
};
use serde_json::{Map, Value, json};
use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tidegate_core::SettingError;
use tidegate_limiter::Clock;
use tidegate_rule::request::{KeyValue, RequestHead, RequestKey};

/// The maximum size of a file of keys in bytes.
pub const MAX_API_KEY_FILE_SIZE: usize = 64 * 1024 * 1024;

/// The maximum length of a key in a request.
const MAX_KEY_LENGTH: usize = 256;

/// The random bytes of a new key.
const KEY_BYTES: usize = 32;

/// The start of new keys, by which scanners of source code recognize them.
const KEY_PREFIX: &str = "tg_";

type KeyHash = [u8; SHA256_OUTPUT_LEN];

/// An API key, without the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// Who uses it. Several keys may have the same name.
    pub name: String,
    /// The tier, if it has one.
    pub tier: Option<String>,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// When it ends, in seconds since 1970; never if `None`.
    pub expires: Option<u64>,
    hash: KeyHash,
}

/// The keys of a file, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiKeyFile {
    keys: Vec<ApiKey>,
}

/// The reason why a key is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiKeyError {
    /// The request has several keys.
    #[error("several API keys")]
    Several,
    /// No entry has its hash.
    #[error("unknown API key")]
    Unknown,
    /// It has expired.
    #[error("expired API key")]
    Expired,
}

impl ApiKey {
    /// Whether this can be a name or a tier: 1 to 256 bytes without control characters.
    pub fn is_valid_name(text: &str) -> bool {
        !text.is_empty() && text.len() <= MAX_KEY_LENGTH && !text.chars().any(char::is_control)
    }

    /// The start of the hash: a name for this key that is no secret.
    pub fn id(&self) -> String {
        self.hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
    }

    fn parse(entry: &Value) -> Result<Self, String> {
        let entry = entry.as_object().ok_or("expected a map")?;
        let text = |name: &str| match entry.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if Self::is_valid_name(text) => Ok(Some(text.clone())),
            Some(_) => Err(format!("`{name}` is not a text of 1 to {MAX_KEY_LENGTH} bytes")),
        };
        let number = |name: &str| match entry.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                value.as_u64().map(Some).ok_or_else(|| format!("`{name}` is not a time in seconds"))
            }
        };
        let hash = text("sha256")?.ok_or("missing `sha256`")?;
        Ok(Self {
            name: text("name")?.ok_or("missing `name`")?,
            tier: text("tier")?,
            created: number("created")?.unwrap_or(0),
            expires: number("expires")?,
            hash: parse_hash(&hash).ok_or("`sha256` does not have 64 hexadecimal digits")?,
        })
    }

    fn to_json(&self) -> Value {
        let mut entry = Map::new();
        entry.insert("name".to_owned(), json!(self.name));
        if let Some(tier) = &self.tier {
            entry.insert("tier".to_owned(), json!(tier));
        }
        entry.insert("created".to_owned(), json!(self.created));
        if let Some(expires) = self.expires {
            entry.insert("expires".to_owned(), json!(expires));
        }
        let hash: String = self.hash.iter().map(|byte| format!("{byte:02x}")).collect();
        entry.insert("sha256".to_owned(), json!(hash));
        Value::Object(entry)
    }
}

impl ApiKeyFile {
    /// Parses `{"api-keys": […]}`.
    pub fn parse(json: &[u8]) -> Result<Self, SettingError> {
        let fix = "create the file with `tidegate apikey add NAME`";
        if json.len() > MAX_API_KEY_FILE_SIZE {
            let problem = format!("file of API keys of {} bytes", json.len());
            return Err(SettingError::new(problem, format!("use at most {MAX_API_KEY_FILE_SIZE} bytes")));
        }
        let file: Value = serde_json::from_slice(json).map_err(|error| {
            SettingError::new(format!("invalid JSON in a file of API keys: {error}"), fix)
        })?;
        let list = file
            .get("api-keys")
            .and_then(Value::as_array)
            .ok_or_else(|| SettingError::new("file of API keys without `api-keys`", fix))?;
        let parse = |(index, entry)| {
            ApiKey::parse(entry)
                .map_err(|problem| SettingError::new(format!("api-keys[{index}]: {problem}"), fix))
        };
        Ok(Self { keys: list.iter().enumerate().map(parse).collect::<Result<_, _>>()? })
    }

    /// The file, in JSON.
    pub fn to_json(&self) -> String {
        let keys: Vec<_> = self.keys.iter().map(ApiKey::to_json).collect();
        let mut text = serde_json::to_string_pretty(&json!({ "api-keys": keys })).unwrap_or_default();
        text.push('\n');
        text
    }

    /// The keys, in their order.
    pub fn keys(&self) -> &[ApiKey] {
        &self.keys
    }

    /// Adds a new key, and returns its secret, which is not stored. `None` if the system has no random numbers.
    pub fn add(
        &mut self,
        name: &str,
        tier: Option<&str>,
        created: u64,
        expires: Option<u64>,
    ) -> Option<String> {
        let mut bytes = [0; KEY_BYTES];
        SystemRandom::new().fill(&mut bytes).ok()?;
        let secret = format!("{KEY_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes));
        let (name, tier) = (name.to_owned(), tier.map(str::to_owned));
        self.keys.push(ApiKey { name, tier, created, expires, hash: hash(&secret) });
        Some(secret)
    }

    /// Removes the keys with this name or [id](ApiKey::id), and returns them.
    pub fn revoke(&mut self, name_or_id: &str) -> Vec<ApiKey> {
        let is_removed = |key: &ApiKey| key.name == name_or_id || key.id() == name_or_id;
        let (removed, remaining) = std::mem::take(&mut self.keys).into_iter().partition(is_removed);
        self.keys = remaining;
        removed
    }
}

/// Finds the API key of a request, and its entry.
pub struct ApiKeyAuthenticator {
    source: CredentialSource,
    keys: ArcSwap<KnownKeys>,
    clock: Clock,
}

type KnownKeys = HashMap<KeyHash, KnownKey, foldhash::quality::RandomState>;

struct KnownKey {
    key: Arc<ApiKey>,
    was_used: AtomicBool,
}

/// The part of an API key that is the key of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiKeyPart {
    /// Its name.
    Name,
    /// Its tier.
    Tier,
}

impl ApiKeyAuthenticator {
    /// Reads keys here. Their expiry is compared with the wall clock.
    pub fn new(source: CredentialSource, file: ApiKeyFile) -> Self {
        let it = Self { source, keys: ArcSwap::default(), clock: Clock::wall() };
        it.set_keys(file);
        it
    }

    /// Sets the clock, which must return the time since 1970.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Replaces the keys.
    pub fn set_keys(&self, file: ApiKeyFile) {
        let before = self.keys.load();
        let known = |key: ApiKey| {
            let was_used = before.get(&key.hash).is_some_and(|known| known.was_used.load(Ordering::Relaxed));
            (key.hash, KnownKey { key: Arc::new(key), was_used: AtomicBool::new(was_used) })
        };
        self.keys.store(Arc::new(file.keys.into_iter().map(known).collect()));
    }

    /// The key of a request; `None` without one.
    pub fn authenticate(&self, head: &dyn RequestHead) -> Result<Option<Arc<ApiKey>>, ApiKeyError> {
        let secret = match self.source.find(head) {
            FoundCredential::Missing => return Ok(None),
            FoundCredential::Several => return Err(ApiKeyError::Several),
            FoundCredential::One(secret) => secret,
        };
        let keys = self.keys.load();
        let known = find(&keys, &secret).ok_or(ApiKeyError::Unknown)?;
        let key = self.check_expiry(known)?;
        known.was_used.store(true, Ordering::Relaxed);
        Ok(Some(key))
    }

    /// Like [`authenticate`](Self::authenticate): `None` if the request has a key that was not accepted before, or several.
    pub fn authenticate_known(
        &self,
        head: &dyn RequestHead,
    ) -> Option<Result<Option<Arc<ApiKey>>, ApiKeyError>> {
        match self.source.find(head) {
            FoundCredential::Missing => Some(Ok(None)),
            FoundCredential::Several => None,
            FoundCredential::One(secret) => {
                let keys = self.keys.load();
                let known = find(&keys, &secret).filter(|known| known.was_used.load(Ordering::Relaxed))?;
                Some(self.check_expiry(known).map(Some))
            }
        }
    }

    fn check_expiry(&self, known: &KnownKey) -> Result<Arc<ApiKey>, ApiKeyError> {
        let now = self.clock.now().to_duration().as_secs();
        match known.key.expires.is_some_and(|expires| now >= expires) {
            true => Err(ApiKeyError::Expired),
            false => Ok(known.key.clone()),
        }
    }

    /// A part of the API key as the key of a rule. Requests without a valid API key, and without this part, have no key.
    pub fn key(self: Arc<Self>, part: ApiKeyPart) -> RequestKey {
        RequestKey::custom(move |head| {
            let key = self.authenticate(head).ok().flatten()?;
            Some(KeyValue::from(match part {
                ApiKeyPart::Name => key.name.clone(),
                ApiKeyPart::Tier => key.tier.clone()?,
            }))
        })
    }
}

/// Shows no key.
impl fmt::Debug for ApiKeyAuthenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKeyAuthenticator")
            .field("source", &self.source)
            .field("keys", &self.keys.load().len())
            .finish_non_exhaustive()
    }
}

fn find<'k>(keys: &'k KnownKeys, secret: &str) -> Option<&'k KnownKey> {
    match secret.len() > MAX_KEY_LENGTH {
        true => None,
        false => keys.get(&hash(secret)),
    }
}

fn hash(secret: &str) -> KeyHash {
    let digest = digest(&SHA256, secret.as_bytes());
    let mut hash = [0; SHA256_OUTPUT_LEN];
    hash.iter_mut().zip(digest.as_ref()).for_each(|(to, from)| *to = *from);
    hash
}

fn parse_hash(text: &str) -> Option<KeyHash> {
    let mut hash = [0; SHA256_OUTPUT_LEN];
    if text.len() != 2 * SHA256_OUTPUT_LEN || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(hash)
}
