//! The binary `tidegate`. This file only maps results to exit codes.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | success, or a closed standard output |
//! | 1 | the output could not be written |
//! | 2 | invalid arguments or input |
//! | 3 | `check --strict` found warnings, or `bench --expect` found differences |

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

use error::CliError;
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
            match error {
                CliError::Output(_) => ExitCode::from(1),
                CliError::Input(_) => ExitCode::from(2),
                CliError::Warnings(_) | CliError::Mismatch(_) => ExitCode::from(3),
            }
        }
    }
}
