//! Finds the value of a key in the tree of a rule: `tiers.quotas.gold`, or `quotas.0`.

use super::{EDITABLE_KEYS, EditError, RuleValue, rule_node_mut};
use crate::{
    read::QUOTA_KEYS,
    source::{SyntaxNode, SyntaxValue, truncate},
};
use tidegate_core::suggest;

/// The parts of requests that select a value. They are no numbers, and an edit cannot change them.
const REQUEST_KEYS: [&str; 2] = ["tiers.key", "priority.key"];

/// Returns an error unless an edit can change this key of a rule.
pub(super) fn check_key(key: &str) -> Result<(), EditError> {
    let first = first_key(key);
    if EDITABLE_KEYS.contains(&first) && !REQUEST_KEYS.contains(&key) {
        return Ok(());
    }
    let fix = match suggest::closest(first, EDITABLE_KEYS).filter(|near| *near != first) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("use one of {}, or edit the file", EDITABLE_KEYS.join(", ")),
    };
    Err(EditError::Key(format!("`{}` cannot be set; {fix}", truncate(key))))
}

/// The key of the rule itself: `tiers` of `tiers.quotas.gold`.
pub(super) fn first_key(key: &str) -> &str {
    key.split_once('.').map_or(key, |(first, _)| first)
}

/// Returns the node of a value. The name of a tier may contain dots.
pub(super) fn find_node<'a>(node: &'a SyntaxNode, path: &str) -> Option<&'a SyntaxNode> {
    if path.is_empty() {
        return Some(node);
    }
    let rest_of = |key: &str| {
        let rest = path.strip_prefix(key)?;
        if rest.is_empty() { Some(rest) } else { rest.strip_prefix('.').filter(|rest| !rest.is_empty()) }
    };
    match &node.value {
        SyntaxValue::Map(entries) => {
            entries.iter().find_map(|(key, node)| find_node(node, rest_of(&key.text)?))
        }
        SyntaxValue::List(items) => {
            let (index, rest) = split_index(path)?;
            find_node(items.get(index)?, rest)
        }
        _ => None,
    }
}

/// Splits the index of a list item from the rest. Each item has one notation, so that the history has one key for it.
fn split_index(path: &str) -> Option<(usize, &str)> {
    let (text, rest) = path.split_once('.').unwrap_or((path, ""));
    let index: usize = text.parse().ok()?;
    (index.to_string() == text).then_some((index, rest))
}

/// Returns a value that is a text, a number or a boolean.
pub(super) fn find_value<'a>(node: &'a SyntaxNode, path: &str) -> Option<&'a str> {
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

/// Adds a value, or all values below a key.
pub(super) fn list_values(node: &SyntaxNode, key: String, values: &mut Vec<RuleValue>) {
    match &node.value {
        _ if REQUEST_KEYS.contains(&key.as_str()) => {}
        SyntaxValue::Map(entries) => {
            entries.iter().for_each(|(name, node)| list_values(node, format!("{key}.{}", name.text), values));
        }
        SyntaxValue::List(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(index, node)| list_values(node, format!("{key}.{index}"), values));
        }
        _ => values.extend(scalar(node).map(|value| RuleValue { key, value: value.to_owned() })),
    }
}

/// The template of a rule, if the rule takes this key from it.
pub(super) fn template_of<'a>(root: &'a SyntaxNode, rule: &SyntaxNode, key: &str) -> Option<&'a SyntaxNode> {
    let has = |key: &str| find_node(rule, key).is_some();
    if has(key) || QUOTA_KEYS.contains(&key) && QUOTA_KEYS.iter().any(|key| has(key)) {
        return None;
    }
    let name = find_value(rule, "use")?;
    let SyntaxValue::Map(templates) = &find_node(root, "templates")?.value else { return None };
    templates.iter().find(|(key, _)| key.text == name).map(|(_, node)| node)
}

/// The key of a template with several values that a value of the rule at `key` would replace.
pub(super) fn replaced_key<'a>(template: &SyntaxNode, key: &'a str) -> Option<&'a str> {
    let has_several = |key: &str| find_node(template, key).is_some_and(|node| scalar(node).is_none());
    let others = QUOTA_KEYS.into_iter().filter(|other| QUOTA_KEYS.contains(&key) && *other != key);
    let mut others = others.filter(|other| find_node(template, other).is_some());
    if has_several(key) { Some(key) } else { others.next() }
}

/// The tree without one value of a rule, to compare what else differs.
pub(super) fn without_value(root: &SyntaxNode, rule: usize, path: &str) -> SyntaxNode {
    let mut root = root.clone();
    if let Some(node) = rule_node_mut(&mut root, rule) {
        remove(node, path);
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
            match split_index(path).and_then(|(index, rest)| Some((items.get_mut(index)?, rest))) {
                Some((item, "")) => item.value = SyntaxValue::Null,
                Some((item, rest)) => remove(item, rest),
                None => {}
            }
        }
        _ => {}
    }
}
