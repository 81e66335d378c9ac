//! `tidegate rollback`: reverts the last change of a rule.

use crate::{
    error::CliError,
    promotion::{PolicyTarget, PolicyTargetArgs, confirm, describe_change},
    terminal::{self, Paint, Tone},
};
use serde_json::Value;
use tidegate_admin::RuleChange;

/// Revert the last change of a mode or a number in the policy file.
///
/// Fails if the file was edited after that change. Repeated rollbacks revert one change after the other. Each rollback is
/// recorded as a change too.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RollbackArgs {
    /// Fail unless this is the last change
    #[arg(long, value_name = "NUMBER")]
    id: Option<u64>,

    /// Weaken the rule without confirmation: enforce it for fewer keys, or for none
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    target: PolicyTargetArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate rollback
  tidegate rollback --yes --id 3 --admin http://127.0.0.1:9091
  tidegate rollback --policy policy.yaml";

pub(crate) fn run(args: &RollbackArgs) -> Result<(), CliError> {
    let target = PolicyTarget::from_args(&args.target)?;
    if !args.yes {
        let history = target.changes()?;
        let is_last = |change: &&Value| change["id"] == history["last"];
        let last = history["changes"].as_array().and_then(|changes| changes.iter().find(is_last));
        if let Some(change) = last
            && let Some(change) = RuleChange::from_json(change)
            && let Some((to, from)) = change.modes()
            && to.is_weaker_than(&from)
        {
            let rule = &change.rule;
            confirm(&format!("rule `{rule}` would be enforced for fewer keys ({from} → {to})"))?;
        }
    }
    let response = target.roll_back(args.id)?;
    if args.json {
        return terminal::print(&format!("{response:#}\n"));
    }
    let change = &response["change"];
    let rule = Paint::for_stdout().tone(Tone::Strong, change["rule"].as_str().unwrap_or("?"));
    let text = format!("{rule}: {}, change {} rolled back\n", describe_change(change), change["reverts"]);
    terminal::print(&format!("{text}{}\n", target.effect_note()))
}
