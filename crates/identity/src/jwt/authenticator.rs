//! Finds and verifies the token of a request.

use super::{JwtClaims, JwtError, JwtVerifier};
use crate::source::{CredentialSource, FoundCredential};
use std::sync::Arc;
use tidegate_limiter::Clock;
use tidegate_rule::{
    body::JsonPointer,
    request::{KeyValue, RequestHead, RequestKey},
};

/// Finds the token of a request, and verifies it.
#[derive(Debug)]
pub struct JwtAuthenticator {
    source: CredentialSource,
    verifier: Arc<JwtVerifier>,
    clock: Clock,
}

impl JwtAuthenticator {
    /// Reads tokens here. Their times are compared with the wall clock.
    pub fn new(source: CredentialSource, verifier: Arc<JwtVerifier>) -> Self {
        Self { source, verifier, clock: Clock::wall() }
    }

    /// Sets the clock, which must return the time since 1970.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// The claims of the token of a request; `None` without a token.
    pub fn authenticate(&self, head: &dyn RequestHead) -> Result<Option<Arc<JwtClaims>>, JwtError> {
        match self.source.find(head) {
            FoundCredential::Missing => Ok(None),
            FoundCredential::Several => Err(JwtError::Several),
            FoundCredential::One(token) => self.verifier.verify(&token, self.now()).map(Some),
        }
    }

    /// Like [`authenticate`](Self::authenticate), without verifying a signature: `None` if the request has a token that was not
    /// verified before, or several.
    pub fn authenticate_known(
        &self,
        head: &dyn RequestHead,
    ) -> Option<Result<Option<Arc<JwtClaims>>, JwtError>> {
        match self.source.find(head) {
            FoundCredential::Missing => Some(Ok(None)),
            FoundCredential::Several => None,
            FoundCredential::One(token) => {
                self.verifier.verify_known(&token, self.now()).map(|known| known.map(Some))
            }
        }
    }

    /// In seconds since 1970.
    fn now(&self) -> u64 {
        self.clock.now().to_duration().as_secs()
    }

    /// A claim as the key of a rule. Requests without a valid token, and without the claim, have no key.
    pub fn key(self: Arc<Self>, claim: JsonPointer) -> RequestKey {
        RequestKey::custom(move |head| {
            let claims = self.authenticate(head).ok().flatten()?;
            let value = claims.get(&claim)?.into_owned();
            (!value.is_empty()).then(|| KeyValue::from(value))
        })
    }
}
