//! Descriptors: the configuration of a rate limit service for Envoy.
//!
//! A request names a domain and descriptors, each a list of entries (`key`, `value`). A domain is a tree of such entries. A
//! limit applies to a descriptor whose last entry matches the node of the limit.
//!
//! ```text
//!   domain shop ─▶ (user) ─▶ 100 per minute
//!               ╰▶ (path, /search) ─▶ (user) ─▶ 5 per second
//! ```
//!
//! | type | meaning |
//! |---|---|
//! | [`DescriptorSet`] | all domains, read from files in the format of envoyproxy/ratelimit |
//! | [`DescriptorEntry`] | a key and a value of a request |
//! | [`DescriptorLimit`] | the limit of a node in the tree |
//! | [`DescriptorMatch`] | a limit that applies, and the entries of its counter |

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
