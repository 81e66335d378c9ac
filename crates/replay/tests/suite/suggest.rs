//! The reported numbers of a suggestion match a replay of its policy.

use crate::support::{REAL_LOG, builtin_formats, common_log, open_logs, parse_policy, replay};
use std::{collections::BTreeSet, io::Read as _, path::Path};
use tidegate_policy::{PolicyFormat, compile, lint, model::RuleEnforcement};
use tidegate_replay::{
    log::{LogInput, RequestLog},
    replay_log,
    suggest::{GroupSuggestion, SuggestRequest, SuggestTarget, Suggestion, Trial, suggest, to_json, to_text},
};
use tidegate_rule::Mode;

fn suggest_for(log: &[u8], key: &str, target: SuggestTarget) -> Result<Suggestion, String> {
    let wish = SuggestRequest::parse(key, target, "50%".parse().unwrap())?;
    let open = || {
        RequestLog::open(
            vec![LogInput::from_bytes("log", log)],
            builtin_formats(),
            Some("header x-user".to_owned()),
        )
    };
    suggest(wish, open, |_| {}).map_err(|failure| failure.to_string())
}

fn keys_target(share: &str) -> SuggestTarget {
    SuggestTarget::Keys(share.parse().unwrap())
}

fn requests_target(share: &str) -> SuggestTarget {
    SuggestTarget::Requests(share.parse().unwrap())
}

/// Returns the trial of the suggested quota.
fn chosen_trial(group: &GroupSuggestion) -> &Trial {
    group.trials.iter().find(|trial| trial.quota == group.quota).unwrap()
}

/// Returns the keys that the suggested policy denies on a log if it is enforced.
fn denied_keys(suggestion: &Suggestion, log: &str) -> BTreeSet<String> {
    let mut policy = suggestion.policy.clone();
    policy.rules.iter_mut().for_each(|rule| rule.enforcement = RuleEnforcement::All(Mode::Enforce));
    let log = open_logs(&[log.as_bytes()], builtin_formats(), &policy).unwrap();
    let result = replay_log(log, (&policy, Path::new("")), None, |_| {}).unwrap();
    result.stats.rules.iter().flat_map(|rule| rule.keys.top()).map(|key| key.name).collect()
}

/// The printed policy is parsed again and enforced on the same log.
#[test]
fn suggestion_denies_reported_count() {
    for target in [keys_target("99%"), keys_target("90%"), requests_target("5%")] {
        let suggestion = suggest_for(REAL_LOG, "ip", target).unwrap();
        assert!(suggestion.groups.len() > 1, "{:?}", suggestion.groups);
        let mut written = parse_policy(&suggestion.policy.print(PolicyFormat::Yaml));
        assert_eq!(compile::check(&written), Ok(()));
        assert!(lint(&written).is_empty(), "{:?}", lint(&written));
        assert!(written.rules.iter().all(|rule| rule.enforcement == RuleEnforcement::All(Mode::Shadow)));
        let shadow = replay(REAL_LOG, &written.print(PolicyFormat::Yaml)).unwrap();
        written.rules.iter_mut().for_each(|rule| rule.enforcement = RuleEnforcement::All(Mode::Enforce));
        let log = open_logs(&[REAL_LOG], builtin_formats(), &written).unwrap();
        let result = replay_log(log, (&written, Path::new("")), None, |_| {}).unwrap();
        let mut expected_denied = 0;
        for ((group, rule), watched) in
            suggestion.groups.iter().zip(&result.stats.rules).zip(&shadow.stats.rules)
        {
            assert_eq!((rule.requests, rule.denied), (group.requests, group.denied), "{}", rule.name);
            assert_eq!(watched.shadow, group.denied, "{}", rule.name);
            // The trial of the candidate has the same number of denials.
            let tried = chosen_trial(group);
            assert_eq!(tried.denied, group.denied, "{}", rule.name);
            assert!(group.is_within_target, "{group:?}");
            match target {
                SuggestTarget::Keys(share) => {
                    assert!(tried.keys <= share.complement().apply(group.keys), "{group:?}");
                }
                SuggestTarget::Requests(share) => {
                    assert!(tried.typical_denied <= share.apply(group.requests), "{group:?}");
                }
            }
            expected_denied += group.denied;
        }
        assert_eq!(result.stats.denied, expected_denied);
        assert!(expected_denied > 0, "{target}");
        let requests: u64 = suggestion.groups.iter().map(|group| group.requests).sum();
        assert_eq!(requests, 10_000, "every request is in one group");
    }
}

