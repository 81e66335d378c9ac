//! The quotas of a rule as rate limit headers, formatted once.

use bytes::Bytes;
use std::{
    any::Any,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};
use tidegate_core::{
    Quota,
    header::{CostUnit, PolicyField},
};
use tidegate_limiter::store::QuotaSelection;

/// The quotas of a rule as rate limit headers: formatted when they change, and used for every response.
#[derive(Debug, Default)]
pub struct PolicyFields {
    id: u64,
    /// Those of the declared quotas, then those of overrides.
    entries: Vec<(PolicyField, Bytes)>,
    /// The number of declared quotas.
    declared: usize,
    quotas: Vec<Box<str>>,
    joined: Bytes,
    selection: QuotaSelection,
    unit: CostUnit,
    cache: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// The id of the next fields.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl PolicyFields {
    pub(crate) fn new(rule: &str, quotas: &[Quota], selection: QuotaSelection, unit: CostUnit) -> Self {
        let label = |(index, quota)| PolicyField::for_indexed_quota(rule, index, quota).with_unit(unit);
        let labels: Vec<PolicyField> = quotas.iter().enumerate().map(label).collect();
        let all = labels.iter().map(PolicyField::policy).collect::<Vec<_>>().join(", ").into();
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            declared: labels.len(),
            entries: labels.into_iter().map(with_bytes).collect(),
            quotas: quotas.iter().map(|quota| quota.to_string().into()).collect(),
            joined: all,
            selection,
            unit,
            cache: OnceLock::new(),
        }
    }

    /// Adds the quotas of overrides, under the name of the first quota.
    pub(crate) fn with_overrides(mut self, rule: &str, quotas: &[Quota]) -> Self {
        let unit = self.unit;
        let label = |quota: &Quota| PolicyField::for_indexed_quota(rule, 0, quota).with_unit(unit);
        self.entries.extend(quotas.iter().map(label).map(with_bytes));
        self.quotas.extend(quotas.iter().map(|quota| quota.to_string().into()));
        self
    }

    /// A value that a framework integration derives once, such as headers of its own type. `None` if another
    /// integration was first.
    #[inline]
    pub fn get_or_cache<T: Any + Send + Sync>(&self, make: impl FnOnce(&Self) -> T) -> Option<&T> {
        self.cache.get_or_init(|| Box::new(make(self))).downcast_ref()
    }

    /// Differs from that of all other fields of this process.
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Whether all of the quotas apply to a call, or one tier that it selects.
    #[inline]
    pub fn selection(&self) -> QuotaSelection {
        self.selection
    }

    /// What the quotas count.
    #[inline]
    pub fn unit(&self) -> CostUnit {
        self.unit
    }

    /// The only quota that applies to a decision by the quota at this index; `None` if all declared ones apply.
    #[inline]
    pub fn selected(&self, quota: usize) -> Option<usize> {
        (self.selection == QuotaSelection::Tier || self.is_override(quota)).then_some(quota)
    }

    /// Whether the quota at this index is that of an override.
    #[inline]
    pub fn is_override(&self, quota: usize) -> bool {
        quota >= self.declared
    }

    /// The field of the quota at this index.
    #[inline]
    pub fn get(&self, quota: usize) -> Option<&PolicyField> {
        self.entries.get(quota).map(|(label, _)| label)
    }

    /// The quota at this index, as text.
    #[inline]
    pub fn quota(&self, quota: usize) -> Option<&str> {
        self.quotas.get(quota).map(|quota| &**quota)
    }

    /// The fields of all declared quotas, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &PolicyField> {
        self.entries.iter().take(self.declared).map(|(label, _)| label)
    }

    /// The items of `RateLimit-Policy` for all quotas, as shared bytes.
    #[inline]
    pub fn policy(&self) -> &Bytes {
        &self.joined
    }

    /// The `RateLimit-Policy` item of one quota.
    #[inline]
    pub fn policy_at(&self, quota: usize) -> Option<&Bytes> {
        self.entries.get(quota).map(|(_, policy)| policy)
    }
}

fn with_bytes(label: PolicyField) -> (PolicyField, Bytes) {
    let policy = Bytes::copy_from_slice(label.policy().as_bytes());
    (label, policy)
}
