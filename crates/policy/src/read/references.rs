//! Names that stand for something that is said elsewhere.

use super::{Reader, Strays, Voice};
use crate::{
    model::{Match, PathPattern},
    source::{Node, Span, Value, short},
};
use std::collections::{HashMap, HashSet};
use tidegate_core::spelling;

/// What can be referred to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Target {
    Upstream,
    Store,
    List,
    /// The name of a listener.
    Listener,
    Template,
    /// The policy's `user`.
    User,
    /// A part of the rule's path with a name.
    Capture,
    /// The rule's path itself.
    Path,
}

/// What was referred to, and what there is.
#[derive(Default)]
pub(super) struct References {
    known: HashMap<Target, HashSet<String>>,
    asked: Vec<Reference>,
    /// Where the rule of a name stands.
    rules: HashMap<String, Span>,
}

struct Reference {
    target: Target,
    name: String,
    at: Span,
    scope: Option<String>,
}

impl References {
    /// What a tree defines, whether or not it can be read.
    pub(super) fn of(root: &Node) -> Self {
        let sections = [
            ("upstreams", Target::Upstream),
            ("stores", Target::Store),
            ("lists", Target::List),
            ("templates", Target::Template),
        ];
        let mut references = Self::default();
        let Value::Map(entries) = &root.value else { return references };
        for (section, node) in entries {
            if section.text == "user" {
                references.known.entry(Target::User).or_default().insert("user".to_owned());
            }
            if section.text == "listen" {
                let names = references.known.entry(Target::Listener).or_default();
                names.extend(listener_names(node));
            }
            if let Some((_, target)) = sections.iter().find(|(name, _)| *name == section.text)
                && let Value::Map(named) = &node.value
            {
                let names = named.iter().map(|(name, _)| name.text.clone());
                references.known.entry(*target).or_default().extend(names);
            }
        }
        references
    }
}

/// The names that listeners have.
fn listener_names(node: &Node) -> Vec<String> {
    match &node.value {
        Value::List(items) => items.iter().flat_map(listener_names).collect(),
        Value::Map(entries) => entries
            .iter()
            .filter(|(key, _)| key.text == "name")
            .filter_map(|(_, name)| match &name.value {
                Value::Text(name) => Some(name.clone()),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}

impl Reader<'_> {
    /// Remembers a reference, to be checked when all is read.
    pub(super) fn refer(&mut self, target: Target, name: &str, at: Span) {
        let is_of_rule = matches!(target, Target::Capture | Target::Path | Target::User);
        if self.voice == Voice::Muted && !is_of_rule {
            return;
        }
        let scope = self.scope.last().cloned();
        self.references.asked.push(Reference { target, name: name.to_owned(), at, scope });
    }

    /// How far references were made, for [`Reader::check_captures`].
    pub(super) fn references_so_far(&self) -> usize {
        self.references.asked.len()
    }

    /// Forgets what was said of paths since then.
    pub(super) fn forget_references(&mut self, since: usize) {
        let mut index = 0;
        self.references.asked.retain(|reference| {
            index += 1;
            index <= since || !matches!(reference.target, Target::Capture | Target::Path | Target::User)
        });
    }

    /// Checks what a rule said of its own path since then.
    pub(super) fn check_captures(&mut self, since: usize, matching: &Match) {
        let asked = self.references.asked.split_off(since.min(self.references.asked.len()));
        let mut known: Vec<&str> = matching.paths.iter().flat_map(PathPattern::captures).collect();
        known.dedup();
        for reference in asked {
            let Reference { target, name, at, .. } = &reference;
            let place = self.scope.last().cloned().unwrap_or_default();
            match target {
                Target::Path if matching.paths.is_empty() => {
                    self.blame(
                        *at,
                        format!("`route` in {place}, which matches no path"),
                        "give its `match` a `path`",
                    );
                }
                Target::Capture if !known.contains(&name.as_str()) => {
                    let problem = format!("no path of {place} has `{{{}}}`", short(name));
                    let fix = match spelling::meant(name, known.iter().copied()) {
                        Some(known) => format!("did you mean `capture {known}`?"),
                        None => format!("write it into its path, as in `/users/{{{}}}`", short(name)),
                    };
                    self.blame(*at, problem, fix);
                }
                Target::Path | Target::Capture => {}
                _ => self.references.asked.push(reference),
            }
        }
    }

    /// Remembers a rule, of which there must be one of each name.
    pub(super) fn define_rule(&mut self, name: &str, at: Span) {
        match self.references.rules.get(name) {
            None => {
                self.references.rules.insert(name.to_owned(), at);
            }
            Some(_) if self.has_enough() => self.blame(at, "another rule of the same name", "rename it"),
            Some(first) => {
                let fix =
                    format!("give one of them another name; the first is at {}", self.sources.place(*first));
                self.blame(at, format!("two rules are called `{}`", short(name)), fix);
            }
        }
    }

    /// Checks all that was referred to; not what a mistyped section may have defined.
    pub(super) fn check_references(&mut self, strays: &Strays) {
        let References { known, asked, .. } = std::mem::take(&mut self.references);
        let nothing = HashSet::new();
        for Reference { target, name, at, scope } in asked {
            let place = scope.unwrap_or_else(|| "the policy".to_owned());
            let (what, section) = match target {
                Target::Upstream => ("upstream", "upstreams"),
                Target::Store => ("store", "stores"),
                Target::List => ("list", "lists"),
                Target::Listener => ("listener", "listen"),
                Target::Template => ("template", "templates"),
                Target::User if known.contains_key(&target) || strays.meant.contains(&"user") => continue,
                Target::User => {
                    let problem = format!("{place} counts by `user`, but the policy has no `user`");
                    let fix = "say where the name of a user is found, as in `user: header x-user`";
                    self.blame(at, problem, fix);
                    continue;
                }
                Target::Capture | Target::Path => {
                    let problem = format!("`{}` where there is no path of a rule", short(&name));
                    self.blame(at, problem, "use it in the key of a rule");
                    continue;
                }
            };
            let known = known.get(&target).unwrap_or(&nothing);
            if known.contains(&name) || strays.meant.contains(&section) {
                continue;
            }
            if self.has_enough() {
                self.blame(
                    at,
                    format!("no {what} `{}`", short(&name)),
                    format!("define it under `{section}`"),
                );
                continue;
            }
            let mut names: Vec<_> = known.iter().map(String::as_str).collect();
            names.sort_unstable();
            let fix = match spelling::meant(&name, names.iter().copied()) {
                Some(known) => format!("did you mean `{known}`?"),
                None if names.is_empty() => format!("define it under `{section}`"),
                None if names.len() <= 8 => format!("there are: {}", names.join(", ")),
                None => format!("define it under `{section}`, or use one of those {}", names.len()),
            };
            self.blame(at, format!("{place} names the {what} `{}`, which there is not", short(&name)), fix);
        }
    }
}
