//! `tidegate rollback`: takes the last change of a mode back.

use crate::{
    failure::Failure,
    promotion::{Place, WhereArgs, step},
    terminal::{self, Paint, Tone},
};

/// Take the last change of a mode back: the policy file is again as it was before.
///
/// Only if the file is still what that change left; who has edited it since is asked to look at it. Taken back again and again, it
/// goes back change by change. The rollback is a change of its own, and noted as one.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Only if this is the last change
    #[arg(long, value_name = "NUMBER")]
    id: Option<u64>,

    #[command(flatten)]
    place: WhereArgs,

    /// Print what came of it as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate rollback
  tidegate rollback --id 3 --admin http://127.0.0.1:9091
  tidegate rollback --policy policy.yaml";

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let place = Place::of(&args.place)?;
    let told = place.roll_back(args.id)?;
    if args.json {
        return terminal::print(&format!("{told:#}\n"));
    }
    let change = &told["change"];
    let rule = Paint::of_stdout().tone(Tone::Strong, change["rule"].as_str().unwrap_or("?"));
    let text = format!("{rule}: {}, change {} is taken back\n", step(change), change["undoes"]);
    terminal::print(&format!("{text}{}\n", place.effect()))
}
