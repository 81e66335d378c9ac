//! Reads tiers, charges, adaptive limits and bandwidth.

use super::{
    PolicyReader, ValueError,
    key::{self, write_key},
    rule::QUOTA,
    values::{parse_bandwidth_rate, write_duration, write_number},
};
use crate::{
    compile::{DEFAULT_MAX_CONCURRENCY, DEFAULT_MIN_CONCURRENCY},
    map_schema::{
        MapSchema, OutputValue, TextKind, ValueSchema, duration, field, key, with_default, with_example,
        without,
    },
    model::{AdaptiveSpec, BandwidthSpec, ChargeSpec, KeySpec, StatusPattern, Tiers},
    source::{SyntaxNode, SyntaxValue, truncate},
};
use std::time::Duration;
use tidegate_core::Quota;

#[derive(Default)]
pub(super) struct TiersMap {
    key: Option<KeySpec>,
    quotas: Vec<(String, Quota)>,
    default: Option<Quota>,
}

pub(super) static TIERS: MapSchema<TiersMap> = MapSchema {
    name: "tiers",
    required: &["key", "quotas", "default"],
    keys: &[
        with_example(
            field!("key": key::KEY_SHAPE, key = key => write_key, "The part of the request that names its tier."),
            || OutputValue::text("header x-plan"),
        ),
        key(
            "quotas",
            "The quota of each tier.",
            ValueSchema::NamedMap("gold", &QUOTA),
            |reader, node, it| {
                reader.named_entries(node, "quotas", |reader, name, node| {
                    it.quotas.extend(reader.parse(node).map(|quota| (name.text.clone(), quota)));
                });
            },
            |it| {
                Some(OutputValue::Map(
                    it.quotas.iter().map(|(n, q)| (n.clone(), OutputValue::text(q))).collect(),
                ))
            },
        ),
        with_example(
            field!("default": QUOTA, default = parse => OutputValue::text,
            "The quota of requests that name none of these tiers."),
            || OutputValue::text("100/min"),
        ),
    ],
};

#[derive(Default)]
pub(super) struct ChargeMap {
    if_status: Vec<StatusPattern>,
    refund_status: Vec<StatusPattern>,
}

const STATUS_PATTERNS: ValueSchema = ValueSchema::OneOrMany(&ValueSchema::AnyOf(&[
    ValueSchema::Integer("HTTP status", 401),
    ValueSchema::Text(TextKind::StatusClass, &["5xx"]),
]));

pub(super) static CHARGE: MapSchema<ChargeMap> = MapSchema {
    name: "charge",
    required: &[],
    keys: &[
        without(
            field!("if-status": STATUS_PATTERNS, [if_status] = read(parse_status_pattern) => write_status_pattern, "Charges a request only if its response has one of these statuses."),
            "The map needs `refund-status`.",
        ),
        with_example(
            without(
                field!("refund-status": STATUS_PATTERNS, [refund_status] = read(parse_status_pattern) => write_status_pattern, "Refunds a request if its response has one of these statuses."),
                "The map needs `if-status`.",
            ),
            || OutputValue::text("5xx"),
        ),
    ],
};

pub(super) static ADAPTIVE: MapSchema<AdaptiveSpec> = MapSchema {
    name: "adaptive",
    required: &["target"],
    keys: &[
        field!("target": duration(&["250ms"]), target = positive_duration => write_duration, always,
            "The latency to keep."),
        with_default(
            field!("min": ValueSchema::Integer("requests", 4), min = integer(1..=u64::MAX) => write_number,
            "The lower bound of the concurrency limit."),
            || OutputValue::Number(DEFAULT_MIN_CONCURRENCY),
        ),
        with_default(
            field!("max": ValueSchema::Integer("requests", 200), max = integer(1..=1_000_000) => write_number,
            "The upper bound of the concurrency limit."),
            || OutputValue::Number(DEFAULT_MAX_CONCURRENCY),
        ),
    ],
};

pub(super) const BYTE_RATE: ValueSchema =
    ValueSchema::Text(TextKind::ByteRate, &["1MB/s", "200kB/s burst 1MB", "100kB/s after 200kB"]);

