//! Builds the verdict on a request from the findings of its descriptors.

use super::{
    DomainRequest, DomainVerdict, LimitCode, LimitStatus,
    active_config::{LimitMatch, MatchedLimit, policy_item, quote_name},
    counters::LimitAction,
    settings::{
        GlobalEnforcement, HeaderNames, ResponseBodyMode, ResponseHeaderMode, ResponseMetadataMode,
        ServiceSettings,
    },
};
use serde_json::{Map, Value, json};
use std::time::Duration;
use tidegate_policy::descriptors::CalendarUnit;
use tidegate_rule::ProblemDetails;

/// The finding for one descriptor.
#[derive(Clone, Debug)]
pub(super) struct LimitFinding {
    pub(super) code: LimitCode,
    /// The number of requests and the unit, as clients see them.
    pub(super) declared: (u32, CalendarUnit),
    /// The index of the quota in the limit.
    pub(super) quota: usize,
    pub(super) remaining: u64,
    pub(super) reset: Option<Duration>,
}

/// A descriptor: the limit that applies, and the finding if there is one.
pub(super) type DescriptorFinding<'a> = (LimitMatch<'a>, Option<LimitFinding>);

/// Whether the limits deny the request: one that denies on its own, or all members of the quota group.
pub(super) fn decide_overall<'f>(
    matches: impl Iterator<Item = (&'f LimitMatch<'f>, Option<LimitCode>)>,
) -> LimitCode {
    let (mut members, mut with_capacity) = (0, 0);
    for (subject, code) in matches {
        match (subject, code) {
            (
                LimitMatch::Limited(MatchedLimit { action: LimitAction::Deny, .. }),
                Some(LimitCode::OverLimit),
            ) => {
                return LimitCode::OverLimit;
            }
            (LimitMatch::Limited(MatchedLimit { action: LimitAction::DenyWithGroup, .. }), Some(code)) => {
                members += 1;
                with_capacity += u32::from(code == LimitCode::Ok);
            }
            (subject, _) if subject.always_has_capacity() => {
                members += 1;
                with_capacity += 1;
            }
            _ => {}
        }
    }
    if members > 0 && with_capacity == 0 { LimitCode::OverLimit } else { LimitCode::Ok }
}

/// Builds the verdict. Also returns the result without the global shadow mode.
pub(super) fn build_verdict(
    request: &DomainRequest,
    matches: &[DescriptorFinding<'_>],
    settings: &ServiceSettings,
) -> (DomainVerdict, LimitCode) {
    let enforced_code = decide_overall(
        matches.iter().map(|(subject, finding)| (subject, finding.as_ref().map(|it| it.code))),
    );
    let overall_code = match settings.enforcement {
        GlobalEnforcement::Enforce => enforced_code,
        GlobalEnforcement::Shadow => LimitCode::Ok,
    };
    let statuses = matches.iter().map(limit_status).collect();
    let headers = match &settings.headers {
        ResponseHeaderMode::None => Vec::new(),
        ResponseHeaderMode::Custom(names) => custom_headers(matches, names),
        ResponseHeaderMode::Ietf => ietf_headers(matches),
    };
    let body = (overall_code == LimitCode::OverLimit && settings.body == ResponseBodyMode::Problem)
        .then(|| problem_body(matches));
    let metadata =
        (settings.metadata == ResponseMetadataMode::Request).then(|| response_metadata(request, matches));
    (DomainVerdict { overall_code, statuses, headers, body, metadata }, enforced_code)
}

fn limit_status((subject, finding): &DescriptorFinding<'_>) -> LimitStatus {
    let free = LimitStatus { code: LimitCode::Ok, limit: None, remaining: 0, reset: None };
    match (subject, finding) {
        (LimitMatch::Unmatched(_), _) | (LimitMatch::Limited(_), None) => free,
        (LimitMatch::Unlimited, _) => LimitStatus { remaining: u32::MAX, ..free },
        (LimitMatch::Limited(limited), Some(finding)) => {
            let (requests, unit) = finding.declared;
            let name = limited.state.and_then(|state| state.name()).cloned();
            LimitStatus {
                code: if limited.action == LimitAction::Shadow { LimitCode::Ok } else { finding.code },
                limit: Some((requests, unit, name)),
                remaining: u32::try_from(finding.remaining).unwrap_or(u32::MAX),
                reset: finding.reset,
            }
        }
    }
}

fn matched_limits<'f>(
    matches: &'f [DescriptorFinding<'f>],
) -> impl Iterator<Item = (&'f MatchedLimit<'f>, &'f LimitFinding)> {
    matches.iter().filter_map(|(subject, finding)| match (subject, finding) {
        (LimitMatch::Limited(limited), Some(finding)) => Some((limited, finding)),
        _ => None,
    })
}

