//! The layer with headers, beside tower_governor's without.

use crate::tower_plain;
use tidegate::rule::Fields;
use tidegate_bench::{Result, suite::Measured};

pub(crate) const ABOUT: &str =
    "the same with the headers of the IETF's draft, over tower_governor's time without headers";

pub(crate) fn measure() -> Result<Measured> {
    tower_plain::against_governor("layer with headers", Fields::Ietf)
}
