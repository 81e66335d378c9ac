//! The layer with headers, compared with tower_governor with `use_headers`.

use crate::tower_plain;
use tidegate::rule::HeaderStyle;
use tidegate_bench::{BenchResult, suite::Measurement};

pub(crate) const ABOUT: &str =
    "the same with the IETF draft headers, over tower_governor's time with `use_headers`";

pub(crate) fn measure() -> BenchResult<Measurement> {
    tower_plain::compare_with_governor("layer with headers", HeaderStyle::Ietf)
}
