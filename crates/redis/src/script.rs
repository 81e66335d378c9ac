//! The scripts that run in the server: `decide.lua` with the Lua sources of the algorithms that a message needs.
//!
//! A script defines its functions on every run. Almost every message uses one algorithm, so there is a script for each
//! algorithm and one for all of them.

use std::{collections::HashSet, fmt::Write as _, sync::OnceLock};
use tidegate_core::{AlgorithmKind, Quota};

const DECIDE_LUA: &str = include_str!("decide.lua");
const FAST_PATH_LUA: &str = include_str!("fast_path.lua");
const PROBE_LUA: &str = include_str!("probe.lua");

/// The granularity of expiry, in microseconds. A key expires at the end of the step after the one in which its state is
/// no longer needed, so most writes keep the TTL and can use `SETRANGE`.
const TTL_STEP_LUA: &str = "local TTL_STEP = 1000000\n";

/// One script, with the hash by which `EVALSHA` runs it.
#[derive(Debug)]
pub(crate) struct Script {
    text: String,
    hash: String,
}

impl Script {
    fn new(text: String) -> Self {
        Self { hash: redis::Script::new(&text).get_hash().to_owned(), text }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The SHA-1 hash of the text.
    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }
}

/// The script for messages about the algorithms with these indexes in [`AlgorithmKind::names`].
pub(crate) fn decide_script(kinds: KindSet) -> &'static Script {
    static SCRIPTS: OnceLock<Vec<Script>> = OnceLock::new();
    let count = AlgorithmKind::names().count();
    let scripts = SCRIPTS.get_or_init(|| (0..count).map(Some).chain([None]).map(assemble).collect());
    &scripts[kinds.single().unwrap_or(count)]
}

/// The script for a `FastPathMessage`.
pub(crate) fn fast_path_script() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new(format!("{TTL_STEP_LUA}{FAST_PATH_LUA}")))
}

/// The script that checks whether the server allows everything that a store needs.
pub(crate) fn probe_script() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new(PROBE_LUA.to_owned()))
}

/// A set of algorithms.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KindSet(u32);

impl KindSet {
    pub(crate) fn add(&mut self, kind: usize) {
        self.0 |= 1 << kind;
    }

    /// The index of the algorithm, if there is exactly one.
    fn single(self) -> Option<usize> {
        (self.0.count_ones() == 1).then(|| self.0.trailing_zeros() as usize)
    }
}

/// The script for one algorithm, or for all.
fn assemble(only: Option<usize>) -> Script {
    let mut text = String::new();
    let mut kinds = String::from("local kinds = {");
    let mut included = HashSet::new();
    for (index, (name, source)) in AlgorithmKind::names().zip(AlgorithmKind::lua_sources()).enumerate() {
        if only.is_some_and(|only| only != index) {
            continue;
        }
        source.iter().filter(|part| included.insert(**part)).for_each(|part| text.push_str(part));
        let name = name.replace('-', "_");
        // Writing to a string does not fail.
        let _ = write!(kinds, " [{index}] = {name}, {name} = {name},");
    }
    let retention = Quota::REPLACED_TOTAL_RETENTION.get();
    let retention = format!("local REPLACED_TOTAL_RETENTION = {retention}\n");
    Script::new(format!("{TTL_STEP_LUA}{retention}{text}{kinds} }}\n{DECIDE_LUA}"))
}
