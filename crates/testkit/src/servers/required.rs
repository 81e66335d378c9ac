//! Optional components of the test machine.

use std::env;

/// Reports that a test is skipped because `component` is not installed.
///
/// # Panics
///
/// Panics if every component is required (`TIDEGATE_REQUIRE_ALL=1`).
#[allow(clippy::panic, reason = "tests fail by panicking")]
pub fn skip_without(component: &str) {
    if env::var_os("TIDEGATE_REQUIRE_ALL").is_some_and(|required| required == "1") {
        panic!("{component} is not installed and TIDEGATE_REQUIRE_ALL=1 requires it; run scripts/install");
    }
    println!("skipped: {component} is not installed; run scripts/install");
}
