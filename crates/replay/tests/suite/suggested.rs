//! What a suggestion says is what it does.

use crate::play::{REAL, common, known, logs, played, policy};
use std::path::Path;
use tidegate_policy::{Format, compile, lint, model::Enforcement};
use tidegate_replay::{
    log::{Input, Log},
    play,
    suggest::{Suggestion, Wish, json, suggest, text},
};
use tidegate_rule::Mode;

fn suggested(log: &[u8], key: &str, target: &str) -> Result<Suggestion, String> {
    let wish = Wish::read(key, target.parse().unwrap())?;
    let open = || Log::open(vec![Input::bytes("log", log)], known(), Some("x-user".to_owned()));
    suggest(wish, open, |_| {}).map_err(|failure| failure.to_string())
}

/// The policy that is written, read again and enforced on the same log.
#[test]
fn a_suggestion_denies_what_it_said() {
    for target in ["1%", "5%"] {
        let suggestion = suggested(REAL, "ip", target).unwrap();
        assert!(suggestion.groups.len() > 1, "{:?}", suggestion.groups);
        let mut written = policy(&suggestion.policy.print(Format::Yaml));
        assert_eq!(compile::check(&written), Ok(()));
        assert!(lint(&written).is_empty(), "{:?}", lint(&written));
        assert!(written.rules.iter().all(|rule| rule.enforcement == Enforcement::All(Mode::Shadow)));
        let shadow = played(REAL, &written.print(Format::Yaml)).unwrap();
        written.rules.iter_mut().for_each(|rule| rule.enforcement = Enforcement::All(Mode::Enforce));
        let log = logs(&[REAL], known(), &written).unwrap();
        let play = play(log, (&written, Path::new("")), None, |_| {}).unwrap();
        let mut said = 0;
        for ((group, rule), watched) in
            suggestion.groups.iter().zip(&play.tally.rules).zip(&shadow.tally.rules)
        {
            assert_eq!((rule.asked, rule.denied), (group.requests, group.denied), "{}", rule.name);
            assert_eq!(watched.shadow, group.denied, "{}", rule.name);
            // What its candidate denied when it was tried, too.
            let tried = group.trials.iter().find(|trial| trial.quota == group.quota).unwrap();
            assert_eq!(tried.denied, group.denied, "{}", rule.name);
            assert!(group.is_within, "{group:?}");
            said += group.denied;
        }
        let most: f64 = target.trim_end_matches('%').parse().unwrap();
        assert_eq!(play.tally.denied, said);
        assert!(said > 0 && said as f64 <= 10_000.0 * most / 100.0, "{target}: {said}");
        let requests: u64 = suggestion.groups.iter().map(|group| group.requests).sum();
        assert_eq!(requests, 10_000, "every request is in one group");
    }
}

/// A hundred people and a robot: the robot is the outlier, and it is what the quota is about.
#[test]
fn a_robot_among_people_stands_out() {
    let mut visits = Vec::new();
    for minute in 0..30_u64 {
        for person in 0..100_u64 {
            visits.push((minute * 60 + person % 60, format!("192.0.2.{person}")));
        }
        for step in 0..300 {
            visits.push((minute * 60 + step / 5, "198.51.100.1".to_owned()));
        }
    }
    let visits: Vec<_> = visits.iter().map(|(at, ip)| (*at, ip.as_str(), "GET /shop/list", 200)).collect();
    let suggestion = suggested(common(&visits).as_bytes(), "ip", "60%").unwrap();
    let group = suggestion.groups.iter().max_by_key(|group| group.requests).unwrap();
    assert_eq!(group.outliers.first().map(|(key, _)| key.as_str()), Some("198.51.100.1"), "{group:?}");
    assert_eq!(group.knee.above, 1);
    let chosen = group.trials.iter().find(|trial| trial.quota == group.quota).unwrap();
    assert_eq!(chosen.keys, 1, "only the robot is denied: {group:?}");
    let said = text(&suggestion);
    assert!(said.contains("the knee is at 1 in 1 min: 99.0 % of keys stay within, 1 go beyond"), "{said}");
    assert!(said.contains("far beyond, by their most in 1 min: 198.51.100.1 (300)"), "{said}");
    let value = json(&suggestion);
    assert_eq!(value["requests"], 12_000);
    assert!(value["policy"].as_str().is_some_and(|policy| policy.contains("mode: shadow")), "{value}");
}

/// Paths of one kind beside one that stands out: each request counts in one group, and is denied as it was said.
#[test]
fn groups_share_no_request() {
    let mut visits = Vec::new();
    for second in 0..1_200_u64 {
        let path = if second % 4 == 0 {
            "GET /shop/list".to_owned()
        } else {
            format!("GET /shop/item{}x", second % 97)
        };
        visits.push((second / 4, "192.0.2.1", path));
    }
    let visits: Vec<_> = visits.iter().map(|(at, ip, request)| (*at, *ip, request.as_str(), 200)).collect();
    let suggestion = suggested(common(&visits).as_bytes(), "ip", "50%").unwrap();
    assert!(suggestion.groups.len() > 1, "{:?}", suggestion.groups);
    assert_eq!(suggestion.groups.iter().map(|group| group.requests).sum::<u64>(), 1_200);
    for group in &suggestion.groups {
        let tried = group.trials.iter().find(|trial| trial.quota == group.quota).unwrap();
        assert_eq!(tried.denied, group.denied, "{group:?}");
    }
}

#[test]
fn a_target_of_nothing_denies_nothing() {
    let suggestion = suggested(REAL, "ip", "0%").unwrap();
    assert!(suggestion.groups.iter().all(|group| group.denied == 0 && group.is_within));
}

#[test]
fn what_cannot_be_suggested_is_said() {
    let log = common(&[(0, "192.0.2.1", "GET /", 200)]);
    let said = suggested(log.as_bytes(), "header x-tenant", "1%").unwrap_err();
    assert!(said.starts_with("no request of the log has what"), "{said}");
    let said = suggested(b"", "ip", "1%").unwrap_err();
    assert_eq!(said, "log: there is no request in it; give a log with at least one");
    let said = suggested(log.as_bytes(), "ipp", "1%").unwrap_err();
    assert!(said.starts_with("--key ipp: ") && said.contains("did you mean `ip`"), "{said}");
}

/// Lines of a gateway's own history.
#[test]
fn the_history_of_a_gateway_can_be_read() {
    let line = |second: u64, user: &str| {
        let at = 1_706_788_800.25 + second as f64;
        format!(
            "{{\"time\": {at}, \"ip\": \"192.0.2.1\", \"method\": \"GET\", \"path\": \"/a\", \"host\": \"example.com\", \
             \"status\": 200, \"user\": \"{user}\"}}\n"
        )
    };
    let log: String = (0..200).map(|second| line(second, ["alice", "bob"][second as usize % 2])).collect();
    let suggestion = suggested(log.as_bytes(), "user", "1%").unwrap();
    assert_eq!(suggestion.groups[0].keys, 2);
    assert!(suggestion.policy.print(Format::Yaml).contains("user: header x-user"));
}
