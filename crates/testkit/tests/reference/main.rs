//! The reference pages that are generated from files of the repository, or compared with them. Set `TIDEGATE_BLESS` to write them anew.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod admin_api;
mod environment;
mod http_api;
mod metrics;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// The folder of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn assert_current(file: &str, page: &str) {
    let path = root().join("docs").join(file);
    if env::var_os("TIDEGATE_BLESS").is_some() {
        fs::write(&path, page).unwrap();
    }
    let published = fs::read_to_string(&path).unwrap_or_default();
    assert!(published == page, "docs/{file} is outdated; run this test with TIDEGATE_BLESS=1");
}
