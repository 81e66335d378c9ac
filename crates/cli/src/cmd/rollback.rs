//! `tidegate rollback`: takes the last change of a mode back.

use crate::{
    failure::Failure,
    promotion::{Place, WhereArgs, confirm, step},
    terminal::{self, Paint, Tone},
};
use serde_json::Value;
use tidegate_policy::model::RuleEnforcement;

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

    /// Also where the rule is then enforced for fewer keys
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    place: WhereArgs,

    /// Print what came of it as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate rollback
  tidegate rollback --yes --id 3 --admin http://127.0.0.1:9091
  tidegate rollback --policy policy.yaml";

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let place = Place::of(&args.place)?;
    if !args.yes {
        let told = place.changes()?;
        let is_last = |change: &&Value| change["id"] == told["last"];
        let last = told["changes"].as_array().and_then(|changes| changes.iter().find(is_last));
        let mode = |said: &Value| {
            let mode = said["mode"].as_str()?.parse().ok()?;
            RuleEnforcement::new(mode, said["percent"].as_f64()).ok()
        };
        if let Some((change, from, to)) = last.and_then(|it| Some((it, mode(&it["to"])?, mode(&it["from"])?)))
            && to.is_weaker_than(&from)
        {
            let rule = change["rule"].as_str().unwrap_or("?");
            confirm(&format!("rule `{rule}` would be enforced for fewer keys ({from} → {to})"))?;
        }
    }
    let told = place.roll_back(args.id)?;
    if args.json {
        return terminal::print(&format!("{told:#}\n"));
    }
    let change = &told["change"];
    let rule = Paint::of_stdout().tone(Tone::Strong, change["rule"].as_str().unwrap_or("?"));
    let text = format!("{rule}: {}, change {} is taken back\n", step(change), change["undoes"]);
    terminal::print(&format!("{text}{}\n", place.effect()))
}
