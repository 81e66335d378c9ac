//! A replay of the real log has the same counts as a simple reference implementation of each algorithm.

use crate::{
    reference::{
        HOUR, MINUTE, PerKey, RealRequest, ReferenceCounter, ReferenceDecision, ReferenceFixedWindow,
        ReferenceLeakyBucket, ReferenceSlidingLog, ReferenceSlidingStrict, ReferenceSlidingWindow,
        ReferenceSmooth, ReferenceTokenBucket, ReferenceWarmUp, SECOND, parse_log,
    },
    support::{REAL_LOG, builtin_formats, common_log, parse_policy, replay},
};
use flate2::read::GzDecoder;
use std::{collections::HashMap, io::Read};
use tidegate_replay::{
    RuleStats,
    log::{LogInput, RequestLog},
    replay_log,
};

fn real_requests() -> Vec<RealRequest> {
    let mut text = String::new();
    GzDecoder::new(REAL_LOG).read_to_string(&mut text).unwrap();
    parse_log(&text)
}

/// Returns the numbers of admitted, delayed and denied requests.
fn count_expected<C: ReferenceCounter>(requests: &[RealRequest], make: fn() -> C) -> (u64, u64, u64) {
    let mut each = PerKey::new(make);
    let mut counts = (0, 0, 0);
    for request in requests {
        match each.check(&request.ip, request.time) {
            ReferenceDecision::Admit => counts.0 += 1,
            ReferenceDecision::Delay => counts.1 += 1,
            ReferenceDecision::Deny => counts.2 += 1,
        }
    }
    counts
}

fn replay_counts(rule: &str) -> (u64, u64, u64) {
    let result = replay(REAL_LOG, &format!("rules: [{{ name: each, key: ip, {rule} }}]")).unwrap();
    let RuleStats { admitted, delayed, denied, shadow, requests: asked, .. } = result.stats.rules[0].clone();
    assert_eq!((asked, shadow), (10_000, 0));
    assert_eq!(
        (admitted, delayed, denied),
        (result.stats.admitted, result.stats.delayed, result.stats.denied)
    );
    (admitted, delayed, denied)
}

#[test]
fn real_log_is_read_completely() {
    let result = replay(REAL_LOG, "rules: [{ name: each, key: ip, quota: 1000000/s }]").unwrap();
    assert_eq!((result.log.lines, result.log.requests, result.log.broken), (10_000, 10_000, 0));
    assert_eq!(result.stats.admitted, 10_000);
    assert_eq!(real_requests().len(), 10_000);
    // The lines of this log are not in the order of time.
    assert!(result.log.reordered > 1_000);
    assert_eq!(result.log.late, 0);
}

#[test]
fn totals_count_shadow_denials_once_per_request() {
    let from = |at, ip| (at, ip, "GET /", 200);
    let log = common_log(&[from(0, "192.0.2.1"), from(1, "192.0.2.1"), from(2, "192.0.2.2")]);
    let rules = "rules:\n  - { name: a, key: ip, quota: 1/h, mode: shadow }\n  - { name: b, key: ip, quota: 1/h, mode: shadow }";
    let tally = replay(log.as_bytes(), rules).unwrap().stats;
    assert_eq!((tally.admitted, tally.denied, tally.shadow), (3, 0, 1));
    assert_eq!((tally.rules[0].shadow, tally.rules[1].shadow), (1, 1));
}

#[test]
fn token_bucket_matches_reference() {
    let requests = real_requests();
    let expected = count_expected(&requests, || ReferenceTokenBucket::full(3, MINUTE, 3));
    assert!(expected.2 > 100, "{expected:?}");
    assert_eq!(replay_counts("quota: 3/min"), expected);
    assert_eq!(
        replay_counts("quota: 10/h burst 4"),
        count_expected(&requests, || ReferenceTokenBucket::full(10, HOUR, 4))
    );
}

#[test]
fn leaky_bucket_matches_reference() {
    let requests = real_requests();
    // Ten per minute is one in six seconds.
    let line = || ReferenceLeakyBucket { interval: 6 * SECOND, queue_len: 5, max_wait: 20 * SECOND, next: 0 };
    let expected = count_expected(&requests, line);
    assert!(expected.1 > 100 && expected.2 > 100, "{expected:?}");
    assert_eq!(replay_counts("quota: 10/min leaky-bucket queue 5, wait: 20s"), expected);
}