/// Headers of the last limit that denies on its own; otherwise of the limit with the fewest remaining requests.
fn custom_headers(matches: &[DescriptorFinding<'_>], names: &HeaderNames) -> Vec<(String, String)> {
    let denying = matched_limits(matches)
        .filter(|(limited, it)| limited.action == LimitAction::Deny && it.code == LimitCode::OverLimit);
    let lowest = || matched_limits(matches).min_by_key(|(_, finding)| finding.remaining);
    let Some((_, finding)) = denying.last().or_else(lowest) else { return Vec::new() };
    let reset = finding.reset.map_or(0, |reset| reset.as_secs());
    vec![
        (names.limit.clone(), finding.declared.0.to_string()),
        (names.remaining.clone(), finding.remaining.to_string()),
        (names.reset.clone(), reset.to_string()),
    ]
}

/// One item per name: the most restrictive finding if a limit applies to several descriptors.
fn ietf_headers(matches: &[DescriptorFinding<'_>]) -> Vec<(String, String)> {
    let mut reported: Vec<(&MatchedLimit<'_>, &LimitFinding)> = Vec::new();
    for (limited, finding) in matched_limits(matches) {
        match reported.iter_mut().find(|(known, _)| known.label() == limited.label()) {
            Some(known) if finding.remaining < known.1.remaining => *known = (limited, finding),
            Some(_) => {}
            None => reported.push((limited, finding)),
        }
    }
    if reported.is_empty() {
        return Vec::new();
    }
    let (mut policies, mut remaining) = (Vec::new(), Vec::new());
    for (limited, finding) in reported {
        let (requests, unit) = finding.declared;
        let known = limited.state.and_then(|state| state.policies().get(finding.quota)).cloned();
        let policy = known.unwrap_or_else(|| policy_item(limited.label(), requests, unit));
        let name =
            policy.rsplit_once(";q=").map_or_else(|| quote_name(limited.label()), |(it, _)| it.to_owned());
        let more = finding.reset.map_or_else(String::new, |reset| format!(";t={}", reset.as_secs()));
        remaining.push(format!("{name};r={}{more}", finding.remaining));
        policies.push(policy);
    }
    vec![("RateLimit-Policy".to_owned(), policies.join(", ")), ("RateLimit".to_owned(), remaining.join(", "))]
}

fn problem_body(matches: &[DescriptorFinding<'_>]) -> String {
    let over_limits = || {
        matched_limits(matches).filter(|(limited, finding)| {
            finding.code == LimitCode::OverLimit && limited.action != LimitAction::Shadow
        })
    };
    let names: Vec<&str> = over_limits().map(|(limited, _)| limited.label()).collect();
    let problem = ProblemDetails {
        detail: "Too many requests. Slow down and try again later.",
        violated_policies: &names,
        retry_after: over_limits().filter_map(|(_, finding)| finding.reset).max().map(|wait| wait.as_secs()),
        ..ProblemDetails::quota_exceeded()
    };
    problem.to_json()
}

/// Adds the missing keys, recursively.
fn merge_missing(merged: &mut Map<String, Value>, other: &Map<String, Value>) {
    for (key, value) in other {
        match (merged.get_mut(key), value) {
            (Some(Value::Object(known)), Value::Object(more)) => merge_missing(known, more),
            (Some(_), _) => {}
            (None, value) => _ = merged.insert(key.clone(), value.clone()),
        }
    }
}

/// The request, and the merged metadata of limits that are not exceeded; the first value of a key wins.
fn response_metadata(request: &DomainRequest, matches: &[DescriptorFinding<'_>]) -> Value {
    let descriptors = request.descriptors.iter().map(|requested| {
        let entries: Vec<_> =
            requested.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect();
        let mut descriptor = json!({ "entries": entries });
        if let Some(limit) = requested.limit {
            // The text format of protobuf omits fields with the value zero.
            let requests = match limit.requests {
                0 => String::new(),
                requests => format!("requests_per_unit:{requests} "),
            };
            descriptor["limit"] = format!("{requests}unit:{}", limit.unit.name()).into();
        }
        if let Some(hits) = requested.hits {
            descriptor["hitsAddend"] = hits.into();
        }
        descriptor
    });
    let mut all = json!({ "domain": request.domain, "descriptors": descriptors.collect::<Vec<_>>() });
    if request.hits > 0 {
        all["hitsAddend"] = request.hits.into();
    }
    let mut merged = Map::new();
    for it in matches {
        let state = match &it.0 {
            LimitMatch::Limited(limited) if limit_status(it).code == LimitCode::Ok => limited.state,
            LimitMatch::Limited(_) | LimitMatch::Unlimited | LimitMatch::Unmatched(_) => None,
        };
        if let Some(Value::Object(metadata)) = state.and_then(|state| state.metadata()) {
            merge_missing(&mut merged, metadata);
        }
    }
    if !merged.is_empty() {
        all["metadata"] = Value::Object(merged);
    }
    all
}
