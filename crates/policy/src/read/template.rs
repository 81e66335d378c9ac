//! Applies templates to rules.
//!
//! A rule with `use: NAME` takes each key of the template that it does not set itself. Templates cannot use other templates.

use super::{PolicyReader, key_hook::is_ignored, references::ReferenceTarget, rule::RULE};
use crate::{
    model::RuleSpec,
    source::{MAX_EXPANDED_BYTES, SyntaxKey, SyntaxNode, SyntaxValue},
};
use std::collections::HashMap;

/// The keys that exclude each other: a rule that sets one takes none of them from its template.
pub(crate) const QUOTA_KEYS: [&str; 3] = ["quota", "quotas", "tiers"];

/// Collects the templates of a tree by name.
pub(super) fn collect_templates(root: &SyntaxNode) -> HashMap<&str, &SyntaxNode> {
    let SyntaxValue::Map(entries) = &root.value else { return HashMap::new() };
    let section =
        entries.iter().find(|(name, _)| name.text == "templates" && !is_ignored("policy", "templates"));
    match section.map(|(_, node)| &node.value) {
        Some(SyntaxValue::Map(named)) => {
            named.iter().map(|(name, node)| (name.text.as_str(), node)).collect()
        }
        _ => HashMap::new(),
    }
}

impl<'a> PolicyReader<'a> {
    /// Reports the errors of all templates, also of unused ones.
    pub(super) fn check_templates(&mut self, node: &SyntaxNode) {
        self.named_entries(node, "templates", |reader, name, node| {
            reader.with_scope(format!("template `{}`", name.text), |reader| {
                let Some(entries) = reader.entries(node, "template") else { return };
                for (key, _) in entries {
                    let problem = match key.text.as_str() {
                        "use" => "`use` in a template",
                        "name" => "`name` in a template",
                        _ => continue,
                    };
                    reader.report_error(key.span, problem, "move it to the rules that use the template");
                }
                let first_reference = reader.reference_count();
                let others = entries.iter().filter(|(key, _)| !matches!(key.text.as_str(), "use" | "name"));
                let entries = others.map(|(key, node)| (key, node));
                reader.read_entries(entries, node.span, &RULE, &mut RuleSpec::new(""));
                // References to paths are checked in the rules that use the template.
                reader.drop_path_references(first_reference);
            });
        });
    }

    /// Returns the entries of the template of a rule whose keys the rule does not set.
    pub(super) fn template_entries(
        &mut self,
        entries: &[(SyntaxKey, SyntaxNode)],
    ) -> Vec<(&'a SyntaxKey, &'a SyntaxNode)> {
        let Some((_, using)) =
            entries.iter().find(|(name, _)| name.text == "use" && !is_ignored("rule", "use"))
        else {
            return Vec::new();
        };
        let Some(name) = self.name(using) else { return Vec::new() };
        self.add_reference(ReferenceTarget::Template, &name, using.span);
        let Some(template) = self.templates.get(name.as_str()).copied() else { return Vec::new() };
        self.expanded_bytes += template.estimated_bytes();
        if self.expanded_bytes > MAX_EXPANDED_BYTES {
            self.report_error(using.span, "templates expand to more than 16 MiB", "use smaller templates");
            return Vec::new();
        }
        let SyntaxValue::Map(more) = &template.value else { return Vec::new() };
        let has_key = |key: &str| entries.iter().any(|(name, _)| name.text == key);
        let has_quota = QUOTA_KEYS.iter().any(|key| has_key(key));
        let is_inherited = |key: &str| {
            !(has_key(key) || matches!(key, "name" | "use") || has_quota && QUOTA_KEYS.contains(&key))
        };
        more.iter().filter(|(name, _)| is_inherited(&name.text)).map(|(name, node)| (name, node)).collect()
    }
}
