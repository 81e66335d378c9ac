//! How much: tiers, charges, limits that find themselves, bytes.

use super::{
    Mistake, Reader,
    key::{self, write_key},
    matching::header_name,
    rule::QUOTA,
    values::{write_number, write_time},
};
use crate::{
    model::{Adaptive, Bandwidth, Charge, Due, Key, Tiers},
    source::{Node, Value, short},
    table::{Shape, Table, Written, field, key},
};
use std::time::Duration;
use tidegate_core::Quota;

#[derive(Default)]
pub(super) struct TiersMap {
    by: Option<Key>,
    each: Vec<(String, Quota)>,
    otherwise: Option<Quota>,
}

pub(super) static TIERS: Table<TiersMap> = Table {
    what: "tiers",
    required: &["by", "each", "else"],
    keys: &[
        field!("by": key::SHAPE, by = key => write_key, "What of a request names its tier."),
        key(
            "each",
            "How much in each tier.",
            Shape::Names(&QUOTA),
            |reader, node, it| {
                reader.names(node, "each", |reader, name, node| {
                    it.each.extend(reader.parse(node).map(|quota| (name.text.clone(), quota)));
                });
            },
            |it| Some(Written::Map(it.each.iter().map(|(n, q)| (n.clone(), Written::text(q))).collect())),
        ),
        field!("else": QUOTA, otherwise = parse => Written::text,
            "How much for requests that name none of these."),
    ],
};

#[derive(Default)]
pub(super) struct ChargeMap {
    if_status: Vec<Due>,
    refund_status: Vec<Due>,
    header: Option<String>,
}

const STATUSES: Shape = Shape::Several(&Shape::Either(&[Shape::Whole, Shape::Text(&["5xx"])]));

pub(super) static CHARGE: Table<ChargeMap> = Table {
    what: "charge",
    required: &[],
    keys: &[
        field!("if-status": STATUSES, [if_status] = read(due) => write_due, "Only if it was answered so."),
        field!("refund-status": STATUSES, [refund_status] = read(due) => write_due, "Nothing if it was answered so."),
        field!("header": Shape::Text(&["x-cost"]), header = read(header_name) => Written::text,
            "What this header of the answer says."),
    ],
};

pub(super) static ADAPTIVE: Table<Adaptive> = Table {
    what: "adaptive",
    required: &["target"],
    keys: &[
        field!("target": Shape::Text(&["250ms"]), target = length => write_time, always,
            "The latency that is promised."),
        field!("least": Shape::Whole, least = whole(1..=u64::MAX) => write_number,
            "The fewest in flight that it goes down to."),
        field!("most": Shape::Whole, most = whole(1..=1_000_000) => write_number,
            "The most in flight that it goes up to."),
    ],
};

pub(super) const BYTES: Shape = Shape::Text(&["1MB/s", "200kB/s"]);

pub(super) static BANDWIDTH: Table<Bandwidth> = Table {
    what: "bandwidth",
    required: &[],
    keys: &[
        field!("down": BYTES, down = byte_rate => Written::text, "What clients are sent."),
        field!("up": BYTES, up = byte_rate => Written::text, "What they send."),
    ],
};

impl Reader<'_> {
    pub(super) fn tiers(&mut self, node: &Node) -> Option<Tiers> {
        let mut map = TiersMap::default();
        self.fill(node, &TIERS, &mut map);
        Some(Tiers { by: map.by?, each: map.each, otherwise: map.otherwise? })
    }

    pub(super) fn charge(&mut self, node: &Node) -> Option<Charge> {
        let mut map = ChargeMap::default();
        let before = self.faults.len();
        self.fill(node, &CHARGE, &mut map);
        match map {
            ChargeMap { if_status, refund_status, header: None }
                if refund_status.is_empty() && !if_status.is_empty() =>
            {
                Some(Charge::If(if_status))
            }
            ChargeMap { if_status, refund_status, header: None }
                if if_status.is_empty() && !refund_status.is_empty() =>
            {
                Some(Charge::Unless(refund_status))
            }
            ChargeMap { if_status, refund_status, header: Some(header) }
                if if_status.is_empty() && refund_status.is_empty() =>
            {
                Some(Charge::Header(header))
            }
            _ => {
                if self.faults.len() == before {
                    let place = self.here("charge");
                    let fix = "say `if-status`, `refund-status` or `header`";
                    self.blame(node.at, format!("{place} must say exactly one thing"), fix);
                }
                None
            }
        }
    }

    pub(super) fn adaptive(&mut self, node: &Node) -> Option<Adaptive> {
        let mut adaptive = Adaptive { target: Duration::ZERO, least: None, most: None };
        self.fill(node, &ADAPTIVE, &mut adaptive);
        if let (Some(least), Some(most)) = (adaptive.least, adaptive.most)
            && least > most
        {
            self.blame(
                node.at,
                format!("at least {least} and at most {most}"),
                "give a `most` that is not below `least`",
            );
        }
        Some(adaptive)
    }

    pub(super) fn bandwidth(&mut self, node: &Node) -> Option<Bandwidth> {
        let mut bandwidth = Bandwidth::default();
        match &node.value {
            Value::Map(entries) if entries.is_empty() => {
                self.blame(node.at, "a bandwidth of nothing", "say `down`, `up` or both");
            }
            Value::Map(_) => self.fill(node, &BANDWIDTH, &mut bandwidth),
            _ => bandwidth.down = self.byte_rate(node),
        }
        Some(bandwidth)
    }
}

pub(super) fn write_tiers(tiers: &Tiers) -> Written {
    let Tiers { by, each, otherwise } = tiers.clone();
    TIERS.write(&TiersMap { by: Some(by), each, otherwise: Some(otherwise) })
}

pub(super) fn write_charge(charge: &Charge) -> Written {
    CHARGE.write(&match charge.clone() {
        Charge::If(if_status) => ChargeMap { if_status, ..ChargeMap::default() },
        Charge::Unless(refund_status) => ChargeMap { refund_status, ..ChargeMap::default() },
        Charge::Header(header) => ChargeMap { header: Some(header), ..ChargeMap::default() },
    })
}

fn write_due(due: &Due) -> Written {
    match due {
        Due::Status(status) => Written::Number((*status).into()),
        Due::Hundred(hundred) => Written::text(format!("{hundred}xx")),
    }
}

/// `404`, or `4xx`.
fn due(text: &str) -> Result<Due, Mistake> {
    let hundred = text.strip_suffix("xx").and_then(|digit| digit.parse().ok());
    match (hundred, text.parse()) {
        (Some(hundred @ 1..=5), _) => Ok(Due::Hundred(hundred)),
        (_, Ok(status @ 100..=599)) => Ok(Due::Status(status)),
        _ => {
            Err(Mistake::new(format!("`{}` is not a status", short(text)), "write one, as in `401` or `5xx`"))
        }
    }
}
