//! The verbs: one file and one line each.

mod bench;
mod changes;
mod check;
mod closed_loop;
mod completions;
mod explain;
mod import;
mod man;
mod mode;
mod replay;
mod rollback;
mod serve;
mod shadow;
mod simulate;
mod suggest;
mod top;
mod verify;
mod why;

use crate::{failure::Failure, terminal};
use clap::{CommandFactory as _, Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "tidegate",
    version,
    about = "Rate limiting that keeps its word.",
    arg_required_else_help = false
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Bench(bench::Args),
    Changes(changes::Args),
    Check(check::Args),
    Completions(completions::Args),
    Explain(explain::Args),
    Import(import::Args),
    Man(man::Args),
    Mode(mode::Args),
    Replay(replay::Args),
    Rollback(rollback::Args),
    Serve(serve::Args),
    Shadow(shadow::Args),
    Simulate(simulate::Args),
    Suggest(suggest::Args),
    Top(top::Args),
    Verify(verify::Args),
    Why(why::Args),
}

/// Reads the arguments and does what they say.
pub(crate) fn run() -> Result<(), Failure> {
    match Cli::try_parse() {
        Ok(Cli { verb: Verb::Bench(args) }) => bench::run(&args),
        Ok(Cli { verb: Verb::Changes(args) }) => changes::run(&args),
        Ok(Cli { verb: Verb::Check(args) }) => check::run(&args),
        Ok(Cli { verb: Verb::Completions(args) }) => completions::run(&args, Cli::command()),
        Ok(Cli { verb: Verb::Explain(args) }) => explain::run(&args),
        Ok(Cli { verb: Verb::Import(args) }) => import::run(&args),
        Ok(Cli { verb: Verb::Man(args) }) => man::run(&args, Cli::command()),
        Ok(Cli { verb: Verb::Mode(args) }) => mode::run(&args),
        Ok(Cli { verb: Verb::Replay(args) }) => replay::run(&args),
        Ok(Cli { verb: Verb::Rollback(args) }) => rollback::run(&args),
        Ok(Cli { verb: Verb::Serve(args) }) => serve::run(&args),
        Ok(Cli { verb: Verb::Shadow(args) }) => shadow::run(&args),
        Ok(Cli { verb: Verb::Simulate(args) }) => simulate::run(&args),
        Ok(Cli { verb: Verb::Suggest(args) }) => suggest::run(&args),
        Ok(Cli { verb: Verb::Top(args) }) => top::run(&args),
        Ok(Cli { verb: Verb::Verify(args) }) => verify::run(&args),
        Ok(Cli { verb: Verb::Why(args) }) => why::run(&args),
        Err(error) if error.use_stderr() => {
            // Clap starts with the same word as `main`.
            let text = error.to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            Err(Failure::input(text.trim_end()))
        }
        Err(help) => terminal::print(&help.to_string()),
    }
}
