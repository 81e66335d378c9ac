//! Tests of a gateway between real clients and real servers, on loopback.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed step fails the test; skipped tests print why"
)]

mod admin_api;
mod bandwidth;
mod client_certificates;
mod costs;
mod decisions;
mod differential;
mod drain;
mod envoy;
mod explain;
mod fallback_cache;
mod fuzz;
mod harness;
mod http2_bodies;
mod http2_flow;
mod identity;
mod import;
mod invalid_responses;
mod keys;
mod limits;
mod load_balancing;
mod log;
mod normalization;
mod operator_roles;
mod overload;
mod overrides;
mod path_spellings;
mod policy;
mod policy_files;
mod proxy;
mod quotas;
mod rule_modes;
mod slow_peers;
mod smuggling;
mod timeouts;
mod tls;
mod traces;
mod trailers;
mod upgrades;
mod workers;
