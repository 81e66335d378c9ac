//! Completions and the manual: that those who read them can.

#![allow(clippy::expect_used, reason = "this is how a test fails")]

use crate::common::{run_tidegate, utf8_text};
use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

const COMMANDS: [&str; 8] = ["check", "completions", "explain", "man", "replay", "serve", "suggest", "why"];

/// Gives a program this text; what it said, or `None` where it is not there.
fn run_with_input(program: &str, args: &[&str], input: &str) -> Option<(bool, String)> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().ok()?;
    let mut stdin = child.stdin.take()?;
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("it is written").expect("it is read");
    Some((output.status.success(), utf8_text(&output.stdout) + &utf8_text(&output.stderr)))
}

fn completion_script(shell: &str) -> String {
    let output = run_tidegate(&["completions", shell]);
    assert!(output.status.success(), "{shell}: {}", utf8_text(&output.stderr));
    let script = utf8_text(&output.stdout);
    for word in ["suggest", "target-keys"] {
        assert!(script.contains(word), "no word of {word} for {shell}");
    }
    script
}

#[test]
fn shells_accept_their_completions() {
    for (shell, args) in [("bash", ["-n"].as_slice()), ("zsh", &["-n"]), ("fish", &["--no-execute"])] {
        let script = completion_script(shell);
        // Where a shell is not there, nobody is served by it either.
        if let Some((is_fine, said)) = run_with_input(shell, args, &script) {
            assert!(is_fine, "{shell}: {said}");
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
    for (words, at, wanted) in
        [("tidegate sug", 1, "suggest"), ("tidegate suggest --target-k", 2, "--target-keys")]
    {
        let last = words.rsplit(' ').next().unwrap_or_default();
        let ask = format!(
            "{script}\nCOMP_WORDS=({words}); COMP_CWORD={at}\n_tidegate tidegate '{last}' tidegate; echo \"${{COMPREPLY[*]}}\"\n"
        );
        let (_, said) = run_with_input("bash", &[], &ask).expect("bash is there");
        assert_eq!(said.trim(), wanted, "{words}");
    }
}

/// Where a shell is not there, nobody is served by it either.
#[test]
fn fish_completes_command_and_option() {
    let script = completion_script("fish");
    for (words, wanted) in [("tidegate sug", "suggest"), ("tidegate suggest --target-k", "--target-keys")] {
        let ask = format!("{script}\ncomplete -C '{words}'\n");
        let Some((_, said)) = run_with_input("fish", &[], &ask) else { return };
        assert_eq!(said.split_whitespace().next(), Some(wanted), "{words}: {said}");
    }
}

#[test]
fn every_command_has_a_valid_man_page() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("manual/man1");
    let output = run_tidegate(&["man", folder.to_str().expect("a name in UTF-8")]);
    assert!(output.status.success(), "{}", utf8_text(&output.stderr));
    for verb in COMMANDS {
        assert!(folder.join(format!("tidegate-{verb}.1")).is_file(), "there is no page of {verb}");
    }
    let pages = fs::read_dir(&folder).expect("the folder is there");
    for page in pages.map(|page| page.expect("a page").path()) {
        let source = fs::read_to_string(&page).expect("it is text");
        assert!(source.contains("\n.TH tidegate") && source.contains("\n.SH NAME"), "{}", page.display());
        // All that it warns of, and nothing that is set.
        if let Some((is_fine, said)) = run_with_input("groff", &["-man", "-ww", "-z"], &source) {
            assert!(is_fine && said.is_empty(), "{}: {said}", page.display());
        }
    }
    let main = run_tidegate(&["man"]);
    let own = fs::read(folder.join("tidegate.1")).expect("a page of the program");
    assert_eq!(utf8_text(&main.stdout), utf8_text(&own));
}
