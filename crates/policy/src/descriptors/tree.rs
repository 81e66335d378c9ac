//! A domain: a tree of entries, each level found by hash.
//!
//! ```text
//!   (path, /search)   exactly so           1st
//!   (path, /s*)       patterns in order    2nd
//!   (path)            whatever its value   3rd; then it goes on below what was found, and never back
//! ```
//!
//! Keys and values stay apart, so that `a_b` is never taken for `a` with the value `b`.

use super::{DescriptorFlags, DescriptorLimit, Entry, Matched, Metric};
use crate::{matching::GlobMatcher, model::Glob};
use foldhash::fast::RandomState;
use std::{borrow::Cow, collections::HashMap, sync::Arc};

type Map<T> = HashMap<Arc<str>, T, RandomState>;

/// All that is said of a domain.
#[derive(Clone, Debug)]
pub struct Domain {
    name: Arc<str>,
    /// The first is the root; children come after their parents, and siblings in the order of the files.
    nodes: Vec<Node>,
}

/// A place of the tree.
#[derive(Clone, Debug, Default)]
struct Node {
    /// Texts that it shares with the tables that it is found by.
    key: Arc<str>,
    /// Empty where any will do.
    value: Arc<str>,
    flags: DescriptorFlags,
    limit: Option<Arc<DescriptorLimit>>,
    /// Most places have nothing below them.
    below: Option<Box<Below>>,
}

/// What leads on from a place.
#[derive(Clone, Debug, Default)]
struct Below {
    keyed: Map<Keyed>,
    /// Those whose key is a pattern.
    any_key: Vec<AnyKey>,
}

/// Those below a place that have the same key.
#[derive(Clone, Debug, Default)]
struct Keyed {
    alone: Option<usize>,
    valued: Map<usize>,
    patterns: Vec<(GlobMatcher, usize)>,
}

#[derive(Clone, Debug)]
struct AnyKey {
    key: GlobMatcher,
    value: Option<GlobMatcher>,
    node: usize,
}

/// How an entry came to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Exactly,
    ByPattern,
    ByKey,
}

/// Whether there was such a place already.
pub(super) enum Added {
    New(usize),
    Twice,
}

impl Domain {
    pub(super) const ROOT: usize = 0;

    pub(super) fn new(name: &str) -> Self {
        Self { name: name.into(), nodes: vec![Node::default()] }
    }

    /// What requests call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All limits, in the order of the files.
    pub fn limits(&self) -> impl Iterator<Item = &Arc<DescriptorLimit>> {
        self.nodes.iter().filter_map(|node| node.limit.as_ref())
    }

    /// The limit that applies to a descriptor, if there is one: at exactly the depth of its last entry.
    pub fn find<'a>(&'a self, entries: &'a [Entry]) -> Option<Matched<'a>> {
        let (mut last, mut shares, mut tells) = (self.nodes.first()?, false, false);
        for entry in entries {
            let (node, how) = self.step(last, entry)?;
            let shared = node.shares(how);
            shares |= shared;
            tells |= node.flags.value_to_metric && how != How::Exactly && !shared;
            last = node;
        }
        let limit = last.limit.as_ref()?;
        let counted = match shares {
            false => Cow::Borrowed(entries),
            true => Cow::Owned(self.counted(entries)),
        };
        let metric = match limit.flags.detailed_metric || tells {
            false => Metric::Place,
            true => self.metric(entries, limit),
        };
        Some(Matched { limit, counted, metric })
    }

