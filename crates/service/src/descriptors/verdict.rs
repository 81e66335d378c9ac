//! What is said of a request, from what was found of each of its descriptors.

use super::{
    DescriptorStatus, DomainAsk, DomainVerdict, OverLimit,
    counters::Manner,
    force::{Limited, Subject, policy, quoted},
    settings::{Enforcement, HeaderNames, ServiceSettings, TellBody, TellHeaders, TellMetadata},
};
use serde_json::{Map, Value, json};
use std::time::Duration;
use tidegate_policy::descriptors::CalendarUnit;
use tidegate_rule::ProblemDetails;

/// What was found of one descriptor.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) over: OverLimit,
    /// How many in which time, and which quota of the limit that is.
    pub(super) told: (u32, CalendarUnit),
    pub(super) quota: usize,
    pub(super) remaining: u64,
    pub(super) reset: Option<Duration>,
}

/// One descriptor: what applies to it, and what was found if that is a limit.
pub(super) type Found<'a> = (Subject<'a>, Option<Finding>);

/// Whether the limits of a request refuse it: one that does so by itself, or all of those that do so together.
pub(super) fn refuses<'f>(found: impl Iterator<Item = (&'f Subject<'f>, Option<OverLimit>)>) -> OverLimit {
    let (mut together, mut has_room) = (0, 0);
    for (subject, over) in found {
        match (subject, over) {
            (Subject::Limited(Limited { manner: Manner::Refuse, .. }), Some(OverLimit::Yes)) => {
                return OverLimit::Yes;
            }
            (Subject::Limited(Limited { manner: Manner::RefuseTogether, .. }), Some(over)) => {
                together += 1;
                has_room += u32::from(over == OverLimit::No);
            }
            (subject, _) if subject.keeps_group_open() => {
                together += 1;
                has_room += 1;
            }
            _ => {}
        }
    }
    if together > 0 && has_room == 0 { OverLimit::Yes } else { OverLimit::No }
}