pub(super) static BANDWIDTH: MapSchema<BandwidthSpec> = MapSchema {
    name: "bandwidth",
    required: &[],
    keys: &[
        without(
            field!("down": BYTE_RATE, down = read(parse_bandwidth_rate) => OutputValue::text, "The rate from server to client."),
            "Responses are not limited.",
        ),
        without(
            field!("up": BYTE_RATE, up = read(parse_bandwidth_rate) => OutputValue::text, "The rate from client to server."),
            "Requests are not limited.",
        ),
    ],
};

impl PolicyReader<'_> {
    pub(super) fn tiers(&mut self, node: &SyntaxNode) -> Option<Tiers> {
        let mut map = TiersMap::default();
        self.read_map(node, &TIERS, &mut map);
        Some(Tiers { key: map.key?, quotas: map.quotas, default: map.default? })
    }

    pub(super) fn charge(&mut self, node: &SyntaxNode) -> Option<ChargeSpec> {
        let mut map = ChargeMap::default();
        let before = self.errors.len();
        self.read_map(node, &CHARGE, &mut map);
        match (map.if_status, map.refund_status) {
            (charged, refunded) if refunded.is_empty() && !charged.is_empty() => {
                Some(ChargeSpec::If(charged))
            }
            (charged, refunded) if charged.is_empty() && !refunded.is_empty() => {
                Some(ChargeSpec::Unless(refunded))
            }
            _ => {
                if self.errors.len() == before {
                    let location = self.describe_location("charge");
                    let fix = "write `if-status` or `refund-status`";
                    self.report_error(node.span, format!("{location} needs exactly one key"), fix);
                }
                None
            }
        }
    }

    pub(super) fn adaptive(&mut self, node: &SyntaxNode) -> Option<AdaptiveSpec> {
        let mut adaptive = AdaptiveSpec { target: Duration::ZERO, min: None, max: None };
        self.read_map(node, &ADAPTIVE, &mut adaptive);
        if let (Some(min), Some(max)) = (adaptive.min, adaptive.max)
            && min > max
        {
            self.report_error(
                node.span,
                format!("`min` is {min} and `max` is {max}"),
                "use a `max` of at least `min`",
            );
        }
        Some(adaptive)
    }

    pub(super) fn bandwidth(&mut self, node: &SyntaxNode) -> Option<BandwidthSpec> {
        let mut bandwidth = BandwidthSpec::default();
        match &node.value {
            SyntaxValue::Map(entries) if entries.is_empty() => {
                self.report_error(node.span, "empty `bandwidth`", "add `down`, `up` or both");
            }
            SyntaxValue::Map(_) => self.read_map(node, &BANDWIDTH, &mut bandwidth),
            _ => bandwidth.down = self.read(node, parse_bandwidth_rate),
        }
        Some(bandwidth)
    }
}

pub(super) fn write_tiers(tiers: &Tiers) -> OutputValue {
    let Tiers { key, quotas, default } = tiers.clone();
    TIERS.write(&TiersMap { key: Some(key), quotas, default: Some(default) })
}

pub(super) fn write_charge(charge: &ChargeSpec) -> OutputValue {
    CHARGE.write(&match charge.clone() {
        ChargeSpec::If(if_status) => ChargeMap { if_status, ..ChargeMap::default() },
        ChargeSpec::Unless(refund_status) => ChargeMap { refund_status, ..ChargeMap::default() },
    })
}

fn write_status_pattern(due: &StatusPattern) -> OutputValue {
    match due {
        StatusPattern::Status(status) => OutputValue::Number((*status).into()),
        StatusPattern::Class(hundred) => OutputValue::text(format!("{hundred}xx")),
    }
}

/// Parses `404` or `4xx`.
fn parse_status_pattern(text: &str) -> Result<StatusPattern, ValueError> {
    let hundred = text.strip_suffix("xx").and_then(|digit| digit.parse().ok());
    match (hundred, text.parse()) {
        (Some(hundred @ 1..=5), _) => Ok(StatusPattern::Class(hundred)),
        (_, Ok(status @ 100..=599)) => Ok(StatusPattern::Status(status)),
        _ => Err(ValueError::new(
            format!("invalid status `{}`", truncate(text)),
            "write one, as in `401` or `5xx`",
        )),
    }
}
