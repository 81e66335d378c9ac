//! `tidegate man`: generates man pages.

use crate::{error::CliError, terminal};
use clap::{Command, ValueHint};
use clap_mangen::Man;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Print the man page, or write a page for each command into a directory.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ManArgs {
    /// Write all pages into this directory, which is created if needed
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    folder: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  tidegate man | man -l -
  tidegate man ~/.local/share/man/man1 && man tidegate-replay";

pub(crate) fn run(args: &ManArgs, program: Command) -> Result<(), CliError> {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    match &args.folder {
        None => terminal::print(&render_page(&program).1),
        Some(folder) => {
            fs::create_dir_all(folder).map_err(|error| CliError::cannot_write(folder, &error))?;
            write_pages(&program, folder)
        }
    }
}

/// Writes the page of a command, and those of its subcommands.
fn write_pages(command: &Command, folder: &Path) -> Result<(), CliError> {
    let (name, text) = render_page(command);
    let path = folder.join(name);
    fs::write(&path, text).map_err(|error| CliError::cannot_write(&path, &error))?;
    command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .try_for_each(|command| write_pages(command, folder))
}

/// Renders the page of a command. Returns its file name and its text.
fn render_page(command: &Command) -> (String, String) {
    let page = Man::new(command.clone());
    let mut text = Vec::new();
    // Writing to memory does not fail.
    let _ = page.render(&mut text);
    (page.get_filename(), String::from_utf8_lossy(&text).into_owned())
}
