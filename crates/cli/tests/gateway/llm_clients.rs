//! The Python clients of OpenAI and Anthropic: `tests/llm_clients` runs them through the gateway.

use std::{path::Path, process::Command};

/// The directory into which scripts/install puts the clients.
const PACKAGES: &str = "target/servers/llm-clients";

#[test]
fn llm_clients_work_through_the_gateway() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let packages = root.join(PACKAGES);
    if !packages.is_dir() {
        tidegate_testkit::servers::skip_without("openai and anthropic");
        return;
    }
    let run = Command::new("python3")
        .args(["-m", "unittest", "--verbose", "test_clients"])
        .current_dir(root.join("tests/llm_clients"))
        .env("PYTHONPATH", packages)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TIDEGATE", env!("CARGO_BIN_EXE_tidegate"))
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{report}");
    println!("{report}");
}
