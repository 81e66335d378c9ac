//! Permits, breakers, lists and bandwidth beside their peers, and the default controller beside none. Run it with
//! `scripts/bench overload [CASE]`; each case ends with a line `ratio CASE VALUE`.

#![allow(clippy::disallowed_methods, reason = "a benchmark is about time")]
#![allow(clippy::panic, reason = "a wrong answer ends a benchmark")]

mod bandwidth;
mod breaker;
mod cases;
mod lists;
#[path = "../machine.rs"]
#[allow(dead_code, reason = "the other program needs the rest")]
mod machine;
#[path = "../page.rs"]
mod page;
mod permit;
mod surge;
mod turns;

use std::{env, error::Error, process::ExitCode};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        ["overload"] => cases::run_all().map(|_| ()),
        ["overload", "--write"] => write(),
        ["overload", name] => match cases::ALL.iter().find(|case| case.name == name) {
            Some(case) => case.run().map(|_| ()),
            None => Err(format!("unknown case `{name}`; there are {}", cases::names()).into()),
        },
        _ => Err(format!("usage: scripts/bench overload [CASE | --write], with {}", cases::names()).into()),
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
    let circumstances = page::circumstances(&["tokio", "tower-resilience-circuitbreaker", "recloser"])?;
    let head = "| case | what | measured | value | at most | |\n|---|---|---|---|---|---|\n";
    page::write("overload", &format!("{circumstances}{head}{}", cases::run_all()?.join("\n")))
}
