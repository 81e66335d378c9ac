//! Allow and deny lists, and temporary bans, for addresses and keys.
//!
//! ```text
//!            ┌─ allowed by the list ───────────────▶ Allowed
//!   request ─┼─ denied by the list ────────────────▶ Denied
//!            └─ not listed ─┬─ banned ─────────────▶ Banned(remaining)
//!                           └─ not banned ─────────▶ Unlisted
//! ```
//!
//! ```
//! use std::{net::IpAddr, time::Duration};
//! use tidegate_access::{AccessControl, AccessDecision, Bans};
//!
//! let control = AccessControl::new("deny 10.0.0.0/8".parse()?, Bans::builder().build()?);
//! let (listed, other): (IpAddr, IpAddr) = ("10.1.2.3".parse()?, "192.0.2.7".parse()?);
//! assert_eq!(control.check(listed), AccessDecision::Denied);
//! control.bans().ban(&other, Duration::from_secs(60));
//! assert!(matches!(control.check(other), AccessDecision::Banned(_)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | noun | meaning |
//! |---|---|
//! | [`AccessControl`] | a list and bans together |
//! | [`AccessList`] | allowed and denied addresses, prefixes and keys |
//! | [`Prefix`] | an address or a range of addresses: `10.0.0.0/8` |
//! | [`Bans`] | a bounded table of temporary bans |
//! | [`BanRule`] | bans a key after repeated denials: `10/min for 1h` |
//!
//! It does not
//!
//! - find the client address of a request: `tidegate-rule` does;
//! - persist bans or share them between processes.

mod ban_rule;
mod bans;
mod build;
mod control;
mod keys;
mod list;
mod parse;
mod prefix;
mod ranges;

pub use ban_rule::BanRule;
pub use bans::{BanOutcome, BanStats, BannedKey, Bans, BansBuilder};
pub use build::{AccessListBuilder, ListError, ListProblem};
pub use control::{AccessControl, AccessDecision};
pub use list::{AccessList, AccessMatch, ListAction};
pub use prefix::Prefix;
