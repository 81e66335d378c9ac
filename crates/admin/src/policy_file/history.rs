//! The change history: one line of JSON per change, in a file beside the policy.
//!
//! ```text
//! {"id":2,"time":"2026-11-16T03:20:00.000000Z","by":"command line","rule":"login","key":"mode","from":"shadow",
//!  "to":"enforce 10%","file":"policy.yaml","reverts":null,"offset":61,"removed":"shadow","inserted":"enforce 10%","digest-before":"…",
//!  "digest-after":"…"}
//! ```

use super::{PolicyFileError, write::PendingFile};
use serde_json::{Value, json};
use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};
use tidegate_policy::{edit::Splice, model::RuleEnforcement};
use tidegate_rule::key_hash;

/// A change of one value of a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleChange {
    /// Its number, starting at 1.
    pub id: u64,
    /// The time in UTC: `2026-11-16T03:20:00.000000Z`.
    pub time: String,
    /// The author: the command line, or the API of a gateway.
    pub author: String,
    /// The rule.
    pub rule: String,
    /// The key: `mode`, `quota`, or `tiers.quotas.gold`.
    pub key: String,
    /// The old value; `None` for the default.
    pub from: Option<String>,
    /// The new value; `None` for the default.
    pub to: Option<String>,
    /// The changed file, relative to the directory of the policy.
    pub file: PathBuf,
    /// The change that it reverts, if it is a rollback.
    pub reverts: Option<u64>,
}

/// A change, with the edit of the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HistoryRecord {
    pub(super) change: RuleChange,
    pub(super) splice: Splice,
    /// The digest of the file before the change.
    pub(super) digest_before: String,
    /// The digest of the file after the change.
    pub(super) digest_after: String,
}

/// The recorded changes, oldest first.
#[derive(Debug)]
pub(super) struct ChangeHistory {
    path: PathBuf,
    entries: Vec<HistoryRecord>,
}

/// The key of modes.
pub(super) const MODE: &str = "mode";

/// The maximum number of recorded changes.
const MAX_CHANGES: usize = 100;

impl ChangeHistory {
    /// Reads the history of a policy; empty if nothing was changed yet.
    pub(super) fn read(policy: &Path) -> Result<Self, PolicyFileError> {
        let name = policy.file_name().unwrap_or_default().to_string_lossy();
        let path = policy.with_file_name(format!("{name}.changes"));
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(PolicyFileError::io("cannot read the change history", &path, error)),
        };
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let entries = lines.map(|(at, line)| {
            HistoryRecord::parse(line)
                .ok_or_else(|| PolicyFileError::InvalidHistory { file: path.clone(), line: at + 1 })
        });
        Ok(Self { entries: entries.collect::<Result<_, _>>()?, path })
    }

    pub(super) fn next_id(&self) -> u64 {
        self.entries.last().map_or(1, |last| last.change.id + 1)
    }

    pub(super) fn newest_first(self) -> Vec<RuleChange> {
        self.entries.into_iter().rev().map(|entry| entry.change).collect()
    }

    /// The newest record.
    pub(super) fn last(&self) -> Option<&HistoryRecord> {
        self.entries.last()
    }

    /// The newest change of a value.
    pub(super) fn last_change_of(&self, rule: &str, key: &str) -> Option<&RuleChange> {
        let changes = self.entries.iter().rev().map(|entry| &entry.change);
        changes.into_iter().find(|change| change.rule == rule && change.key == key)
    }

    /// Changes that no rollback has reverted, newest first. The last changes that are not in their files (`is_unmade`) are
    /// skipped: a writer was killed after it had written the history.
    pub(super) fn active_changes(
        &self,
        is_missing: impl Fn(&HistoryRecord) -> Result<bool, PolicyFileError>,
    ) -> Result<impl Iterator<Item = &HistoryRecord>, PolicyFileError> {
        let mut made = self.entries.as_slice();
        while let Some((last, before)) = made.split_last()
            && is_missing(last)?
        {
            made = before;
        }
        let is_undone = move |id: u64| made.iter().any(|entry| entry.change.reverts == Some(id));
        let changes = made.iter().rev().filter(|entry| entry.change.reverts.is_none());
        Ok(changes.filter(move |entry| !is_undone(entry.change.id)))
    }

    /// Adds a record, and removes the oldest beyond `MAX_CHANGES`.
    pub(super) fn push(&mut self, entry: HistoryRecord) {
        self.entries.push(entry);
        self.entries.drain(..self.entries.len().saturating_sub(MAX_CHANGES));
    }

    /// Writes the history to a temporary file.
    pub(super) fn prepare(&self) -> Result<PendingFile, PolicyFileError> {
        let text: String = self.entries.iter().map(|entry| format!("{}\n", entry.to_json_line())).collect();
        PendingFile::write(&self.path, text.as_bytes())
    }
}

