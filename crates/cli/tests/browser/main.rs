//! The dashboard in a real browser: `tests/browser` drives Chromium against this binary.

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
        () => None,
    }
}

#[test]
fn dashboard_works_in_a_browser() {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if let Some(missing) = missing_tool(&root) {
        tidegate_testkit::servers::skip_without(missing);
        return;
    }
    let tests = root.join("tests/browser");
    let run = Command::new("node")
        .args(["--test", "--test-concurrency=2", "--test-reporter=spec"])
        .args([
            "dashboard.test.js",
            "language.test.js",
            "changes.test.js",
            "promotion.test.js",
            "overload.test.js",
            "lifecycle.test.js",
            "report.test.js",
        ])
        .current_dir(tests)
        .env("TIDEGATE", env!("CARGO_BIN_EXE_tidegate"))
        .env("TIDEGATE_BROWSER", root.join(MODULES))
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{output}\n{}", String::from_utf8_lossy(&run.stderr));
    println!("{output}");
}
