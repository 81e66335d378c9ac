//! Golden files of error messages, and a check that tests cover every message of a crate.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{env, fmt::Write as _, fs, path::Path};

/// Compares a file of cases with the messages that `messages_of` returns for each.
///
/// An empty line separates cases, and each expected message starts with `=> `. Set `TIDEGATE_BLESS` to rewrite the file,
/// then review the changes.
///
/// # Panics
///
/// Panics if a message differs.
pub fn compare_cases(path: &Path, messages_of: impl Fn(&str) -> Vec<String>) {
    let written = fs::read_to_string(path).unwrap();
    let mut found = String::new();
    for case in written.split("\n\n").filter(|case| !case.trim().is_empty()) {
        let file: Vec<_> = case.lines().filter(|line| !line.starts_with("=> ")).collect();
        let text = file.join("\n");
        writeln!(found, "{text}").unwrap();
        for line in messages_of(&text) {
            writeln!(found, "=> {line}").unwrap();
        }
        writeln!(found).unwrap();
    }
    let (found, expected) = (found.trim_end(), written.trim_end());
    if env::var_os("TIDEGATE_BLESS").is_some() {
        return fs::write(path, format!("{found}\n")).unwrap();
    }
    for (expected, found) in expected.split("\n\n").zip(found.split("\n\n")) {
        assert_eq!(found, expected);
    }
    assert_eq!(found, expected);
}

/// Asserts that a test contains every error message of the crate in `root`: one of the `tables`, `tests/suite`, or the
/// tests of the same file.
///
/// `tested_elsewhere` lists exceptions with the place of their test, and `skipped` the file names to ignore. There must
/// be at least `min_count` messages.
///
/// # Panics
///
/// Panics if no test contains a message, or if there are fewer messages.
pub fn assert_all_tested(
    root: &Path,
    tables: &[&str],
    tested_elsewhere: &[(&str, &str)],
    skipped: &[&str],
    min_count: usize,
) {
    let mut shown: Vec<String> =
        tables.iter().map(|table| fs::read_to_string(root.join(table)).unwrap()).collect();
    let mut sources = Vec::new();
    visit_files(&root.join("tests/suite"), &mut |_, text| shown.push(texts(&text)));
    visit_files(&root.join("src"), &mut |path, text| match path.ends_with("tests.rs") {
        true => shown.push(texts(&text)),
        false if skipped.iter().any(|name| path.ends_with(name)) => {}
        false => sources.push((path.to_owned(), text)),
    });
    let shown = shown.join("\n");
    let (mut missing, mut count) = (Vec::new(), 0);
    for (path, text) in &sources {
        let (text, tests) = text.split_once("#[cfg(test)]").unwrap_or((text, ""));
        let here = texts(tests);
        for literal in
            string_literals(text).into_iter().map(|literal| literal.text).filter(|text| is_message(text))
        {
            count += 1;
            let is_elsewhere = tested_elsewhere.iter().any(|(text, _)| *text == literal);
            if !is_elsewhere && !is_contained(&literal, &shown) && !is_contained(&literal, &here) {
                missing.push(format!("{}: {literal}", path.strip_prefix(root).unwrap().display()));
            }
        }
    }
    assert!(count >= min_count, "found {count} messages, expected at least {min_count}");
    assert!(missing.is_empty(), "untested messages; add a case to {tables:?}:\n{}", missing.join("\n"));
}

/// Calls `each` with the path and the text of every Rust file in a folder, in the order of their names.
///
/// # Panics
///
/// Panics if a file cannot be read.
pub fn visit_files(folder: &Path, each: &mut dyn FnMut(&Path, String)) {
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        match path.extension().and_then(|extension| extension.to_str()) {
            None if path.is_dir() => visit_files(&path, each),
            Some("rs") => each(&path, fs::read_to_string(&path).unwrap()),
            _ => {}
        }
    }
}

/// A string literal of a Rust source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Literal {
    /// The text between the quotes, with escapes resolved.
    pub text: String,
    /// The offset of its opening quote.
    pub start: usize,
    /// The offset after its closing quote.
    pub end: usize,
}

/// The string literals of a Rust source, without comments.
pub fn string_literals(program: &str) -> Vec<Literal> {
    let (mut found, mut start) = (Vec::new(), 0);
    while let Some(offset) = program.get(start..).and_then(|rest| rest.find(['"', '\'', '/'])) {
        start += offset;
        let rest = &program[start..];
        start += match rest.as_bytes() {
            [b'/', b'/', ..] => rest.find('\n').unwrap_or(rest.len()),
            [b'\'', b'\\', ..] => 4,
            [b'\'', _, b'\'', ..] => 3,
            [b'"', ..] => {
                let (text, length) = parse_literal(&rest[1..]);
                found.push(Literal { text, start, end: start + length + 1 });
                length + 1
            }
            _ => 1,
        };
    }
    found
}

fn texts(program: &str) -> String {
    string_literals(program).into_iter().map(|literal| literal.text).collect::<Vec<_>>().join("\n")
}

/// The text of a literal, and its length in the source.
fn parse_literal(rest: &str) -> (String, usize) {
    let (mut text, mut signs) = (String::new(), rest.char_indices());
    while let Some((at, sign)) = signs.next() {
        match sign {
            '"' => return (text, at + 1),
            '\\' => match signs.next() {
                Some((_, '\n')) => {
                    let behind = signs.as_str();
                    let spaces = behind.len() - behind.trim_start().len();
                    signs.by_ref().take(behind[..spaces].chars().count()).for_each(drop);
                }
                Some((_, 'n')) => text.push('\n'),
                Some((_, sign)) => text.push(sign),
                None => {}
            },
            sign => text.push(sign),
        }
    }
    (text, rest.len())
}

/// Whether a text is an error message: at least three words, with a lower-case start. Descriptions of keys start with a
/// capital, and examples of values with a digit.
pub fn is_message(text: &str) -> bool {
    let is_sentence =
        text.trim().matches(' ').count() >= 2 && !text.starts_with(|first: char| first.is_uppercase());
    let is_example = text.starts_with(|first: char| first.is_ascii_digit());
    is_sentence && !is_example && !text.starts_with(' ')
}

/// Whether one line of `shown` contains the parts of a text between its `{}`, in order.
fn is_contained(text: &str, shown: &str) -> bool {
    let plain = text.replace("{{", "\u{1}").replace("}}", "\u{2}");
    let mut parts = vec![String::new()];
    let mut rest = plain.as_str();
    while let Some((before, behind)) = rest.split_once('{') {
        parts.last_mut().unwrap().push_str(before);
        parts.push(String::new());
        rest = behind.split_once('}').map_or("", |(_, behind)| behind);
    }
    parts.last_mut().unwrap().push_str(rest);
    let parts: Vec<_> = parts.iter().map(|part| part.replace('\u{1}', "{").replace('\u{2}', "}")).collect();
    shown.lines().any(|line| {
        let mut rest = Some(line);
        parts.iter().for_each(|part| {
            rest = rest.and_then(|line| line.find(part.as_str()).map(|at| &line[at + part.len()..]));
        });
        rest.is_some()
    })
}
