//! Pictures and figures in the documents are what their commands draw and print now.

#![allow(clippy::unwrap_used, reason = "a test that cannot run its subject has failed")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

#[test]
fn the_picture_of_quotas() {
    drawn("simulate.svg", &[]);
}

#[test]
fn the_picture_of_a_surge() {
    drawn("overload-surge-10.svg", &["--closed-loop", "surge-10"]);
}

#[test]
fn the_picture_of_a_retry_storm() {
    drawn("overload-retry-storm.svg", &["--closed-loop", "retry-storm"]);
}

#[test]
fn the_figures_of_overload() {
    let arguments = ["--closed-loop", "--seeds", "9"];
    let document = fs::read_to_string(docs().join("overload.md")).unwrap();
    let (_, figures) = document.split_once("<!-- figures -->\n```text\n").unwrap();
    let (figures, _) = figures.split_once("```\n<!-- end -->").unwrap();
    let printed = simulate(&arguments);
    assert!(
        figures == printed,
        "the figures in docs/overload.md are not what the simulation shows now; run: \
         cargo run --release -- simulate {}\nand put what it prints there:\n{printed}",
        arguments.join(" ")
    );
}

/// A picture of the documents is what this draws, to the byte.
fn drawn(name: &str, arguments: &[&str]) {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    simulate(&[arguments, &["--svg", path.to_str().unwrap()]].concat());
    assert!(
        fs::read(path).unwrap() == fs::read(docs().join(name)).unwrap(),
        "docs/{name} is not what the simulation shows now; run: cargo run --release -- simulate {}",
        [arguments, &["--svg", &format!("docs/{name}")]].concat().join(" ")
    );
}

/// What it prints.
fn simulate(arguments: &[&str]) -> String {
    let run = Command::new(env!("CARGO_BIN_EXE_tidegate")).arg("simulate").args(arguments).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}
