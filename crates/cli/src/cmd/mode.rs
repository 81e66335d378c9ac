//! `tidegate mode`: puts a rule in force, in shadow, or off.

use crate::{
    error::CliError,
    promotion::{PolicyTarget, PolicyTargetArgs, confirm, describe_change},
    terminal::{self, Paint, Tone},
};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use tidegate_policy::model::RuleEnforcement;
use tidegate_rule::Mode;

/// Put a rule in force, in shadow, or off: in the policy file, of which every other byte stays, and at once.
///
/// What it counted so far stays. The change is noted beside the file (`policy.yaml.changes`), and `tidegate rollback` takes it
/// back.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ModeArgs {
    /// The name of the rule
    rule: String,

    /// In shadow it counts and denies nobody
    #[arg(value_name = "MODE", value_parser = mode_parser())]
    mode: Mode,

    /// Enforce it for so many of a hundred keys, always the same ones; for the others it is in shadow
    #[arg(long, value_name = "NUMBER")]
    percent: Option<f64>,

    /// Weaken the rule without asking: enforce it for fewer keys, or for none
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    target: PolicyTargetArgs,

    /// Print what came of it as JSON
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
        false => format!("{name}: it is in that mode already; nothing was changed\n"),
    };
    terminal::print(&text)
}
