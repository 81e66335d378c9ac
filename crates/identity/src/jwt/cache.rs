//! Verified tokens, so that a token is verified once and not with each request.

use super::{JwtError, claims::JwtClaims};
use foldhash::quality::RandomState;
use std::{
    hash::BuildHasher as _,
    sync::{Arc, Mutex, PoisonError},
};

/// A token whose signature, issuer and audience are verified.
pub(super) struct VerifiedToken {
    pub(super) token: Box<str>,
    /// The times between which it is valid, in seconds since 1970, with the leeway.
    pub(super) not_before: u64,
    pub(super) expires: u64,
    pub(super) claims: Arc<JwtClaims>,
}

impl VerifiedToken {
    /// The claims, if the token is valid at this time in seconds since 1970.
    pub(super) fn claims_at(&self, now: u64) -> Result<Arc<JwtClaims>, JwtError> {
        if now >= self.expires {
            return Err(JwtError::Expired);
        }
        match now < self.not_before {
            true => Err(JwtError::NotYetValid),
            false => Ok(self.claims.clone()),
        }
    }
}

/// A table of fixed size. A new token replaces another one of its bucket.
pub(super) struct TokenCache {
    hasher: RandomState,
    /// The length is a power of two.
    buckets: Box<[Mutex<TokenBucket>]>,
}

#[derive(Default)]
struct TokenBucket {
    /// Used last at the front.
    tokens: [Option<Arc<VerifiedToken>>; BUCKET_SIZE],
}

const BUCKETS: usize = 4096;
const BUCKET_SIZE: usize = 4;

/// Longer tokens are verified each time, so that the cache has at most 64 MiB of tokens.
const MAX_CACHED_TOKEN: usize = 4096;

impl TokenCache {
    pub(super) fn new() -> Self {
        Self { hasher: RandomState::default(), buckets: (0..BUCKETS).map(|_| Mutex::default()).collect() }
    }

    pub(super) fn get(&self, token: &str) -> Option<Arc<VerifiedToken>> {
        let mut bucket = self.bucket(token)?.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same =
            |found: &Option<Arc<VerifiedToken>>| found.as_ref().is_some_and(|found| *found.token == *token);
        let index = bucket.tokens.iter().position(is_same)?;
        bucket.tokens.get_mut(..=index)?.rotate_right(1);
        bucket.tokens.first()?.clone()
    }

    pub(super) fn insert(&self, token: Arc<VerifiedToken>) {
        if token.token.len() > MAX_CACHED_TOKEN {
            return;
        }
        let Some(bucket) = self.bucket(&token.token) else { return };
        let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.tokens.rotate_right(1);
        let replaced = bucket.tokens.first_mut().and_then(|first| first.replace(token));
        drop(bucket);
        drop(replaced);
    }

    fn bucket(&self, token: &str) -> Option<&Mutex<TokenBucket>> {
        let hash = usize::try_from(self.hasher.hash_one(token) % BUCKETS as u64).unwrap_or(0);
        self.buckets.get(hash)
    }
}
