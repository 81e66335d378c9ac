//! `tidegate import`: a policy from what another program is configured with.

use crate::{
    error::CliError,
    terminal::{self, sanitize},
};
use clap::{Subcommand, ValueHint};
use serde_json::{Value, json};
use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    path::{Path, PathBuf},
};
use tidegate_import::{ImportedPolicy, Loss, LossKind};
use tidegate_policy::{DiskFiles, PolicyFormat};

/// Write a policy that says what another program's configuration says.
///
/// What could not be carried over is reported on standard error and on top of the policy, each with its file and line. Where
/// that protected something, nothing is written until each such directive is accepted with --accept-loss.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ImportArgs {
    #[command(subcommand)]
    source: ImportSource,
}

#[derive(Debug, Subcommand)]
enum ImportSource {
    Nginx(NginxArgs),
}

/// From nginx: limits, allow-lists, upstreams, and where requests come in.
#[derive(Debug, clap::Args)]
struct NginxArgs {
    /// The configuration; what it includes is read, too
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,

    /// Where to write the policy, in YAML, TOML or JSON; standard output in YAML where it is left out
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Overwrite the file that --out names
    #[arg(long, requires = "out")]
    force: bool,

    /// Write the policy without the protection of this directive, as in auth_basic; may be repeated
    #[arg(long, value_name = "NAME")]
    accept_loss: Vec<String>,

    /// Print the policy and what could not be carried over for programs
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate import nginx /etc/nginx/nginx.conf --out policy.yaml
  tidegate import nginx nginx.conf --accept-loss auth_basic --out policy.yaml
  tidegate check policy.yaml";

pub(crate) fn run(args: &ImportArgs) -> Result<(), CliError> {
    let ImportSource::Nginx(NginxArgs { file, out, force, accept_loss, json }) = &args.source;
    let format = out.as_deref().map_or(Ok(PolicyFormat::Yaml), output_format)?;
    let imported =
        ImportedPolicy::nginx(file, &DiskFiles).map_err(|problems| CliError::input(problems.to_string()))?;
    let is_refused = |loss: &&Loss| !accept_loss.contains(&loss.directive);
    let refused: Vec<&Loss> = imported.losses_of(LossKind::Protection).filter(is_refused).collect();
    if !refused.is_empty() {
        if *json {
            terminal::print(&format!("{:#}\n", report(&imported, None)))?;
        }
        return Err(CliError::input(refusal_text(&refused)));
    }
    let text = imported.print(format);
    if let Some(path) = out {
        write_policy(path, &text, *force)?;
    }
    if *json {
        return terminal::print(&format!("{:#}\n", report(&imported, Some(&text))));
    }
    report_losses(&imported);
    match out {
        None => terminal::print(&text),
        Some(_) => Ok(()),
    }
}

/// Why nothing is written, each with its place, and how to accept it.
fn refusal_text(losses: &[&Loss]) -> String {
    let lines: Vec<String> = losses.iter().map(|loss| sanitize(&loss.to_string())).collect();
    let mut names: Vec<&str> = losses.iter().map(|loss| loss.directive.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let accepts: String = names.iter().map(|name| format!(" --accept-loss {}", sanitize(name))).collect();
    let count = losses.len();
    let what = if count == 1 { "1 protection" } else { &format!("{count} protections") };
    format!(
        "{}\n{what} would be lost, so nothing was written; protect these requests in another way, and add{accepts}",
        lines.join("\n")
    )
}

/// A file that is there already is overwritten only by force.
fn write_policy(path: &Path, text: &str, force: bool) -> Result<(), CliError> {
    let open = match force {
        true => OpenOptions::new().write(true).create(true).truncate(true).open(path),
        false => OpenOptions::new().write(true).create_new(true).open(path),
    };
    match open.and_then(|mut file| file.write_all(text.as_bytes())) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let problem =
                format!("{} exists; write to another file, or add --force to overwrite it", path.display());
            Err(CliError::input(problem))
        }
        written => written.map_err(|error| CliError::cannot_write(path, &error)),
    }
}

fn report(imported: &ImportedPolicy, policy: Option<&str>) -> Value {
    let loss = |loss: &Loss| {
        let kind = match loss.kind {
            LossKind::Protection => "protection",
            LossKind::Cosmetic => "decoration",
        };
        json!({
            "kind": kind,
            "directive": loss.directive,
            "place": loss.location,
            "said": loss.text,
            "reason": loss.reason,
        })
    };
    json!({ "policy": policy, "losses": imported.losses.iter().map(loss).collect::<Vec<_>>() })
}

fn output_format(path: &Path) -> Result<PolicyFormat, CliError> {
    PolicyFormat::from_path(path).ok_or_else(|| {
        let problem = format!("{} is neither YAML nor TOML nor JSON", path.display());
        CliError::input(format!("{problem}; give it a name that ends with .yaml, .toml or .json"))
    })
}

/// Reports what is lost, what protected first. A closed standard error is no reason to fail.
fn report_losses(imported: &ImportedPolicy) {
    let mut stderr = io::stderr().lock();
    let kinds = [
        (LossKind::Protection, "of protection lost, as accepted"),
        (LossKind::Cosmetic, "not carried over, or different now"),
    ];
    for (kind, what) in kinds {
        let count = imported.losses_of(kind).count();
        for loss in imported.losses_of(kind) {
            let _ = writeln!(stderr, "{}", sanitize(&loss.to_string()));
        }
        if count > 0 {
            let _ = writeln!(stderr, "{count} {what}");
        }
    }
}
