//! Suggests quotas for a log, with the evidence.
//!
//! ```text
//!   paths ──▶ groups ──▶ rates of keys ──▶ candidates, tried on the log ──▶ policy, tried on the log ──▶ suggestion
//! ```
//!
//! The log is read several times. The number of denials of a suggestion is measured by a replay of the suggested
//! policy, not estimated.

mod burst;
mod group;
mod json;
mod knee;
mod outliers;
mod policy;
mod rates;
mod requests;
mod target;
mod text;
mod trial;

pub use group::PathGroup;
pub use json::to_json;
pub use knee::Knee;
pub use rates::{Peaks, WINDOWS};
pub use target::SuggestTarget;
pub use text::to_text;
pub use trial::Trial;

use crate::{
    log::{LogError, LogStats, RequestLog},
    run::{ReplayError, ReplayProgress, replay_log},
};
use std::path::Path;
use target::Allowance;
use tidegate_core::{Percent, Quota};
use tidegate_policy::{Policy, model::KeySpec};
use tidegate_rule::Mode;

/// The parameters of a suggestion.
#[derive(Clone, Debug)]
pub struct SuggestRequest {
    /// The key of the rules.
    pub key: KeySpec,
    /// The text of the key.
    pub key_text: String,
    /// The share that may be denied.
    pub target: SuggestTarget,
    /// By how much a quota exceeds the smallest one within the target.
    pub headroom: Percent,
}

/// Suggested quotas for a log.
#[derive(Clone, Debug)]
pub struct Suggestion {
    /// The parameters.
    pub request: SuggestRequest,
    /// The statistics of the log.
    pub log: LogStats,
    /// The suggestion for each group.
    pub groups: Vec<GroupSuggestion>,
    /// The policy, in shadow mode.
    pub policy: Policy,
}

/// The suggestion for one group of requests.
#[derive(Clone, Debug)]
pub struct GroupSuggestion {
    /// The group.
    pub group: PathGroup,
    /// The number of requests.
    pub requests: u64,
    /// The number of keys; an estimate if keys were sampled.
    pub keys: u64,
    /// The peaks of keys for each of the [`WINDOWS`].
    pub peaks: Vec<Peaks>,
    /// The knee of the peaks in the window of the quota.
    pub knee: Knee,
    /// The largest outliers, which are excluded from the target, each with its peak in the window of the quota.
    pub outliers: Vec<(String, u64)>,
    /// The number of outliers; an estimate if keys were sampled.
    pub outlier_count: u64,
    /// The key with the most requests, with their number, if it has more than a quarter of all.
    pub dominant: Option<(String, u64)>,
    /// All candidates with their results.
    pub trials: Vec<Trial>,
    /// The smallest quota within the target on this log.
    pub min_quota: Quota,
    /// The suggested quota, with headroom.
    pub quota: Quota,
    /// The window of the quota, as an index of [`WINDOWS`].
    pub window: usize,
    /// The number of requests of this log that the quota denies.
    pub denied: u64,
    /// Whether any candidate is within the target.
    pub is_within_target: bool,
}

impl SuggestRequest {
    /// Parses a key in the syntax of a policy: `ip`, `header x-api-key`, `[ip, path]`.
    ///
    /// # Errors
    ///
    /// Returns the problem of an invalid key.
    pub fn parse(key: &str, target: SuggestTarget, headroom: Percent) -> Result<Self, String> {
        let text = key.trim();
        if text.contains('\n') {
            return Err("a key is one line; write ip, user or `header x-api-key`".to_owned());
        }
        let user = if text.contains("user") { "user: header x-user\n" } else { "" };
        let probe = format!("{user}rules:\n  - name: probe\n    quota: 1/s\n    key: {text}\n");
        let policy: Policy =
            probe.parse().map_err(|problems| format!("--key {text}: {}", first_line(&problems)))?;
        tidegate_policy::compile::check(&policy).map_err(|error| format!("--key {text}: {error}"))?;
        let rule = policy.rules.into_iter().next().ok_or_else(|| format!("--key {text}: no key found"))?;
        Ok(Self { key: rule.key, key_text: text.to_owned(), target, headroom })
    }
}

fn first_line(problems: &tidegate_policy::Problems) -> String {
    let text = problems.to_string();
    let line = text.lines().next().unwrap_or_default();
    // The position refers to a generated file, so remove it.
    line.splitn(3, ':').last().unwrap_or(line).trim().to_owned()
}

/// Reads a log several times and suggests quotas for it. `open` opens the log from its start.
///
/// # Errors
///
/// Returns an error if the log cannot be read, or if no request has the key.
pub fn suggest(
    request: SuggestRequest,
    open: impl Fn() -> Result<RequestLog, LogError>,
    mut on_progress: impl FnMut(ReplayProgress),
) -> Result<Suggestion, ReplayError> {
    let groups = group::find_groups(open()?, &mut on_progress)?;
    let mut found = rates::measure(&request, &groups, open()?, &mut on_progress)?;
    found.groups.retain(|found| found.requests > 0);
    let allowed: Vec<_> = found.groups.iter().map(|group| request.target.allowance(group)).collect();
    let ladder = trial::initial_candidates(&found);
    let first = trial::run(&request, &found, ladder, open()?, &mut on_progress)?;
    let second = trial::refined_candidates(&first, &allowed);
    let second = trial::run(&request, &found, second, open()?, &mut on_progress)?;
    let mut trials: Vec<Vec<Trial>> = first.into_iter().zip(second).map(|(a, b)| [a, b].concat()).collect();
    let choose = |(trials, allowed): (&Vec<Trial>, &Allowance)| trial::choose(trials, *allowed);
    let needed: Option<Vec<Trial>> = trials.iter().zip(&allowed).map(choose).collect();
    let needed = needed.ok_or_else(|| ReplayError::Suggestion("no candidate quotas".to_owned()))?;
    let bursts = trial::run(&request, &found, burst::smaller_bursts(&needed), open()?, &mut on_progress)?;
    let needed = burst::choose(&needed, &bursts, &allowed);
    let with_headroom = trial::with_headroom(&needed, request.headroom);
    let headroom_trials = trial::run(&request, &found, with_headroom, open()?, &mut on_progress)?;
    let mut groups = Vec::new();
    for (place, found) in found.groups.into_iter().enumerate() {
        let mut trials =
            [std::mem::take(&mut trials[place]), bursts[place].clone(), headroom_trials[place].clone()]
                .concat();
        trial::sort_and_dedup(&mut trials);
        let needed = &needed[place];
        let chosen = headroom_trials[place].first().unwrap_or(needed);
        groups.push(found.suggest(trials, needed, chosen, allowed[place].permits(needed)));
    }
    let rules = groups.iter().map(|suggested| (&suggested.group, suggested.quota));
    let policy = policy::build_policy(&request, rules, Mode::Shadow)?;
    let replayed =
        replay_log(open()?, (&policy::enforce_all(&policy), Path::new("")), None, &mut on_progress)?;
    for (group, rule) in groups.iter_mut().zip(&replayed.stats.rules) {
        group.denied = rule.denied;
    }
    Ok(Suggestion { request, log: replayed.log, groups, policy })
}
