//! Which rules may be about a request, found without looking at each.
//!
//! ```text
//!   host ──▶ trie of paths ──▶ rules, each with its methods ──▶ those of which all holds
//! ```
//!
//! Rules of one exact host are in a trie of their own, all others in one that every request goes through. A trie is walked
//! segment by segment; at each, the text, a name and the globs that stand there go on. A rule is in it once for each of
//! its paths. So what a request costs depends on how many rules are about its host and path, not on how many there are.

use crate::{
    matching::{Matcher, PathMatcher, Seen, Segments, Step},
    model::Rest,
};
use foldhash::fast::RandomState;
use std::collections::HashMap;

/// Rules, to be found by a request.
#[derive(Clone, Debug, Default)]
pub struct RuleIndex {
    matchers: Vec<Matcher>,
    anywhere: Trie,
    hosts: HashMap<Box<[u8]>, Trie, RandomState>,
}

/// One trie of paths; the first node is the root.
#[derive(Clone, Debug)]
struct Trie {
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    texts: HashMap<Box<[u8]>, usize, RandomState>,
    named: Option<usize>,
    globs: Vec<(Step, usize)>,
    /// Those of paths that end here.
    here: Vec<Entry>,
    /// Those of paths that go on in any way.
    below: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    rule: usize,
    methods: Methods,
}

/// A set of methods: one bit for each that is known, and one for all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Methods(u16);

const KNOWN: [&str; 9] = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE"];

impl Methods {
    fn of(method: &str) -> Self {
        Self(1 << KNOWN.iter().position(|known| *known == method).unwrap_or(KNOWN.len()))
    }

    fn all_of(methods: &[Box<str>]) -> Self {
        match methods {
            [] => Self(u16::MAX),
            some => Self(some.iter().fold(0, |bits, method| bits | Self::of(method).0)),
        }
    }

    fn overlap(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl RuleIndex {
    /// These rules, by their place.
    pub fn new(matchers: impl IntoIterator<Item = Matcher>) -> Self {
        let mut index = Self::default();
        for (rule, matcher) in matchers.into_iter().enumerate() {
            let entry = Entry { rule, methods: Methods::all_of(matcher.methods()) };
            // Where only its `any` says where it is about, each of that is a place to look.
            match matcher.hosts().is_empty() && matcher.paths().is_empty() && !matcher.any().is_empty() {
                true => matcher.any().iter().for_each(|each| index.add(each, entry)),
                false => index.add(&matcher, entry),
            }
            index.matchers.push(matcher);
        }
        index
    }

    fn add(&mut self, matcher: &Matcher, entry: Entry) {
        let exact: Option<Vec<_>> = matcher.hosts().iter().map(|host| host.text()).collect();
        match exact {
            Some(hosts) if !hosts.is_empty() => {
                for host in hosts {
                    self.hosts.entry(host.into()).or_default().add(matcher.paths(), entry);
                }
            }
            _ => self.anywhere.add(matcher.paths(), entry),
        }
    }

    /// The places of all rules that are about this request, in their order.
    pub fn find(&self, seen: &Seen<'_>, found: &mut Vec<usize>) {
        let methods = Methods::of(seen.head().method());
        self.anywhere.find(seen, methods, found);
        if !self.hosts.is_empty()
            && let Some(trie) = seen.host().and_then(|host| self.hosts.get(host.as_bytes()))
        {
            trie.find(seen, methods, found);
        }
        if found.len() > 1 {
            found.sort_unstable();
            found.dedup();
        }
        // The trie is as strict about paths as patterns are.
        let is_meant =
            |rule: &usize| self.matchers.get(*rule).is_some_and(|rule| rule.matches_beyond_path(seen));
        found.retain(is_meant);
    }

    /// The first rule that is about this request.
    pub fn first(&self, seen: &Seen<'_>) -> Option<usize> {
        let mut found = Vec::new();
        self.find(seen, &mut found);
        found.first().copied()
    }

    /// The rules, in their order.
    pub fn matchers(&self) -> &[Matcher] {
        &self.matchers
    }
}

impl Default for Trie {
    fn default() -> Self {
        Self { nodes: vec![Node::default()] }
    }
}

impl Trie {
    fn add(&mut self, paths: &[PathMatcher], entry: Entry) {
        if paths.is_empty() {
            self.nodes[0].below.push(entry);
        }
        for path in paths {
            let (steps, rest) = path.steps();
            let node = steps.iter().fold(0, |node, step| self.child(node, step));
            match rest {
                Some(Rest::Any | Rest::Named(_)) => self.nodes[node].below.push(entry),
                None => self.nodes[node].here.push(entry),
            }
        }
    }

    /// The node behind this step, made if there is none.
    fn child(&mut self, node: usize, step: &Step) -> usize {
        let next = self.nodes.len();
        let at = &mut self.nodes[node];
        let child = match step {
            Step::Text(text) => *at.texts.entry(text.clone()).or_insert(next),
            Step::Named(_) => *at.named.get_or_insert(next),
            glob => match at.globs.iter().find(|(known, _)| known == glob) {
                Some((_, child)) => *child,
                None => {
                    at.globs.push((glob.clone(), next));
                    next
                }
            },
        };
        if child == next {
            self.nodes.push(Node::default());
        }
        child
    }

    fn find(&self, seen: &Seen<'_>, methods: Methods, found: &mut Vec<usize>) {
        let root = &self.nodes[0];
        collect(&root.below, methods, found);
        // Where no rule has a path, nobody needs to know it.
        if self.nodes.len() > 1 || !root.here.is_empty() {
            self.walk(root, seen.path().segments(), methods, found);
        }
    }

    /// No deeper than the deepest pattern, and to no node twice. What goes on below a node has been collected already.
    fn walk(&self, node: &Node, mut segments: Segments<'_>, methods: Methods, found: &mut Vec<usize>) {
        let Some(segment) = segments.next() else { return collect(&node.here, methods, found) };
        let text = if node.texts.is_empty() { None } else { node.texts.get(segment) };
        let globs = node.globs.iter().filter(|(glob, _)| glob.fits(segment)).map(|(_, child)| child);
        for child in text.into_iter().chain(&node.named).chain(globs) {
            let child = &self.nodes[*child];
            collect(&child.below, methods, found);
            self.walk(child, segments, methods, found);
        }
    }
}

fn collect(entries: &[Entry], methods: Methods, found: &mut Vec<usize>) {
    found.extend(entries.iter().filter(|entry| entry.methods.overlap(methods)).map(|entry| entry.rule));
}
