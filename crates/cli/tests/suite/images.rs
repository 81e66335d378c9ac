//! Checks that the images and figures in the documentation match the output of their commands.

#![allow(clippy::unwrap_used, reason = "a test that cannot run its subject has failed")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

#[test]
fn quotas_image_is_current() {
    check_image("simulate.svg", &[]);
}

#[test]
fn surge_image_is_current() {
    check_image("overload-surge-10.svg", &["--closed-loop", "surge-10"]);
}

#[test]
fn retry_storm_image_is_current() {
    check_image("overload-retry-storm.svg", &["--closed-loop", "retry-storm"]);
}

#[test]
fn overload_figures_are_current() {
    let arguments = ["--closed-loop", "--seeds", "9"];
    let document = fs::read_to_string(docs_path().join("overload.md")).unwrap();
    let (_, figures) = document.split_once("<!-- figures -->\n```text\n").unwrap();
    let (figures, _) = figures.split_once("```\n<!-- end -->").unwrap();
    let printed = run_simulate(&arguments);
    assert!(
        figures == printed,
        "the figures in docs/overload.md are outdated; run: \
         cargo run --release -- simulate {}\nand insert its output:\n{printed}",
        arguments.join(" ")
    );
}

/// Checks that an image of the documentation equals the output, byte for byte.
fn check_image(name: &str, arguments: &[&str]) {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    run_simulate(&[arguments, &["--svg", path.to_str().unwrap()]].concat());
    assert!(
        fs::read(path).unwrap() == fs::read(docs_path().join(name)).unwrap(),
        "docs/{name} is outdated; run: cargo run --release -- simulate {}",
        [arguments, &["--svg", &format!("docs/{name}")]].concat().join(" ")
    );
}

/// Runs `tidegate simulate`. Returns its output.
fn run_simulate(arguments: &[&str]) -> String {
    let run = Command::new(env!("CARGO_BIN_EXE_tidegate")).arg("simulate").args(arguments).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

fn docs_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}
