//! Checks references by name: upstreams, stores, lists, listeners, templates, `user` and captures.

use super::{ErrorReporting, PolicyReader, UnknownKeys};
use crate::{
    model::{Match, PathPattern},
    source::{SourceSpan, SyntaxNode, SyntaxValue, truncate},
};
use std::collections::{HashMap, HashSet};
use tidegate_core::suggest;

/// The kinds of items that a reference can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ReferenceTarget {
    Upstream,
    Store,
    List,
    /// The name of a listener.
    Listener,
    Template,
    Feature,
    /// The policy's `user`.
    User,
    /// A part of the policy's `identity`.
    Identity,
    /// A named segment of the rule's path.
    Capture,
    /// The rule's path itself.
    Path,
}

/// The references of a policy, and the names that it defines.
#[derive(Default)]
pub(super) struct References {
    known: HashMap<ReferenceTarget, HashSet<String>>,
    pending: Vec<Reference>,
    /// The position of each rule, by name.
    rules: HashMap<String, SourceSpan>,
}

struct Reference {
    target: ReferenceTarget,
    name: String,
    span: SourceSpan,
    scope: Option<String>,
}

impl References {
    /// Collects the names that a tree defines, also those whose definition has errors.
    pub(super) fn from_root(root: &SyntaxNode) -> Self {
        let sections = [
            ("upstreams", ReferenceTarget::Upstream),
            ("stores", ReferenceTarget::Store),
            ("lists", ReferenceTarget::List),
            ("templates", ReferenceTarget::Template),
            ("features", ReferenceTarget::Feature),
        ];
        let mut references = Self::default();
        let SyntaxValue::Map(entries) = &root.value else { return references };
        for (section, node) in entries {
            if section.text == "user" {
                references.known.entry(ReferenceTarget::User).or_default().insert("user".to_owned());
            }
            if section.text == "identity"
                && let SyntaxValue::Map(entries) = &node.value
            {
                let names = entries.iter().map(|(name, _)| name.text.clone());
                references.known.entry(ReferenceTarget::Identity).or_default().extend(names);
            }
            if section.text == "listen" {
                let names = references.known.entry(ReferenceTarget::Listener).or_default();
                names.extend(listener_names(node));
            }
            if let Some((_, target)) = sections.iter().find(|(name, _)| *name == section.text)
                && let SyntaxValue::Map(named) = &node.value
            {
                let names = named.iter().map(|(name, _)| name.text.clone());
                references.known.entry(*target).or_default().extend(names);
            }
        }
        references
    }
}

