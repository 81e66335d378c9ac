//! The dashboard and the documentation site in a real browser: `tests/browser` drives Chromium.

#![allow(clippy::expect_used, reason = "this is how a test fails")]

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The directory into which scripts/install puts the modules of the tests.
const MODULES: &str = "target/servers/browser";

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Returns a missing tool, if there is one.
fn missing_tool(root: &Path) -> Option<&'static str> {
    match () {
        () if !is_installed("node") => Some("node"),
        () if !is_installed("chromium") => Some("chromium"),
        () if !root.join(MODULES).join("node_modules/playwright-core").is_dir() => Some("playwright-core"),
        () if !root.join("target/servers/site").is_dir() => Some("markdown-it-py"),
        () => None,
    }
}

/// Runs these files of `tests/browser`.
fn run_in_browser(files: &[&str]) {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if let Some(missing) = missing_tool(&root) {
        tidegate_testkit::servers::skip_without(missing);
        return;
    }
    let run = Command::new("node")
        .args(["--test", "--test-concurrency=2", "--test-reporter=spec"])
        .args(files)
        .current_dir(root.join("tests/browser"))
        .env("TIDEGATE", env!("CARGO_BIN_EXE_tidegate"))
        .env("TIDEGATE_BROWSER", root.join(MODULES))
        .output()
        .expect("node runs");
    let output = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{output}\n{}", String::from_utf8_lossy(&run.stderr));
    println!("{output}");
}

#[test]
fn dashboard_works_in_a_browser() {
    run_in_browser(&[
        "dashboard.test.js",
        "language.test.js",
        "changes.test.js",
        "promotion.test.js",
        "overload.test.js",
        "overrides.test.js",
        "lifecycle.test.js",
        "report.test.js",
    ]);
}

#[test]
fn documentation_site_works_in_a_browser() {
    run_in_browser(&["site.test.js"]);
}
