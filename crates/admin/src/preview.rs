//! `/api/v1/rules/NAME/preview`: what a rule would have done with another number to the requests of the last hour.
//!
//! The recorded requests are replayed through the rule as it is, and with the number. Other rules are not considered. Nothing is
//! changed, and no counter of the gateway is used.

use super::{
    AdminState,
    read::ok_json,
    rules::{api_error, parse_setting},
};
use crate::{PolicyFileError, RuleSetting};
use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};
use std::{
    path::Path,
    sync::{Mutex, TryLockError},
};
use tidegate_core::{Micros, Utc};
use tidegate_http_server::ApiError;
use tidegate_policy::{DiskFiles, Policy, edit::RuleEdit};
use tidegate_replay::{
    PolicyStats, Replay, ReplayError,
    log::{HistoryLines, LineFormats, LogInput, RequestLog},
    replay_log,
};

/// The time that a preview covers, before the last recorded request.
const PREVIEW_SPAN: Micros = Micros::from_secs(3_600);

/// The maximum number of requests of one preview. It bounds its memory to about 100 MB.
const MAX_REQUESTS: usize = 200_000;

/// The number of keys in the result.
const MAX_KEYS: usize = 20;

/// Only one preview runs at a time.
static RUNNING: Mutex<()> = Mutex::new(());

impl AdminState {
    /// Replays the history with another number.
    pub(super) async fn preview(&self, rule: &str, body: &[u8]) -> Result<Response, ApiError> {
        let setting = parse_setting(rule, body)?;
        let config = self.config()?;
        let file = config.file.clone().ok_or_else(|| api_error(&PolicyFileError::NoFile))?;
        let share = config.policy.observe.share.as_f64();
        let newest = self.observer.history.newest(1, |_| true).first().map(|newest| newest.at);
        let start = newest.ok_or_else(no_history)?.saturating_sub(PREVIEW_SPAN);
        let mut entries = self.observer.history.newest(MAX_REQUESTS, |entry| entry.at >= start);
        entries.sort_by_key(|entry| entry.at);
        let replay = tokio::task::spawn_blocking(move || {
            let _running = match RUNNING.try_lock() {
                Err(TryLockError::WouldBlock) => return Err(already_running()),
                // A preview holds no state that a panic could leave half done.
                guard => guard,
            };
            let lines = entries.iter().fold(String::new(), |text, entry| text + &entry.to_line());
            preview(&file, &setting, &HistoryLines::parse(lines.as_bytes()), share)
        });
        replay
            .await
            .unwrap_or_else(|_| Err(api_error(&PolicyFileError::GatewayStopped)))
            .map(|it| ok_json(&it))
    }
}

fn preview(
    file: &Path,
    setting: &RuleSetting,
    history: &HistoryLines,
    share: f64,
) -> Result<Value, ApiError> {
    let RuleSetting { rule, key, value, .. } = setting;
    let edit = RuleEdit::prepare(file, &DiskFiles, rule, key, value)
        .map_err(|error| api_error(&PolicyFileError::Edit(error)))?;
    let only_rule = |mut policy: Policy| {
        policy.rules.retain(|known| known.name == *rule);
        policy
    };
    let (old, new) = (only_rule(edit.policy), only_rule(edit.new_policy));
    let formats = LineFormats::single("json", &[]).map_err(|error| unprocessable(&error))?;
    let input = LogInput::from_bytes("history", history.lines.clone());
    let log = RequestLog::open(vec![input], formats, Replay::user_header(&new));
    let log = log.map_err(|error| unprocessable(&error))?;
    let base = Path::new("");
    let result = replay_log(log, (&new, base), Some((&old, base)), |_| {}).map_err(|error| match error {
        ReplayError::NoKey { key, .. } => ApiError::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            format!(
                "the history has no {key}, by which rule `{rule}` counts; it records addresses, users, methods, paths and hosts"
            ),
        ),
        error => unprocessable(&error),
    })?;
    let time = |time: Option<Micros>| time.map(|time| Utc::from(time).to_string());
    let (before, difference) = result.comparison.unzip();
    let prefix = format!("{rule}: ");
    let keys = difference.iter().flat_map(|difference| &difference.keys).take(MAX_KEYS).map(|changed| {
        json!({
            "key": history.restore_hashes(changed.key.strip_prefix(&prefix).unwrap_or(&changed.key)),
            "newly-denied": changed.newly_denied,
            "no-longer-denied": changed.no_longer_denied,
        })
    });
    Ok(json!({
        "rule": rule,
        "key": key,
        "from": edit.old_value,
        "to": value,
        "share": share,
        "requests": result.log.requests,
        "since": time(result.log.start),
        "until": time(result.log.end),
        "before": before.as_ref().map(counts_json),
        "after": counts_json(&result.stats),
        "keys": keys.collect::<Vec<_>>(),
        "notes": result.notes,
    }))
}

/// The counts of the only rule.
fn counts_json(stats: &PolicyStats) -> Value {
    let rule = stats.rules.first();
    json!({
        "requests": rule.map_or(0, |rule| rule.requests),
        "delayed": rule.map_or(0, |rule| rule.delayed),
        "denied": rule.map_or(0, |rule| rule.denied),
        "shadow-denied": rule.map_or(0, |rule| rule.shadow),
    })
}

fn no_history() -> ApiError {
    let problem = "no recorded requests; add `observe: { history: 100000 }` to the policy, and retry after some requests";
    ApiError::new(StatusCode::CONFLICT, problem)
}

fn already_running() -> ApiError {
    ApiError::new(StatusCode::CONFLICT, "another preview is running; retry when it has ended")
}

fn unprocessable(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string())
}
