//! Collects every log event and every error message of the workspace into `docs/messages.md`, so that a person can read them
//! from top to bottom. Set `TIDEGATE_BLESS` to write the file anew, and read what has changed.

#![allow(clippy::unwrap_used, reason = "this is how a test fails")]

use std::{collections::BTreeSet, env, fmt::Write as _, fs, path::Path};
use tidegate_testkit::error_texts::{Literal, is_message, string_literals, visit_files};

const HEADER: &str = "# Messages\n\nEvery log event with its meaning, and every error message, collected from the source. `{}` stands for a value.\n\
    `TIDEGATE_BLESS=1 cargo test -p tidegate-testkit --test messages` writes this file.\n";

/// Crates whose messages no user reads.
const INTERNAL: [&str; 4] = ["bench", "programs", "proto", "testkit"];

#[test]
fn messages_page_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut crates: Vec<_> =
        fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path()).collect();
    crates.sort();
    let mut page = HEADER.to_owned();
    let (mut event_count, mut message_count) = (0, 0);
    for folder in crates {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        if INTERNAL.contains(&name.as_str()) || !folder.join("src").is_dir() {
            continue;
        }
        let (mut events, mut messages) = (BTreeSet::new(), BTreeSet::new());
        visit_files(&folder.join("src"), &mut |path, text| {
            if path.ends_with("tests.rs") || path.ends_with("loom.rs") {
                return;
            }
            let program = text.split("#[cfg(test)]").next().unwrap_or_default();
            events.extend(log_events(program));
            messages.extend(error_messages(program));
        });
        messages.retain(|message| !events.iter().any(|event| event.message == *message));
        (event_count, message_count) = (event_count + events.len(), message_count + messages.len());
        if !events.is_empty() || !messages.is_empty() {
            write!(page, "\n## {name}\n").unwrap();
        }
        if !events.is_empty() {
            page.push_str("\n| level | log event | meaning | fields |\n|---|---|---|---|\n");
            for LogEvent { level, message, meaning, fields } in &events {
                writeln!(page, "| {level} | {message} | {meaning} | {} |", fields.join(", ")).unwrap();
            }
        }
        if !messages.is_empty() {
            page.push('\n');
            for message in &messages {
                writeln!(page, "- {}", message.replace('\n', " ⏎ ").replace('|', "\\|")).unwrap();
            }
        }
    }
    assert!(
        event_count > 40 && message_count > 500,
        "only {event_count} events and {message_count} messages were found"
    );
    let path = root.join("docs/messages.md");
    if env::var_os("TIDEGATE_BLESS").is_some() {
        return fs::write(path, page).unwrap();
    }
    let written = fs::read_to_string(path).unwrap_or_default();
    for (line, (written, found)) in written.lines().zip(page.lines()).enumerate() {
        assert_eq!(written, found, "docs/messages.md:{}: run the command at its top", line + 1);
    }
    assert_eq!(written.lines().count(), page.lines().count(), "docs/messages.md: run the command at its top");
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct LogEvent {
    level: String,
    message: String,
    /// The documentation of its struct.
    meaning: String,
    fields: Vec<String>,
}

/// The calls of `tracing`'s macros: level, constant message and field names.
fn log_events(program: &str) -> Vec<LogEvent> {
    let mut events = Vec::new();
    for (start, _) in program.match_indices("tracing::") {
        let call = &program[start + "tracing::".len()..];
        let Some((level, rest)) = call.split_once("!(") else { continue };
        if !["trace", "debug", "info", "warn", "error"].contains(&level) {
            continue;
        }
        let arguments = &rest[..end_of_arguments(rest)];
        let literals = string_literals(arguments);
        let Some(message) = literals.last() else { continue };
        assert!(!message.text.contains('{'), "the message of a log event is constant: {}", message.text);
        let fields = arguments[..message.start].split(',').filter_map(field_name).collect();
        let (level, message) = (level.to_owned(), message.text.clone());
        let meaning = last_struct_documentation(&program[..start]);
        assert!(!meaning.is_empty(), "the struct of a log event documents its meaning: {message}");
        events.push(LogEvent { level, message, meaning, fields });
    }
    events
}

/// The comment before the last struct.
fn last_struct_documentation(program: &str) -> String {
    let lines: Vec<_> = program.lines().map(str::trim).collect();
    let is_struct = |line: &&str| line.starts_with("pub(crate) struct ") || line.starts_with("pub struct ");
    let end = lines.iter().rposition(is_struct).unwrap_or_default();
    let comment = lines[..end].iter().rev().skip_while(|line| line.starts_with("#["));
    let mut comment: Vec<_> = comment.map_while(|line| line.strip_prefix("/// ")).collect();
    comment.reverse();
    comment.join(" ")
}

/// Where the parenthesis closes that was open at the start.
fn end_of_arguments(text: &str) -> usize {
    let literals = string_literals(text);
    let is_quoted = |at: usize| literals.iter().any(|literal| literal.start <= at && at < literal.end);
    let mut depth = 1;
    for (at, sign) in text.char_indices().filter(|(at, _)| !is_quoted(*at)) {
        depth = match sign {
            '(' => depth + 1,
            ')' => depth - 1,
            _ => depth,
        };
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// `file` of `file = %path.display()`, `error` of `%error`, `rules` of `self.rules`.
fn field_name(argument: &str) -> Option<String> {
    let name = argument.split('=').next()?.trim().trim_start_matches(['%', '?']);
    let name = name.rsplit('.').next()?.trim();
    let is_name =
        !name.is_empty() && name.chars().all(|sign| sign.is_alphanumeric() || sign == '_' || sign == '#');
    is_name.then(|| name.to_owned())
}

/// The texts that `Display` writes or that read like messages, without reasons of lints and texts of panics.
fn error_messages(program: &str) -> Vec<String> {
    let is_for_users = |literal: &Literal| {
        let before = program[..literal.start].trim_end();
        let is_for_developers = ["reason =", "expect(", "doc =", "must_use =", "unreachable!(", "assert!("]
            .iter()
            .any(|start| before.ends_with(start));
        let is_displayed =
            ["error(", "write!(f,", "f.write_str(", "f.pad("].iter().any(|start| before.ends_with(start));
        let has_words = literal.text.split_whitespace().filter(|word| word.len() > 1).count() > 1;
        !is_for_developers && (is_message(&literal.text) || is_displayed && has_words)
    };
    string_literals(program).into_iter().filter(is_for_users).map(|literal| literal.text).collect()
}
