//! The scripts that run in the server: the harness, with the twins of the algorithms that a message needs.
//!
//! A script defines its functions anew each time it runs. So a message about one algorithm, which is almost every one,
//! runs a script with nothing else in it.

use std::{collections::HashSet, fmt::Write as _, sync::OnceLock};
use tidegate_core::AlgorithmKind;

const HARNESS: &str = include_str!("harness.lua");
const EXPRESS: &str = include_str!("express.lua");
const PROBE: &str = include_str!("probe.lua");

/// A key stays until the end of the span of time after the one in which it is forgotten. So it is not told anew when to
/// go each time it is written, and a key that is used all the time is not made anew each time.
const SPAN: &str = "local SPAN = 1000000\n";

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

/// The script for any message about the algorithms with these places in [`AlgorithmKind::names`].
pub(crate) fn for_kinds(kinds: Kinds) -> &'static Script {
    static SCRIPTS: OnceLock<Vec<Script>> = OnceLock::new();
    let count = AlgorithmKind::names().count();
    let scripts = SCRIPTS.get_or_init(|| (0..count).map(Some).chain([None]).map(assemble).collect());
    &scripts[kinds.only().unwrap_or(count)]
}

/// The script for messages that only take from levels.
pub(crate) fn express() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new(format!("{SPAN}{EXPRESS}")))
}

/// The script that finds out whether a server is of use.
pub(crate) fn probe() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new(PROBE.to_owned()))
}

/// A set of algorithms.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kinds(u32);

impl Kinds {
    pub(crate) fn add(&mut self, kind: usize) {
        self.0 |= 1 << kind;
    }

    /// The only one in it.
    fn only(self) -> Option<usize> {
        (self.0.count_ones() == 1).then(|| self.0.trailing_zeros() as usize)
    }
}

/// The script for one algorithm, or for all.
fn assemble(only: Option<usize>) -> Script {
    let mut text = String::new();
    let mut kinds = String::from("local kinds = {");
    let mut told = HashSet::new();
    for (index, (name, twin)) in AlgorithmKind::names().zip(AlgorithmKind::lua_sources()).enumerate() {
        if only.is_some_and(|only| only != index) {
            continue;
        }
        twin.iter().filter(|part| told.insert(**part)).for_each(|part| text.push_str(part));
        let name = name.replace('-', "_");
        // Writing to a string does not fail.
        let _ = write!(kinds, " [{index}] = {name}, {name} = {name},");
    }
    Script::new(format!("{SPAN}{text}{kinds} }}\n{HARNESS}"))
}
