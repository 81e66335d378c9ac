//! Who may come in at all: deny and allow lists, and bans that end by themselves.
//!
//! ```text
//!            ┌─ allowed by the list ───────────────▶ Allowed
//!   request ─┼─ denied by the list ────────────────▶ Denied
//!            └─ not listed ─┬─ banned ─────────────▶ Banned(remaining)
//!                           └─ not banned ─────────▶ Unlisted
//! ```

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
