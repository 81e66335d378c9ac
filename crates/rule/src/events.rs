//! The log events of this crate, one struct each.

use crate::settings::SettingsError;
use tidegate_core::SettingError;
use tidegate_limiter::BuildError;

/// A rule has a quota neither in code nor in the settings.
pub(crate) struct RuleWithoutQuota<'a> {
    pub(crate) rule: &'a str,
}

impl RuleWithoutQuota<'_> {
    pub(crate) fn emit(self) {
        let Self { rule } = self;
        tracing::warn!(%rule, "rule has no quota and limits nothing; set one in the policy file");
    }
}

/// Code names a store that the settings do not define.
pub(crate) struct RuleStoreUnknown<'a> {
    pub(crate) rule: &'a str,
    pub(crate) store: &'a str,
}

impl RuleStoreUnknown<'_> {
    pub(crate) fn emit(self) {
        let Self { rule, store } = self;
        tracing::warn!(%rule, store, "unknown store; using the default one");
    }
}

/// An attribute declares a rule differently from an earlier declaration.
pub(crate) struct RuleConflict<'a> {
    pub(crate) rule: &'a str,
    pub(crate) error: &'a SettingError,
}

impl RuleConflict<'_> {
    pub(crate) fn emit(self) {
        let Self { rule, error } = self;
        tracing::error!(%rule, %error, "conflicting rule declarations; calls are rejected");
    }
}

/// The settings of a rule are incompatible with its declaration.
pub(crate) struct RuleSettingsInvalid<'a> {
    pub(crate) rule: &'a str,
    pub(crate) error: &'a SettingsError,
}

impl RuleSettingsInvalid<'_> {
    pub(crate) fn emit(self) {
        let Self { rule, error } = self;
        tracing::error!(%rule, %error, "invalid settings for the rule; using those declared in code");
    }
}

/// The policy has keys that do not apply to a rule declared in code.
pub(crate) struct PolicyKeysUnused<'a> {
    pub(crate) rule: &'a str,
    pub(crate) keys: &'a str,
}

impl PolicyKeysUnused<'_> {
    pub(crate) fn emit(self) {
        let Self { rule, keys } = self;
        tracing::warn!(%rule, keys, "policy keys do not apply to this rule declared in code");
    }
}

/// The quotas of a limiter could not be changed, because it was changed concurrently.
pub(crate) struct LimiterChangeFailed<'a> {
    pub(crate) rule: &'a str,
    pub(crate) error: &'a BuildError,
}

impl LimiterChangeFailed<'_> {
    pub(crate) fn emit(self) {
        let Self { rule, error } = self;
        tracing::error!(%rule, %error, "cannot change the quotas; the limiter was changed concurrently");
    }
}

/// A key table is full.
pub(crate) struct KeyTableFull<'a> {
    pub(crate) rule: &'a str,
    pub(crate) capacity: u64,
    /// The number of keys with low usage that were replaced by others.
    pub(crate) replaced: u64,
    /// The number of checks that shared a bucket or were denied.
    pub(crate) overflowed: u64,
}

impl KeyTableFull<'_> {
    pub(crate) fn emit(self) {
        let Self { rule, capacity, replaced, overflowed } = self;
        tracing::warn!(
            %rule, capacity, replaced, overflowed,
            "no room for new keys in memory; raise the capacity of the rule"
        );
    }
}

/// A limit by client address got a request without a peer address.
pub(crate) struct PeerAddressMissing {
    pub(crate) fix: &'static str,
}

impl PeerAddressMissing {
    pub(crate) fn emit(self) {
        let Self { fix } = self;
        tracing::error!(fix, "requests have no client address; treating them as requests without a key");
    }
}

/// A rule with a concurrency quota is checked by calls that hold no slot.
pub(crate) struct SlotNotAcquired<'a> {
    pub(crate) rule: &'a str,
}

impl SlotNotAcquired<'_> {
    pub(crate) fn emit(self) {
        let Self { rule } = self;
        tracing::warn!(
            rule,
            "calls of this rule hold no slot, so its concurrency quota is checked but never used; give it a rate, or use a \
             separate rule for the concurrency quota"
        );
    }
}

/// A rule with only rates is used by calls that hold a slot.
pub(crate) struct RateRefunded<'a> {
    pub(crate) rule: &'a str,
}

impl RateRefunded<'_> {
    pub(crate) fn emit(self) {
        let Self { rule } = self;
        tracing::warn!(
            rule,
            "calls of this rule hold a slot and release it, so a rate limits almost nothing; give it a concurrency quota, as \
             in `3 at once`"
        );
    }
}

/// The rule of an attribute could not be declared.
pub(crate) struct RuleDeclarationFailed<'a> {
    pub(crate) rule: &'a str,
    pub(crate) error: &'a BuildError,
}

impl RuleDeclarationFailed<'_> {
    pub(crate) fn emit(self) {
        let Self { rule, error } = self;
        tracing::error!(rule, %error, "cannot declare the rule; it limits nothing");
    }
}

/// The policy file is set in the environment of a program that cannot read it.
pub(crate) struct PolicyFeatureDisabled {
    pub(crate) variable: &'static str,
}

impl PolicyFeatureDisabled {
    pub(crate) fn emit(self) {
        let Self { variable } = self;
        tracing::error!(variable, "policy file ignored; the feature `policy` is disabled");
    }
}

/// A call with `key = ip` has no client address.
pub(crate) struct ClientAddressUnknown;

impl ClientAddressUnknown {
    #[allow(clippy::unused_self, reason = "the form of all events")]
    pub(crate) fn emit(self) {
        tracing::warn!(
            fix = "put `ContextLayer` or `ContextMiddleware` around the service, on a server that records the peer address",
            "no client address for `key = ip`; all such calls share one bucket"
        );
    }
}

/// The breaker of an attribute could not be declared.
pub(crate) struct BreakerDeclarationFailed<'a> {
    pub(crate) error: &'a str,
}

impl BreakerDeclarationFailed<'_> {
    pub(crate) fn emit(self) {
        let Self { error } = self;
        tracing::error!(error, "cannot declare the breaker; it rejects nothing");
    }
}

/// An attribute declares a breaker differently from an earlier declaration.
pub(crate) struct BreakerConflict<'a> {
    pub(crate) breaker: &'a str,
    pub(crate) error: &'a SettingError,
}

impl BreakerConflict<'_> {
    pub(crate) fn emit(self) {
        let Self { breaker, error } = self;
        tracing::error!(breaker, %error, "conflicting breaker declarations; calls are rejected");
    }
}
