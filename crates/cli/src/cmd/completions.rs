//! `tidegate completions`: prints completion scripts.

use crate::{error::CliError, terminal};
use clap::{Command, ValueEnum};
use clap_complete::{Shell, generate};

/// Print a script that completes commands, options and file names in a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// Print the script for this shell
    shell: ShellName,
}

/// The supported shells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ShellName {
    Bash,
    Elvish,
    Fish,
    #[value(name = "powershell")]
    PowerShell,
    Zsh,
}

const EXAMPLES: &str = "\
Examples:
  tidegate completions bash > ~/.local/share/bash-completion/completions/tidegate
  tidegate completions zsh > ~/.zfunc/_tidegate     # with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc
  tidegate completions fish > ~/.config/fish/completions/tidegate.fish";

pub(crate) fn run(args: &CompletionsArgs, mut program: Command) -> Result<(), CliError> {
    let shell = match args.shell {
        ShellName::Bash => Shell::Bash,
        ShellName::Elvish => Shell::Elvish,
        ShellName::Fish => Shell::Fish,
        ShellName::PowerShell => Shell::PowerShell,
        ShellName::Zsh => Shell::Zsh,
    };
    let mut script = Vec::new();
    generate(shell, &mut program, "tidegate", &mut script);
    terminal::print(&String::from_utf8_lossy(&script))
}
