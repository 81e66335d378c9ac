//! An index that finds the rules that match a request without checking every rule.
//!
//! ```text
//!   host ──▶ trie of paths ──▶ rules, each with its methods ──▶ rules whose other conditions hold
//! ```
//!
//! Each exact host has a trie of its own; all other rules share a trie that every request traverses. The traversal follows,
//! at each segment, the matching literal, the capture and the matching globs. A rule has one entry for each of its paths.
//! The lookup time therefore depends on the number of rules for the host and path, not on the total number of rules.

use crate::{
    matching::{Matcher, PathMatcher, RequestView, SegmentMatcher, Segments},
    model::PathTail,
};
use foldhash::fast::RandomState;
use std::collections::HashMap;

/// An index of rules by host, path and method.
#[derive(Clone, Debug, Default)]
pub struct RuleIndex {
    matchers: Vec<Matcher>,
    any_host: Trie,
    hosts: HashMap<Box<[u8]>, Trie, RandomState>,
}

/// A trie of paths. The first node is the root.
#[derive(Clone, Debug)]
struct Trie {
    nodes: Vec<TrieNode>,
}

#[derive(Clone, Debug, Default)]
struct TrieNode {
    literals: HashMap<Box<[u8]>, usize, RandomState>,
    capture: Option<usize>,
    globs: Vec<(SegmentMatcher, usize)>,
    /// Rules whose paths end here.
    exact: Vec<IndexEntry>,
    /// Rules whose paths have a tail (`**`) here.
    prefixes: Vec<IndexEntry>,
}

#[derive(Clone, Copy, Debug)]
struct IndexEntry {
    rule: usize,
    methods: MethodSet,
}

/// A set of methods: one bit for each known method, and one for all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MethodSet(u16);

const KNOWN_METHODS: [&str; 9] =
    ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE"];

impl MethodSet {
    fn from_name(method: &str) -> Self {
        Self(1 << KNOWN_METHODS.iter().position(|known| *known == method).unwrap_or(KNOWN_METHODS.len()))
    }

    fn from_names(methods: &[Box<str>]) -> Self {
        match methods {
            [] => Self(u16::MAX),
            some => Self(some.iter().fold(0, |bits, method| bits | Self::from_name(method).0)),
        }
    }

    fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl RuleIndex {
    /// Builds the index. Rules are identified by their position.
    pub fn new(matchers: impl IntoIterator<Item = Matcher>) -> Self {
        let mut index = Self::default();
        for (rule, matcher) in matchers.into_iter().enumerate() {
            let entry = IndexEntry { rule, methods: MethodSet::from_names(matcher.methods()) };
            // A rule whose hosts and paths are all in `any` has an entry for each of these.
            match matcher.hosts().is_empty() && matcher.paths().is_empty() && !matcher.any().is_empty() {
                true => matcher.any().iter().for_each(|each| index.add(each, entry)),
                false => index.add(&matcher, entry),
            }
            index.matchers.push(matcher);
        }
        index
    }

    fn add(&mut self, matcher: &Matcher, entry: IndexEntry) {
        let exact: Option<Vec<_>> = matcher.hosts().iter().map(|host| host.literal()).collect();
        match exact {
            Some(hosts) if !hosts.is_empty() => {
                for host in hosts {
                    self.hosts.entry(host.into()).or_default().add(matcher.paths(), entry);
                }
            }
            _ => self.any_host.add(matcher.paths(), entry),
        }
    }

    /// Collects the positions of all rules that match this request, in order.
    pub fn find(&self, view: &RequestView<'_>, found: &mut Vec<usize>) {
        let methods = MethodSet::from_name(view.head().method());
        self.any_host.find(view, methods, found);
        if !self.hosts.is_empty()
            && let Some(trie) = view.host().and_then(|host| self.hosts.get(host.as_bytes()))
        {
            trie.find(view, methods, found);
        }
        if found.len() > 1 {
            found.sort_unstable();
            found.dedup();
        }
        // The trie has checked the path. A descriptor has none.
        let matches: fn(&Matcher, &RequestView<'_>) -> bool =
            if view.is_descriptor() { Matcher::matches } else { Matcher::matches_except_path };
        found.retain(|rule| self.matchers.get(*rule).is_some_and(|rule| matches(rule, view)));
    }

    /// Returns the position of the first rule that matches this request.
    pub fn find_first(&self, view: &RequestView<'_>) -> Option<usize> {
        let mut found = Vec::new();
        self.find(view, &mut found);
        found.first().copied()
    }

    /// The matchers of the rules, in order.
    pub fn matchers(&self) -> &[Matcher] {
        &self.matchers
    }
}

impl Default for Trie {
    fn default() -> Self {
        Self { nodes: vec![TrieNode::default()] }
    }
}

impl Trie {
    fn add(&mut self, paths: &[PathMatcher], entry: IndexEntry) {
        if paths.is_empty() {
            self.nodes[0].prefixes.push(entry);
        }
        for path in paths {
            let (steps, rest) = path.segments();
            let node = steps.iter().fold(0, |node, step| self.get_or_insert_child(node, step));
            match rest {
                Some(PathTail::Any | PathTail::Capture(_)) => self.nodes[node].prefixes.push(entry),
                None => self.nodes[node].exact.push(entry),
            }
        }
    }

    /// Returns the child node for this segment, and creates it if necessary.
    fn get_or_insert_child(&mut self, node: usize, step: &SegmentMatcher) -> usize {
        let next = self.nodes.len();
        let at = &mut self.nodes[node];
        let child = match step {
            SegmentMatcher::Text(text) => *at.literals.entry(text.clone()).or_insert(next),
            SegmentMatcher::Capture(_) => *at.capture.get_or_insert(next),
            glob => match at.globs.iter().find(|(known, _)| known == glob) {
                Some((_, child)) => *child,
                None => {
                    at.globs.push((glob.clone(), next));
                    next
                }
            },
        };
        if child == next {
            self.nodes.push(TrieNode::default());
        }
        child
    }

    fn find(&self, view: &RequestView<'_>, methods: MethodSet, found: &mut Vec<usize>) {
        let root = &self.nodes[0];
        collect_rules(&root.prefixes, methods, found);
        // Avoids normalizing the path if no rule has one.
        if self.nodes.len() > 1 || !root.exact.is_empty() {
            self.collect_matches(root, view.path().segments(), methods, found);
        }
    }

    /// Recurses no deeper than the longest pattern, and checks no node twice. The caller has collected `prefixes` of `node`.
    fn collect_matches(
        &self,
        node: &TrieNode,
        mut segments: Segments<'_>,
        methods: MethodSet,
        found: &mut Vec<usize>,
    ) {
        let Some(segment) = segments.next() else { return collect_rules(&node.exact, methods, found) };
        let text = if node.literals.is_empty() { None } else { node.literals.get(segment) };
        let globs = node.globs.iter().filter(|(glob, _)| glob.matches(segment)).map(|(_, child)| child);
        for child in text.into_iter().chain(&node.capture).chain(globs) {
            let child = &self.nodes[*child];
            collect_rules(&child.prefixes, methods, found);
            self.collect_matches(child, segments, methods, found);
        }
    }
}

fn collect_rules(entries: &[IndexEntry], methods: MethodSet, found: &mut Vec<usize>) {
    found.extend(entries.iter().filter(|entry| entry.methods.overlaps(methods)).map(|entry| entry.rule));
}
