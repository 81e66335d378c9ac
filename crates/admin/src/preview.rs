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
    collections::HashSet,
    path::Path,
    sync::{Mutex, MutexGuard, TryLockError},
};
use tidegate_core::{Micros, Utc};
use tidegate_http_server::ApiError;
use tidegate_observe::Observer;
use tidegate_policy::{
    DiskFiles, Policy,
    edit::RuleEdit,
    model::{Observe, RuleEnforcement},
};
use tidegate_replay::{
    NO_DURATIONS, PolicyStats, Replay, ReplayError,
    log::{HistoryLines, LineFormats, LogInput, RecordedRequests, RequestLog},
    replay_log,
};
use tidegate_rule::Mode;

/// The time that a preview covers, until now.
const PREVIEW_SPAN: Micros = Micros::from_secs(3_600);

/// The maximum number of requests of one preview. A line has about 200 bytes, so that they need about 40 MB, and twice that
/// while they are collected.
const MAX_REQUESTS: usize = 200_000;

/// The number of keys in the result.
const MAX_KEYS: usize = 20;

impl AdminState {
    /// Replays the history with another number.
    pub(super) async fn preview(&self, rule: &str, body: &[u8]) -> Result<Response, ApiError> {
        let setting = parse_setting(rule, body)?;
        let config = self.config()?;
        let file = config.file.clone().ok_or_else(|| api_error(&PolicyFileError::NoFile))?;
        let (observer, running) = (self.observer.clone(), self.running_preview.clone());
        let replay = tokio::task::spawn_blocking(move || {
            let _running = start_preview(&running)?;
            preview(&file, &setting, &observer, &config.policy.observe)
        });
        replay
            .await
            .unwrap_or_else(|_| Err(api_error(&PolicyFileError::GatewayStopped)))
            .map(|it| ok_json(&it))
    }
}

/// Only one preview runs at a time.
fn start_preview(running: &Mutex<()>) -> Result<MutexGuard<'_, ()>, ApiError> {
    match running.try_lock() {
        Ok(running) => Ok(running),
        // A preview has no state that a panic could leave half done.
        Err(TryLockError::Poisoned(running)) => Ok(running.into_inner()),
        Err(TryLockError::WouldBlock) => {
            let problem = "another preview is running; retry when it has ended";
            Err(ApiError::new(StatusCode::CONFLICT, problem))
        }
    }
}

fn preview(
    file: &Path,
    setting: &RuleSetting,
    observer: &Observer,
    observe: &Observe,
) -> Result<Value, ApiError> {
    let RuleSetting { rule, key, value, .. } = setting;
    let edit = RuleEdit::prepare(file, &DiskFiles, rule, key, value)
        .map_err(|error| api_error(&PolicyFileError::Edit(error)))?;
    let known = edit.policy.rules.iter().find(|known| known.name == *rule);
    let enforcement = known.map_or(RuleEnforcement::All(Mode::Enforce), |known| known.enforcement.clone());
    let (old, new) = (only_rule(edit.policy, rule), only_rule(edit.new_policy, rule));
    let recorded = RecordedRequests { observe, span: PREVIEW_SPAN };
    let mut notes = Vec::new();
    for (policy, rule) in [&new, &old].into_iter().flat_map(|policy| Some((policy, policy.rules.first()?))) {
        recorded.check(policy, rule, key).map_err(|problem| unprocessable(&problem))?;
        notes.extend(recorded.notes(policy, rule));
    }
    let history = recent_requests(observer).ok_or_else(no_history)?;
    let formats = LineFormats::single("json", &[]).map_err(|error| unprocessable(&error))?;
    let input = LogInput::from_bytes("history", history.lines.clone());
    let log = RequestLog::open(vec![input], formats, Replay::user_key(&new));
    let log = log.map_err(|error| unprocessable(&error))?;
    let base = Path::new("");
    let result = replay_log(log, (&new, base), Some((&old, base)), |_| {}).map_err(|error| match error {
        ReplayError::NoKey { key, .. } => unprocessable(&format!(
            "no recorded request has the key of rule `{rule}` ({key}); the history has addresses, methods, paths, hosts, and \
             the users that `user` defines; use `tidegate replay` with a log for other keys"
        )),
        error => unprocessable(&error),
    })?;
    // Notes for logs name what to log.
    notes.extend(result.notes.into_iter().filter(|note| note != NO_DURATIONS));
    let mut known = HashSet::new();
    notes.retain(|note| known.insert(note.clone()));
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
        "share": observe.share.as_f64(),
        "requests": result.log.requests,
        "since": time(result.log.start),
        "until": time(result.log.end),
        "before": before.as_ref().map(|before| counts_json(before, &enforcement)),
        "after": counts_json(&result.stats, &enforcement),
        "keys": keys.collect::<Vec<_>>(),
        "notes": notes,
    }))
}

/// The recorded requests that were received in the last hour; `None` without any.
fn recent_requests(observer: &Observer) -> Option<HistoryLines> {
    let start = observer.clock.now().saturating_sub(PREVIEW_SPAN);
    // The workers are blocked only while the list is copied. It is in the order in which the requests ended.
    let mut entries = observer.history.newest(MAX_REQUESTS, |_| true);
    entries.retain(|entry| entry.at >= start);
    entries.sort_by_key(|entry| entry.at);
    (!entries.is_empty()).then(|| HistoryLines::new(entries.iter().map(|entry| entry.to_line())))
}

/// The policy with this rule alone. A rule in shadow mode is enforced, because a comparison is of enforced denials.
fn only_rule(mut policy: Policy, name: &str) -> Policy {
    policy.rules.retain(|known| known.name == name);
    for rule in &mut policy.rules {
        if rule.enforcement == RuleEnforcement::All(Mode::Shadow) {
            rule.enforcement = RuleEnforcement::All(Mode::Enforce);
            // They have no effect in shadow mode.
            (rule.breaker, rule.adaptive) = (None, None);
        }
    }
    policy
}

/// The counts of the only rule, whose denials are those of shadow mode if it is in that mode.
fn counts_json(stats: &PolicyStats, enforcement: &RuleEnforcement) -> Value {
    let rule = stats.rules.first();
    let (denied, shadow) = rule.map_or((0, 0), |rule| (rule.denied, rule.shadow));
    let (denied, shadow) = match enforcement {
        RuleEnforcement::All(Mode::Shadow) => (0, denied + shadow),
        RuleEnforcement::All(_) | RuleEnforcement::Percent(_) => (denied, shadow),
    };
    json!({
        "requests": rule.map_or(0, |rule| rule.requests),
        "delayed": rule.map_or(0, |rule| rule.delayed),
        "denied": denied,
        "shadow-denied": shadow,
    })
}

fn no_history() -> ApiError {
    let problem = "no requests were recorded in the last hour; add `observe: { history: 100000 }` to the policy, and retry after \
                   some requests";
    ApiError::new(StatusCode::CONFLICT, problem)
}

fn unprocessable(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed step fails the test")]
mod tests {
    use super::*;

    #[test]
    fn one_preview_runs_at_a_time() {
        let running = Mutex::new(());
        let first = start_preview(&running).unwrap();
        let error = start_preview(&running).map(drop).unwrap_err();
        assert_eq!(error.status, StatusCode::CONFLICT);
        assert_eq!(error.detail, "another preview is running; retry when it has ended");
        drop(first);
        assert!(start_preview(&running).is_ok());
    }
}
