//! Templates: what several rules say alike.
//!
//! A rule that says `use: NAME` says everything that the template says and it does not say itself, key by key. Templates use
//! no others.

use super::{PolicyReader, references::ReferenceTarget, rule::RULE};
use crate::{
    model::RuleSpec,
    source::{MAX_EXPANDED_BYTES, SyntaxKey, SyntaxNode, SyntaxValue},
};
use std::collections::HashMap;

/// Keys of which one stands for all.
const QUOTA_KEYS: [&str; 3] = ["quota", "quotas", "tiers"];

/// The templates of a tree, by their names.
pub(super) fn collect_templates(root: &SyntaxNode) -> HashMap<&str, &SyntaxNode> {
    let SyntaxValue::Map(entries) = &root.value else { return HashMap::new() };
    let section = entries.iter().find(|(name, _)| name.text == "templates");
    match section.map(|(_, node)| &node.value) {
        Some(SyntaxValue::Map(named)) => {
            named.iter().map(|(name, node)| (name.text.as_str(), node)).collect()
        }
        _ => HashMap::new(),
    }
}

impl<'a> PolicyReader<'a> {
    /// Finds what is wrong with templates, also with those that nobody uses.
    pub(super) fn check_templates(&mut self, node: &SyntaxNode) {
        self.named_entries(node, "templates", |reader, name, node| {
            reader.with_scope(format!("template `{}`", name.text), |reader| {
                let Some(entries) = reader.entries(node, "template") else { return };
                for (key, _) in entries {
                    let problem = match key.text.as_str() {
                        "use" => "a template that uses another",
                        "name" => "a template that names a rule",
                        _ => continue,
                    };
                    reader.report_error(key.span, problem, "leave it to the rules that use it");
                }
                let since = reader.reference_count();
                let others = entries.iter().filter(|(key, _)| !matches!(key.text.as_str(), "use" | "name"));
                let entries = others.map(|(key, node)| (key, node));
                reader.read_entries(entries, node.span, &RULE, &mut RuleSpec::new(""));
                // What it says of paths is only wrong in a rule that has none.
                reader.drop_path_references(since);
            });
        });
    }

    /// What the template of a rule says that the rule does not say itself.
    pub(super) fn template_entries(
        &mut self,
        entries: &[(SyntaxKey, SyntaxNode)],
    ) -> Vec<(&'a SyntaxKey, &'a SyntaxNode)> {
        let Some((_, using)) = entries.iter().find(|(name, _)| name.text == "use") else { return Vec::new() };
        let Some(name) = self.name(using) else { return Vec::new() };
        self.add_reference(ReferenceTarget::Template, &name, using.span);
        let Some(template) = self.templates.get(name.as_str()).copied() else { return Vec::new() };
        self.expanded_bytes += template.estimated_bytes();
        if self.expanded_bytes > MAX_EXPANDED_BYTES {
            self.report_error(using.span, "templates that unfold to more than 16 MiB", "use smaller ones");
            return Vec::new();
        }
        let SyntaxValue::Map(more) = &template.value else { return Vec::new() };
        let says = |key: &str| entries.iter().any(|(name, _)| name.text == key);
        let says_how_much = QUOTA_KEYS.iter().any(|key| says(key));
        let is_left_open = |key: &str| {
            !(says(key) || matches!(key, "name" | "use") || says_how_much && QUOTA_KEYS.contains(&key))
        };
        more.iter().filter(|(name, _)| is_left_open(&name.text)).map(|(name, node)| (name, node)).collect()
    }
}
