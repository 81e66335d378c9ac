//! Prepared requests get the same decisions as requests that are not prepared.

use super::*;
use crate::{
    log::{LogParser, LogRecord},
    run::Replay,
};
use std::{path::Path, sync::Arc};
use tidegate_limiter::TopKeys;
use tidegate_policy::Policy;

const POLICY: &str = "\
rules:
  - { name: each, key: ip, quota: 8/min }
  - { name: all, quota: 12/s burst 10 }
  - { name: login, match: { path: /login }, key: ip, quota: 1/min fixed-window }
  - { name: users, match: { path: '/users/{id}', method: POST }, key: [ip, path], quota: 2/min sliding-window }
";

/// Two thousand requests of forty clients.
fn log_text() -> String {
    let line = |at: u32| {
        let (client, method) = (at * 7 % 40, ["GET", "POST"][at as usize % 2]);
        let path = ["/", "/login", "/users/1", "/users/2"][(at / 3) as usize % 4];
        let (minute, second) = (at / 1_200, at / 20 % 60);
        format!(
            "10.0.0.{client} - - [01/Feb/2024:00:{minute:02}:{second:02} +0000] \"{method} {path} HTTP/1.1\" 200 1\n"
        )
    };
    (0..2_000).map(line).collect()
}

fn logged_requests<'a>(batch: &'a LogBatch, first: usize, records: &'a [LogRecord]) -> LoggedRequests<'a> {
    LoggedRequests { batch, offset: first, records, previous_time: 0, headers: &[], user_key: None }
}

#[test]
fn prefetch_changes_no_decision() {
    let policy: Policy = POLICY.parse().unwrap();
    let mut batch = LogBatch::default();
    let formats = Arc::new(LineFormats::builtin(&[]).unwrap());
    LogParser::new(formats).parse("log", log_text(), &mut batch).unwrap();
    let start = batch.records[0].time();
    let replay = || Replay::new(&policy, Path::new(""), start, 1 << 20).unwrap();
    let (mut ahead, mut late) = (replay(), replay());
    batch.prepare(&[ahead.gate().clone()], &[], None);
    let (mut one, mut other) = (Vec::new(), Vec::new());
    for (chunk, records) in batch.records.chunks(32).enumerate() {
        let lines = logged_requests(&batch, chunk * 32, records);
        assert!(lines.prefetch(0).is_some() && lines.prefetch(1).is_none());
        ahead.evaluate(lines, lines.prefetch(0), &mut one);
        late.evaluate(lines, None, &mut other);
        assert_eq!(one, other);
    }
    let (ahead, late) = (ahead.finish().unwrap(), late.finish().unwrap());
    assert!(ahead.denied > 100 && ahead.admitted > 100, "{}", ahead.denied);
    assert_eq!(ahead.timeline, late.timeline);
    for (one, other) in ahead.rules.iter().zip(&late.rules) {
        assert!(one.denied > 0 && one.admitted > 0, "{}", one.name);
        assert_eq!(
            (one.requests, one.denied, &one.timeline),
            (other.requests, other.denied, &other.timeline)
        );
        // Hashes differ between replays, so compare names and counts.
        let top = |keys: &TopKeys| -> Vec<_> {
            keys.top().into_iter().take(50).map(|key| (key.name, key.count, key.error)).collect()
        };
        assert_eq!(top(&one.keys), top(&other.keys));
    }
}

/// A reused batch must not contain prepared requests of its previous content.
#[test]
fn reused_batch_clears_prefetch() {
    let policy: Policy = POLICY.parse().unwrap();
    let mut batch = LogBatch::default();
    let mut parser = LogParser::new(Arc::new(LineFormats::builtin(&[]).unwrap()));
    parser.parse("log", log_text(), &mut batch).unwrap();
    let replay = Replay::new(&policy, Path::new(""), batch.records[0].time(), 1 << 20).unwrap();
    batch.prepare(&[replay.gate().clone()], &[], None);
    parser.parse("log", log_text(), &mut batch).unwrap();
    assert!(logged_requests(&batch, 0, &batch.records[..32]).prefetch(0).is_none());
}
