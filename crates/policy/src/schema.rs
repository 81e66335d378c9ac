//! The JSON Schema of policy files, for completion and validation in editors.
//!
//! It is generated from the tables of the reader, so that both accept the same keys. It covers the syntax of values only;
//! `tidegate check` validates more.

use crate::{
    map_schema::{MapOutline, OutputValue, ValueSchema},
    print::write_json,
    read::POLICY,
};
use std::collections::BTreeMap;

/// Returns the schema, in draft 2020-12.
pub fn json_schema() -> String {
    let mut schema = SchemaBuilder::default();
    let root = schema.build_map(POLICY.outline());
    let mut entries = vec![
        property("$schema", OutputValue::text("https://json-schema.org/draft/2020-12/schema")),
        property("title", OutputValue::text("Tidegate policy")),
    ];
    if let OutputValue::Map(root) = root {
        entries.extend(root);
    }
    let definitions = schema.definitions.into_iter().filter_map(|(name, it)| Some((name.to_owned(), it?)));
    entries.push(property("$defs", OutputValue::Map(definitions.collect())));
    let mut text = String::new();
    write_json(&mut text, &OutputValue::Map(entries), 0);
    text.push('\n');
    text
}

#[derive(Default)]
struct SchemaBuilder {
    /// `None` while a definition is being built, because it may contain itself.
    definitions: BTreeMap<&'static str, Option<OutputValue>>,
}

impl SchemaBuilder {
    fn build_map(&mut self, outline: MapOutline) -> OutputValue {
        let properties = outline.keys.into_iter().map(|key| {
            let example = key.example();
            let description = match key.without {
                Some(effect) => [key.description, "Without it:", effect].join(" "),
                None => key.description.to_owned(),
            };
            let mut written = vec![property("description", OutputValue::Text(description))];
            written.extend(key.default.map(|default| property("default", default)));
            if let OutputValue::Map(more) = self.build_value(key.shape) {
                written.extend(more.into_iter().filter(|(name, _)| name != "examples"));
            }
            written.push(property("examples", OutputValue::List(vec![example])));
            (key.name.to_owned(), OutputValue::Map(written))
        });
        let properties = OutputValue::Map(properties.collect());
        let mut entries = vec![
            property("type", OutputValue::text("object")),
            property("properties", properties),
            property("additionalProperties", OutputValue::Bool(false)),
        ];
        if !outline.required.is_empty() {
            entries.push(property("required", text_list(outline.required)));
        }
        OutputValue::Map(entries)
    }

    fn build_value(&mut self, shape: &'static ValueSchema) -> OutputValue {
        let of_type = |kind: &str| property("type", OutputValue::text(kind));
        OutputValue::Map(match shape {
            ValueSchema::Text(kind, examples) => vec![
                property("title", OutputValue::text(kind.name())),
                of_type("string"),
                property("examples", text_list(examples)),
            ],
            ValueSchema::Keyword(keywords) => vec![property("enum", text_list(keywords))],
            ValueSchema::Integer(unit, _) => vec![
                property("title", OutputValue::text(unit)),
                of_type("integer"),
                property("minimum", OutputValue::Number(0)),
            ],
            ValueSchema::Scalar(_) => vec![property("type", text_list(&["string", "number", "boolean"]))],
            ValueSchema::List(each) => vec![of_type("array"), property("items", self.build_value(each))],
            ValueSchema::OneOrMany(each) => {
                let list =
                    OutputValue::Map(vec![of_type("array"), property("items", self.build_value(each))]);
                vec![property("anyOf", OutputValue::List(vec![self.build_value(each), list]))]
            }
            ValueSchema::NamedMap(_, each) => {
                vec![of_type("object"), property("additionalProperties", self.build_value(each))]
            }
            ValueSchema::AnyOf(shapes) => {
                let each = shapes.iter().map(|shape| self.build_value(shape)).collect();
                vec![property("anyOf", OutputValue::List(each))]
            }
            ValueSchema::Map(outline) => {
                let outline = outline();
                let name = outline.name;
                self.add_definition(name, |schema| schema.build_map(outline))
            }
            ValueSchema::Reference(name, shape) => {
                self.add_definition(name, |schema| schema.build_value(shape()))
            }
        })
    }

    fn add_definition(
        &mut self,
        name: &'static str,
        write: impl FnOnce(&mut Self) -> OutputValue,
    ) -> Vec<(String, OutputValue)> {
        if !self.definitions.contains_key(name) {
            self.definitions.insert(name, None);
            let written = write(self);
            self.definitions.insert(name, Some(written));
        }
        vec![property("$ref", OutputValue::text(format!("#/$defs/{name}")))]
    }
}

fn property(name: &str, value: OutputValue) -> (String, OutputValue) {
    (name.to_owned(), value)
}

fn text_list(texts: &[&str]) -> OutputValue {
    OutputValue::List(texts.iter().map(OutputValue::text).collect())
}
