//! Descriptors as somebody says them, before they are checked: what files and xDS have in common. Texts are their own, or pieces
//! of a file.

use super::DescriptorFlags;

/// A domain that was said, by a document of a file or a resource of xDS.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawDomain<T = String> {
    /// What errors call it: the name of the file or of the resource.
    pub source: T,
    /// `domain`
    pub domain: T,
    /// `descriptors`
    pub descriptors: Vec<RawDescriptor<T>>,
}

/// A place of a tree that was said. Texts that were left out are empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawDescriptor<T = String> {
    /// `key`
    pub key: T,
    /// `value`
    pub value: T,
    /// `rate_limit`
    pub rate_limit: Option<RawLimit<T>>,
    /// `shadow_mode` and its like.
    pub flags: DescriptorFlags,
    /// `metadata`, as JSON.
    pub metadata: Option<serde_json::Value>,
    /// `descriptors`
    pub descriptors: Vec<Self>,
}

/// A limit that was said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawLimit<T = String> {
    /// `unit`, in upper or lower case.
    pub unit: T,
    /// `requests_per_unit`; none at all where it is left out.
    pub requests_per_unit: Option<u32>,
    /// `unlimited`
    pub unlimited: bool,
    /// `name`
    pub name: T,
    /// The `name` of each of `replaces`.
    pub replaces: Vec<T>,
    /// `quotas`, such as `100/min burst 20`.
    pub quotas: Vec<T>,
    /// `lease`, such as `200ms`; empty where it is left out.
    pub lease: T,
}
