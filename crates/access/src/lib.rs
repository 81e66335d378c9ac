//! Who may come in at all: deny and allow lists, and bans that end by themselves.
//!
//! ```text
//!            ┌─ allowed by the list ───────────────▶ Allowed
//!   request ─┼─ denied by the list ────────────────▶ Denied
//!            └─ not listed ─┬─ banned ─────────────▶ Banned(remaining)
//!                           └─ not banned ─────────▶ Unlisted
//! ```

mod automatic;
mod bans;
mod build;
mod control;
mod keys;
mod list;
mod prefix;
mod ranges;
mod text;

pub use automatic::BanRule;
pub use bans::{BanOutcome, BanStats, BannedKey, Bans, BansBuilder};
pub use build::{AccessListBuilder, ListError, ListProblem};
pub use control::{AccessControl, Standing};
pub use list::{Access, AccessList, Stance};
pub use prefix::Prefix;
