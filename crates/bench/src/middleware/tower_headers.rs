//! The layer with headers, beside tower_governor's without.

use crate::tower_plain;
use tidegate::rule::HeaderStyle;
use tidegate_bench::{BenchResult, suite::Measurement};

pub(crate) const ABOUT: &str =
    "the same with the headers of the IETF's draft, over tower_governor's time without headers";

pub(crate) fn measure() -> BenchResult<Measurement> {
    tower_plain::compare_with_governor("layer with headers", HeaderStyle::Ietf)
}
