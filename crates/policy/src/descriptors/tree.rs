//! A domain: a tree of entries with a hash index per level.
//!
//! ```text
//!   (path, /search)   exact match          1st
//!   (path, /s*)       patterns in order    2nd
//!   (path)            any value            3rd; the search continues below the match, without backtracking
//! ```
//!
//! Keys and values are separate, so that `a_b` is never confused with `a` and the value `b`.

use super::{DescriptorEntry, DescriptorFlags, DescriptorLimit, DescriptorMatch, MetricName};
use crate::{matching::GlobMatcher, model::Glob};
use foldhash::fast::RandomState;
use std::{borrow::Cow, collections::HashMap, sync::Arc};

type StrMap<T> = HashMap<Arc<str>, T, RandomState>;

/// A domain with its limits.
#[derive(Clone, Debug)]
pub struct Domain {
    name: Arc<str>,
    /// The first node is the root. Children follow their parents, and siblings are in the order of the files.
    nodes: Vec<DescriptorNode>,
}

/// A node of the tree.
#[derive(Clone, Debug, Default)]
struct DescriptorNode {
    /// Shared with the hash index.
    key: Arc<str>,
    /// Empty for any value.
    value: Arc<str>,
    flags: DescriptorFlags,
    limit: Option<Arc<DescriptorLimit>>,
    /// `None` for most nodes.
    children: Option<Box<ChildIndex>>,
}

/// The index of the children of a node.
#[derive(Clone, Debug, Default)]
struct ChildIndex {
    by_key: StrMap<KeyChildren>,
    /// Children whose key is a pattern.
    key_patterns: Vec<KeyPattern>,
}

/// The children of a node with the same key.
#[derive(Clone, Debug, Default)]
struct KeyChildren {
    any_value: Option<usize>,
    by_value: StrMap<usize>,
    value_patterns: Vec<(GlobMatcher, usize)>,
}

#[derive(Clone, Debug)]
struct KeyPattern {
    key: GlobMatcher,
    value: Option<GlobMatcher>,
    node: usize,
}

/// How an entry matched a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MatchKind {
    Exact,
    Pattern,
    KeyOnly,
}

/// The result of adding a node.
pub(super) enum AddResult {
    New(usize),
    Duplicate,
}

impl Domain {
    pub(super) const ROOT: usize = 0;

    pub(super) fn new(name: &str) -> Self {
        Self { name: name.into(), nodes: vec![DescriptorNode::default()] }
    }

    /// The name in requests.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All limits, in the order of the files.
    pub fn limits(&self) -> impl Iterator<Item = &Arc<DescriptorLimit>> {
        self.nodes.iter().filter_map(|node| node.limit.as_ref())
    }

    /// Finds the limit that applies to a descriptor: the one at the depth of its last entry.
    pub fn find<'a>(&'a self, entries: &'a [DescriptorEntry]) -> Option<DescriptorMatch<'a>> {
        let (mut last, mut has_shared, mut is_detailed) = (self.nodes.first()?, false, false);
        for entry in entries {
            let (node, how) = self.find_child(last, entry)?;
            let shared = node.is_shared(how);
            has_shared |= shared;
            is_detailed |= node.flags.value_to_metric && how != MatchKind::Exact && !shared;
            last = node;
        }
        let limit = last.limit.as_ref()?;
        let counter_entries = match has_shared {
            false => Cow::Borrowed(entries),
            true => Cow::Owned(self.counter_entries(entries)),
        };
        let metric = match limit.flags.detailed_metric || is_detailed {
            false => MetricName::Path,
            true => self.metric_name(entries, limit),
        };
        Some(DescriptorMatch { limit, counter_entries, metric })
    }

