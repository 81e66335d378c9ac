//! Templates: what several rules say alike.
//!
//! A rule that says `use: NAME` says everything that the template says and it does not say itself, key by key. Templates use
//! no others.

use super::{Reader, references::Target, rule::RULE};
use crate::{
    model::Rule,
    source::{MOST_UNFOLDED, Name, Node, Value},
};
use std::collections::HashMap;

/// Keys of which one stands for all.
const ALTERNATIVES: [&str; 3] = ["quota", "quotas", "tiers"];

/// The templates of a tree, by their names.
pub(super) fn of(root: &Node) -> HashMap<&str, &Node> {
    let Value::Map(entries) = &root.value else { return HashMap::new() };
    let section = entries.iter().find(|(name, _)| name.text == "templates");
    match section.map(|(_, node)| &node.value) {
        Some(Value::Map(named)) => named.iter().map(|(name, node)| (name.text.as_str(), node)).collect(),
        _ => HashMap::new(),
    }
}

impl<'a> Reader<'a> {
    /// Finds what is wrong with templates, also with those that nobody uses.
    pub(super) fn templates(&mut self, node: &Node) {
        self.names(node, "templates", |reader, name, node| {
            reader.within(format!("template `{}`", name.text), |reader| {
                let Some(entries) = reader.entries(node, "template") else { return };
                for (key, _) in entries {
                    let problem = match key.text.as_str() {
                        "use" => "a template that uses another",
                        "name" => "a template that names a rule",
                        _ => continue,
                    };
                    reader.blame(key.at, problem, "leave it to the rules that use it");
                }
                let since = reader.references_so_far();
                let others = entries.iter().filter(|(key, _)| !matches!(key.text.as_str(), "use" | "name"));
                let entries = others.map(|(key, node)| (key, node));
                reader.fill_from(entries, node.at, &RULE, &mut Rule::new(""));
                // What it says of paths is only wrong in a rule that has none.
                reader.forget_references(since);
            });
        });
    }

    /// What the template of a rule says that the rule does not say itself.
    pub(super) fn template_of(&mut self, entries: &[(Name, Node)]) -> Vec<(&'a Name, &'a Node)> {
        let Some((_, using)) = entries.iter().find(|(name, _)| name.text == "use") else { return Vec::new() };
        let Some(name) = self.name(using) else { return Vec::new() };
        self.refer(Target::Template, &name, using.at);
        let Some(template) = self.templates.get(name.as_str()).copied() else { return Vec::new() };
        self.unfolded += template.weight();
        if self.unfolded > MOST_UNFOLDED {
            self.blame(using.at, "templates that unfold to more than 16 MiB", "use smaller ones");
            return Vec::new();
        }
        let Value::Map(more) = &template.value else { return Vec::new() };
        let says = |key: &str| entries.iter().any(|(name, _)| name.text == key);
        let says_how_much = ALTERNATIVES.iter().any(|key| says(key));
        let is_left_open = |key: &str| {
            !(says(key) || matches!(key, "name" | "use") || says_how_much && ALTERNATIVES.contains(&key))
        };
        more.iter().filter(|(name, _)| is_left_open(&name.text)).map(|(name, node)| (name, node)).collect()
    }
}
