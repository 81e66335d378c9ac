//! `tidegate mode`: sets the mode of a rule.

use crate::{
    error::CliError,
    promotion::{PolicyTarget, PolicyTargetArgs, confirm, describe_change},
    terminal::{self, Paint, Tone},
};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use tidegate_policy::model::RuleEnforcement;
use tidegate_rule::Mode;

/// Set a rule to enforce, shadow or off, in the policy file and with immediate effect.
///
/// All other bytes of the file stay unchanged, and the rule keeps its counters. The change is recorded next to the file
/// (`policy.yaml.changes`), and `tidegate rollback` reverts it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ModeArgs {
    /// Set the mode of this rule
    rule: String,

    /// Set this mode; in shadow mode a rule counts and denies no request
    #[arg(value_name = "MODE", value_parser = mode_parser())]
    mode: Mode,

    /// Enforce the rule for this percentage of keys, always the same ones; the others are in shadow mode
    #[arg(long, value_name = "NUMBER")]
    percent: Option<f64>,

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
  tidegate mode login enforce --percent 10
  tidegate mode login enforce --admin http://127.0.0.1:9091
  tidegate mode login shadow --yes --policy policy.yaml";

fn mode_parser() -> impl TypedValueParser<Value = Mode> {
    PossibleValuesParser::new(Mode::ALL.map(Mode::name)).try_map(|mode| mode.parse::<Mode>())
}

pub(crate) fn run(args: &ModeArgs) -> Result<(), CliError> {
    let to =
        RuleEnforcement::new(args.mode, args.percent).map_err(|error| CliError::input(error.to_string()))?;
    let target = PolicyTarget::from_args(&args.target)?;
    if let Some(from) = target.mode_of(&args.rule)?.filter(|from| to.is_weaker_than(from) && !args.yes) {
        confirm(&format!("rule `{}` would be enforced for fewer keys ({from} → {to})", args.rule))?;
    }
    let response = target.set_mode(&args.rule, &to)?;
    if args.json {
        return terminal::print(&format!("{response:#}\n"));
    }
    let name = Paint::for_stdout().tone(Tone::Strong, &args.rule);
    let text = match response["changed"] == true {
        true => format!("{name}: {}\n{}\n", describe_change(&response["change"]), target.effect_note()),
        false => format!("{name}: already in this mode; nothing changed\n"),
    };
    terminal::print(&text)
}
