//! Decisions for other programs: Envoy's rate limit service, and an HTTP API of decisions.
//!
//! | module | serves |
//! |---|---|
//! | [`descriptors`] | limits by descriptors, for Envoy and other clients of its protocol |
//! | [`decisions`] | the rules of a policy, over HTTP with JSON |

pub mod decisions;
pub mod descriptors;
mod reservations;
