//! Who may come in at all: deny and allow lists, and bans that end by themselves.
//!
//! ```text
//!            ┌─ allowed by the list ───────────────▶ Allowed
//!   request ─┼─ decide_denied by the list ────────────────▶ DenialCounts
//!            └─ not listed ─┬─ banned ─────────────▶ BanTarget(remaining)
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
