//! The scripts that run in the server: the harness, with the twins of the algorithms that a message needs.
//!
//! A script defines its functions anew each time it runs. So a message about one algorithm, which is almost every one,
//! runs a script with nothing else in it.

use std::{collections::HashSet, fmt::Write as _, sync::OnceLock};
use tidegate_core::AlgorithmKind;

const DECIDE_LUA: &str = include_str!("decide.lua");
const FAST_PATH_LUA: &str = include_str!("fast_path.lua");
const PROBE_LUA: &str = include_str!("probe.lua");

/// A key stays until the end of the span of time after the one in which it is forgotten. So it is not told anew when to
/// go each time it is written, and a key that is used all the time is not made anew each time.
const TTL_STEP_LUA: &str = "local TTL_STEP = 1000000\n";

/// One script that a server can be asked to run.
#[derive(Debug)]
pub(crate) struct Script {
    text: String,
    hash: String,
}

impl Script {
    fn new(text: String) -> Self {
        Self { hash: redis::Script::new(&text).get_hash().to_owned(), text }
    }

    /// What the server is told to load.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// What the server knows it by.
    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }
}

/// The script for any message about the algorithms with these places in [`AlgorithmKind::key_names`].
pub(crate) fn decide_script(kinds: KindSet) -> &'static Script {
    static SCRIPTS: OnceLock<Vec<Script>> = OnceLock::new();
    let count = AlgorithmKind::names().count();
    let scripts = SCRIPTS.get_or_init(|| (0..count).map(Some).chain([None]).map(assemble).collect());
    &scripts[kinds.single().unwrap_or(count)]
}

/// The script for messages that only take from levels.
pub(crate) fn fast_path_script() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new(format!("{TTL_STEP_LUA}{FAST_PATH_LUA}")))
}

/// The script that finds out whether a server is of use.
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

    /// The only one in it.
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
    Script::new(format!("{TTL_STEP_LUA}{text}{kinds} }}\n{DECIDE_LUA}"))
}
