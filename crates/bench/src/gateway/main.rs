//! The gateway beside nginx: one core for the proxy, load and backend on the other. Run it with
//! `scripts/bench gateway [CASE]`; each case ends with a line `ratio CASE VALUE`.

#![allow(clippy::disallowed_methods, reason = "a benchmark is about time")]
#![allow(clippy::panic, reason = "a wrong answer ends a benchmark")]

mod cases;
mod idle_memory;
#[path = "../machine.rs"]
#[allow(dead_code, reason = "the other program needs the rest")]
mod machine;
#[path = "../page.rs"]
mod page;
mod plain;
mod stage;

use std::{env, error::Error, process::ExitCode};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        // Processes that this program starts for itself.
        ["proxy", listen, server] => stage::proxy(listen, server),
        ["crowd", address, count] => idle_memory::crowd(address, count),
        ["gateway"] => cases::run_all().map(|_| ()),
        ["gateway", "--write"] => write(),
        ["gateway", name] => match cases::ALL.iter().find(|case| case.name == name) {
            Some(case) => case.run().map(|_| ()),
            None => Err(format!("unknown case `{name}`; there are {}", cases::names()).into()),
        },
        _ => Err(format!("usage: scripts/bench gateway [CASE | --write], with {}", cases::names()).into()),
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
    let circumstances = page::circumstances(&["hyper", "tokio"])?;
    let head = "| case | what | measured | value | bar | |\n|---|---|---|---|---|---|\n";
    page::write("gateway", &format!("{circumstances}{head}{}", cases::run_all()?.join("\n")))
}
