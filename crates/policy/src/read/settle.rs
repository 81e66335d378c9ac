//! Reads the final cost of a rule.

use super::{
    PolicyReader, ValueError,
    matching::header_name,
    values::{unknown_word_error, write_number},
};
use crate::{
    map_schema::{MapSchema, OutputValue, TextKind, ValueSchema, field, with_example, without},
    matching::check_cost,
    model::{Expression, SettleSource, SettleSpec},
    source::{SyntaxNode, SyntaxValue},
};
use std::fmt;
use tidegate_rule::body::JsonPointer;

const SETTLE_SOURCE: ValueSchema = ValueSchema::Text(
    TextKind::SettleSource,
    &["header x-cost", "trailer x-cost", "body /usage/total_tokens", "openai", "anthropic"],
);

/// The value of `settle`.
pub(super) const SETTLE_SHAPE: ValueSchema =
    ValueSchema::AnyOf(&[SETTLE_SOURCE, ValueSchema::Map(|| SETTLE.outline())]);

/// The keys of a `settle` map, before they are converted to a [`SettleSpec`].
#[derive(Default)]
struct SettleMap {
    from: Option<SettleSource>,
    cel: Option<Expression>,
    max_debt: Option<u64>,
}

static SETTLE: MapSchema<SettleMap> = MapSchema {
    name: "settle",
    required: &[],
    keys: &[
        with_example(
            without(
                field!("from": SETTLE_SOURCE, from = read(parse_source) => OutputValue::text,
                "The part of the response that states the cost."),
                "The map needs `cel`.",
            ),
            || OutputValue::text("body /usage/total_tokens"),
        ),
        without(
            field!("cel": ValueSchema::Text(TextKind::Expression, &["usage.prompt_tokens + 4 * usage.completion_tokens"]),
            cel = expression(check_cost) => |cel| OutputValue::text(&cel.0),
            "A CEL expression of the members of the JSON body of the response, or of the last events of a stream that have them."),
            "The map needs `from`.",
        ),
        without(
            field!("max-debt": ValueSchema::Integer("tokens", 1000), max_debt = integer(0..=u64::MAX) => write_number,
            "The largest part of the final cost that exceeds the cost before the call."),
            "The whole difference is charged, and later requests wait until it is repaid.",
        ),
    ],
};

impl PolicyReader<'_> {
    pub(super) fn settle(&mut self, node: &SyntaxNode) -> Option<SettleSpec> {
        let SyntaxValue::Map(_) = &node.value else {
            return Some(SettleSpec { source: self.read(node, parse_source)?, max_debt: None });
        };
        let mut map = SettleMap::default();
        let before = self.errors.len();
        self.read_map(node, &SETTLE, &mut map);
        let max_debt = map.max_debt;
        match (map.from, map.cel) {
            (Some(source), None) => Some(SettleSpec { source, max_debt }),
            (None, Some(cel)) => Some(SettleSpec { source: SettleSource::Cel(cel), max_debt }),
            _ => {
                if self.errors.len() == before {
                    let fix = "write `from: openai` or `cel: …`";
                    self.report_error(node.span, "expected either `from` or `cel`", fix);
                }
                None
            }
        }
    }
}

pub(super) fn write_settle(settle: &SettleSpec) -> OutputValue {
    let SettleSpec { source, max_debt } = settle.clone();
    match (source, max_debt) {
        (SettleSource::Cel(cel), max_debt) => {
            SETTLE.write(&SettleMap { cel: Some(cel), max_debt, ..SettleMap::default() })
        }
        (source, None) => OutputValue::text(source),
        (source, max_debt) => {
            SETTLE.write(&SettleMap { from: Some(source), max_debt, ..SettleMap::default() })
        }
    }
}

const SOURCES: [&str; 5] = ["header", "trailer", "body", "openai", "anthropic"];

fn parse_source(text: &str) -> Result<SettleSource, ValueError> {
    let (first, rest) = text.split_once(' ').map_or((text, ""), |(first, rest)| (first, rest.trim()));
    match (first, rest) {
        ("openai", "") => Ok(SettleSource::OpenAi),
        ("anthropic", "") => Ok(SettleSource::Anthropic),
        ("openai" | "anthropic", _) => {
            Err(ValueError::new(format!("`{first}` takes no name"), format!("write only `{first}`")))
        }
        ("header" | "trailer" | "body", "") => {
            Err(ValueError::new(format!("missing name after `{first}`"), format!("write `{first} NAME`")))
        }
        ("header", name) => Ok(SettleSource::Header(header_name(name)?)),
        ("trailer", name) => Ok(SettleSource::Trailer(header_name(name)?)),
        ("body", pointer) => Ok(SettleSource::Body(parse_pointer(pointer)?)),
        _ => {
            let (problem, fix) = unknown_word_error(first, &SOURCES);
            Err(ValueError::new(problem, fix))
        }
    }
}

/// Parses a JSON pointer.
pub(super) fn parse_pointer(text: &str) -> Result<JsonPointer, ValueError> {
    text.parse().map_err(|error: tidegate_core::SettingError| ValueError::new(error.problem(), error.fix()))
}

/// Writes the notation that the parser accepts; for an expression, its text.
impl fmt::Display for SettleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header {name}"),
            Self::Trailer(name) => write!(f, "trailer {name}"),
            Self::Body(pointer) => write!(f, "body {pointer}"),
            Self::OpenAi => f.write_str("openai"),
            Self::Anthropic => f.write_str("anthropic"),
            Self::Cel(cel) => f.write_str(&cel.0),
        }
    }
}