/// The names of the listeners.
fn listener_names(node: &SyntaxNode) -> Vec<String> {
    match &node.value {
        SyntaxValue::List(items) => items.iter().flat_map(listener_names).collect(),
        SyntaxValue::Map(entries) => entries
            .iter()
            .filter(|(key, _)| key.text == "name")
            .filter_map(|(_, name)| match &name.value {
                SyntaxValue::Text(name) => Some(name.clone()),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}

impl PolicyReader<'_> {
    /// Records a reference, to be checked after the whole policy is read.
    pub(super) fn add_reference(&mut self, target: ReferenceTarget, name: &str, at: SourceSpan) {
        let is_of_rule = matches!(
            target,
            ReferenceTarget::Capture
                | ReferenceTarget::Path
                | ReferenceTarget::User
                | ReferenceTarget::Identity
        );
        if self.reporting == ErrorReporting::Suppressed && !is_of_rule {
            return;
        }
        let scope = self.scope.last().cloned();
        self.references.pending.push(Reference { target, name: name.to_owned(), span: at, scope });
    }

    /// The number of recorded references, for [`PolicyReader::check_captures`].
    pub(super) fn reference_count(&self) -> usize {
        self.references.pending.len()
    }

    /// Drops references to paths, captures and `user` recorded since then.
    pub(super) fn drop_path_references(&mut self, first_reference: usize) {
        let mut index = 0;
        self.references.pending.retain(|reference| {
            index += 1;
            index <= first_reference
                || !matches!(
                    reference.target,
                    ReferenceTarget::Capture | ReferenceTarget::Path | ReferenceTarget::User
                )
        });
    }

    /// Checks the references of a rule to its own path recorded since then.
    pub(super) fn check_captures(&mut self, first_reference: usize, matching: &Match) {
        let pending = self.references.pending.split_off(first_reference.min(self.references.pending.len()));
        let mut known: Vec<&str> = matching.paths.iter().flat_map(PathPattern::captures).collect();
        known.dedup();
        for reference in pending {
            let Reference { target, name, span: at, .. } = &reference;
            let location = self.scope.last().cloned().unwrap_or_default();
            match target {
                ReferenceTarget::Path if matching.paths.is_empty() => {
                    self.report_error(
                        *at,
                        format!("`route` in {location}, which has no path"),
                        "add `path` to its `match`",
                    );
                }
                ReferenceTarget::Capture if !known.contains(&name.as_str()) => {
                    let problem = format!("no path of {location} has `{{{}}}`", truncate(name));
                    let fix = match suggest::closest(name, known.iter().copied()) {
                        Some(known) => format!("did you mean `capture {known}`?"),
                        None => format!("add it to the path, as in `/users/{{{}}}`", truncate(name)),
                    };
                    self.report_error(*at, problem, fix);
                }
                ReferenceTarget::Path | ReferenceTarget::Capture => {}
                _ => self.references.pending.push(reference),
            }
        }
    }

    /// Records a rule, and reports a duplicate name.
    pub(super) fn define_rule(&mut self, name: &str, at: SourceSpan) {
        match self.references.rules.get(name) {
            None => {
                self.references.rules.insert(name.to_owned(), at);
            }
            Some(_) if self.has_too_many_errors() => {
                self.report_error(at, "duplicate rule name", "rename it");
            }
            Some(first) => {
                let fix = format!("rename one of them; the first is at {}", self.sources.location(*first));
                self.report_error(at, format!("duplicate rule name `{}`", truncate(name)), fix);
            }
        }
    }

    /// Checks all references, except those that a mistyped section may define.
    pub(super) fn check_references(&mut self, unknown: &UnknownKeys) {
        let References { known, pending, .. } = std::mem::take(&mut self.references);
        let nothing = HashSet::new();
        for Reference { target, name, span: at, scope } in pending {
            let location = scope.unwrap_or_else(|| "the policy".to_owned());
            let (what, section) = match target {
                ReferenceTarget::Upstream => ("upstream", "upstreams"),
                ReferenceTarget::Store => ("store", "stores"),
                ReferenceTarget::List => ("list", "lists"),
                ReferenceTarget::Listener => ("listener", "listen"),
                ReferenceTarget::Template => ("template", "templates"),
                ReferenceTarget::Feature => ("feature", "features"),
                ReferenceTarget::User
                    if known.contains_key(&target) || unknown.suggested.contains(&"user") =>
                {
                    continue;
                }
                ReferenceTarget::User => {
                    let problem =
                        format!("{location} uses the key `user`, but the policy does not define `user`");
                    let fix = "define it, as in `user: header x-user`";
                    self.report_error(at, problem, fix);
                    continue;
                }
                ReferenceTarget::Identity
                    if known.get(&target).is_some_and(|known| known.contains(&name))
                        || unknown.suggested.iter().any(|key| *key == "identity" || *key == name) =>
                {
                    continue;
                }
                ReferenceTarget::Identity => {
                    let (key, fix) = match name.as_str() {
                        "jwt" => ("jwt", "define it, as in `identity: { jwt: { keys: jwks.json } }`"),
                        _ => ("api-key", "define it, as in `identity: { api-keys: api-keys.json }`"),
                    };
                    let problem = format!(
                        "{location} uses the key `{key}`, but the policy does not define `identity.{name}`"
                    );
                    self.report_error(at, problem, fix);
                    continue;
                }
                ReferenceTarget::Capture | ReferenceTarget::Path => {
                    let problem = format!("`{}` outside of a rule with a path", truncate(&name));
                    self.report_error(at, problem, "use it in the key of a rule");
                    continue;
                }
            };
            let known = known.get(&target).unwrap_or(&nothing);
            if known.contains(&name) || unknown.suggested.contains(&section) {
                continue;
            }
            if self.has_too_many_errors() {
                self.report_error(
                    at,
                    format!("unknown {what} `{}`", truncate(&name)),
                    format!("define it under `{section}`"),
                );
                continue;
            }
            let mut names: Vec<_> = known.iter().map(String::as_str).collect();
            names.sort_unstable();
            let fix = match suggest::closest(&name, names.iter().copied()) {
                Some(known) => format!("did you mean `{known}`?"),
                None if names.is_empty() => format!("define it under `{section}`"),
                None if names.len() <= 8 => format!("use one of {}", names.join(", ")),
                None => {
                    format!("define it under `{section}`, or use one of the {} defined there", names.len())
                }
            };
            self.report_error(at, format!("unknown {what} `{}` in {location}", truncate(&name)), fix);
        }
    }
}
