//! Writes the tables of a run to `docs/benchmarks.md`.

use crate::{BenchResult, machine};
use std::{env, fs, path::Path};

/// Replaces the section of a suite by the results of this run.
pub fn write(suite: &str, text: &str) -> BenchResult<()> {
    let path = Path::new(machine::ROOT).join("docs/benchmarks.md");
    let at_path = |error| format!("{}: {error}", path.display());
    let old = fs::read_to_string(&path).map_err(at_path)?;
    let new = replace(&old, suite, text)?;
    Ok(fs::write(&path, new).map_err(at_path)?)
}

/// Replaces the text between the two markers of a suite.
fn replace(document: &str, suite: &str, text: &str) -> BenchResult<String> {
    let (begin, end) = (format!("<!-- {suite}: begin -->"), format!("<!-- {suite}: end -->"));
    let missing = || format!("docs/benchmarks.md lacks the markers `{begin}` and `{end}`");
    let (front, rest) = document.split_once(&begin).ok_or_else(missing)?;
    let (_, back) = rest.split_once(&end).ok_or_else(missing)?;
    Ok(format!("{front}{begin}\n\n{}\n\n{end}{back}", text.trim()))
}

/// Describes a run: date, commit, machine, compiler, and the versions of some crates.
pub fn describe_run(crates: &[&str]) -> BenchResult<String> {
    let env_or_unknown = |name| env::var(name).unwrap_or_else(|_| "unknown".to_owned());
    let mut versions = Vec::new();
    for name in crates {
        versions.push(format!("{name} {}", machine::locked_version(name)?));
    }
    Ok(format!(
        "Run on {} at `{}`: {}; {}; {}.\n\n",
        env_or_unknown("BENCH_DATE"),
        env_or_unknown("BENCH_COMMIT"),
        machine::describe(),
        env_or_unknown("BENCH_RUSTC"),
        versions.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_markers_is_replaced() {
        let old = "front\n<!-- a: begin -->\nold\n<!-- a: end -->\nback\n";
        let new = replace(old, "a", "new\n").unwrap();
        assert_eq!(new, "front\n<!-- a: begin -->\n\nnew\n\n<!-- a: end -->\nback\n");
        assert_eq!(replace(&new, "a", "new").unwrap(), new);
        assert!(replace(old, "b", "new").is_err());
    }
}
