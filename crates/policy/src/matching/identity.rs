//! Conditions on verified credentials.

use super::{GlobMatcher, RequestView};
use crate::{
    compile::{CompiledIdentity, CredentialKinds, CredentialResult},
    model::{Glob, Match},
};
use std::{fmt, sync::Arc};
use tidegate_core::SettingError;
use tidegate_rule::body::JsonPointer;

/// A part of a verified credential that must have one of these values.
#[derive(Clone, Debug)]
pub(crate) struct CredentialCondition {
    part: CredentialPart,
    globs: Box<[GlobMatcher]>,
    identity: Arc<CompiledIdentity>,
    /// Whether it is met while the credentials of the address are not verified, because it sent too many invalid ones.
    on_unverified: bool,
}

/// The part of a credential that contains the value.
#[derive(Clone, Debug)]
enum CredentialPart {
    Claim(JsonPointer),
    ApiKeyName,
    ApiKeyTier,
}

impl CredentialCondition {
    /// The conditions of a match. Without an identity, a match with conditions is an error.
    pub(super) fn from_match(
        matching: &Match,
        identity: Option<&Arc<CompiledIdentity>>,
        on_unverified: bool,
    ) -> Result<Box<[Self]>, SettingError> {
        let claims = matching.claims.iter().map(|(claim, values)| {
            (CredentialPart::Claim(claim.clone()), CredentialKinds::JWT, values.0.as_slice())
        });
        let api_keys = [
            (CredentialPart::ApiKeyName, CredentialKinds::API_KEY, matching.api_key.names.as_slice()),
            (CredentialPart::ApiKeyTier, CredentialKinds::API_KEY, matching.api_key.tiers.as_slice()),
        ];
        let conditions = claims.chain(api_keys.into_iter().filter(|(_, _, values)| !values.is_empty()));
        let build = |(part, kind, values): (_, CredentialKinds, &[Glob])| {
            Ok(Self {
                part,
                globs: values.iter().map(GlobMatcher::new).collect(),
                identity: identity.filter(|it| it.defines(kind)).ok_or_else(|| kind.undefined())?.clone(),
                on_unverified,
            })
        };
        conditions.map(build).collect()
    }

    pub(super) fn matches(&self, view: &RequestView<'_>) -> bool {
        let is_any = |value: &str| self.globs.iter().any(|glob| glob.matches(value.as_bytes()));
        match &self.part {
            CredentialPart::Claim(claim) => self.is_met(self.identity.claims(view), |claims| {
                let mut is_met = false;
                claims.for_each_value(claim, &mut |value| is_met = is_met || is_any(value));
                is_met
            }),
            CredentialPart::ApiKeyName => self.is_met(self.identity.api_key(view), |key| is_any(&key.name)),
            CredentialPart::ApiKeyTier => {
                self.is_met(self.identity.api_key(view), |key| key.tier.as_deref().is_some_and(is_any))
            }
        }
    }

    fn is_met<T>(&self, result: &CredentialResult<T>, is_met: impl Fn(&T) -> bool) -> bool {
        match result {
            CredentialResult::Valid(credential) => is_met(credential),
            CredentialResult::Missing | CredentialResult::Invalid { .. } => false,
            CredentialResult::Unverified(_) => self.on_unverified,
        }
    }

    /// The credential that it reads.
    pub(super) fn kind(&self) -> CredentialKinds {
        match self.part {
            CredentialPart::Claim(_) => CredentialKinds::JWT,
            CredentialPart::ApiKeyName | CredentialPart::ApiKeyTier => CredentialKinds::API_KEY,
        }
    }
}

/// Writes the part, as in a mismatch.
impl fmt::Display for CredentialCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.part {
            CredentialPart::Claim(claim) => write!(f, "claim `{claim}`"),
            CredentialPart::ApiKeyName => f.write_str("API key"),
            CredentialPart::ApiKeyTier => f.write_str("tier of the API key"),
        }
    }
}
