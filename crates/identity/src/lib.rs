//! Verified identities of clients, as keys of rules.
//!
//! ```text
//!   request ──▶ CredentialSource ─┬─token────▶ JwtVerifier ──claims──▶ key
//!                                └─API key──▶ ApiKeyFile ──name, tier──▶ key
//! ```
//!
//! ```
//! use std::sync::Arc;
//! use tidegate_identity::{CredentialSource, jwt::{JwtAuthenticator, JwtKeySet, JwtSettings, JwtVerifier}};
//!
//! let keys = JwtKeySet::parse(br#"{"keys": [{"kty": "oct", "k": "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"}]}"#)?;
//! let verifier = JwtVerifier::new(JwtSettings { issuers: vec!["joe".into()], ..JwtSettings::default() }, keys);
//! let by_user = Arc::new(JwtAuthenticator::new(CredentialSource::default(), Arc::new(verifier))).key("/sub".parse()?);
//! # Ok::<(), tidegate_core::SettingError>(())
//! ```
//!
//! | noun | meaning |
//! |---|---|
//! | [`CredentialSource`] | where a request carries a credential |
//! | [`jwt::JwtKeySet`] | public keys, from a JSON Web Key Set |
//! | [`jwt::JwtVerifier`] | verifies tokens, and remembers them |
//! | [`jwt::JwtAuthenticator`] | finds the token of a request and verifies it |
//! | [`api_key::ApiKeyFile`] | the hashes of API keys |
//! | [`api_key::ApiKeyAuthenticator`] | finds the API key of a request |
//! | [`parse_client_certificate`] | reads the names of a verified client certificate |
//! | [`InvalidCredential`] | why a credential is not accepted |
//!
//! It does not
//!
//! - fetch key sets: the gateway does;
//! - issue tokens, or decode encrypted ones.

pub mod api_key;
mod client_certificate;
mod invalid;
pub mod jwt;
mod source;

pub use client_certificate::parse_client_certificate;
pub use invalid::InvalidCredential;
pub use source::CredentialSource;
