//! Runs one of the targets with libFuzzer; `TIDEGATE_FUZZ` selects it.

#![no_main]

#[path = "../../crates/gateway/tests/suite/fuzz/targets.rs"]
mod decisions;
#[path = "../../crates/gateway/tests/suite/fuzz/http1_targets.rs"]
mod http1_targets;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../crates/gateway/tests/suite/fuzz/messages.rs"]
mod messages;
#[path = "../../crates/policy/tests/suite/fuzz/targets.rs"]
mod policy;

use libfuzzer_sys::fuzz_target;
use std::{env, process, sync::OnceLock};

static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

fuzz_target!(|bytes: &[u8]| {
    let target = TARGET.get_or_init(|| {
        let name = env::var("TIDEGATE_FUZZ").unwrap_or_default();
        let targets = || policy::TARGETS.iter().chain(&decisions::TARGETS).chain(&http1_targets::TARGETS);
        match targets().find(|(known, _)| *known == name) {
            Some((_, target)) => *target,
            None => {
                let known: Vec<_> = targets().map(|(name, _)| *name).collect();
                eprintln!("unknown target `{name}` in TIDEGATE_FUZZ; use one of {}", known.join(", "));
                process::exit(2);
            }
        }
    });
    target(bytes);
});