#[test]
fn fixed_window_matches_reference() {
    let expected = count_expected(&real_requests(), || ReferenceFixedWindow {
        limit: 5,
        period: MINUTE,
        window: 0,
        count: 0,
    });
    assert!(expected.2 > 100, "{expected:?}");
    assert_eq!(replay_counts("quota: 5/min fixed-window"), expected);
}

#[test]
fn sliding_window_matches_reference() {
    let expected = count_expected(&real_requests(), || ReferenceSlidingWindow {
        limit: 20,
        period: HOUR,
        counts: HashMap::new(),
    });
    assert!(expected.2 > 100, "{expected:?}");
    assert_eq!(replay_counts("quota: 20/h sliding-window"), expected);
}

#[test]
fn strict_sliding_window_matches_reference() {
    let make =
        || ReferenceSlidingStrict { limit: 20, sub_window: HOUR / 6, sub_windows: 6, counts: HashMap::new() };
    let expected = count_expected(&real_requests(), make);
    assert!(expected.2 > 100, "{expected:?}");
    assert_eq!(replay_counts("quota: 20/h sliding-strict 6"), expected);
}

#[test]
fn sliding_log_matches_reference() {
    let expected = count_expected(&real_requests(), || ReferenceSlidingLog {
        limit: 5,
        period: MINUTE,
        admitted: Vec::new(),
    });
    assert!(expected.2 > 100, "{expected:?}");
    assert_eq!(replay_counts("quota: 5/min sliding-log"), expected);
}

#[test]
fn smooth_limit_matches_reference() {
    let expected = count_expected(&real_requests(), || ReferenceSmooth::idle(1.0));
    assert!(expected.2 > 100, "{expected:?}");
    assert_eq!(replay_counts("quota: 1/s smooth"), expected);
}

#[test]
fn warm_up_limit_matches_reference() {
    let expected = count_expected(&real_requests(), || ReferenceWarmUp::cold(1.0, 10.0, 3.0));
    assert!(expected.2 > 100, "{expected:?}");
    assert_eq!(replay_counts("quota: 1/s warm-up 10s cold 3"), expected);
}

