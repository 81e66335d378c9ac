//! `tidegate import`: a policy from what another program is configured with.

use crate::{
    failure::Failure,
    terminal::{self, harmless},
};
use clap::{Subcommand, ValueHint};
use serde_json::{Value, json};
use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};
use tidegate_policy::{
    Disk, Format,
    import::{Imported, Loss},
};

/// Write a policy that says what another program's configuration says.
///
/// What could not be carried over is told on standard error and on top of the policy, each with its file and line.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, Subcommand)]
enum From {
    Nginx(Nginx),
}

/// From nginx: limits, allow-lists, upstreams, and where requests come in.
#[derive(Debug, clap::Args)]
struct Nginx {
    /// The configuration; what it includes is read, too
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,

    /// Where to write the policy, in YAML, TOML or JSON; standard output in YAML where it is left out
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Print the policy and what could not be carried over for programs
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate import nginx /etc/nginx/nginx.conf --out policy.yaml
  tidegate check policy.yaml";

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let From::Nginx(Nginx { file, out, json }) = &args.from;
    let format = out.as_deref().map_or(Ok(Format::Yaml), format)?;
    let imported = Imported::nginx(file, &Disk).map_err(|problems| Failure::input(problems.to_string()))?;
    let text = imported.print(format);
    if let Some(path) = out {
        fs::write(path, &text).map_err(|error| Failure::write(path, &error))?;
    }
    if *json {
        return terminal::print(&format!("{:#}\n", told(&imported, &text)));
    }
    tell(&imported);
    match out {
        None => terminal::print(&text),
        Some(_) => Ok(()),
    }
}

fn told(imported: &Imported, policy: &str) -> Value {
    let loss = |loss: &Loss| json!({ "place": loss.place, "said": loss.said, "reason": loss.reason });
    json!({ "policy": policy, "losses": imported.losses.iter().map(loss).collect::<Vec<_>>() })
}

fn format(path: &Path) -> Result<Format, Failure> {
    Format::of_path(path).ok_or_else(|| {
        let problem = format!("{} is neither YAML nor TOML nor JSON", path.display());
        Failure::input(format!("{problem}; give it a name that ends with .yaml, .toml or .json"))
    })
}

/// Nobody is left to tell when standard error is closed.
fn tell(imported: &Imported) {
    let mut stderr = io::stderr().lock();
    for loss in &imported.losses {
        let _ = writeln!(stderr, "{}", harmless(&loss.to_string()));
    }
    if !imported.losses.is_empty() {
        let _ = writeln!(stderr, "{} not carried over, or different now", imported.losses.len());
    }
}
