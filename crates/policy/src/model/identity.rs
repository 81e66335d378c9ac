//! Verified identities of clients.

use std::{path::PathBuf, time::Duration};
use tidegate_core::Quota;
use tidegate_identity::{CredentialSource, jwt::JwtAlgorithm};

/// `identity: { jwt: { keys: jwks.json, issuer: https://issuer.example }, invalid-quota: 60/min }`
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IdentitySpec {
    /// `jwt`: how signed tokens are verified. Rules with the key `jwt CLAIM` need it.
    pub jwt: Option<JwtSpec>,
    /// `api-keys`: the accepted API keys. Rules with the key `api-key` need them.
    pub api_keys: Option<ApiKeysSpec>,
    /// `invalid-quota`: how many invalid credentials an address may send.
    pub invalid_quota: Option<Quota>,
}

/// `jwt`: how signed tokens are verified.
#[derive(Clone, Debug, PartialEq)]
pub struct JwtSpec {
    /// `keys`: where the key set is.
    pub keys: KeySetLocation,
    /// `issuer`: the accepted issuers; all by default.
    pub issuers: Vec<String>,
    /// `audience`: a token must be for one of these; none by default.
    pub audiences: Vec<String>,
    /// `algorithms`: the accepted algorithms; all by default.
    pub algorithms: Vec<JwtAlgorithm>,
    /// `leeway`: how much the clock of the issuer may differ.
    pub leeway: Duration,
    /// `from`: where a request carries its token.
    pub from: CredentialSource,
    /// `refresh`: how often a key set is fetched from a URL.
    pub refresh: Duration,
}

/// `api-keys: { file: api-keys.json, from: header x-api-key }`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKeysSpec {
    /// `file`: the file with the hashes of the keys, relative to the policy. It is reloaded when it changes.
    pub file: PathBuf,
    /// `from`: where a request carries its key.
    pub from: CredentialSource,
}

/// The default of `invalid-quota`.
pub(crate) const DEFAULT_INVALID_QUOTA: &str = "60/min";

/// Where a key set is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySetLocation {
    /// A file, relative to the policy. It is reloaded when it changes.
    File(PathBuf),
    /// An `http` or `https` URL.
    Url(String),
}

impl Default for KeySetLocation {
    fn default() -> Self {
        Self::File(PathBuf::new())
    }
}

impl Default for ApiKeysSpec {
    fn default() -> Self {
        Self { file: PathBuf::new(), from: CredentialSource::Header("x-api-key".into()) }
    }
}

impl Default for JwtSpec {
    fn default() -> Self {
        Self {
            keys: KeySetLocation::default(),
            issuers: Vec::new(),
            audiences: Vec::new(),
            algorithms: Vec::new(),
            leeway: Duration::from_secs(60),
            from: CredentialSource::default(),
            refresh: Duration::from_secs(300),
        }
    }
}
