//! Components that a machine may lack.

use std::env;

/// Skips a test because `component` is not installed. Where every component is required (`TIDEGATE_REQUIRE_ALL=1`), the test fails
/// instead.
///
/// # Panics
///
/// When every component is required.
#[allow(clippy::panic, reason = "this is how a test fails")]
pub fn skip_without(component: &str) {
    if env::var_os("TIDEGATE_REQUIRE_ALL").is_some_and(|required| required == "1") {
        panic!("{component} is not installed and TIDEGATE_REQUIRE_ALL=1 requires it; run scripts/install");
    }
    println!("skipped: {component} is not installed; run scripts/install");
}