    /// Adds a node below another.
    pub(super) fn add(&mut self, parent: usize, key: &str, value: &str, flags: DescriptorFlags) -> AddResult {
        let id = self.nodes.len();
        let Some(above) = self.nodes.get_mut(parent) else { return AddResult::Duplicate };
        let below = above.children.get_or_insert_default();
        let key = below.by_key.get_key_value(key).map_or_else(|| key.into(), |(known, _)| known.clone());
        let node = DescriptorNode { key, value: value.into(), flags, limit: None, children: None };
        let keyed = below.by_key.entry(node.key.clone()).or_default();
        let before = match value.is_empty() {
            true => keyed.any_value.replace(id),
            false => keyed.by_value.insert(node.value.clone(), id),
        };
        if before.is_some() {
            return AddResult::Duplicate;
        }
        let glob = |text: &str| GlobMatcher::new(&Glob(text.to_owned()));
        if node.key.contains('*') {
            let value = (!value.is_empty()).then(|| glob(value));
            below.key_patterns.push(KeyPattern { key: glob(&node.key), value, node: id });
        } else if value.contains('*') {
            keyed.value_patterns.push((glob(value), id));
        }
        self.nodes.push(node);
        AddResult::New(id)
    }

    /// Sets the limit of a node.
    pub(super) fn set_limit(&mut self, node: usize, limit: Arc<DescriptorLimit>) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.limit = Some(limit);
        }
    }

    /// Finds the child of a node that an entry matches.
    fn find_child(
        &self,
        from: &DescriptorNode,
        entry: &DescriptorEntry,
    ) -> Option<(&DescriptorNode, MatchKind)> {
        let below = from.children.as_deref()?;
        let keyed = below.by_key.get(entry.key.as_str());
        let exactly = keyed.and_then(|keyed| keyed.by_value.get(entry.value.as_str()));
        let found = match exactly {
            Some(node) => (*node, MatchKind::Exact),
            None => {
                let value = entry.value.as_bytes();
                let fits = |glob: &GlobMatcher| glob.matches(value);
                let by_value =
                    keyed.and_then(|keyed| keyed.value_patterns.iter().find(|(glob, _)| fits(glob)));
                let by_key = below
                    .key_patterns
                    .iter()
                    .find(|any| any.key.matches(entry.key.as_bytes()) && any.value.as_ref().is_none_or(fits));
                let by_pattern = [by_value.map(|(_, node)| *node), by_key.map(|any| any.node)];
                match by_pattern.into_iter().flatten().min() {
                    Some(node) => (node, MatchKind::Pattern),
                    None => (keyed?.any_value?, MatchKind::KeyOnly),
                }
            }
        };
        Some((self.nodes.get(found.0)?, found.1))
    }

    /// Iterates over the entries with the nodes that they match.
    fn walk<'a>(
        &'a self,
        entries: &'a [DescriptorEntry],
    ) -> impl Iterator<Item = (&'a DescriptorEntry, &'a DescriptorNode, MatchKind)> {
        let mut last = self.nodes.first();
        entries.iter().map_while(move |entry| {
            let (node, how) = self.find_child(last?, entry)?;
            last = Some(node);
            Some((entry, node, how))
        })
    }

    fn counter_entries(&self, entries: &[DescriptorEntry]) -> Vec<DescriptorEntry> {
        let counted = self.walk(entries).map(|(entry, node, how)| match node.is_shared(how) {
            true => DescriptorEntry { key: node.key.to_string(), value: node.value.to_string() },
            false => entry.clone(),
        });
        counted.collect()
    }

    fn metric_name(&self, entries: &[DescriptorEntry], limit: &DescriptorLimit) -> MetricName {
        let mut name = self.name.to_string();
        for (entry, node, how) in self.walk(entries) {
            let is_detailed = limit.flags.detailed_metric || node.flags.value_to_metric;
            match is_detailed && !node.is_shared(how) {
                // A detailed name always contains the value, also an empty one.
                true if limit.flags.detailed_metric => {
                    name.extend([".", &entry.key, "_", &entry.value]);
                }
                true => push_step(&mut name, &entry.key, &entry.value),
                false => push_step(&mut name, &node.key, &node.value),
            }
        }
        match *name == *limit.path {
            true => MetricName::Path,
            false => MetricName::Detailed(name),
        }
    }
}

impl DescriptorNode {
    /// Whether all values that match in this way share a counter.
    fn is_shared(&self, how: MatchKind) -> bool {
        self.flags.share_threshold && how == MatchKind::Pattern
    }
}

/// Appends an entry to the path of a node.
pub(super) fn push_step(path: &mut String, key: &str, value: &str) {
    path.push('.');
    path.push_str(key);
    if !value.is_empty() {
        path.push('_');
        path.push_str(value);
    }
}
