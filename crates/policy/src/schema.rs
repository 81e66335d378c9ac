//! What a policy file may say, as a JSON Schema: editors complete and check files with it.
//!
//! It is written from the tables that the reader goes by, so that both know the same keys. It says how values look, not what
//! they mean: `tidegate check` tells more.

use crate::{
    print::json,
    read::POLICY,
    table::{Outline, Shape, Written},
};
use std::collections::BTreeMap;

/// The schema, in draft 2020-12.
pub fn schema() -> String {
    let mut schema = Schema::default();
    let root = schema.table(POLICY.outline());
    let mut entries = vec![
        entry("$schema", Written::text("https://json-schema.org/draft/2020-12/schema")),
        entry("title", Written::text("A policy of Tidegate")),
    ];
    if let Written::Map(root) = root {
        entries.extend(root);
    }
    let definitions = schema.definitions.into_iter().filter_map(|(name, it)| Some((name.to_owned(), it?)));
    entries.push(entry("$defs", Written::Map(definitions.collect())));
    let mut text = String::new();
    json(&mut text, &Written::Map(entries), 0);
    text.push('\n');
    text
}

#[derive(Default)]
struct Schema {
    /// `None` while one is being written, which may hold itself.
    definitions: BTreeMap<&'static str, Option<Written>>,
}

impl Schema {
    fn table(&mut self, outline: Outline) -> Written {
        let properties = outline.keys.into_iter().map(|key| {
            let mut written = vec![entry("description", Written::text(key.about))];
            written.extend(key.default.map(|default| entry("default", default)));
            if let Written::Map(more) = self.shape(key.shape) {
                written.extend(more);
            }
            (key.name.to_owned(), Written::Map(written))
        });
        let properties = Written::Map(properties.collect());
        let mut entries = vec![
            entry("type", Written::text("object")),
            entry("properties", properties),
            entry("additionalProperties", Written::Bool(false)),
        ];
        if !outline.required.is_empty() {
            entries.push(entry("required", texts(outline.required)));
        }
        Written::Map(entries)
    }

    fn shape(&mut self, shape: &'static Shape) -> Written {
        let of_type = |kind: &str| entry("type", Written::text(kind));
        Written::Map(match shape {
            Shape::Text(examples) => vec![of_type("string"), entry("examples", texts(examples))],
            Shape::Word(words) => vec![entry("enum", texts(words))],
            Shape::Whole => vec![of_type("integer"), entry("minimum", Written::Number(0))],
            Shape::Scalar => vec![entry("type", texts(&["string", "number", "boolean"]))],
            Shape::List(each) => vec![of_type("array"), entry("items", self.shape(each))],
            Shape::Several(each) => {
                let list = Written::Map(vec![of_type("array"), entry("items", self.shape(each))]);
                vec![entry("anyOf", Written::List(vec![self.shape(each), list]))]
            }
            Shape::Names(each) => vec![of_type("object"), entry("additionalProperties", self.shape(each))],
            Shape::Either(shapes) => {
                let each = shapes.iter().map(|shape| self.shape(shape)).collect();
                vec![entry("anyOf", Written::List(each))]
            }
            Shape::Keys(outline) => {
                let outline = outline();
                let name = outline.what;
                self.define(name, |schema| schema.table(outline))
            }
            Shape::Named(name, shape) => self.define(name, |schema| schema.shape(shape())),
        })
    }

    fn define(
        &mut self,
        name: &'static str,
        write: impl FnOnce(&mut Self) -> Written,
    ) -> Vec<(String, Written)> {
        if !self.definitions.contains_key(name) {
            self.definitions.insert(name, None);
            let written = write(self);
            self.definitions.insert(name, Some(written));
        }
        vec![entry("$ref", Written::text(format!("#/$defs/{name}")))]
    }
}

fn entry(name: &str, value: Written) -> (String, Written) {
    (name.to_owned(), value)
}

fn texts(texts: &[&str]) -> Written {
    Written::List(texts.iter().map(Written::text).collect())
}
