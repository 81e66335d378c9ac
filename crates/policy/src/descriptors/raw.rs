//! Descriptors before validation, from files or xDS. Strings are owned, or borrowed from a file.

use super::DescriptorFlags;

/// A domain, from a document of a file or an xDS resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawDomain<T = String> {
    /// The name of the file or of the resource, for errors.
    pub source: T,
    /// `domain`
    pub domain: T,
    /// `descriptors`
    pub descriptors: Vec<RawDescriptor<T>>,
}

/// A node of a domain. Missing strings are empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawDescriptor<T = String> {
    /// `key`
    pub key: T,
    /// `value`
    pub value: T,
    /// `rate_limit`
    pub rate_limit: Option<RawLimit<T>>,
    /// `shadow_mode` and other flags.
    pub flags: DescriptorFlags,
    /// `metadata`, as JSON.
    pub metadata: Option<serde_json::Value>,
    /// `descriptors`
    pub descriptors: Vec<Self>,
}

/// A limit of a descriptor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawLimit<T = String> {
    /// `unit`, in upper or lower case.
    pub unit: T,
    /// `requests_per_unit`; 0 if `None`.
    pub requests_per_unit: Option<u32>,
    /// `unlimited`
    pub unlimited: bool,
    /// `name`
    pub name: T,
    /// The `name` of each of `replaces`.
    pub replaces: Vec<T>,
    /// `quotas`, such as `100/min burst 20`.
    pub quotas: Vec<T>,
    /// `lease`, such as `200ms`; empty if missing.
    pub lease: T,
}
