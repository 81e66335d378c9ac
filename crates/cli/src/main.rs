//! The binary `tidegate`. This file only maps results to exit codes, which `error.rs` lists.

mod admin;
mod bench;
mod closed_loop;
mod cmd;
mod error;
mod events;
mod explain;
mod history;
mod progress;
mod promotion;
mod serve;
mod simulate;
mod terminal;
mod top;

use std::{
    io::{self, Write},
    process::ExitCode,
};

fn main() -> ExitCode {
    match cmd::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Ignore a closed standard error.
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