    /// Adds a place below another.
    pub(super) fn add(&mut self, parent: usize, key: &str, value: &str, flags: DescriptorFlags) -> Added {
        let id = self.nodes.len();
        let Some(above) = self.nodes.get_mut(parent) else { return Added::Twice };
        let below = above.below.get_or_insert_default();
        let key = below.keyed.get_key_value(key).map_or_else(|| key.into(), |(known, _)| known.clone());
        let node = Node { key, value: value.into(), flags, limit: None, below: None };
        let keyed = below.keyed.entry(node.key.clone()).or_default();
        let before = match value.is_empty() {
            true => keyed.alone.replace(id),
            false => keyed.valued.insert(node.value.clone(), id),
        };
        if before.is_some() {
            return Added::Twice;
        }
        let glob = |text: &str| GlobMatcher::new(&Glob(text.to_owned()));
        if node.key.contains('*') {
            let value = (!value.is_empty()).then(|| glob(value));
            below.any_key.push(AnyKey { key: glob(&node.key), value, node: id });
        } else if value.contains('*') {
            keyed.patterns.push((glob(value), id));
        }
        self.nodes.push(node);
        Added::New(id)
    }

    /// Says what applies at a place.
    pub(super) fn put(&mut self, node: usize, limit: Arc<DescriptorLimit>) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.limit = Some(limit);
        }
    }

    /// What an entry leads to from a place.
    fn step(&self, from: &Node, entry: &Entry) -> Option<(&Node, How)> {
        let below = from.below.as_deref()?;
        let keyed = below.keyed.get(entry.key.as_str());
        let exactly = keyed.and_then(|keyed| keyed.valued.get(entry.value.as_str()));
        let found = match exactly {
            Some(node) => (*node, How::Exactly),
            None => {
                let value = entry.value.as_bytes();
                let fits = |glob: &GlobMatcher| glob.fits(value);
                let by_value = keyed.and_then(|keyed| keyed.patterns.iter().find(|(glob, _)| fits(glob)));
                let by_key = below
                    .any_key
                    .iter()
                    .find(|any| any.key.fits(entry.key.as_bytes()) && any.value.as_ref().is_none_or(fits));
                let by_pattern = [by_value.map(|(_, node)| *node), by_key.map(|any| any.node)];
                match by_pattern.into_iter().flatten().min() {
                    Some(node) => (node, How::ByPattern),
                    None => (keyed?.alone?, How::ByKey),
                }
            }
        };
        Some((self.nodes.get(found.0)?, found.1))
    }

    /// Each entry with what it led to.
    fn path<'a>(&'a self, entries: &'a [Entry]) -> impl Iterator<Item = (&'a Entry, &'a Node, How)> {
        let mut last = self.nodes.first();
        entries.iter().map_while(move |entry| {
            let (node, how) = self.step(last?, entry)?;
            last = Some(node);
            Some((entry, node, how))
        })
    }

    fn counted(&self, entries: &[Entry]) -> Vec<Entry> {
        let counted = self.path(entries).map(|(entry, node, how)| match node.shares(how) {
            true => Entry { key: node.key.to_string(), value: node.value.to_string() },
            false => entry.clone(),
        });
        counted.collect()
    }

    fn metric(&self, entries: &[Entry], limit: &DescriptorLimit) -> Metric {
        let mut name = self.name.to_string();
        for (entry, node, how) in self.path(entries) {
            let tells = limit.flags.detailed_metric || node.flags.value_to_metric;
            match tells && !node.shares(how) {
                // The value is always part of a detailed name, also an empty one.
                true if limit.flags.detailed_metric => {
                    name.extend([".", &entry.key, "_", &entry.value]);
                }
                true => push(&mut name, &entry.key, &entry.value),
                false => push(&mut name, &node.key, &node.value),
            }
        }
        match *name == *limit.place {
            true => Metric::Place,
            false => Metric::Detailed(name),
        }
    }
}

impl Node {
    /// Whether all values that lead here in this way are counted together.
    fn shares(&self, how: How) -> bool {
        self.flags.share_threshold && how == How::ByPattern
    }
}

/// Adds a step to the name of a place.
pub(super) fn push(place: &mut String, key: &str, value: &str) {
    place.push('.');
    place.push_str(key);
    if !value.is_empty() {
        place.push('_');
        place.push_str(value);
    }
}
