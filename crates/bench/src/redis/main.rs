//! The Redis store beside a naive client that sends one GCRA script per decision over the same driver. Run it with
//! `scripts/bench redis [CASE]`; each case ends with a line `ratio CASE VALUE`.

#![allow(clippy::disallowed_methods, reason = "a benchmark is about time")]
#![allow(clippy::panic, reason = "a wrong answer ends a benchmark")]

mod cases;
mod fleet;
#[path = "../machine.rs"]
#[allow(dead_code, reason = "the other program needs the rest")]
mod machine;
mod naive;
#[path = "../page.rs"]
mod page;
mod rounds;

use std::{env, error::Error, process::ExitCode};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        // A process of a fleet that this program starts for itself.
        ["fleet-member", url, key] => fleet::member(url, key),
        ["redis"] => cases::run_all().map(|_| ()),
        ["redis", "--write"] => write(),
        ["redis", name] => match cases::ALL.iter().find(|case| case.name == name) {
            Some(case) => case.run().map(|_| ()),
            None => Err(format!("unknown case `{name}`; there are {}", cases::names()).into()),
        },
        _ => Err(format!("usage: scripts/bench redis [CASE | --write], with {}", cases::names()).into()),
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
    // Before the cases: they leave this program only one core.
    let circumstances = page::circumstances(&["redis", "tokio"])?;
    let head = "| case | what | measured | value | bar | |\n|---|---|---|---|---|---|\n";
    page::write("redis", &format!("{circumstances}{head}{}", cases::run_all()?.join("\n")))
}
