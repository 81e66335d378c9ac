//! Finds the value of a key in the tree of a rule.

use super::{EDITABLE_KEYS, EditError, RuleValue, rule_node_mut};
use crate::{
    read::QUOTA_KEYS,
    source::{SyntaxNode, SyntaxValue},
};
use tidegate_core::suggest;

/// The keys from a rule to a value: `tiers.quotas.gold`, or `quotas.0`.
pub(super) struct KeyPath<'a> {
    text: &'a str,
}

impl<'a> KeyPath<'a> {
    /// The path of a key that an edit can change.
    pub(super) fn parse(text: &'a str) -> Result<Self, EditError> {
        let path = Self::split(text);
        match EDITABLE_KEYS.contains(&path.first()) {
            true => Ok(path),
            false => {
                let fix = match suggest::closest(path.first(), EDITABLE_KEYS) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("use one of {}, or edit the file", EDITABLE_KEYS.join(", ")),
                };
                Err(EditError::Key(format!("`{text}` cannot be set; {fix}")))
            }
        }
    }

    pub(super) fn split(text: &'a str) -> Self {
        Self { text }
    }

    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    pub(super) fn first(&self) -> &'a str {
        self.text.split_once('.').map_or(self.text, |(first, _)| first)
    }

    /// The key, if it is one of the rule itself.
    pub(super) fn top_level(&self) -> Option<&'a str> {
        (!self.text.contains('.')).then_some(self.text)
    }
}

/// Returns the node of a value. The name of a tier may contain dots.
pub(super) fn find_node<'a>(node: &'a SyntaxNode, path: &KeyPath<'_>) -> Option<&'a SyntaxNode> {
    descend(node, path.text)
}

fn descend<'a>(node: &'a SyntaxNode, path: &str) -> Option<&'a SyntaxNode> {
    if path.is_empty() {
        return Some(node);
    }
    let rest_of = |key: &str| {
        let rest = path.strip_prefix(key)?;
        if rest.is_empty() { Some(rest) } else { rest.strip_prefix('.').filter(|rest| !rest.is_empty()) }
    };
    match &node.value {
        SyntaxValue::Map(entries) => {
            entries.iter().find_map(|(key, node)| descend(node, rest_of(&key.text)?))
        }
        SyntaxValue::List(items) => {
            let (index, rest) = path.split_once('.').unwrap_or((path, ""));
            descend(items.get(index.parse::<usize>().ok()?)?, rest)
        }
        _ => None,
    }
}

/// Returns a value that is a text, a number or a boolean.
pub(super) fn find_value<'a>(node: &'a SyntaxNode, path: &KeyPath<'_>) -> Option<&'a str> {
    scalar(find_node(node, path)?)
}

pub(super) fn scalar(node: &SyntaxNode) -> Option<&str> {
    match &node.value {
        SyntaxValue::Text(text) | SyntaxValue::Number(text) => Some(text),
        SyntaxValue::Bool(true) => Some("true"),
        SyntaxValue::Bool(false) => Some("false"),
        SyntaxValue::Null | SyntaxValue::List(_) | SyntaxValue::Map(_) => None,
    }
}

/// Adds the values of a key of a rule, and of what is below it.
pub(super) fn list_values(rule: &SyntaxNode, key: &str, values: &mut Vec<RuleValue>) {
    if let Some(node) = find_node(rule, &KeyPath::split(key)) {
        list_below(node, key.to_owned(), values);
    }
}

fn list_below(node: &SyntaxNode, key: String, values: &mut Vec<RuleValue>) {
    match &node.value {
        SyntaxValue::Map(entries) => {
            entries.iter().for_each(|(name, node)| list_below(node, format!("{key}.{}", name.text), values));
        }
        SyntaxValue::List(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(index, node)| list_below(node, format!("{key}.{index}"), values));
        }
        _ => values.extend(scalar(node).map(|value| RuleValue { key, value: value.to_owned() })),
    }
}

/// The template of a rule, if the rule takes this key from it.
pub(super) fn template_of<'a>(root: &'a SyntaxNode, rule: &SyntaxNode, key: &str) -> Option<&'a SyntaxNode> {
    let has = |key: &str| find_node(rule, &KeyPath::split(key)).is_some();
    if has(key) || QUOTA_KEYS.contains(&key) && QUOTA_KEYS.iter().any(|key| has(key)) {
        return None;
    }
    let name = find_value(rule, &KeyPath::split("use"))?;
    let templates = find_node(root, &KeyPath::split("templates"))?;
    let SyntaxValue::Map(templates) = &templates.value else { return None };
    templates.iter().find(|(key, _)| key.text == name).map(|(_, node)| node)
}

/// The tree without one value of a rule, to compare what else differs.
pub(super) fn without_value(root: &SyntaxNode, rule: usize, path: &KeyPath<'_>) -> SyntaxNode {
    let mut root = root.clone();
    if let Some(node) = rule_node_mut(&mut root, rule) {
        remove(node, path.text);
    }
    root
}

fn remove(node: &mut SyntaxNode, path: &str) {
    match &mut node.value {
        SyntaxValue::Map(entries) if entries.iter().any(|(key, _)| key.text == path) => {
            entries.retain(|(key, _)| key.text != path);
        }
        SyntaxValue::Map(entries) => {
            for (key, node) in entries {
                if let Some(rest) = path.strip_prefix(&key.text).and_then(|rest| rest.strip_prefix('.')) {
                    remove(node, rest);
                }
            }
        }
        SyntaxValue::List(items) => {
            let (index, rest) = path.split_once('.').unwrap_or((path, ""));
            let item = index.parse::<usize>().ok().and_then(|index| items.get_mut(index));
            match (item, rest) {
                (Some(item), "") => item.value = SyntaxValue::Null,
                (Some(item), rest) => remove(item, rest),
                (None, _) => {}
            }
        }
        _ => {}
    }
}
