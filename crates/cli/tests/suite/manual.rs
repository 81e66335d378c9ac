//! Completions and man pages: shells and groff accept them.

#![cfg(target_os = "linux")]
#![allow(clippy::expect_used, reason = "this is how a test fails")]

use crate::common::{command_names, run_tidegate, utf8_text};
use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};
use tidegate_testkit::servers::skip_without;

/// Runs a program with this input. Returns whether it succeeded and its output; `None` if it is not installed.
fn run_with_input(program: &str, args: &[&str], input: &str) -> Option<(bool, String)> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        skip_without(program);
        return None;
    };
    let mut stdin = child.stdin.take()?;
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().expect("the program exits");
    writer.join().expect("the writer does not panic").expect("the program reads its input");
    Some((output.status.success(), utf8_text(&output.stdout) + &utf8_text(&output.stderr)))
}

fn completion_script(shell: &str) -> String {
    let output = run_tidegate(&["completions", shell]);
    assert!(output.status.success(), "{shell}: {}", utf8_text(&output.stderr));
    let script = utf8_text(&output.stdout);
    for word in ["suggest", "target-keys"] {
        assert!(script.contains(word), "{word} is missing for {shell}");
    }
    script
}

#[test]
fn shells_accept_their_completions() {
    for (shell, args) in [("bash", ["-n"].as_slice()), ("zsh", &["-n"]), ("fish", &["--no-execute"])] {
        let script = completion_script(shell);
        if let Some((is_valid, output)) = run_with_input(shell, args, &script) {
            assert!(is_valid, "{shell}: {output}");
        }
    }
    completion_script("elvish");
    completion_script("powershell");
    let output = run_tidegate(&["completions", "tcsh"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(utf8_text(&output.stderr).contains("bash"), "{}", utf8_text(&output.stderr));
}

#[test]
fn bash_completes_command_and_option() {
    let script = completion_script("bash");
    for (words, index, expected) in
        [("tidegate sug", 1, "suggest"), ("tidegate suggest --target-k", 2, "--target-keys")]
    {
        let last = words.rsplit(' ').next().unwrap_or_default();
        let input = format!(
            "{script}\nCOMP_WORDS=({words}); COMP_CWORD={index}\n_tidegate tidegate '{last}' tidegate; echo \"${{COMPREPLY[*]}}\"\n"
        );
        let (_, output) = run_with_input("bash", &[], &input).expect("bash is installed");
        assert_eq!(output.trim(), expected, "{words}");
    }
}

#[test]
fn fish_completes_command_and_option() {
    let script = completion_script("fish");
    for (words, expected) in [("tidegate sug", "suggest"), ("tidegate suggest --target-k", "--target-keys")] {
        let input = format!("{script}\ncomplete -C '{words}'\n");
        let Some((_, output)) = run_with_input("fish", &[], &input) else { return };
        assert_eq!(output.split_whitespace().next(), Some(expected), "{words}: {output}");
    }
}

#[test]
fn every_command_has_a_valid_man_page() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("manual/man1");
    let output = run_tidegate(&["man", folder.to_str().expect("a name in UTF-8")]);
    assert!(output.status.success(), "{}", utf8_text(&output.stderr));
    for command in command_names().iter().filter(|name| *name != "help") {
        assert!(folder.join(format!("tidegate-{command}.1")).is_file(), "no page for {command}");
    }
    let pages = fs::read_dir(&folder).expect("the folder exists");
    for page in pages.map(|page| page.expect("a page").path()) {
        let source = fs::read_to_string(&page).expect("the page is text");
        assert!(source.contains("\n.TH tidegate") && source.contains("\n.SH NAME"), "{}", page.display());
        // All warnings, without output.
        if let Some((is_valid, output)) = run_with_input("groff", &["-man", "-ww", "-z"], &source) {
            assert!(is_valid && output.is_empty(), "{}: {output}", page.display());
        }
    }
    let main = run_tidegate(&["man"]);
    let own = fs::read(folder.join("tidegate.1")).expect("a page for the program");
    assert_eq!(utf8_text(&main.stdout), utf8_text(&own));
}