impl HistoryRecord {
    /// One line of JSON, with the members in reading order.
    fn to_json_line(&self) -> String {
        let Self { change, splice, digest_before: before, digest_after: after } = self;
        let members = [
            ("id", json!(change.id)),
            ("time", json!(change.time)),
            ("by", json!(change.author)),
            ("rule", json!(change.rule)),
            ("key", json!(change.key)),
            ("from", json!(change.from)),
            ("to", json!(change.to)),
            ("file", json!(change.file.to_string_lossy())),
            ("reverts", json!(change.reverts)),
            ("offset", json!(splice.offset)),
            ("removed", json!(splice.removed)),
            ("inserted", json!(splice.inserted)),
            ("digest-before", json!(before)),
            ("digest-after", json!(after)),
        ];
        format!("{{{}}}", members.map(|(name, value)| format!("\"{name}\":{value}")).join(","))
    }

    fn parse(line: &str) -> Option<Self> {
        let line: Value = serde_json::from_str(line).ok()?;
        let text = |member: &str| line[member].as_str().map(str::to_owned);
        Some(Self {
            change: RuleChange::from_json(&line)?,
            splice: Splice {
                offset: line["offset"].as_u64()?.try_into().ok()?,
                removed: text("removed")?,
                inserted: text("inserted")?,
            },
            digest_before: text("digest-before")?,
            digest_after: text("digest-after")?,
        })
    }
}

impl RuleChange {
    /// The mode before, and the mode after it, if it is a change of the mode.
    pub fn modes(&self) -> Option<(RuleEnforcement, RuleEnforcement)> {
        let mode = |value: &Option<String>| value.as_deref()?.parse().ok();
        (self.key == MODE).then(|| Some((mode(&self.from)?, mode(&self.to)?))).flatten()
    }

    /// The change in a response of the admin API, or in a line of the history.
    pub fn from_json(change: &Value) -> Option<Self> {
        let text = |member: &str| change[member].as_str().map(str::to_owned);
        Some(Self {
            id: change["id"].as_u64()?,
            time: text("time")?,
            author: text("by")?,
            rule: text("rule")?,
            // Before there were other keys, the key was not written.
            key: text("key").unwrap_or_else(|| MODE.to_owned()),
            from: text("from"),
            to: text("to"),
            file: text("file")?.into(),
            reverts: change["reverts"].as_u64(),
        })
    }

    /// The change in a response of the admin API.
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id,
            "time": self.time,
            "by": self.author,
            "rule": self.rule,
            "key": self.key,
            "from": self.from,
            "to": self.to,
            "file": self.file.to_string_lossy(),
            "reverts": self.reverts,
        })
    }
}

/// `rule login: mode shadow → enforce 10% (policy.yaml)`
impl fmt::Display for RuleChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, key, file, reverts, .. } = self;
        let [from, to] = [&self.from, &self.to].map(|value| value.as_deref().unwrap_or("default"));
        write!(f, "rule {rule}: {key} {from} → {to} ({})", file.display())?;
        match reverts {
            Some(id) => write!(f, ", reverts change {id}"),
            None => Ok(()),
        }
    }
}

/// The digest of the content of a file.
pub(super) fn digest(bytes: &[u8]) -> String {
    format!("{:016x}", key_hash("policy file", &String::from_utf8_lossy(bytes)))
}
