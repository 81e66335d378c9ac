//! `tidegate apikey`: adds, lists and revokes API keys.

use crate::{error::CliError, terminal};
use clap::Subcommand;
use serde_json::{Value, json};
use std::{
    fmt::Write as _,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};
use tidegate::limiter::Clock;
use tidegate_admin::replace_file;
use tidegate_core::{Micros, Utc};
use tidegate_identity::api_key::{ApiKey, ApiKeyFile};

/// Add, list and revoke the API keys of a file.
///
/// The file has a hash of each key, and not the key itself. A gateway whose policy names the file reloads it when it changes.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ApikeyArgs {
    #[command(subcommand)]
    command: ApikeyCommand,
}

#[derive(Debug, Subcommand)]
enum ApikeyCommand {
    Add(AddArgs),
    List(ListArgs),
    Revoke(RevokeArgs),
}

/// Add a key, and print it. It cannot be printed again.
#[derive(Debug, clap::Args)]
struct AddArgs {
    /// Name who uses the key; several keys may have one name
    name: String,

    /// Set its tier
    #[arg(long)]
    tier: Option<String>,

    /// Let it end after this time, or on this date in UTC [default: never]
    #[arg(long, value_name = "TIME|DATE")]
    expires: Option<String>,

    #[command(flatten)]
    file: FileArgs,
}

/// List the keys, without their secrets.
#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    file: FileArgs,
}

/// Revoke a key by its id, or all keys of a name.
#[derive(Debug, clap::Args)]
struct RevokeArgs {
    /// Revoke the key with this id, or all keys with this name
    #[arg(value_name = "NAME|ID")]
    key: String,

    #[command(flatten)]
    file: FileArgs,
}