/// A hundred clients with one request per minute, and a bot with more requests than all of them.
#[test]
fn suggestion_does_not_follow_an_abuser() {
    let mut requests = Vec::new();
    for minute in 0..30_u64 {
        for person in 0..100_u64 {
            requests.push((minute * 60 + person % 60, format!("192.0.2.{person}")));
        }
    }
    let people = requests.clone();
    for second in 0..1_800 {
        (0..5).for_each(|_| requests.push((second, "198.51.100.1".to_owned())));
    }
    let log = |requests: &[(u64, String)]| {
        let requests: Vec<_> =
            requests.iter().map(|(at, ip)| (*at, ip.as_str(), "GET /shop/list", 200)).collect();
        common_log(&requests)
    };
    let (alone, beside) = (log(&people), log(&requests));
    for target in [keys_target("99.9%"), requests_target("0.1%")] {
        let suggestion = suggest_for(beside.as_bytes(), "ip", target).unwrap();
        let without = suggest_for(alone.as_bytes(), "ip", target).unwrap();
        let group = suggestion.groups.iter().max_by_key(|group| group.requests).unwrap();
        assert_eq!(group.quota, without.groups[0].quota, "the bot changes nothing: {group:?}");
        assert_eq!(group.outliers, [("198.51.100.1".to_owned(), 300)], "{group:?}");
        assert_eq!(
            (chosen_trial(group).keys, chosen_trial(group).outliers),
            (0, 1),
            "only the bot is denied: {group:?}"
        );
        assert_eq!(denied_keys(&suggestion, &beside), BTreeSet::from(["198.51.100.1".to_owned()]));
        let output = to_text(&suggestion);
        for part in [
            "knee at 1 in 1 min: 99.0 % of keys are at or below it, 1 above",
            "1 outlier excluded from the target, with peaks in 1 min: 198.51.100.1 (300)",
            "warning: one key dominates: 198.51.100.1 makes 75.00 % of the requests",
            "warning: the log covers less than a day",
        ] {
            assert!(output.contains(part), "{part}:\n{output}");
        }
        let value = to_json(&suggestion);
        assert_eq!(value["requests"], 12_000);
        assert_eq!(value["groups"][0]["outliers"][0]["key"], "198.51.100.1");
        assert!(value["policy"].as_str().is_some_and(|policy| policy.contains("mode: shadow")), "{value}");
    }
}

#[test]
fn small_sample_of_one_key_warns() {
    let requests: Vec<_> = (0..49).map(|second| (second, "192.0.2.1", "GET /", 200)).collect();
    let suggestion = suggest_for(common_log(&requests).as_bytes(), "ip", keys_target("99.9%")).unwrap();
    let output = to_text(&suggestion);
    assert!(output.contains("warning: small sample: 49 requests of 1 key"), "{output}");
    assert!(
        output.contains("warning: one key dominates: 192.0.2.1 makes 100.00 % of the requests"),
        "{output}"
    );
    let warnings = to_json(&suggestion)["groups"][0]["warnings"].as_array().map(Vec::len);
    assert_eq!(warnings, Some(2));
}

/// Clients with sessions of a few requests each, of different lengths, and one abuser with constant traffic.
fn generate_day(seed: u64, people: u64) -> String {
    let mut state = seed;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut requests = Vec::new();
    for person in 0..people {
        let ip = format!("10.0.{}.{}", person / 250, person % 250);
        for _ in 0..1 + random(3) {
            let mut at = random(9 * 3_600);
            // The session length has a geometric distribution.
            let mut pages = 1 + random(4);
            while random(2) == 0 && pages < 40 {
                pages += 1 + random(4);
            }
            for _ in 0..pages {
                requests.push((at, ip.clone()));
                at += random(5);
            }
        }
    }
    (0..4 * 3_600).for_each(|second| requests.push((second, "198.51.100.1".to_owned())));
    requests.sort();
    let requests: Vec<_> = requests.iter().map(|(at, ip)| (*at, ip.as_str(), "GET /", 200)).collect();
    common_log(&requests)
}

