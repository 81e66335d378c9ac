//! The commands: one file and one line each.

mod apikey;
mod bench;
mod changes;
mod check;
mod closed_loop;
mod completions;
mod explain;
mod feature;
mod import;
mod man;
mod mode;
mod overrides;
mod replay;
mod rollback;
mod serve;
mod set;
mod shadow;
mod simulate;
mod suggest;
#[cfg(test)]
mod tests;
mod top;
mod verify;
mod why;

use crate::{error::CliError, terminal};
use clap::{CommandFactory as _, Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "tidegate",
    version,
    about = "Rate limiter, gateway and Envoy rate limit service.",
    arg_required_else_help = false
)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    Apikey(apikey::ApikeyArgs),
    Bench(bench::BenchArgs),
    Changes(changes::ChangesArgs),
    Check(check::CheckArgs),
    Completions(completions::CompletionsArgs),
    Explain(explain::ExplainArgs),
    Feature(feature::FeatureArgs),
    Import(import::ImportArgs),
    Man(man::ManArgs),
    Mode(mode::ModeArgs),
    Override(overrides::OverrideArgs),
    Replay(replay::ReplayArgs),
    Rollback(rollback::RollbackArgs),
    Serve(serve::ServeArgs),
    Set(set::SetArgs),
    Shadow(shadow::ShadowArgs),
    Simulate(simulate::SimulateArgs),
    Suggest(suggest::SuggestArgs),
    Top(top::TopArgs),
    Verify(verify::VerifyArgs),
    Why(why::WhyArgs),
}

/// Parses the arguments and runs the command.
pub(crate) fn run() -> Result<(), CliError> {
    match Cli::try_parse() {
        Ok(Cli { command: CliCommand::Apikey(args) }) => apikey::run(&args),
        Ok(Cli { command: CliCommand::Bench(args) }) => bench::run(&args),
        Ok(Cli { command: CliCommand::Changes(args) }) => changes::run(&args),
        Ok(Cli { command: CliCommand::Check(args) }) => check::run(&args),
        Ok(Cli { command: CliCommand::Completions(args) }) => completions::run(&args, Cli::command()),
        Ok(Cli { command: CliCommand::Explain(args) }) => explain::run(&args),
        Ok(Cli { command: CliCommand::Feature(args) }) => feature::run(&args),
        Ok(Cli { command: CliCommand::Import(args) }) => import::run(&args),
        Ok(Cli { command: CliCommand::Man(args) }) => man::run(&args, Cli::command()),
        Ok(Cli { command: CliCommand::Mode(args) }) => mode::run(&args),
        Ok(Cli { command: CliCommand::Override(args) }) => overrides::run(&args),
        Ok(Cli { command: CliCommand::Replay(args) }) => replay::run(&args),
        Ok(Cli { command: CliCommand::Rollback(args) }) => rollback::run(&args),
        Ok(Cli { command: CliCommand::Serve(args) }) => serve::run(&args),
        Ok(Cli { command: CliCommand::Set(args) }) => set::run(&args),
        Ok(Cli { command: CliCommand::Shadow(args) }) => shadow::run(&args),
        Ok(Cli { command: CliCommand::Simulate(args) }) => simulate::run(&args),
        Ok(Cli { command: CliCommand::Suggest(args) }) => suggest::run(&args),
        Ok(Cli { command: CliCommand::Top(args) }) => top::run(&args),
        Ok(Cli { command: CliCommand::Verify(args) }) => verify::run(&args),
        Ok(Cli { command: CliCommand::Why(args) }) => why::run(&args),
        Err(error) if error.use_stderr() => {
            // `main` adds the same prefix as clap.
            let text = error.to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            Err(CliError::input(text.trim_end()))
        }
        Err(help) => terminal::print(&help.to_string()),
    }
}
