//! Reads `overrides`.

use super::{PolicyReader, values::write_path};
use crate::{
    map_schema::{MapSchema, OutputValue, TextKind, ValueSchema, key},
    model::OverrideLocation,
    source::{SyntaxNode, SyntaxValue},
};
use std::path::PathBuf;

const FILE: ValueSchema = ValueSchema::Text(TextKind::File, &["overrides.jsonl"]);
const STORE: [(&str, ()); 1] = [("store", ())];

static OVERRIDES: MapSchema<PathBuf> = MapSchema {
    name: "overrides",
    required: &["file"],
    keys: &[key(
        "file",
        "The file of the overrides, which the gateway writes. Each gateway needs its own.",
        FILE,
        |reader, node, it| *it = reader.path(node).unwrap_or_default(),
        |it| Some(write_path(it)),
    )],
};

/// The value of `overrides`.
pub(super) const OVERRIDES_SHAPE: ValueSchema =
    ValueSchema::AnyOf(&[ValueSchema::Keyword(&["store"]), ValueSchema::Map(|| OVERRIDES.outline())]);

impl PolicyReader<'_> {
    pub(super) fn overrides(&mut self, node: &SyntaxNode) -> Option<OverrideLocation> {
        match &node.value {
            SyntaxValue::Map(_) => {
                let mut file = PathBuf::new();
                self.read_map(node, &OVERRIDES, &mut file);
                Some(OverrideLocation::File(file))
            }
            _ => self.keyword(node, &STORE).map(|()| OverrideLocation::Store),
        }
    }
}

pub(super) fn write_overrides(location: &OverrideLocation) -> OutputValue {
    match location {
        OverrideLocation::Store => OutputValue::text("store"),
        OverrideLocation::File(file) => OVERRIDES.write(file),
    }
}
