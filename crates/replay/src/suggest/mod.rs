//! Quotas for a log, with the evidence.
//!
//! ```text
//!   paths ──▶ groups ──▶ rates of keys ──▶ candidates, tried on the log ──▶ policy, tried on the log ──▶ suggestion
//! ```
//!
//! The log is read several times. What a suggestion says that it denies is what the policy that is written has denied when it
//! was replayed, not an estimate.

mod burst;
mod group;
mod json;
mod knee;
mod policy;
mod rates;
mod say;
mod trial;
mod walk;

pub use group::Group;
pub use json::json;
pub use knee::Knee;
pub use rates::{Peaks, WINDOWS};
pub use say::text;
pub use trial::Trial;

use crate::{
    log::{Log, LogError, LogStats},
    run::{Failure, Progress, play},
};
use std::path::Path;
use tidegate_core::{Quota, Share};
use tidegate_policy::{Policy, model::Key};
use tidegate_rule::Mode;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Wish {
    /// For whom quotas count.
    pub key: Key,
    /// How it was written.
    pub key_text: String,
    /// The part of the requests of each group that may be denied.
    pub target: Share,
}

/// Quotas for a log.
#[derive(Clone, Debug)]
pub struct Suggestion {
    /// What was asked for.
    pub wish: Wish,
    /// What is told of the log.
    pub log: LogStats,
    /// What is suggested for each group.
    pub groups: Vec<Suggested>,
    /// The policy, in shadow mode.
    pub policy: Policy,
}

/// What is suggested for the requests of one group.
#[derive(Clone, Debug)]
pub struct Suggested {
    /// Which requests.
    pub group: Group,
    /// How many there were.
    pub requests: u64,
    /// How many keys there were, as far as they were followed.
    pub keys: u64,
    /// How fast keys were, for each of the [`WINDOWS`].
    pub peaks: Vec<Peaks>,
    /// Where the usual end and the others begin, for the window of the quota.
    pub knee: Knee,
    /// The keys far beyond the usual: each with its most in the window of the quota.
    pub outliers: Vec<(String, u64)>,
    /// All that was tried, with what it would have denied.
    pub trials: Vec<Trial>,
    /// What is suggested.
    pub quota: Quota,
    /// The window of the quota, by its place among [`WINDOWS`].
    pub window: usize,
    /// What it denies of this log.
    pub denied: u64,
    /// Whether there was anything that denies as little as was asked for.
    pub is_within: bool,
}

impl Wish {
    /// Reads what is asked for, in the words of a policy: `ip`, `header x-api-key`, `[ip, path]`.
    pub fn read(key: &str, target: Share) -> Result<Self, String> {
        let text = key.trim();
        if text.contains('\n') {
            return Err("a key is one line; write ip, user or `header x-api-key`".to_owned());
        }
        let user = if text.contains("user") { "user: header x-user\n" } else { "" };
        let probe = format!("{user}rules:\n  - name: probe\n    quota: 1/s\n    key: {text}\n");
        let policy: Policy =
            probe.parse().map_err(|problems| format!("--key {text}: {}", first_line(&problems)))?;
        tidegate_policy::compile::check(&policy).map_err(|error| format!("--key {text}: {error}"))?;
        let rule =
            policy.rules.into_iter().next().ok_or_else(|| format!("--key {text}: there is no key in it"))?;
        Ok(Self { key: rule.key, key_text: text.to_owned(), target })
    }
}

fn first_line(problems: &tidegate_policy::Problems) -> String {
    let text = problems.to_string();
    let line = text.lines().next().unwrap_or_default();
    // The place is one in a file that nobody has written.
    line.splitn(3, ':').last().unwrap_or(line).trim().to_owned()
}

/// Reads a log several times and suggests quotas for it. `open` opens it anew each time.
pub fn suggest(
    wish: Wish,
    open: impl Fn() -> Result<Log, LogError>,
    mut told: impl FnMut(Progress),
) -> Result<Suggestion, Failure> {
    let groups = group::find(open()?, &mut told)?;
    let mut found = rates::measure(&wish, &groups, open()?, &mut told)?;
    found.groups.retain(|found| found.requests > 0);
    let most = trial::most_denied(&wish, &found);
    let ladder = trial::ladder(&found);
    let first = trial::run(&wish, &found, ladder, open()?, &mut told)?;
    let second = trial::between(&first, &most);
    let second = trial::run(&wish, &found, second, open()?, &mut told)?;
    let mut trials: Vec<Vec<Trial>> = first.into_iter().zip(second).map(|(a, b)| [a, b].concat()).collect();
    let choose = |(trials, most): (&Vec<Trial>, &u64)| trial::choose(trials, *most);
    let chosen: Option<Vec<Trial>> = trials.iter().zip(&most).map(choose).collect();
    let chosen = chosen.ok_or_else(|| Failure::Suggested("there is nothing to choose from".to_owned()))?;
    let bursts = trial::run(&wish, &found, burst::smaller(&chosen), open()?, &mut told)?;
    let chosen = burst::choose(&chosen, &bursts, &most);
    let mut groups = Vec::new();
    for (place, found) in found.groups.into_iter().enumerate() {
        let mut trials = [std::mem::take(&mut trials[place]), bursts[place].clone()].concat();
        trial::tidy(&mut trials);
        groups.push(found.suggest(trials, &chosen[place], most[place]));
    }
    let rules = groups.iter().map(|suggested| (&suggested.group, suggested.quota));
    let policy = policy::of(&wish, rules, Mode::Shadow)?;
    let played = play(open()?, (&policy::enforced(&policy), Path::new("")), None, &mut told)?;
    for (group, rule) in groups.iter_mut().zip(&played.tally.rules) {
        group.denied = rule.denied;
    }
    Ok(Suggestion { wish, log: played.log, groups, policy })
}
