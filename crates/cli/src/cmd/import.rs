//! `tidegate import`: converts the configuration of another program to a policy.

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

/// Convert the configuration of another program to a policy.
///
/// Directives that cannot be converted are reported on standard error and at the top of the policy, each with its file and
/// line. If such a directive protects requests, no policy is written until the directive is accepted with --accept-loss.
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

/// Convert an nginx configuration: limits, allow lists, upstreams and listeners.
#[derive(Debug, clap::Args)]
struct NginxArgs {
    /// Read this configuration, and the files that it includes
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,

    /// Write the policy to this file, in YAML, TOML or JSON [default: YAML to standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Overwrite the file in --out
    #[arg(long, requires = "out")]
    force: bool,

    /// Write the policy without the protection of this directive, as in auth_basic; may be repeated
    #[arg(long, value_name = "NAME")]
    accept_loss: Vec<String>,

    /// Print the policy and the losses as JSON
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
    let is_unaccepted = |loss: &&Loss| !accept_loss.contains(&loss.directive);
    let unaccepted: Vec<&Loss> = imported.losses_of(LossKind::Protection).filter(is_unaccepted).collect();
    if !unaccepted.is_empty() {
        if *json {
            terminal::print(&format!("{:#}\n", report(&imported, None)))?;
        }
        return Err(CliError::input(losses_text(&unaccepted)));
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

/// Lists the protections that would be lost, with the flags that accept them.
fn losses_text(losses: &[&Loss]) -> String {
    let lines: Vec<String> = losses.iter().map(|loss| sanitize(&loss.to_string())).collect();
    let mut names: Vec<&str> = losses.iter().map(|loss| loss.directive.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let accepts: String = names.iter().map(|name| format!(" --accept-loss {}", sanitize(name))).collect();
    let count = losses.len();
    let lost = if count == 1 { "1 protection" } else { &format!("{count} protections") };
    format!(
        "{}\n{lost} would be lost, so nothing was written; protect these requests in another way, and add{accepts}",
        lines.join("\n")
    )
}

/// Writes the policy; overwrites an existing file only with `force`.
fn write_policy(path: &Path, text: &str, force: bool) -> Result<(), CliError> {
    let open = match force {
        true => OpenOptions::new().write(true).create(true).truncate(true).open(path),
        false => OpenOptions::new().write(true).create_new(true).open(path),
    };
    match open.and_then(|mut file| file.write_all(text.as_bytes())) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let problem = format!(
                "{} already exists; use another name, or add --force to overwrite it",
                path.display()
            );
            Err(CliError::input(problem))
        }
        written => written.map_err(|error| CliError::cannot_write(path, &error)),
    }
}

fn report(imported: &ImportedPolicy, policy: Option<&str>) -> Value {
    let loss = |loss: &Loss| {
        let kind = match loss.kind {
            LossKind::Protection => "protection",
            LossKind::Cosmetic => "cosmetic",
        };
        json!({
            "kind": kind,
            "directive": loss.directive,
            "location": loss.location,
            "text": loss.text,
            "reason": loss.reason,
        })
    };
    json!({ "policy": policy, "losses": imported.losses.iter().map(loss).collect::<Vec<_>>() })
}

fn output_format(path: &Path) -> Result<PolicyFormat, CliError> {
    PolicyFormat::from_path(path).ok_or_else(|| {
        let problem = format!("{} is not YAML, TOML or JSON", path.display());
        CliError::input(format!("{problem}; use a name that ends with .yaml, .toml or .json"))
    })
}

/// Reports the losses, protections first. Ignores a closed standard error.
fn report_losses(imported: &ImportedPolicy) {
    let mut stderr = io::stderr().lock();
    let kinds = [
        (LossKind::Protection, "lost protections, as accepted"),
        (LossKind::Cosmetic, "not imported, or different"),
    ];
    for (kind, description) in kinds {
        let count = imported.losses_of(kind).count();
        for loss in imported.losses_of(kind) {
            let _ = writeln!(stderr, "{}", sanitize(&loss.to_string()));
        }
        if count > 0 {
            let _ = writeln!(stderr, "{count} {description}");
        }
    }
}
