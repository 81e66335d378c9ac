//! The reasons why credentials are not accepted.

use crate::{api_key::ApiKeyError, jwt::JwtError};

/// The reason why a credential is not accepted. It contains nothing of the credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCredential {
    /// A token.
    #[error(transparent)]
    Jwt(#[from] JwtError),
    /// An API key.
    #[error(transparent)]
    ApiKey(#[from] ApiKeyError),
}

impl InvalidCredential {
    /// All reasons.
    pub const REASONS: [&'static str; 13] = [
        "expired",
        "not-yet-valid",
        "no-expiry",
        "wrong-signature",
        "unknown-key",
        "wrong-algorithm",
        "wrong-issuer",
        "wrong-audience",
        "malformed",
        "too-large",
        "several",
        "unknown-api-key",
        "expired-api-key",
    ];

    /// One of [`REASONS`](Self::REASONS).
    pub fn reason(self) -> &'static str {
        match self {
            Self::Jwt(JwtError::Expired) => "expired",
            Self::Jwt(JwtError::NotYetValid) => "not-yet-valid",
            Self::Jwt(JwtError::NoExpiry) => "no-expiry",
            Self::Jwt(JwtError::WrongSignature) => "wrong-signature",
            Self::Jwt(JwtError::UnknownKey) => "unknown-key",
            Self::Jwt(JwtError::WrongAlgorithm) => "wrong-algorithm",
            Self::Jwt(JwtError::WrongIssuer) => "wrong-issuer",
            Self::Jwt(JwtError::WrongAudience) => "wrong-audience",
            Self::Jwt(JwtError::Malformed) => "malformed",
            Self::Jwt(JwtError::TooLong) => "too-large",
            Self::Jwt(JwtError::Several) | Self::ApiKey(ApiKeyError::Several) => "several",
            Self::ApiKey(ApiKeyError::Unknown) => "unknown-api-key",
            Self::ApiKey(ApiKeyError::Expired) => "expired-api-key",
        }
    }

    /// Whether it may be a guess. A token with an unknown key costs nothing to reject, and its key may be fetched later.
    pub fn may_be_guess(self) -> bool {
        self != Self::Jwt(JwtError::UnknownKey)
    }
}
