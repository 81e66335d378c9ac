//! JSON Web Tokens (RFC 7519).
//!
//! ```text
//!   token ──▶ cached? ──no──▶ header ──▶ key of the set ──▶ signature ──▶ issuer, audience ──▶ cache ──▶ time ──▶ claims
//!                └──yes───────────────────────────────────────────────────────────────────────────────▲
//! ```

mod algorithm;
mod authenticator;
mod cache;
mod claims;
mod key_set;
mod token;

pub use algorithm::JwtAlgorithm;
pub use authenticator::JwtAuthenticator;
pub use claims::JwtClaims;
pub use key_set::{JwtKeySet, MAX_KEY_SET_SIZE};

use arc_swap::ArcSwap;
use cache::{TokenCache, VerifiedToken};
use key_set::KeySetError;
use serde_json::{Map, Value};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use token::ParsedToken;

/// The maximum length of a token.
pub const MAX_TOKEN_SIZE: usize = 16 * 1024;

/// What a token must have besides a signature and `exp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtSettings {
    /// The accepted values of `iss`; any if it is empty.
    pub issuers: Vec<String>,
    /// `aud` must have one of these; any if it is empty.
    pub audiences: Vec<String>,
    /// The accepted algorithms.
    pub algorithms: Vec<JwtAlgorithm>,
    /// How much the clock of the issuer may differ.
    pub leeway: Duration,
}

impl Default for JwtSettings {
    fn default() -> Self {
        Self {
            issuers: Vec::new(),
            audiences: Vec::new(),
            algorithms: JwtAlgorithm::ALL.to_vec(),
            leeway: Duration::from_secs(60),
        }
    }
}

/// Verifies tokens with a set of keys, which can be replaced at any time.
pub struct JwtVerifier {
    settings: JwtSettings,
    state: ArcSwap<VerifierState>,
    unknown_keys: AtomicU64,
}

/// Keys, and the tokens that they verified.
struct VerifierState {
    keys: JwtKeySet,
    cache: TokenCache,
}

/// The reason why a token is not accepted. It contains nothing of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    /// The request has several tokens.
    #[error("several tokens")]
    Several,
    /// It is longer than [`MAX_TOKEN_SIZE`].
    #[error("token too long")]
    TooLong,
    /// It is not a signed token.
    #[error("malformed token")]
    Malformed,
    /// Its algorithm is not accepted; `none` never is.
    #[error("algorithm not accepted")]
    WrongAlgorithm,
    /// The set has no such key.
    #[error("unknown key")]
    UnknownKey,
    /// The signature does not match.
    #[error("wrong signature")]
    WrongSignature,
    /// `iss` is missing, or not accepted.
    #[error("issuer not accepted")]
    WrongIssuer,
    /// `aud` is missing, or not accepted.
    #[error("audience not accepted")]
    WrongAudience,
    /// `exp` is missing or no number.
    #[error("no valid expiry")]
    NoExpiry,
    /// `exp` has passed.
    #[error("expired")]
    Expired,
    /// `nbf` has not been reached.
    #[error("not valid yet")]
    NotYetValid,
}

impl JwtVerifier {
    /// A verifier with these keys.
    pub fn new(settings: JwtSettings, keys: JwtKeySet) -> Self {
        let state = ArcSwap::from_pointee(VerifierState { keys, cache: TokenCache::new() });
        Self { settings, state, unknown_keys: AtomicU64::new(0) }
    }

    /// Replaces the keys. Tokens are verified again.
    pub fn set_keys(&self, keys: JwtKeySet) {
        self.state.store(Arc::new(VerifierState { keys, cache: TokenCache::new() }));
    }

    /// Returns the claims of a valid token. `now` is the time since 1970 in seconds.
    pub fn verify(&self, token: &str, now: u64) -> Result<Arc<JwtClaims>, JwtError> {
        let state = self.state.load();
        match state.cache.get(token) {
            Some(verified) => verified.claims_at(now),
            None => {
                let verified = Arc::new(self.verify_signature(token, &state.keys)?);
                state.cache.insert(verified.clone());
                verified.claims_at(now)
            }
        }
    }

    /// Like [`verify`](Self::verify), for a token whose signature was verified before and is in the cache; `None` for others.
    pub fn verify_known(&self, token: &str, now: u64) -> Option<Result<Arc<JwtClaims>, JwtError>> {
        self.state.load().cache.get(token).map(|verified| verified.claims_at(now))
    }

    /// The number of tokens whose key was not in the set. If it grows, the set may have changed at its source.
    pub fn unknown_keys(&self) -> u64 {
        self.unknown_keys.load(Ordering::Relaxed)
    }

    fn verify_signature(&self, token: &str, keys: &JwtKeySet) -> Result<VerifiedToken, JwtError> {
        if token.len() > MAX_TOKEN_SIZE {
            return Err(JwtError::TooLong);
        }
        let parsed = ParsedToken::parse(token)?;
        if !self.settings.algorithms.contains(&parsed.algorithm) {
            return Err(JwtError::WrongAlgorithm);
        }
        keys.verify(parsed.algorithm, parsed.key_id.as_deref(), parsed.message, &parsed.signature).map_err(
            |error| match error {
                KeySetError::UnknownKey => {
                    self.unknown_keys.fetch_add(1, Ordering::Relaxed);
                    JwtError::UnknownKey
                }
                KeySetError::WrongSignature => JwtError::WrongSignature,
            },
        )?;
        let claims = parsed.claims()?;
        self.check_issuer(&claims)?;
        self.check_audience(&claims)?;
        let leeway = self.settings.leeway.as_secs();
        let expires = seconds(claims.get("exp").ok_or(JwtError::NoExpiry)?).ok_or(JwtError::NoExpiry)?;
        let not_before = match claims.get("nbf") {
            None => 0,
            Some(time) => seconds(time).ok_or(JwtError::NotYetValid)?,
        };
        Ok(VerifiedToken {
            token: token.into(),
            not_before: not_before.saturating_sub(leeway),
            expires: expires.saturating_add(leeway),
            claims: Arc::new(JwtClaims::new(claims)),
        })
    }

    fn check_issuer(&self, claims: &Map<String, Value>) -> Result<(), JwtError> {
        let issuers = &self.settings.issuers;
        let is_accepted =
            |claim: &Value| claim.as_str().is_some_and(|claim| issuers.iter().any(|one| one == claim));
        match issuers.is_empty() || claims.get("iss").is_some_and(is_accepted) {
            true => Ok(()),
            false => Err(JwtError::WrongIssuer),
        }
    }

    fn check_audience(&self, claims: &Map<String, Value>) -> Result<(), JwtError> {
        let audiences = &self.settings.audiences;
        let is_ours =
            |claim: &Value| claim.as_str().is_some_and(|claim| audiences.iter().any(|one| one == claim));
        let is_accepted = |claim: &Value| match claim {
            Value::Array(claims) => claims.iter().any(is_ours),
            claim => is_ours(claim),
        };
        match audiences.is_empty() || claims.get("aud").is_some_and(is_accepted) {
            true => Ok(()),
            false => Err(JwtError::WrongAudience),
        }
    }
}

impl fmt::Debug for JwtVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtVerifier")
            .field("settings", &self.settings)
            .field("keys", &self.state.load().keys)
            .finish_non_exhaustive()
    }
}

/// A time in seconds since 1970. Fractions are rounded down.
fn seconds(time: &Value) -> Option<u64> {
    match time.as_u64() {
        Some(seconds) => Some(seconds),
        None => time.as_f64().filter(|seconds| (0.0..1e15).contains(seconds)).map(|seconds| seconds as u64),
    }
}
