//! The published pages are current.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use super::{Language, policy_reference};
use std::{env, fs, path::Path};

/// Set `TIDEGATE_BLESS` to regenerate the pages.
#[test]
fn published_references_are_current() {
    for (file, language) in
        [("policy-reference.md", Language::English), ("zh/policy-reference.md", Language::Chinese)]
    {
        let page = policy_reference(language).unwrap_or_else(|faults| panic!("{}", faults.join("\n")));
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(file);
        if env::var_os("TIDEGATE_BLESS").is_some() {
            fs::write(&path, &page).unwrap();
        }
        let published = fs::read_to_string(&path).unwrap_or_default();
        assert!(published == page, "docs/{file} is outdated; run this test with TIDEGATE_BLESS=1");
    }
}
