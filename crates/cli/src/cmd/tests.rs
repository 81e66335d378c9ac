//! The command reference: the published page is current, and every argument is described.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use super::Cli;
use crate::error::CliError;
use clap::{Arg, Command, CommandFactory as _};
use std::{env, fmt::Write as _, fs, path::Path};

const HEADER: &str = "# Command reference

This page lists every command of `tidegate` with its arguments. It is generated from the parser of the command line;
`TIDEGATE_BLESS=1 cargo test -p tidegate-cli --bin tidegate reference` writes it. `tidegate COMMAND --help` prints the same, and
`tidegate man` writes man pages. [environment.md](environment.md) lists the environment variables.
";

/// The exit codes and their meanings.
const EXIT_CODES: [(u8, &str); 4] = [
    (0, "Success, or a closed standard output."),
    (1, "The output could not be written."),
    (2, "Invalid arguments or input."),
    (3, "`check --strict` found warnings, or `bench --expect` found differences."),
];

/// Set `TIDEGATE_BLESS` to regenerate it.
#[test]
fn published_command_reference_is_current() {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    let mut page = HEADER.to_owned();
    page.push_str("\n## Exit codes\n\n| code | meaning |\n|---|---|\n");
    for (code, meaning) in EXIT_CODES {
        writeln!(page, "| {code} | {meaning} |").unwrap();
    }
    for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
        write_command(&mut page, command);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli-reference.md");
    if env::var_os("TIDEGATE_BLESS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let published = fs::read_to_string(&path).unwrap_or_default();
    assert!(published == page, "docs/cli-reference.md is outdated; run this test with TIDEGATE_BLESS=1");
}

#[test]
fn every_exit_code_is_listed() {
    let text = String::new;
    let errors = [
        CliError::Input(text()),
        CliError::Warnings(text()),
        CliError::Mismatch(text()),
        CliError::Output(text()),
    ];
    for error in errors {
        assert!(EXIT_CODES.iter().any(|(code, _)| *code == error.exit_code()), "{error:?}");
    }
}

fn write_command(page: &mut String, command: &Command) {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap();
    let name: Vec<_> = usage
        .split(' ')
        .take_while(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
        .collect();
    let about =
        command.get_long_about().or(command.get_about()).unwrap_or_else(|| panic!("no description: {usage}"));
    write!(
        page,
        "\n## `{}`\n\n{}\n\n```text,format\n{usage}\n```\n",
        name.join(" "),
        one_line(&about.to_string())
    )
    .unwrap();
    let arguments: Vec<_> = command.get_arguments().filter(|argument| is_shown(argument)).collect();
    if !arguments.is_empty() {
        page.push_str("\n| argument | default | meaning |\n|---|---|---|\n");
    }
    for argument in arguments {
        let help = argument.get_long_help().or(argument.get_help());
        let help =
            help.unwrap_or_else(|| panic!("{}: no description of {}", name.join(" "), argument.get_id()));
        let help = one_line(&help.to_string());
        // Some defaults depend on the environment or on other arguments.
        let (help, declared) = match help.split_once(" [default: ") {
            Some((help, rest)) => {
                let (declared, after) = rest.split_once(']').unwrap();
                (format!("{help}{after}"), Some(declared.to_owned()))
            }
            None => (help, None),
        };
        let values: Vec<_> = argument
            .get_default_values()
            .iter()
            .filter(|value| !value.is_empty())
            .map(|value| format!("`{}`", value.to_string_lossy()))
            .collect();
        let is_flag = !argument.get_action().takes_values();
        let default = match declared {
            Some(declared) => declared,
            None if argument.is_required_set() => "required".to_owned(),
            None if is_flag => String::new(),
            None => values.join(", "),
        };
        let words = argument.get_possible_values();
        let words: Vec<_> = words
            .iter()
            .filter(|word| !word.is_hide_set())
            .map(|word| format!("`{}`", word.get_name()))
            .collect();
        let words = match words.is_empty() || is_flag {
            true => String::new(),
            false => format!(" One of {}.", words.join(", ")),
        };
        let help = help.trim_end_matches('.').replace('|', "\\|");
        writeln!(page, "| `{}` | {} | {help}.{words} |", signature(argument), default.replace('|', "\\|"))
            .unwrap();
    }
    if let Some(examples) = command.get_after_long_help().or(command.get_after_help()) {
        write!(page, "\n```text,format\n{}\n```\n", examples.to_string().trim_end()).unwrap();
    }
    for inner in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write_command(page, inner);
    }
}

fn is_shown(argument: &Arg) -> bool {
    !argument.is_hide_set() && !matches!(argument.get_id().as_str(), "help" | "version")
}

/// `-n, --count <COUNT>`, or `<FILE>`.
fn signature(argument: &Arg) -> String {
    if argument.is_positional() {
        return argument.to_string();
    }
    let short = argument.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    format!("{short}{argument}")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
