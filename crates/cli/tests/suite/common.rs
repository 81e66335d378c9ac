//! Runs the binary.

#![allow(clippy::expect_used, reason = "this is how a test fails")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

pub(crate) fn run_tidegate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate")).args(args).output().expect("the program runs")
}

pub(crate) fn utf8_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The commands that `tidegate --help` lists.
pub(crate) fn command_names() -> Vec<String> {
    let help = utf8_text(&run_tidegate(&["--help"]).stdout);
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next());
    let names: Vec<_> = names.map(str::to_owned).collect();
    assert!(["check", "top"].iter().all(|name| names.iter().any(|known| known == name)), "{names:?}");
    names
}

/// Writes a file of one test; names must be unique across tests.
pub(crate) fn write_file(name: &str, content: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, content).expect("the file is written");
    path
}