/// Two rules are charged atomically, and each rule counts its own denials.
#[test]
fn several_rules_are_charged_together() {
    let result = replay(
        REAL_LOG,
        "rules:
  - { name: each, key: ip, quota: 10/h burst 10 }
  - { name: pages, match: { method: GET, path: /blog/** }, key: ip, quota: 2/min burst 2 }",
    )
    .unwrap();
    let mut each: HashMap<String, ReferenceTokenBucket> = HashMap::new();
    let mut pages: HashMap<String, ReferenceTokenBucket> = HashMap::new();
    let (mut by_each, mut by_pages, mut went) = (0, 0, 0);
    for request in real_requests() {
        let tokens =
            each.entry(request.ip.clone()).or_insert_with(|| ReferenceTokenBucket::full(10, HOUR, 10));
        let is_page =
            request.method == "GET" && (request.path == "/blog" || request.path.starts_with("/blog/"));
        let before = tokens.units_at(request.time);
        let first = before >= tokens.period;
        let second = if is_page {
            let tokens =
                pages.entry(request.ip.clone()).or_insert_with(|| ReferenceTokenBucket::full(2, MINUTE, 2));
            let has = tokens.units_at(request.time) >= tokens.period;
            if has && first {
                tokens.check(request.time);
            }
            has
        } else {
            true
        };
        if first && second {
            each.entry(request.ip.clone()).and_modify(|tokens| _ = tokens.check(request.time));
            went += 1;
        }
        by_each += u64::from(!first);
        by_pages += u64::from(!second);
    }
    assert!(by_each > 100 && by_pages > 100, "{by_each} {by_pages}");
    let denied: Vec<u64> = result.stats.rules.iter().map(|rule| rule.denied).collect();
    assert_eq!((denied, result.stats.admitted), (vec![by_each, by_pages], went));
}

/// A charge that depends on the status in the log.
#[test]
fn only_matching_statuses_are_charged() {
    let rule = "quota: 1/d fixed-window, charge: { if-status: [404] }";
    let mut used: HashMap<(String, u64), u64> = HashMap::new();
    let mut expected = (0, 0, 0);
    for request in real_requests() {
        let used = used.entry((request.ip.clone(), request.time / (24 * HOUR))).or_default();
        if *used >= 1 {
            expected.2 += 1;
        } else {
            expected.0 += 1;
            *used += u64::from(request.status == 404);
        }
    }
    assert!(expected.2 > 50, "{expected:?}");
    assert_eq!(replay_counts(rule), expected);
}

/// A log of a gateway has no bodies, but the costs that it reserved and that responses stated.
#[test]
fn recorded_costs_are_charged() {
    let log = |status: u16, seconds: u64, stated: u64| -> String {
        let line = |second: u64| {
            format!(
                "{{\"time\":\"2024-02-01T12:00:{second:02}.000000Z\",\"client\":\"192.0.2.1\",\"method\":\"POST\",\
                 \"uri\":\"/v1/responses\",\"status\":{status},\"duration_us\":{},\
                 \"costs\":{{\"other\":null,\"per.team\":{{\"reserved\":40,\"stated\":{stated}}}}}}}\n",
                seconds * 1_000_000
            )
        };
        (10..20).map(line).collect()
    };
    let admitted = |log: &str, name: &str, rest: &str| {
        let policy = format!(
            "rules: [{{ name: {name}, key: ip, quota: 100 per 1000h fixed-window, \
             cost: {{ from: body /max_tokens, default: 5, max: 100 }}, {rest} }}]"
        );
        replay(log.as_bytes(), &policy).unwrap().stats.admitted
    };
    // Each one ends before the next one starts: 10 are charged, and the eighth estimate has no room.
    assert_eq!(admitted(&log(200, 0, 10), "per.team", "settle: openai"), 7);
    // All overlap, so that only two estimates have room.
    assert_eq!(admitted(&log(200, 30, 10), "per.team", "settle: openai"), 2);
    // 50 of each are charged: the estimate, and the largest debt.
    assert_eq!(admitted(&log(200, 0, 90), "per.team", "settle: { from: openai, max-debt: 10 }"), 2);
    // Without a limit of the debt, the second estimate has no room.
    assert_eq!(admitted(&log(200, 0, 90), "per.team", "settle: openai"), 1);
    assert_eq!(admitted(&log(200, 0, 10), "per.team", "settle: header x-cost"), 7);
    // Without `settle` the estimate is the cost.
    assert_eq!(admitted(&log(200, 0, 10), "per.team", "inherit: keep"), 2);
    assert_eq!(admitted(&log(500, 0, 10), "per.team", "settle: openai, charge: { refund-status: 5xx }"), 10);
    // The log has no cost of a rule with another name.
    assert_eq!(admitted(&log(200, 0, 10), "unknown", "settle: openai"), 10);
}

/// A rule in shadow mode denies nothing, and counts what it would deny.
#[test]
fn shadow_rules_count_what_they_would_deny() {
    let expected = count_expected(&real_requests(), || ReferenceTokenBucket::full(3, MINUTE, 3));
    let result = replay(REAL_LOG, "rules: [{ name: each, key: ip, quota: 3/min, mode: shadow }]").unwrap();
    let rule = &result.stats.rules[0];
    assert_eq!((rule.admitted, rule.shadow, rule.denied), (expected.0, expected.2, 0));
    assert_eq!(result.stats.admitted, 10_000);
}

/// The counts of denied keys are exact if all keys fit.
#[test]
fn top_denied_keys_are_exact() {
    let result = replay(REAL_LOG, "rules: [{ name: each, key: ip, quota: 3/min }]").unwrap();
    let mut denied: HashMap<String, u64> = HashMap::new();
    let mut each = PerKey::new(|| ReferenceTokenBucket::full(3, MINUTE, 3));
    for request in real_requests() {
        if each.check(&request.ip, request.time) == ReferenceDecision::Deny {
            *denied.entry(request.ip).or_default() += 1;
        }
    }
    for key in result.stats.rules[0].keys.top() {
        assert_eq!((key.min_count(), key.error), (denied[&key.name], 0), "{}", key.name);
    }
    assert_eq!(result.stats.rules[0].keys.len(), denied.len());
    let when: u64 = result.stats.rules[0].timeline.bins().iter().map(|bin| bin.denied).sum();
    assert_eq!(when, denied.values().sum::<u64>());
}

/// A log with more keys than the small budget is replayed again with the full budget.
#[test]
fn log_with_many_keys_is_counted_per_key() {
    // Each of many rules has a small part of the memory.
    let rules: String =
        (0..24).map(|place| format!("  - {{ name: r{place}, quota: 1000000/s }}\n")).collect();
    let text = format!("rules:\n{rules}  - {{ name: each, key: ip, quota: 1/h }}\n");
    let mut log = String::new();
    for second in 0..2 {
        for client in 0..80_000_u32 {
            let ip = std::net::Ipv4Addr::from(0x0a00_0000 | client);
            log += &common_log(&[(second, &ip.to_string(), "GET /", 200)]);
        }
    }
    let played = replay(log.as_bytes(), &text).unwrap();
    let each = &played.stats.rules[24];
    assert_eq!((each.requests, each.admitted, each.denied), (160_000, 80_000, 80_000));
    // A stream cannot be read again, so it has the full budget from the start.
    let policy = parse_policy(&text);
    let stream = LogInput::from_stream("a stream", std::io::Cursor::new(log.into_bytes()));
    let opened = RequestLog::open(vec![stream], builtin_formats(), None).unwrap();
    let streamed = replay_log(opened, (&policy, std::path::Path::new("")), None, |_| {}).unwrap();
    assert_eq!((streamed.stats.admitted, streamed.stats.denied), (80_000, 80_000));
}

/// A full key table is noted in the result.
#[test]
fn table_overflow_is_noted() {
    let line = |at: u32| {
        let [_, a, b, c] = at.to_be_bytes();
        format!("10.{a}.{b}.{c} - - [01/Feb/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n")
    };
    let log: String = (0..200_000).map(line).collect();
    // Each of many rules has a small part of the memory.
    let rules: String = (0..1_100)
        .map(|at| format!("  - {{ name: r{at}, key: ip, quota: 1/d, match: {{ path: /{at} }} }}\n"))
        .collect();
    let many_rules = format!("rules:\n  - {{ name: each, key: ip, quota: 1/d sliding-window }}\n{rules}");
    let result = replay(log.as_bytes(), &many_rules).unwrap();
    assert!(result.stats.denied > 0);
    assert!(
        result.notes.iter().any(|note| note.starts_with("rule `each`: the key table was full for ")),
        "{:?}",
        result.notes
    );
    let result =
        replay(log.as_bytes(), "rules: [{ name: each, key: ip, quota: 1/d sliding-window }]").unwrap();
    assert_eq!((result.stats.denied, result.notes), (0, Vec::<String>::new()));
}

/// A log has no tokens and no certificates. The user that it recorded is the claim that `user` names.
#[test]
fn recorded_user_is_the_value_of_a_claim() {
    let line = |second: u64, user: &str| {
        format!(
            "{{\"time\":\"2026-11-16T03:20:{second:02}Z\",\"ip\":\"192.0.2.1\",\"method\":\"GET\",\"path\":\"/\",\"status\":200,\"user\":\"{user}\"}}\n"
        )
    };
    let log: String =
        [(1, "ada"), (2, "ada"), (3, "bob"), (4, "ada")].map(|(at, user)| line(at, user)).concat();
    let identity = "identity: { jwt: { keys: 'http://127.0.0.1:9/keys' } }";
    for (user, key, denied) in [
        ("jwt sub", "jwt sub", 2),
        ("jwt sub", "user", 2),
        ("client-cert san", "client-cert san", 2),
        ("jwt sub", "{ first: [jwt sub, ip] }", 2),
    ] {
        let policy = format!("{identity}\nuser: {user}\nrules: [{{ name: each, key: {key}, quota: 1/h }}]");
        let result = replay(log.as_bytes(), &policy).unwrap();
        assert_eq!(result.stats.denied, denied, "{user}: {key}");
    }
    let other = format!("{identity}\nuser: jwt sub\nrules: [{{ name: each, key: jwt name, quota: 1/h }}]");
    assert!(replay(log.as_bytes(), &other).unwrap_err().to_string().contains("(jwt name)"));
}

#[test]
fn overrides_of_the_file_apply_until_they_end() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("overrides.jsonl");
    std::fs::write(
        &file,
        "{\"change\":1,\"time\":\"2024-02-01T00:00:00Z\",\"by\":\"ann\",\"rule\":\"each\",\"key\":\"192.0.2.1\",\
         \"quota\":\"3/h\",\"until\":\"2024-02-01T12:30:00Z\"}\n",
    )
    .unwrap();
    let times = [0, 1, 2, 3, 5_400, 5_401, 5_402];
    let log = common_log(&times.map(|at| (at, "192.0.2.1", "GET /", 200)));
    let policy = format!(
        "overrides: {{ file: '{}' }}\nrules: [{{ name: each, key: ip, quota: 1/h }}]",
        file.display()
    );
    let stats = replay(log.as_bytes(), &policy).unwrap().stats;
    // Three under the override, and one an hour and a half later.
    assert_eq!((stats.admitted, stats.denied), (4, 3));
}
