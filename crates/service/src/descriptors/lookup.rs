//! The interface between the service and its configuration.

use std::{fmt, sync::Arc};
use tidegate_policy::descriptors::{
    DescriptorEntry, DescriptorLimit, DescriptorMatch, DescriptorSet, Domain,
};

/// All domains of a configuration.
pub trait ConfigLookup: fmt::Debug + Send + Sync + 'static {
    /// The domain of this name, if it is loaded.
    fn domain(&self, name: &str) -> Option<&dyn DomainLookup>;

    /// Whether there is no domain.
    fn is_empty(&self) -> bool;

    /// All limits of all domains, in the same allocations that [`DomainLookup::find`] returns.
    fn limits(&self) -> Vec<Arc<DescriptorLimit>>;

    /// The content of `/rlconfig`: one line per limit.
    fn lines(&self) -> Vec<String>;
}

/// One domain of a configuration.
pub trait DomainLookup: fmt::Debug + Send + Sync {
    /// The limit of a descriptor with these entries.
    fn find<'a>(&'a self, entries: &'a [DescriptorEntry]) -> Option<DescriptorMatch<'a>>;
}

impl ConfigLookup for DescriptorSet {
    fn domain(&self, name: &str) -> Option<&dyn DomainLookup> {
        self.domain(name).map(|domain| domain as &dyn DomainLookup)
    }

    fn is_empty(&self) -> bool {
        self.domains().next().is_none()
    }

    fn limits(&self) -> Vec<Arc<DescriptorLimit>> {
        self.limits().cloned().collect()
    }

    fn lines(&self) -> Vec<String> {
        self.config_lines().collect()
    }
}

impl DomainLookup for Domain {
    fn find<'a>(&'a self, entries: &'a [DescriptorEntry]) -> Option<DescriptorMatch<'a>> {
        self.find(entries)
    }
}
