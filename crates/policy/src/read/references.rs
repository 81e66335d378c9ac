//! Names that stand for something that is said elsewhere.

use super::{ErrorReporting, PolicyReader, UnknownKeys};
use crate::{
    model::{Match, PathPattern},
    source::{SourceSpan, SyntaxNode, SyntaxValue, truncate},
};
use std::collections::{HashMap, HashSet};
use tidegate_core::suggest;

/// What can be referred to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ReferenceTarget {
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
    known: HashMap<ReferenceTarget, HashSet<String>>,
    pending: Vec<Reference>,
    /// Where the rule of a name stands.
    rules: HashMap<String, SourceSpan>,
}

struct Reference {
    target: ReferenceTarget,
    name: String,
    span: SourceSpan,
    scope: Option<String>,
}

impl References {
    /// What a tree defines, whether or not it can be read.
    pub(super) fn from_root(root: &SyntaxNode) -> Self {
        let sections = [
            ("upstreams", ReferenceTarget::Upstream),
            ("stores", ReferenceTarget::Store),
            ("lists", ReferenceTarget::List),
            ("templates", ReferenceTarget::Template),
        ];
        let mut references = Self::default();
        let SyntaxValue::Map(entries) = &root.value else { return references };
        for (section, node) in entries {
            if section.text == "user" {
                references.known.entry(ReferenceTarget::User).or_default().insert("user".to_owned());
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

/// The names that listeners have.
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
    /// Remembers a reference, to be checked when all is read.
    pub(super) fn add_reference(&mut self, target: ReferenceTarget, name: &str, at: SourceSpan) {
        let is_of_rule =
            matches!(target, ReferenceTarget::Capture | ReferenceTarget::Path | ReferenceTarget::User);
        if self.reporting == ErrorReporting::Suppressed && !is_of_rule {
            return;
        }
        let scope = self.scope.last().cloned();
        self.references.pending.push(Reference { target, name: name.to_owned(), span: at, scope });
    }

    /// How far references were made, for [`PolicyReader::check_captures`].
    pub(super) fn reference_count(&self) -> usize {
        self.references.pending.len()
    }

    /// Forgets what was said of paths since then.
    pub(super) fn drop_path_references(&mut self, since: usize) {
        let mut index = 0;
        self.references.pending.retain(|reference| {
            index += 1;
            index <= since
                || !matches!(
                    reference.target,
                    ReferenceTarget::Capture | ReferenceTarget::Path | ReferenceTarget::User
                )
        });
    }

    /// Checks what a rule said of its own path since then.
    pub(super) fn check_captures(&mut self, since: usize, matching: &Match) {
        let pending = self.references.pending.split_off(since.min(self.references.pending.len()));
        let mut known: Vec<&str> = matching.paths.iter().flat_map(PathPattern::captures).collect();
        known.dedup();
        for reference in pending {
            let Reference { target, name, span: at, .. } = &reference;
            let place = self.scope.last().cloned().unwrap_or_default();
            match target {
                ReferenceTarget::Path if matching.paths.is_empty() => {
                    self.report_error(
                        *at,
                        format!("`route` in {place}, which matches no path"),
                        "give its `match` a `path`",
                    );
                }
                ReferenceTarget::Capture if !known.contains(&name.as_str()) => {
                    let problem = format!("no path of {place} has `{{{}}}`", truncate(name));
                    let fix = match suggest::closest(name, known.iter().copied()) {
                        Some(known) => format!("did you mean `capture {known}`?"),
                        None => format!("write it into its path, as in `/users/{{{}}}`", truncate(name)),
                    };
                    self.report_error(*at, problem, fix);
                }
                ReferenceTarget::Path | ReferenceTarget::Capture => {}
                _ => self.references.pending.push(reference),
            }
        }
    }

    /// Remembers a rule, of which there must be one of each name.
    pub(super) fn define_rule(&mut self, name: &str, at: SourceSpan) {
        match self.references.rules.get(name) {
            None => {
                self.references.rules.insert(name.to_owned(), at);
            }
            Some(_) if self.has_too_many_errors() => {
                self.report_error(at, "another rule of the same name", "rename it");
            }
            Some(first) => {
                let fix = format!(
                    "give one of them another name; the first is at {}",
                    self.sources.location(*first)
                );
                self.report_error(at, format!("two rules are called `{}`", truncate(name)), fix);
            }
        }
    }

    /// Checks all that was referred to; not what a mistyped section may have defined.
    pub(super) fn check_references(&mut self, strays: &UnknownKeys) {
        let References { known, pending: asked, .. } = std::mem::take(&mut self.references);
        let nothing = HashSet::new();
        for Reference { target, name, span: at, scope } in asked {
            let place = scope.unwrap_or_else(|| "the policy".to_owned());
            let (what, section) = match target {
                ReferenceTarget::Upstream => ("upstream", "upstreams"),
                ReferenceTarget::Store => ("store", "stores"),
                ReferenceTarget::List => ("list", "lists"),
                ReferenceTarget::Listener => ("listener", "listen"),
                ReferenceTarget::Template => ("template", "templates"),
                ReferenceTarget::User
                    if known.contains_key(&target) || strays.suggested.contains(&"user") =>
                {
                    continue;
                }
                ReferenceTarget::User => {
                    let problem = format!("{place} counts by `user`, but the policy has no `user`");
                    let fix = "say where the name of a user is found, as in `user: header x-user`";
                    self.report_error(at, problem, fix);
                    continue;
                }
                ReferenceTarget::Capture | ReferenceTarget::Path => {
                    let problem = format!("`{}` where there is no path of a rule", truncate(&name));
                    self.report_error(at, problem, "use it in the key of a rule");
                    continue;
                }
            };
            let known = known.get(&target).unwrap_or(&nothing);
            if known.contains(&name) || strays.suggested.contains(&section) {
                continue;
            }
            if self.has_too_many_errors() {
                self.report_error(
                    at,
                    format!("no {what} `{}`", truncate(&name)),
                    format!("define it under `{section}`"),
                );
                continue;
            }
            let mut names: Vec<_> = known.iter().map(String::as_str).collect();
            names.sort_unstable();
            let fix = match suggest::closest(&name, names.iter().copied()) {
                Some(known) => format!("did you mean `{known}`?"),
                None if names.is_empty() => format!("define it under `{section}`"),
                None if names.len() <= 8 => format!("there are: {}", names.join(", ")),
                None => format!("define it under `{section}`, or use one of those {}", names.len()),
            };
            self.report_error(
                at,
                format!("{place} names the {what} `{}`, which there is not", truncate(&name)),
                fix,
            );
        }
    }
}
