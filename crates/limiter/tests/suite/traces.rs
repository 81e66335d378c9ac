//! The stories of `crates/core/tests/traces`, told to the memory store: to a key, and to a throttle.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::common::{LimiterTarget, MemorySubject};
use std::{fs, path::Path};
use tidegate_core::{AlgorithmKind, Quota};
use tidegate_testkit::trace::{self, TraceOp};

/// A file of stories, cut where a new one starts.
fn split_traces(text: &str) -> Vec<String> {
    let mut stories: Vec<String> = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("quota") {
            stories.push(String::new());
        }
        if let Some(story) = stories.last_mut() {
            story.push_str(line);
            story.push('\n');
        }
    }
    stories
}

/// Whether a throttle can go through all changes of the story: it keeps its algorithm, its windows and its room.
fn can_change(deeds: &[TraceOp]) -> bool {
    let quotas: Vec<&Quota> = deeds
        .iter()
        .filter_map(|deed| match deed {
            TraceOp::Start(quota) | TraceOp::Change { quota, .. } => Some(quota),
            _ => None,
        })
        .collect();
    quotas.windows(2).all(|pair| pair[1].shares_state(pair[0]) && pair[0].state_len() >= pair[1].state_len())
}

/// The homes in which a story is true: a new key, or a limiter that was just created.
fn targets(deeds: &[TraceOp]) -> Vec<LimiterTarget> {
    let creates = deeds.iter().any(|deed| matches!(deed, TraceOp::Create { .. }));
    let shapes = deeds.iter().any(|deed| {
        matches!(deed, TraceOp::Start(quota) if matches!(quota.kind(), AlgorithmKind::Smooth(_) | AlgorithmKind::WarmUp(_)))
    });
    match (creates, shapes) {
        (true, _) => vec![LimiterTarget::Direct],
        (false, true) => vec![LimiterTarget::Key],
        (false, false) => vec![LimiterTarget::Key, LimiterTarget::Direct],
    }
}

#[test]
fn traces_pass_in_memory() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/traces");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let (mut passed, mut skipped, mut failures) = (0, 0, Vec::new());
    for file in files {
        for story in split_traces(&fs::read_to_string(&file).unwrap()) {
            let deeds: Vec<_> = trace::parse(&story).unwrap().into_iter().map(|line| line.op).collect();
            for home in targets(&deeds) {
                // A limiter of keys is replaced by another one.
                if home == LimiterTarget::Direct && !can_change(&deeds) {
                    skipped += 1;
                    continue;
                }
                passed += 1;
                if let Err(failure) = trace::run(&story, |quota| MemorySubject::new(home, quota)) {
                    failures.push(format!("{} ({home:?}):\n{story}{failure}", file.display()));
                }
            }
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
    assert!(passed > 100 && skipped <= 4, "{passed} told, {skipped} not");
}

/// Go's `TestReserveSetLimitCancel`, in which the tokens are given back and the delay is 100 ms: here a change settles what was
/// reserved before it.
#[test]
fn reservation_before_change_refunds_nothing() {
    let story = "quota 5/s burst 2
        at 0ms    reserve 2       allow
        at 0ms    reserve 2 as a  delay 400ms
        at 200ms  change quota 10/s burst 2
        at 200ms  cancel a
        at 200ms  reserve 2       delay 300ms";
    for home in [LimiterTarget::Key, LimiterTarget::Direct] {
        trace::run(story, |quota| MemorySubject::new(home, quota)).unwrap();
    }
}
