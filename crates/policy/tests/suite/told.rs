//! Files of cases: what is read, and below it each line that is told of it.

#![allow(clippy::unwrap_used, reason = "this is how a test fails")]

use std::{env, fmt::Write as _, fs, path::Path};

/// Compares a file in `tests` with what is told of its cases now. Cases are parted by an empty line, and what is told starts
/// with `=> `. Set `TIDEGATE_BLESS` to write it anew, and read what has changed.
pub(crate) fn compare(name: &str, told_of: impl Fn(&str) -> Vec<String>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name);
    let told = fs::read_to_string(&path).unwrap();
    let mut found = String::new();
    for case in told.split("\n\n").filter(|case| !case.trim().is_empty()) {
        let file: Vec<_> = case.lines().filter(|line| !line.starts_with("=> ")).collect();
        let text = file.join("\n");
        writeln!(found, "{text}").unwrap();
        for line in told_of(&text) {
            writeln!(found, "=> {line}").unwrap();
        }
        writeln!(found).unwrap();
    }
    let (found, expected) = (found.trim_end(), told.trim_end());
    if env::var_os("TIDEGATE_BLESS").is_some() {
        return fs::write(path, format!("{found}\n")).unwrap();
    }
    for (expected, found) in expected.split("\n\n").zip(found.split("\n\n")) {
        assert_eq!(found, expected);
    }
    assert_eq!(found, expected);
}
