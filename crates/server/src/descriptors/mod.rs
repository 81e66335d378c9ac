//! The decision service: limits by descriptors, for Envoy and whoever speaks its protocol.
//!
//! ```text
//!   gRPC, /json ──▶ DomainAsk ──▶ DescriptorSet (which limits) ──▶ counters (how many) ──▶ DomainVerdict ──▶ gRPC, /json
//! ```
//!
//! Wires translate and decide nothing; counters know no wire.

mod ask;

pub use ask::{
    AskedDescriptor, DescriptorFault, DescriptorStatus, DomainAsk, DomainVerdict, OverLimit, Override,
};