#[derive(Debug, clap::Args)]
struct FileArgs {
    /// Use this file
    #[arg(long, value_name = "FILE", default_value = "api-keys.json")]
    file: PathBuf,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate apikey add acme --tier gold --expires 90d
  tidegate apikey add acme --expires 2027-01-31 --file /etc/tidegate/api-keys.json
  tidegate apikey list
  tidegate apikey revoke acme";

/// The last time that can be printed, in the year 2255.
const MAX_TIME: u64 = Micros::MAX.get() / 1_000_000;

pub(crate) fn run(args: &ApikeyArgs) -> Result<(), CliError> {
    match &args.command {
        ApikeyCommand::Add(args) => add(args),
        ApikeyCommand::List(args) => list(args),
        ApikeyCommand::Revoke(args) => revoke(args),
    }
}

fn add(args: &AddArgs) -> Result<(), CliError> {
    for (what, text) in [("name", Some(&args.name)), ("tier", args.tier.as_ref())] {
        if text.is_some_and(|text| !ApiKey::is_valid_name(text)) {
            return Err(CliError::input(format!("invalid {what}: use 1 to 256 bytes of text")));
        }
    }
    let now = now();
    let expires = args.expires.as_deref().map(|text| parse_expiry(text, now)).transpose()?;
    let file = &args.file.file;
    let _lock = lock_folder(file)?;
    let mut keys = read(file)?.unwrap_or_default();
    let secret = keys
        .add(&args.name, args.tier.as_deref(), now, expires)
        .ok_or_else(|| CliError::Output("the system has no random numbers".to_owned()))?;
    write(file, &keys)?;
    if args.file.json {
        let mut added = keys.keys().last().map(key_json).unwrap_or_default();
        added["key"] = json!(secret);
        return terminal::print(&format!("{added:#}\n"));
    }
    terminal::print(&format!("{secret}\n"))
}

fn list(args: &ListArgs) -> Result<(), CliError> {
    let keys = read_existing(&args.file.file)?;
    if args.file.json {
        let keys: Vec<_> = keys.keys().iter().map(key_json).collect();
        return terminal::print(&format!("{:#}\n", json!({ "api-keys": keys })));
    }
    let now = now();
    let mut rows = vec![["id", "name", "tier", "created", "expires"].map(str::to_owned).to_vec()];
    rows.extend(keys.keys().iter().map(|key| {
        let expires = key.expires.map_or_else(|| "never".to_owned(), date);
        let expires =
            if key.expires.is_some_and(|end| end <= now) { format!("{expires} (expired)") } else { expires };
        vec![key.id(), key.name.clone(), key.tier.clone().unwrap_or_default(), date(key.created), expires]
    }));
    terminal::print(&terminal::table(&rows))
}

fn revoke(args: &RevokeArgs) -> Result<(), CliError> {
    let file = &args.file.file;
    let _lock = lock_folder(file)?;
    let mut keys = read_existing(file)?;
    let removed = keys.revoke(&args.key);
    if removed.is_empty() {
        let problem = format!("no key of {} has the name or id `{}`", file.display(), args.key);
        return Err(CliError::input(format!("{problem}; `tidegate apikey list` lists them")));
    }
    write(file, &keys)?;
    if args.file.json {
        let revoked: Vec<_> = removed.iter().map(key_json).collect();
        return terminal::print(&format!("{:#}\n", json!({ "revoked": revoked })));
    }
    let mut text = String::new();
    for key in &removed {
        let _ = writeln!(text, "revoked {} of {}", key.id(), key.name);
    }
    terminal::print(&text)
}

fn key_json(key: &ApiKey) -> Value {
    json!({
        "id": key.id(),
        "name": key.name,
        "tier": key.tier,
        "created": timestamp(key.created),
        "expires": key.expires.map(timestamp),
    })
}

/// The time in seconds since 1970.
fn now() -> u64 {
    Clock::wall().now().to_duration().as_secs()
}

/// Parses `90d` or `2027-01-31`.
fn parse_expiry(text: &str, now: u64) -> Result<u64, CliError> {
    const DAY: u64 = 24 * 60 * 60;
    let time = match text.parse::<Micros>() {
        Ok(time) => Some(now.saturating_add(time.to_duration().as_secs())),
        Err(_) => parse_date(text).map(|days| days * DAY),
    };
    match time {
        Some(time) if time > now => Ok(time.min(MAX_TIME)),
        Some(_) => Err(CliError::input(format!("`{text}` has passed: use a later date"))),
        None => Err(CliError::input(format!(
            "invalid time `{text}`: write `90d`, or a date such as `2027-01-31`"
        ))),
    }
}

/// The days from 1970 to a date.
fn parse_date(text: &str) -> Option<u64> {
    let mut parts = text.split('-').map(|part| part.parse().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    if parts.next().is_some() { None } else { Utc::days_since_epoch(year, month, day) }
}

fn timestamp(seconds: u64) -> String {
    Utc::from(Micros::from_secs(seconds)).to_string()
}

fn date(seconds: u64) -> String {
    let Utc { year, month, day, .. } = Micros::from_secs(seconds).into();
    format!("{year:04}-{month:02}-{day:02}")
}

/// Locks the folder of the file, so that two commands do not change the file at the same time.
fn lock_folder(file: &Path) -> Result<File, CliError> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let lock = || -> io::Result<File> {
        let folder = File::open(folder)?;
        folder.lock()?;
        Ok(folder)
    };
    lock().map_err(|error| CliError::cannot_write(file, &error))
}

fn read_existing(file: &Path) -> Result<ApiKeyFile, CliError> {
    read(file)?.ok_or_else(|| {
        CliError::input(format!("{} does not exist: `tidegate apikey add NAME` creates it", file.display()))
    })
}

fn read(file: &Path) -> Result<Option<ApiKeyFile>, CliError> {
    match fs::read(file) {
        Ok(content) => match ApiKeyFile::parse(&content) {
            Ok(keys) => Ok(Some(keys)),
            Err(error) => Err(CliError::input(format!("{}: {error}", file.display()))),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CliError::input(format!("cannot read {}: {error}", file.display()))),
    }
}

fn write(file: &Path, keys: &ApiKeyFile) -> Result<(), CliError> {
    replace_file(file, keys.to_json().as_bytes()).map_err(|error| CliError::Output(error.to_string()))
}
