//! The traces of `crates/core/tests/traces` on the memory store: on a key, and on a direct limiter.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::common::{LimiterTarget, MemorySubject};
use std::{fs, path::Path};
use tidegate_core::{AlgorithmKind, Quota};
use tidegate_testkit::trace::{self, TraceOp};

/// Splits a file at the start of each trace.
fn split_traces(text: &str) -> Vec<String> {
    let mut traces: Vec<String> = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("quota") {
            traces.push(String::new());
        }
        if let Some(trace_text) = traces.last_mut() {
            trace_text.push_str(line);
            trace_text.push('\n');
        }
    }
    traces
}

/// Whether a direct limiter supports all changes of the trace: same algorithm, same windows, no more state.
fn can_change(ops: &[TraceOp]) -> bool {
    let quotas: Vec<&Quota> = ops
        .iter()
        .filter_map(|op| match op {
            TraceOp::Start(quota) | TraceOp::Change { quota, .. } => Some(quota),
            _ => None,
        })
        .collect();
    quotas.windows(2).all(|pair| pair[1].shares_state(pair[0]) && pair[0].state_len() >= pair[1].state_len())
}

/// The targets of a trace: a new key, or a limiter that was just created.
fn targets(ops: &[TraceOp]) -> Vec<LimiterTarget> {
    let creates = ops.iter().any(|op| matches!(op, TraceOp::Create { .. }));
    let shapes = ops.iter().any(|op| {
        matches!(op, TraceOp::Start(quota) if matches!(quota.kind(), AlgorithmKind::Smooth(_) | AlgorithmKind::WarmUp(_)))
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
        for trace_text in split_traces(&fs::read_to_string(&file).unwrap()) {
            let ops: Vec<_> = trace::parse(&trace_text).unwrap().into_iter().map(|line| line.op).collect();
            for target in targets(&ops) {
                // A limiter with keys is replaced by another one instead.
                if target == LimiterTarget::Direct && !can_change(&ops) {
                    skipped += 1;
                    continue;
                }
                passed += 1;
                if let Err(failure) = trace::run(&trace_text, |quota| MemorySubject::new(target, quota)) {
                    failures.push(format!("{} ({target:?}):\n{trace_text}{failure}", file.display()));
                }
            }
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
    assert!(passed > 100 && skipped <= 4, "{passed} passed, {skipped} skipped");
}

/// In Go's `TestReserveSetLimitCancel` the tokens are refunded and the delay is 100 ms: here a change makes earlier
/// reservations final.
#[test]
fn reservation_before_change_refunds_nothing() {
    let trace_text = "quota 5/s burst 2
        at 0ms    reserve 2       allow
        at 0ms    reserve 2 as a  delay 400ms
        at 200ms  change quota 10/s burst 2
        at 200ms  cancel a
        at 200ms  reserve 2       delay 300ms";
    for target in [LimiterTarget::Key, LimiterTarget::Direct] {
        trace::run(trace_text, |quota| MemorySubject::new(target, quota)).unwrap();
    }
}
