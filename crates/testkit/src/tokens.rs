//! Signed JSON Web Tokens, and their keys.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    hmac,
    rand::{SecureRandom as _, SystemRandom},
    rsa::PublicKeyComponents,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
        EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384,
        RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
    },
};

/// An issuer of tokens with one key. All RSA keys are the same; others are random.
pub struct TokenIssuer {
    algorithm: &'static str,
    key_id: String,
    key: SigningKey,
    random: SystemRandom,
}

enum SigningKey {
    Secret(Vec<u8>, hmac::Algorithm),
    Rsa(Box<RsaKeyPair>, &'static dyn RsaEncoding),
    Ecdsa(Box<EcdsaKeyPair>, &'static str),
    Ed25519(Box<Ed25519KeyPair>),
}

const RSA_KEY: &[u8] = include_bytes!("../vectors/rsa-2048.pk8");

impl TokenIssuer {
    /// All algorithms.
    pub const ALGORITHMS: [&'static str; 12] = [
        "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384",
        "EdDSA",
    ];

    /// An issuer whose key has this name. `None` if the algorithm is unknown.
    pub fn new(algorithm: &str, key_id: &str) -> Option<Self> {
        let algorithm = Self::ALGORITHMS.into_iter().find(|known| *known == algorithm)?;
        let random = SystemRandom::new();
        let secret = |algorithm| {
            let mut secret = vec![0; 64];
            random.fill(&mut secret).ok()?;
            Some(SigningKey::Secret(secret, algorithm))
        };
        let rsa = |encoding| Some(SigningKey::Rsa(Box::new(RsaKeyPair::from_pkcs8(RSA_KEY).ok()?), encoding));
        let ecdsa = |algorithm: &'static EcdsaSigningAlgorithm, curve| {
            let key = EcdsaKeyPair::generate_pkcs8(algorithm, &random).ok()?;
            let key = EcdsaKeyPair::from_pkcs8(algorithm, key.as_ref(), &random).ok()?;
            Some(SigningKey::Ecdsa(Box::new(key), curve))
        };
        let key = match algorithm {
            "HS256" => secret(hmac::HMAC_SHA256)?,
            "HS384" => secret(hmac::HMAC_SHA384)?,
            "HS512" => secret(hmac::HMAC_SHA512)?,
            "RS256" => rsa(&RSA_PKCS1_SHA256)?,
            "RS384" => rsa(&RSA_PKCS1_SHA384)?,
            "RS512" => rsa(&RSA_PKCS1_SHA512)?,
            "PS256" => rsa(&RSA_PSS_SHA256)?,
            "PS384" => rsa(&RSA_PSS_SHA384)?,
            "PS512" => rsa(&RSA_PSS_SHA512)?,
            "ES256" => ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING, "P-256")?,
            "ES384" => ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING, "P-384")?,
            _ => {
                let key = Ed25519KeyPair::generate_pkcs8(&random).ok()?;
                SigningKey::Ed25519(Box::new(Ed25519KeyPair::from_pkcs8(key.as_ref()).ok()?))
            }
        };
        Some(Self { algorithm, key_id: key_id.to_owned(), key, random })
    }

    /// The algorithm of its tokens.
    pub fn algorithm(&self) -> &'static str {
        self.algorithm
    }

    /// Its key, as a JSON Web Key.
    pub fn jwk(&self) -> String {
        let key = match &self.key {
            SigningKey::Secret(secret, _) => format!(r#""kty":"oct","k":"{}""#, encode(secret)),
            SigningKey::Rsa(key, _) => {
                let PublicKeyComponents { n, e } = PublicKeyComponents::<Vec<u8>>::from(key.public());
                format!(r#""kty":"RSA","n":"{}","e":"{}""#, encode(&n), encode(&e))
            }
            SigningKey::Ecdsa(key, curve) => {
                let point = key.public_key().as_ref().get(1..).unwrap_or_default();
                let (x, y) = point.split_at(point.len() / 2);
                format!(r#""kty":"EC","crv":"{curve}","x":"{}","y":"{}""#, encode(x), encode(y))
            }
            SigningKey::Ed25519(key) => {
                format!(r#""kty":"OKP","crv":"Ed25519","x":"{}""#, encode(key.public_key().as_ref()))
            }
        };
        format!(r#"{{"kid":"{}",{key}}}"#, self.key_id)
    }

    /// A key set with only its key.
    pub fn key_set(&self) -> String {
        key_set(&[self])
    }

    /// A token with these claims, in JSON.
    pub fn sign(&self, claims: &str) -> String {
        self.sign_with_header(&format!(r#"{{"alg":"{}","kid":"{}"}}"#, self.algorithm, self.key_id), claims)
    }

    /// A token with this header.
    pub fn sign_with_header(&self, header: &str, claims: &str) -> String {
        let message = format!("{}.{}", encode(header.as_bytes()), encode(claims.as_bytes()));
        let signature = self.sign_bytes(message.as_bytes()).unwrap_or_default();
        format!("{message}.{}", encode(&signature))
    }

    fn sign_bytes(&self, message: &[u8]) -> Option<Vec<u8>> {
        Some(match &self.key {
            SigningKey::Secret(secret, algorithm) => {
                hmac::sign(&hmac::Key::new(*algorithm, secret), message).as_ref().to_vec()
            }
            SigningKey::Rsa(key, encoding) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(*encoding, &self.random, message, &mut signature).ok()?;
                signature
            }
            SigningKey::Ecdsa(key, _) => key.sign(&self.random, message).ok()?.as_ref().to_vec(),
            SigningKey::Ed25519(key) => key.sign(message).as_ref().to_vec(),
        })
    }
}

/// A key set with the keys of these issuers.
pub fn key_set(issuers: &[&TokenIssuer]) -> String {
    let keys: Vec<_> = issuers.iter().map(|issuer| issuer.jwk()).collect();
    format!(r#"{{"keys":[{}]}}"#, keys.join(","))
}

/// In base64url, without padding.
pub fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