/// Puts the verdict together, and says whether it would be another if it were meant.
pub(super) fn fold(
    ask: &DomainAsk,
    found: &[Found<'_>],
    settings: &ServiceSettings,
) -> (DomainVerdict, OverLimit) {
    let refused =
        refuses(found.iter().map(|(subject, finding)| (subject, finding.as_ref().map(|it| it.over))));
    let overall = match settings.enforcement {
        Enforcement::Enforce => refused,
        Enforcement::Shadow => OverLimit::No,
    };
    let statuses = found.iter().map(status).collect();
    let headers = match &settings.headers {
        TellHeaders::Nothing => Vec::new(),
        TellHeaders::Three(names) => three(found, names),
        TellHeaders::Ietf => ietf(found),
    };
    let body = (overall == OverLimit::Yes && settings.body == TellBody::Problem).then(|| problem(found));
    let metadata = (settings.metadata == TellMetadata::Asked).then(|| metadata(ask, found));
    (DomainVerdict { overall, statuses, headers, body, metadata }, refused)
}

fn status((subject, finding): &Found<'_>) -> DescriptorStatus {
    let free = DescriptorStatus { over: OverLimit::No, limit: None, remaining: 0, reset: None };
    match (subject, finding) {
        (Subject::Free(_), _) | (Subject::Limited(_), None) => free,
        (Subject::Unlimited, _) => DescriptorStatus { remaining: u32::MAX, ..free },
        (Subject::Limited(limited), Some(finding)) => {
            let (requests, unit) = finding.told;
            let name = limited.state.and_then(|state| state.name()).cloned();
            DescriptorStatus {
                over: if limited.manner == Manner::Watch { OverLimit::No } else { finding.over },
                limit: Some((requests, unit, name)),
                remaining: u32::try_from(finding.remaining).unwrap_or(u32::MAX),
                reset: finding.reset,
            }
        }
    }
}

fn limits<'f>(found: &'f [Found<'f>]) -> impl Iterator<Item = (&'f Limited<'f>, &'f Finding)> {
    found.iter().filter_map(|(subject, finding)| match (subject, finding) {
        (Subject::Limited(limited), Some(finding)) => Some((limited, finding)),
        _ => None,
    })
}

/// Of the limit that has least left; if there are some that refuse by themselves, of the last of those.
fn three(found: &[Found<'_>], names: &HeaderNames) -> Vec<(String, String)> {
    let refusing =
        limits(found).filter(|(limited, it)| limited.manner == Manner::Refuse && it.over == OverLimit::Yes);
    let least = || limits(found).min_by_key(|(_, finding)| finding.remaining);
    let Some((_, finding)) = refusing.last().or_else(least) else { return Vec::new() };
    let reset = finding.reset.map_or(0, |reset| reset.as_secs());
    vec![
        (names.limit.clone(), finding.told.0.to_string()),
        (names.remaining.clone(), finding.remaining.to_string()),
        (names.reset.clone(), reset.to_string()),
    ]
}

/// Of each name once: where a limit applies twice, the tighter of both.
fn ietf(found: &[Found<'_>]) -> Vec<(String, String)> {
    let mut told: Vec<(&Limited<'_>, &Finding)> = Vec::new();
    for (limited, finding) in limits(found) {
        match told.iter_mut().find(|(known, _)| known.label() == limited.label()) {
            Some(known) if finding.remaining < known.1.remaining => *known = (limited, finding),
            Some(_) => {}
            None => told.push((limited, finding)),
        }
    }
    if told.is_empty() {
        return Vec::new();
    }
    let (mut policies, mut left) = (Vec::new(), Vec::new());
    for (limited, finding) in told {
        let (requests, unit) = finding.told;
        let known = limited.state.and_then(|state| state.policies().get(finding.quota)).cloned();
        let policy = known.unwrap_or_else(|| policy(limited.label(), requests, unit));
        let name = policy.rsplit_once(";q=").map_or_else(|| quoted(limited.label()), |(it, _)| it.to_owned());
        let more = finding.reset.map_or_else(String::new, |reset| format!(";t={}", reset.as_secs()));
        left.push(format!("{name};r={}{more}", finding.remaining));
        policies.push(policy);
    }
    vec![("RateLimit-Policy".to_owned(), policies.join(", ")), ("RateLimit".to_owned(), left.join(", "))]
}

fn problem(found: &[Found<'_>]) -> String {
    let over = || {
        limits(found)
            .filter(|(limited, finding)| finding.over == OverLimit::Yes && limited.manner != Manner::Watch)
    };
    let names: Vec<&str> = over().map(|(limited, _)| limited.label()).collect();
    let problem = ProblemDetails {
        detail: "Too many requests: slow down, and try again later.",
        violated_policies: &names,
        retry_after: over().filter_map(|(_, finding)| finding.reset).max().map(|wait| wait.as_secs()),
        ..ProblemDetails::quota_exceeded()
    };
    problem.to_json()
}

/// Adds what is not there yet, in maps within maps, too.
fn merge(merged: &mut Map<String, Value>, more: &Map<String, Value>) {
    for (key, value) in more {
        match (merged.get_mut(key), value) {
            (Some(Value::Object(known)), Value::Object(more)) => merge(known, more),
            (Some(_), _) => {}
            (None, value) => _ = merged.insert(key.clone(), value.clone()),
        }
    }
}

/// What was asked, and the metadata of limits that have room; of two that say the same thing, the first is believed.
fn metadata(ask: &DomainAsk, found: &[Found<'_>]) -> Value {
    let descriptors = ask.descriptors.iter().map(|asked| {
        let entries: Vec<_> =
            asked.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect();
        let mut descriptor = json!({ "entries": entries });
        if let Some(limit) = asked.limit {
            // As a message is shown there: fields with the value zero are left out.
            let requests = match limit.requests {
                0 => String::new(),
                requests => format!("requests_per_unit:{requests} "),
            };
            descriptor["limit"] = format!("{requests}unit:{}", limit.unit.name()).into();
        }
        if let Some(hits) = asked.hits {
            descriptor["hitsAddend"] = hits.into();
        }
        descriptor
    });
    let mut all = json!({ "domain": ask.domain, "descriptors": descriptors.collect::<Vec<_>>() });
    if ask.hits > 0 {
        all["hitsAddend"] = ask.hits.into();
    }
    let mut merged = Map::new();
    for it in found {
        let state = match &it.0 {
            Subject::Limited(limited) if status(it).over == OverLimit::No => limited.state,
            Subject::Limited(_) | Subject::Unlimited | Subject::Free(_) => None,
        };
        if let Some(Value::Object(said)) = state.and_then(|state| state.metadata()) {
            merge(&mut merged, said);
        }
    }
    if !merged.is_empty() {
        all["metadata"] = Value::Object(merged);
    }
    all
}
