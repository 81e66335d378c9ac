//! `tidegate feature`: lists the features of a running gateway, and turns them on and off.

use crate::{
    admin::{AdminArgs, AdminClient, block_on},
    error::CliError,
    promotion::percent_encode,
    terminal::{self, Paint, Tone},
};
use clap::ValueEnum;
use http::Method;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// List the features of a running gateway, or turn one on or off with immediate effect.
///
/// A feature that is set to on or off stays so, whatever the load and the time, until it is set to auto or the gateway
/// restarts. A reload of the policy does not change it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct FeatureArgs {
    /// Set this feature; without it, list all features
    #[arg(requires = "state")]
    name: Option<String>,

    /// Set this state; with auto, the feature follows the load and its schedule
    #[arg(value_name = "STATE")]
    state: Option<StateArg>,

    /// Log this reason
    #[arg(long, value_name = "TEXT", requires = "state")]
    reason: Option<String>,

    #[command(flatten)]
    admin: AdminArgs,

    /// Print the response as JSON
    #[arg(long)]
    json: bool,
}

/// A state of a feature that an operator can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StateArg {
    On,
    Off,
    Auto,
}

impl StateArg {
    fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Auto => "auto",
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  tidegate feature
  tidegate feature similar off --reason 'slow database'
  tidegate feature similar auto --admin http://127.0.0.1:9091
  tidegate feature --json";

pub(crate) fn run(args: &FeatureArgs) -> Result<(), CliError> {
    let client = AdminClient::from_args(&args.admin)?;
    let paint = Paint::for_stdout();
    let (response, text) = match (&args.name, args.state) {
        (Some(name), Some(state)) => {
            let body = json!({ "state": state.name(), "reason": args.reason });
            let path = format!("/api/v1/features/{}", percent_encode(name));
            let response = block_on(client.send(Method::POST, &path, Some(&body)))?;
            let text = report(std::slice::from_ref(&response), paint);
            (response, text)
        }
        _ => {
            let response = block_on(client.get("/api/v1/features"))?;
            let text = report(response["features"].as_array().map(Vec::as_slice).unwrap_or_default(), paint);
            (response, text)
        }
    };
    terminal::print(&if args.json { format!("{response:#}\n") } else { text })
}

fn report(features: &[Value], paint: Paint) -> String {
    if features.is_empty() {
        return "The policy has no features.\n".to_owned();
    }
    let name = |feature: &Value| terminal::sanitize(feature["name"].as_str().unwrap_or("?"));
    let width = features.iter().map(|feature| name(feature).chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for feature in features {
        let (state, tone) = match feature["on"] == true {
            true => ("on ", Tone::Admitted),
            false => ("off", Tone::Problem),
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{}  {}  {}",
            paint.tone(Tone::Strong, format!("{:<width$}", name(feature))),
            paint.tone(tone, state),
            describe_state(feature)
        );
    }
    text
}

/// Why a feature is on or off.
fn describe_state(feature: &Value) -> String {
    match (feature["override"].as_str(), feature["cause"].as_str()) {
        (Some("on" | "off"), _) => "set by an operator".to_owned(),
        (_, Some(cause)) => format!("automatic, disabled by {}", terminal::sanitize(cause)),
        _ => "automatic".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_has_one_line_per_feature() {
        let feature = |name: &str, on: bool, by: &str, cause: Value| json!({ "name": name, "on": on, "override": by, "cause": cause });
        let features = [
            feature("search", true, "automatic", Value::Null),
            feature("similar", false, "automatic", json!("load")),
            feature("beta", false, "off", json!("operator")),
            feature("ads\u{1b}[2J", true, "on", Value::Null),
        ];
        assert_eq!(
            report(&features, Paint::Plain),
            "search   on   automatic\n\
             similar  off  automatic, disabled by load\n\
             beta     off  set by an operator\n\
             ads\u{fffd}[2J  on   set by an operator\n"
        );
        assert_eq!(report(&[], Paint::Plain), "The policy has no features.\n");
    }
}