#[test]
fn target_of_one_generated_day_holds_on_another() {
    for seed in 1..=2 {
        let (first, second) = (generate_day(seed, 3_000), generate_day(seed + 100, 3_000));
        let suggestion = suggest_for(first.as_bytes(), "ip", keys_target("99.9%")).unwrap();
        let mut denied = denied_keys(&suggestion, &second);
        assert!(denied.remove("198.51.100.1"), "the abuser is denied: {}", to_text(&suggestion));
        assert!(denied.len() <= 3, "{} of 3000 keys: {}", denied.len(), to_text(&suggestion));
    }
}

#[test]
fn target_of_one_half_of_a_real_log_holds_on_the_other() {
    let mut log = String::new();
    flate2::read::GzDecoder::new(REAL_LOG).read_to_string(&mut log).unwrap();
    let is_early = |line: &&str| line.contains("[17/May/") || line.contains("[18/May/");
    let (early, late): (Vec<&str>, Vec<&str>) = log.lines().partition(is_early);
    for (train, test) in [(&early, &late), (&late, &early)] {
        let addresses: BTreeSet<_> = test.iter().filter_map(|line| line.split(' ').next()).collect();
        let suggestion = suggest_for(train.join("\n").as_bytes(), "ip", keys_target("99%")).unwrap();
        let denied = denied_keys(&suggestion, &test.join("\n"));
        let most = addresses.len() / 100;
        assert!(
            denied.len() <= most,
            "{} of {}: {denied:?}\n{}",
            denied.len(),
            addresses.len(),
            to_text(&suggestion)
        );
    }
}

/// Overlapping path prefixes: each request counts in one group, and the denials are as reported.
#[test]
fn groups_share_no_request() {
    let mut requests = Vec::new();
    for second in 0..1_200_u64 {
        let path = if second % 4 == 0 {
            "GET /shop/list".to_owned()
        } else {
            format!("GET /shop/item{}x", second % 97)
        };
        requests.push((second / 4, "192.0.2.1", path));
    }
    let requests: Vec<_> =
        requests.iter().map(|(at, ip, request)| (*at, *ip, request.as_str(), 200)).collect();
    let suggestion = suggest_for(common_log(&requests).as_bytes(), "ip", requests_target("50%")).unwrap();
    assert!(suggestion.groups.len() > 1, "{:?}", suggestion.groups);
    assert_eq!(suggestion.groups.iter().map(|group| group.requests).sum::<u64>(), 1_200);
    for group in &suggestion.groups {
        assert_eq!(chosen_trial(group).denied, group.denied, "{group:?}");
    }
}

#[test]
fn zero_target_denies_nothing() {
    let suggestion = suggest_for(REAL_LOG, "ip", requests_target("0%")).unwrap();
    assert!(
        suggestion
            .groups
            .iter()
            .all(|group| chosen_trial(group).typical_denied == 0 && group.is_within_target)
    );
}

#[test]
fn invalid_suggestion_inputs_are_errors() {
    let log = common_log(&[(0, "192.0.2.1", "GET /", 200)]);
    let error = suggest_for(log.as_bytes(), "header x-tenant", keys_target("99%")).unwrap_err();
    assert!(error.starts_with("no request in the log has the key of"), "{error}");
    let error = suggest_for(b"", "ip", keys_target("99%")).unwrap_err();
    assert_eq!(error, "log: no requests found; use a log with at least one request");
    let error = suggest_for(log.as_bytes(), "ipp", keys_target("99%")).unwrap_err();
    assert!(error.starts_with("--key ipp: ") && error.contains("did you mean `ip`"), "{error}");
}

/// Lines of the history of a gateway.
#[test]
fn gateway_history_is_readable() {
    let line = |second: u64, user: &str| {
        let at = 1_706_788_800.25 + second as f64;
        format!(
            "{{\"time\": {at}, \"ip\": \"192.0.2.1\", \"method\": \"GET\", \"path\": \"/a\", \"host\": \"example.com\", \
             \"status\": 200, \"user\": \"{user}\"}}\n"
        )
    };
    let log: String = (0..200).map(|second| line(second, ["alice", "bob"][second as usize % 2])).collect();
    let suggestion = suggest_for(log.as_bytes(), "user", keys_target("99%")).unwrap();
    assert_eq!(suggestion.groups[0].keys, 2);
    assert!(suggestion.policy.print(PolicyFormat::Yaml).contains("user: header x-user"));
}
