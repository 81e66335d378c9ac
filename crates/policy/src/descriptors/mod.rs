//! Limits by descriptors: what a decision service for Envoy is configured by.
//!
//! A request names a domain and descriptors, each a list of entries (`key`, `value`). A domain is a tree of such entries, and a
//! limit applies to a descriptor that ends exactly where the limit stands.
//!
//! ```text
//!   domain shop ─▶ (user) ─▶ 100 per minute
//!               ╰▶ (path, /search) ─▶ (user) ─▶ 5 per second
//! ```
//!
//! | noun | is |
//! |---|---|
//! | [`DescriptorSet`] | all domains, read from files of the form that envoyproxy/ratelimit reads |
//! | [`DescriptorEntry`] | a key and a value of a request |
//! | [`DescriptorLimit`] | what a place in the tree says |
//! | [`DescriptorMatch`] | a limit that applies, and as what it is counted |

mod error;
mod model;
mod raw;
mod read;
mod set;
mod tree;

pub use error::DescriptorError;
pub use raw::{RawDescriptor, RawDomain, RawLimit};
pub use set::{DescriptorFile, DescriptorSet, DomainMerge};
pub use tree::Domain;

pub use model::{
    CalendarUnit, DescriptorAmount, DescriptorEntry, DescriptorFlags, DescriptorLimit, DescriptorMatch,
    MetricName,
};
