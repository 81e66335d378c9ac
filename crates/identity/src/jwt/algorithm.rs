//! The signature algorithms of JSON Web Tokens (RFC 7518, RFC 8037).

use ring::{
    hmac,
    signature::{
        self, ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RsaParameters,
        RsaPublicKeyComponents, UnparsedPublicKey,
    },
};
use std::{fmt, str::FromStr};
use tidegate_core::SettingError;

/// A signature algorithm. `none` is not one, and ES512 is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JwtAlgorithm {
    /// HMAC with SHA-256.
    Hs256,
    /// HMAC with SHA-384.
    Hs384,
    /// HMAC with SHA-512.
    Hs512,
    /// RSA, PKCS #1 v1.5, with SHA-256.
    Rs256,
    /// RSA, PKCS #1 v1.5, with SHA-384.
    Rs384,
    /// RSA, PKCS #1 v1.5, with SHA-512.
    Rs512,
    /// RSA-PSS with SHA-256.
    Ps256,
    /// RSA-PSS with SHA-384.
    Ps384,
    /// RSA-PSS with SHA-512.
    Ps512,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// ECDSA on P-384 with SHA-384.
    Es384,
    /// Ed25519.
    EdDsa,
}

impl JwtAlgorithm {
    /// All algorithms.
    pub const ALL: [Self; 12] = [
        Self::Hs256,
        Self::Hs384,
        Self::Hs512,
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
        Self::Es256,
        Self::Es384,
        Self::EdDsa,
    ];

    /// The value of `alg`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hs256 => "HS256",
            Self::Hs384 => "HS384",
            Self::Hs512 => "HS512",
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }
}

impl FromStr for JwtAlgorithm {
    type Err = SettingError;

    fn from_str(name: &str) -> Result<Self, SettingError> {
        Self::from_name(name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            SettingError::new(
                format!("unknown algorithm `{}`", name.escape_debug()),
                format!("use one of {names}"),
            )
        })
    }
}

impl fmt::Display for JwtAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A key of one type. It verifies only the algorithms of this type, so that a public key is never used as a secret.
pub(super) enum PublicKey {
    Secret(Vec<u8>),
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    /// An uncompressed point.
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl PublicKey {
    /// Whether a key of this type can verify the algorithm.
    pub(super) fn supports(&self, algorithm: JwtAlgorithm) -> bool {
        use JwtAlgorithm::{
            EdDsa, Es256, Es384, Hs256, Hs384, Hs512, Ps256, Ps384, Ps512, Rs256, Rs384, Rs512,
        };
        match self {
            // A secret is at least as long as the hash (RFC 7518, 3.2).
            Self::Secret(secret) => match algorithm {
                Hs256 => secret.len() >= 32,
                Hs384 => secret.len() >= 48,
                Hs512 => secret.len() >= 64,
                _ => false,
            },
            Self::Rsa(_) => matches!(algorithm, Rs256 | Rs384 | Rs512 | Ps256 | Ps384 | Ps512),
            Self::P256(_) => algorithm == Es256,
            Self::P384(_) => algorithm == Es384,
            Self::Ed25519(_) => algorithm == EdDsa,
        }
    }

    /// Whether this is the signature of the message. `false` also for an algorithm that the key does not support.
    pub(super) fn verify(&self, algorithm: JwtAlgorithm, message: &[u8], signature: &[u8]) -> bool {
        if !self.supports(algorithm) {
            return false;
        }
        match self {
            Self::Secret(secret) => {
                let algorithm = match algorithm {
                    JwtAlgorithm::Hs384 => hmac::HMAC_SHA384,
                    JwtAlgorithm::Hs512 => hmac::HMAC_SHA512,
                    _ => hmac::HMAC_SHA256,
                };
                hmac::verify(&hmac::Key::new(algorithm, secret), message, signature).is_ok()
            }
            Self::Rsa(key) => key.verify(rsa_parameters(algorithm), message, signature).is_ok(),
            Self::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature).is_ok()
            }
            Self::P384(point) => {
                UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, point).verify(message, signature).is_ok()
            }
            Self::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature).is_ok(),
        }
    }
}

fn rsa_parameters(algorithm: JwtAlgorithm) -> &'static RsaParameters {
    match algorithm {
        JwtAlgorithm::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        JwtAlgorithm::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
        JwtAlgorithm::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
        JwtAlgorithm::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
        JwtAlgorithm::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
        _ => &signature::RSA_PKCS1_2048_8192_SHA256,
    }
}
