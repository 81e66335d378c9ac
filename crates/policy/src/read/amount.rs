//! How much: tiers, charges, limits that find themselves, bytes.

use super::{
    Mistake, Reader,
    key::{self, write_key},
    matching::header_name,
    rule::QUOTA,
    values::write_time,
};
use crate::{
    model::{Adaptive, Bandwidth, Charge, Due, Key, Tiers},
    source::{Node, Value, short},
    table::{Shape, Table, Written, key},
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
        key(
            "by",
            "What of a request names its tier.",
            key::SHAPE,
            |reader, node, it| it.by = reader.key(node),
            |it| it.by.as_ref().map(write_key),
        ),
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
        key(
            "else",
            "How much for requests that name none of these.",
            QUOTA,
            |reader, node, it| it.otherwise = reader.parse(node),
            |it| it.otherwise.as_ref().map(Written::text),
        ),
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
        key(
            "if-status",
            "Only if it was answered so.",
            STATUSES,
            |reader, node, it| it.if_status = reader.several(node, |reader, node| reader.read(node, due)),
            |it| Written::several(&it.if_status, write_due),
        ),
        key(
            "refund-status",
            "Nothing if it was answered so.",
            STATUSES,
            |reader, node, it| it.refund_status = reader.several(node, |reader, node| reader.read(node, due)),
            |it| Written::several(&it.refund_status, write_due),
        ),
        key(
            "header",
            "What this header of the answer says.",
            Shape::Text(&["x-cost"]),
            |reader, node, it| it.header = reader.read(node, header_name),
            |it| it.header.as_ref().map(Written::text),
        ),
    ],
};

pub(super) static ADAPTIVE: Table<Adaptive> = Table {
    what: "adaptive",
    required: &["target"],
    keys: &[
        key(
            "target",
            "The latency that is promised.",
            Shape::Text(&["250ms"]),
            |reader, node, it| it.target = reader.length(node).unwrap_or_default(),
            |it| Some(write_time(it.target)),
        ),
        key(
            "least",
            "The fewest in flight that it goes down to.",
            Shape::Whole,
            |reader, node, it| it.least = reader.whole(node, 1..=u64::MAX),
            |it| it.least.map(Written::Number),
        ),
        key(
            "most",
            "The most in flight that it goes up to.",
            Shape::Whole,
            |reader, node, it| it.most = reader.whole(node, 1..=1_000_000),
            |it| it.most.map(Written::Number),
        ),
    ],
};

pub(super) const BYTES: Shape = Shape::Text(&["1MB/s", "200kB/s"]);

pub(super) static BANDWIDTH: Table<Bandwidth> = Table {
    what: "bandwidth",
    required: &[],
    keys: &[
        key(
            "down",
            "What clients are sent.",
            BYTES,
            |reader, node, it| it.down = reader.byte_rate(node),
            |it| it.down.as_ref().map(Written::text),
        ),
        key(
            "up",
            "What they send.",
            BYTES,
            |reader, node, it| it.up = reader.byte_rate(node),
            |it| it.up.as_ref().map(Written::text),
        ),
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
