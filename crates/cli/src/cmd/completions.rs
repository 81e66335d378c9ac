//! `tidegate completions`: what a shell completes.

use crate::{failure::Failure, terminal};
use clap::{Command, ValueEnum};
use clap_complete::{Shell, generate};

/// Print what a shell needs to complete verbs, options and names of files.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Which shell
    shell: Which,
}

/// The shells that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
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

pub(crate) fn run(args: &Args, mut program: Command) -> Result<(), Failure> {
    let shell = match args.shell {
        Which::Bash => Shell::Bash,
        Which::Elvish => Shell::Elvish,
        Which::Fish => Shell::Fish,
        Which::PowerShell => Shell::PowerShell,
        Which::Zsh => Shell::Zsh,
    };
    let mut script = Vec::new();
    generate(shell, &mut program, "tidegate", &mut script);
    terminal::print(&String::from_utf8_lossy(&script))
}
