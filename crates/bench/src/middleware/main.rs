//! The attribute beside a direct call of the limiter, and the layers beside their peers. Run it with
//! `scripts/bench middleware [CASE]`; each case ends with a line `ratio CASE VALUE`.

#![allow(clippy::disallowed_methods, reason = "a benchmark is about time")]
#![allow(clippy::panic, reason = "a wrong answer ends a benchmark")]

mod attribute;
#[path = "axum.rs"]
mod axum_server;
mod cases;
#[path = "../machine.rs"]
#[allow(dead_code, reason = "the other program needs the rest")]
mod machine;
#[path = "../page.rs"]
mod page;
mod tower_headers;
mod tower_plain;
#[path = "../overload/turns.rs"]
mod turns;

use std::{env, error::Error, process::ExitCode};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Whose versions the page names.
const PEERS: &[&str] = &["tower_governor", "governor", "axum"];

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        ["middleware"] => cases::run_all().map(|_| ()),
        ["middleware", "--write"] => write(),
        ["middleware", name] => match cases::ALL.iter().find(|case| case.name == name) {
            Some(case) => case.run().map(|_| ()),
            None => Err(format!("unknown case `{name}`; there are {}", cases::names()).into()),
        },
        _ => Err(format!("usage: scripts/bench middleware [CASE | --write], with {}", cases::names()).into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The table of `docs/benchmarks.md`.
fn write() -> Result<()> {
    let circumstances = page::circumstances(PEERS)?;
    let head = "| case | what | measured | value | bar | |\n|---|---|---|---|---|---|\n";
    page::write("middleware", &format!("{circumstances}{head}{}", cases::run_all()?.join("\n")))
}
