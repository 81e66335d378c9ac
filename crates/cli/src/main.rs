//! The binary `tidegate`. This file only maps what happened to an exit code.
//!
//! | code | means |
//! |---|---|
//! | 0 | done, or the reader of our output had enough |
//! | 1 | the output could not be written |
//! | 2 | bad usage or bad input |
//! | 3 | a policy holds what is hardly meant, and `check` was to be strict; or a load was not answered as `bench` was to expect |

mod admin;
mod bench;
mod closed_loop;
mod cmd;
mod error;
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
        Err(failure) => {
            // Nobody is left to tell when standard error is closed too.
            let _ = writeln!(io::stderr(), "error: {failure}");
            match failure {
                CliError::Output(_) => ExitCode::from(1),
                CliError::Input(_) => ExitCode::from(2),
                CliError::Warnings(_) | CliError::Mismatch(_) => ExitCode::from(3),
            }
        }
    }
}
