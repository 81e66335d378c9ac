//! Iterates over the requests of a log with their groups and keys.

use super::{PathGroup, SuggestRequest, policy};
use crate::{
    log::RequestLog,
    run::{ReplayError, ReplayProgress},
};
use foldhash::quality::FixedState;
use std::hash::BuildHasher as _;
use tidegate_core::{Micros, Quota};
use tidegate_policy::compile::{Compiler, Prefetch};
use tidegate_rule::{Mode, Rules, request::KeyValue};

/// A request with its group and its key.
pub(super) struct GroupedRequest<'a> {
    /// The index of its group.
    pub(super) group: usize,
    /// The hash of its key, which is the same in every run.
    pub(super) hash: u64,
    pub(super) key: KeyValue<'a>,
    pub(super) now: Micros,
}

/// Calls `each` for all requests. Groups and keys are determined by a compiled policy, as in the suggested one.
pub(super) fn for_each_request(
    request: &SuggestRequest,
    groups: &[&PathGroup],
    mut log: RequestLog,
    on_progress: &mut dyn FnMut(ReplayProgress),
    mut each: impl FnMut(GroupedRequest<'_>),
) -> Result<(), ReplayError> {
    log.start_time()?;
    // The rules are off, because only matching and keys are needed.
    let any = Quota::per_second(1).quota().map_err(|error| ReplayError::Suggestion(error.to_string()))?;
    let rules = groups.iter().map(|group| (*group, any));
    let policy = policy::build_policy(request, rules, Mode::Off)?;
    let gate = Compiler::new(Rules::new()).ignore_load().compile(&policy, None)?;
    let (hasher, mut has_key) = (FixedState::default(), false);
    let mut prefetch = Prefetch::default();
    let mut requests = 0;
    loop {
        if requests % (1 << 14) == 0 {
            let (read, size) = log.progress();
            on_progress(ReplayProgress { requests, bytes_read: read, total_bytes: size });
        }
        let Some((line, now)) = log.next_request()? else { break };
        requests += 1;
        prefetch.clear();
        gate.prepare(&gate.view_request(&line), &mut prefetch);
        let Some(group) = prefetch.matched_rules(0).first().copied() else { continue };
        has_key = has_key || gate.has_key(group, &line);
        let Some(key) = gate.key_at(group, &line) else { continue };
        each(GroupedRequest { group, hash: hasher.hash_one(&key), key, now });
    }
    match has_key {
        true => Ok(()),
        false => Err(ReplayError::NoKey { rule: "suggested".to_owned(), key: request.key_text.clone() }),
    }
}
