//! What is said between a process and the script in the server: requests as one list of numbers, replies as another.
//!
//! Both are msgpack, which the server reads and writes without a detour through text. The harness tells the layout.

use crate::script::KindSet;
use std::{collections::HashMap, sync::Arc};
use tidegate_core::{
    AlgorithmKind, CarryOver, ChargeResult, Demand, Effect, Micros, Overdraft, Quota, Receipt,
    algorithm::level::Meter,
};
use tidegate_limiter::store::{
    KeyRef, QuotaSelection, SlotMode, StoreCheck, StoreDecision, StoreLimit, StoreReply, StoreRequest,
};

const DECIDE: u64 = 0;
const REFUND: u64 = 1;
const RESET: u64 = 2;
const RENEW: u64 = 3;

const PROBE: u64 = 1;
const RECEIPTS: u64 = 2;
const TAKE_UP_TO: u64 = 4;

const PERMITS: u64 = 1;

/// What the short way says in place of an excess of a state that it does not know.
const FALLBACK: f64 = -2.0;

/// Verbs of the twins.
const ALLOW: u64 = 0;
const DENY: u64 = 2;
const NEVER: u64 = 3;

/// Bytes of what the short way is told of one request.
const REQUEST_BYTES: usize = 8;

/// No algorithm has this number.
const UNKNOWN_KIND: u64 = 255;

/// Quotas of other processes, by the names of their rules and their tags. `None` for one that nobody knows.
pub(crate) type ForeignQuotas = HashMap<(String, u16), Option<Quota>>;

/// Requests that ride in one call.
#[derive(Debug, Default)]
pub(crate) struct Message {
    keys: Vec<String>,
    key_indexes: HashMap<String, usize>,
    limits: Vec<(Arc<StoreLimit>, usize)>,
    quotas: NumberList,
    quota_count: usize,
    requests: NumberList,
    kinds: KindSet,
}

/// A list of numbers, written as they come.
#[derive(Debug, Default)]
struct NumberList {
    bytes: Vec<u8>,
    count: usize,
}

impl NumberList {
    /// Nothing is as large as what is cut here, and the server would take it for a negative number.
    fn push(&mut self, number: u64) {
        self.count += 1;
        // Writing to a vector does not fail.
        let _ = rmp::encode::write_uint(&mut self.bytes, number.min(tidegate_core::LARGEST_EXACT + 1));
    }

    fn push_all(&mut self, numbers: impl IntoIterator<Item = u64>) {
        numbers.into_iter().for_each(|number| self.push(number));
    }

    fn push_f64(&mut self, number: f64) {
        if number >= 0.0 && number.fract() == 0.0 && number <= tidegate_core::LARGEST_EXACT as f64 {
            return self.push(number as u64);
        }
        self.count += 1;
        let _ = rmp::encode::write_f64(&mut self.bytes, number);
    }
}

impl Message {
    /// How many requests to put in is up to the caller.
    pub(crate) fn add(&mut self, request: &StoreRequest, name: impl Fn(&KeyRef) -> String) {
        match request {
            StoreRequest::Decide(asks) => {
                let probe = asks.iter().all(|ask| ask.demand.effect == Effect::Probe);
                let flags = if probe { PROBE } else { 0 } | receipt_flags(request);
                self.requests.push_all([DECIDE, flags, asks.len() as u64]);
                asks.iter().for_each(|ask| self.add_check(ask, &name));
            }
            StoreRequest::TakeUpTo(ask) => {
                self.requests.push_all([DECIDE, TAKE_UP_TO | RECEIPTS, 1]);
                self.add_check(ask, &name);
            }
            StoreRequest::Refund { key_ref: place, charge, cost } => {
                self.requests.push(REFUND);
                self.add_key(place, SlotMode::Peek, &name);
                self.requests.push_all([charge.generation, *cost]);
                for index in 0..place.quota_indices().len() {
                    self.add_receipt(charge.receipts.get(index).copied().unwrap_or_default());
                }
            }
            StoreRequest::Reset(place) => {
                self.requests.push(RESET);
                self.add_key(place, SlotMode::Peek, &name);
            }
            StoreRequest::Renew { key_ref: place, receipt } => {
                self.requests.push(RENEW);
                self.add_key(place, SlotMode::Acquire, &name);
                self.add_receipt(*receipt);
            }
        }
    }

    fn add_check(&mut self, ask: &StoreCheck, name: impl Fn(&KeyRef) -> String) {
        let StoreCheck { key_ref: place, demand, slot_mode: slots, .. } = ask;
        self.add_key(place, *slots, name);
        let credit = match demand.overdraft {
            Overdraft::Refuse => 0,
            Overdraft::Grant => 1,
            Overdraft::Force => 2,
        };
        self.requests.push_all([demand.cost, demand.max_wait.get(), credit]);
    }

    fn add_receipt(&mut self, receipt: Receipt) {
        self.requests.push_all([receipt.cost, receipt.at.get(), receipt.mark]);
        self.requests.push_f64(f64::from_bits(receipt.stored));
    }

    /// A key, and the quotas that apply to it; Lua counts from one.
    fn add_key(&mut self, place: &KeyRef, slots: SlotMode, name: impl Fn(&KeyRef) -> String) {
        let next = self.keys.len() + 1;
        let key = *self.key_indexes.entry(name(place)).or_insert_with_key(|name| {
            self.keys.push(name.clone());
            next
        });
        let applied = place.quota_indices();
        let first = self.add_limit(&place.limit) + applied.start + 1;
        let permits = if slots == SlotMode::Acquire { PERMITS } else { 0 };
        let carry_over = match place.limit.carry_over() {
            CarryOver::Keep => 0,
            CarryOver::Reset => 1,
        };
        self.requests.push_all([key as u64, first as u64, applied.len() as u64, permits, carry_over]);
    }

    /// Where the quotas of a limit start.
    fn add_limit(&mut self, limit: &Arc<StoreLimit>) -> usize {
        if let Some((_, first)) = self.limits.iter().find(|(known, _)| Arc::ptr_eq(known, limit)) {
            return *first;
        }
        let first = self.quota_count;
        let rule = self.rule_index(limit.name());
        self.limits.push((limit.clone(), first));
        limit.quotas().iter().zip(limit.tags()).for_each(|(quota, tag)| self.add_quota(quota, *tag, rule));
        first
    }

    /// The number of a rule: that of the first limit of its name.
    fn rule_index(&self, name: &str) -> usize {
        self.limits.iter().position(|(limit, _)| limit.name() == name).unwrap_or(self.limits.len())
    }

    fn add_quota(&mut self, quota: &Quota, tag: u16, rule: usize) {
        let index = quota.kind().index();
        self.kinds.add(index);
        self.quotas.push_all([index as u64, tag.into(), rule as u64]);
        quota.kind().lua_args().into_iter().for_each(|number| self.quotas.push_f64(number));
        self.quota_count += 1;
    }

    /// Quotas that other processes wrote with, and tags that nobody knows: what those wrote cannot be read, and is
    /// forgotten. To be told after all requests.
    pub(crate) fn append_foreign(&mut self, foreign_quotas: &ForeignQuotas) {
        for ((name, tag), quota) in foreign_quotas {
            let rule = self.rule_index(name);
            match quota {
                _ if rule == self.limits.len() => {}
                Some(quota) => self.add_quota(quota, *tag, rule),
                None => {
                    self.quotas.push_all([UNKNOWN_KIND, (*tag).into(), rule as u64, 0, 0, 0, 0, 0, 0]);
                    self.quota_count += 1;
                }
            }
        }
    }

    pub(crate) fn keys(&self) -> &[String] {
        &self.keys
    }

    pub(crate) fn kinds(&self) -> KindSet {
        self.kinds
    }

    /// The message itself, at the server's time or at one that is given.
    pub(crate) fn encode(&self, now: Option<Micros>) -> Vec<u8> {
        encode_message(now, self.quota_count, &self.quotas, &self.requests)
    }
}

/// Everything in one list.
fn encode_message(
    now: Option<Micros>,
    quota_count: usize,
    quotas: &NumberList,
    requests: &NumberList,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(quotas.bytes.len() + requests.bytes.len() + 24);
    let count = 2 + quotas.count + requests.count;
    let _ = rmp::encode::write_array_len(&mut bytes, u32::try_from(count).unwrap_or(u32::MAX));
    let _ = match now {
        Some(now) => rmp::encode::write_uint(&mut bytes, now.get()).map(|_| ()),
        None => rmp::encode::write_sint(&mut bytes, -1).map(|_| ()),
    };
    let _ = rmp::encode::write_uint(&mut bytes, quota_count as u64);
    bytes.extend_from_slice(&quotas.bytes);
    bytes.extend_from_slice(&requests.bytes);
    bytes
}

/// Requests that only take a cost from the levels of one key each, now or not at all.
#[derive(Debug, Default)]
pub(crate) struct FastPathMessage {
    keys: Vec<String>,
    /// With the place of the first quota of each.
    limits: Vec<(Arc<StoreLimit>, u8)>,
    quotas: Vec<Vec<u8>>,
    costs: Vec<u8>,
}

impl FastPathMessage {
    /// A message of all requests, if all of them are of that kind.
    pub(crate) fn try_new(
        requests: &[StoreRequest],
        now: Option<Micros>,
        name: impl Fn(&KeyRef) -> String,
    ) -> Option<Self> {
        let mut message = Self::default();
        message.keys.reserve(requests.len());
        message.costs.extend(now.map_or(-1.0, |now| now.get() as f64).to_be_bytes());
        message.costs.extend(u32::try_from(requests.len()).ok()?.to_be_bytes());
        let start = message.costs.len();
        for request in requests {
            let (place, cost) = fast_path_check(request)?;
            let [first, count] =
                [message.add_limit(&place.limit)?, u8::try_from(place.limit.quotas().len()).ok()?];
            // A cost of six bytes; the two before it are in its way.
            let [_, _, cost @ ..] = cost.to_be_bytes();
            message.costs.extend([first, count]);
            message.costs.extend(cost);
            message.keys.push(name(place));
        }
        // What is the same for all is said once.
        let (one, rest) = message.costs.get(start..)?.split_first_chunk::<REQUEST_BYTES>()?;
        if rest.chunks(REQUEST_BYTES).all(|other| other == one) {
            message.costs.truncate(start + REQUEST_BYTES);
        }
        Some(message)
    }

    /// The place of a limit's first quota among the arguments; Lua counts from one, and the costs are the first.
    /// `None` when one of its quotas is no level, or there are too many.
    fn add_limit(&mut self, limit: &Arc<StoreLimit>) -> Option<u8> {
        if let Some((_, first)) = self.limits.iter().find(|(known, _)| Arc::ptr_eq(known, limit)) {
            return Some(*first);
        }
        let first = u8::try_from(self.quotas.len() + 2).ok()?;
        u8::try_from(self.quotas.len() + 1 + limit.quotas().len()).ok()?;
        for (quota, tag) in limit.quotas().iter().zip(limit.tags()) {
            let Meter { units_per_token: price, units_per_us: drain, capacity, .. } = *meter(quota)?;
            let mut numbers = Vec::with_capacity(26);
            numbers.extend(tag.to_be_bytes());
            [price, drain, capacity]
                .into_iter()
                .for_each(|number| numbers.extend((number as f64).to_be_bytes()));
            self.quotas.push(numbers);
        }
        self.limits.push((limit.clone(), first));
        Some(first)
    }

    pub(crate) fn keys(&self) -> &[String] {
        &self.keys
    }

    /// What follows the keys.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &[u8]> {
        [self.costs.as_slice()].into_iter().chain(self.quotas.iter().map(Vec::as_slice))
    }

    /// What was said to each request; `None` where the long way must be gone.
    pub(crate) fn decode(
        bytes: &[u8],
        requests: &[StoreRequest],
    ) -> Result<Vec<Option<StoreReply>>, MalformedReply> {
        let mut reader = ReplyReader::new(bytes)?;
        requests.iter().map(|request| reader.read_fast_path(request)).collect()
    }
}

impl ReplyReader<'_> {
    fn read_fast_path(&mut self, request: &StoreRequest) -> Result<Option<StoreReply>, MalformedReply> {
        let (place, cost) = fast_path_check(request).ok_or(MalformedReply)?;
        let mut steps = Vec::with_capacity(place.limit.quotas().len());
        let mut is_usual = true;
        for quota in place.limit.quotas() {
            let (level, excess) = (self.read_number()?, self.read_float()?);
            is_usual &= excess != FALLBACK;
            let (verb, excess) = match excess as u64 {
                0 if excess < 0.0 => (NEVER, 0),
                0 => (ALLOW, 0),
                excess => (DENY, excess),
            };
            if is_usual {
                let decision = quota.kind().decode_reply([verb, level, excess, 0]).ok_or(MalformedReply)?;
                // The short way does not report the time: whoever needs it finds it out.
                let receipt = Receipt { cost, mark: level, ..Receipt::default() };
                steps.push(ChargeResult { decision, receipt });
            }
        }
        Ok(is_usual.then(|| StoreReply::Decided(vec![StoreDecision { steps, generation: 0 }])))
    }
}

/// The only ask of a request that asks nothing unusual.
fn fast_path_check(request: &StoreRequest) -> Option<(&KeyRef, u64)> {
    let StoreRequest::Decide(asks) = request else { return None };
    let [StoreCheck { key_ref: place, demand, receipt: false, .. }] = asks.as_slice() else { return None };
    let is_plain = *demand == Demand::new(demand.cost)
        && (1..COST_BOUND).contains(&demand.cost)
        && place.limit.selection() == QuotaSelection::All;
    is_plain.then_some((place, demand.cost))
}

/// Costs below this fit in six bytes.
const COST_BOUND: u64 = 1 << 48;

fn meter(quota: &Quota) -> Option<&Meter> {
    match quota.kind() {
        AlgorithmKind::TokenBucket(it) => Some(it.meter()),
        AlgorithmKind::LeakyBucket(it) => Some(it.meter()),
        _ => None,
    }
}

/// Receipts are asked for where somebody can use them: the caller, or whoever gives back what a late answer took.
fn receipt_flags(request: &StoreRequest) -> u64 {
    let is_charged = |ask: &StoreCheck| ask.receipt || ask.demand.effect == Effect::Charge;
    match request {
        StoreRequest::Decide(asks) if asks.iter().any(is_charged) => RECEIPTS,
        _ => 0,
    }
}

/// What the script said to one request.
#[derive(Clone, Debug)]
pub(crate) enum ScriptReply {
    /// The answer.
    Reply(StoreReply),
    /// A quota with this tag wrote the state, and the message did not have it.
    UnknownTag(u16),
    /// The server refused.
    Refused(String),
}

/// Reads replies in the order of their requests.
#[derive(Debug)]
pub(crate) struct ReplyReader<'a> {
    bytes: &'a [u8],
}

/// A reply that is not one of ours.
#[derive(Debug)]
pub(crate) struct MalformedReply;

impl<'a> ReplyReader<'a> {
    pub(crate) fn new(mut bytes: &'a [u8]) -> Result<Self, MalformedReply> {
        rmp::decode::read_array_len(&mut bytes).map_err(|_| MalformedReply)?;
        Ok(Self { bytes })
    }

    /// What was said to `request`.
    pub(crate) fn read_next(&mut self, request: &StoreRequest) -> Result<ScriptReply, MalformedReply> {
        match self.read_number()? {
            0 => self.read_reply(request).map(ScriptReply::Reply),
            1 => self
                .read_number()
                .and_then(|tag| u16::try_from(tag).map_err(|_| MalformedReply))
                .map(ScriptReply::UnknownTag),
            _ => self.read_text().map(ScriptReply::Refused),
        }
    }

    fn read_reply(&mut self, request: &StoreRequest) -> Result<StoreReply, MalformedReply> {
        match request {
            StoreRequest::Decide(asks) => {
                let receipts = receipt_flags(request) != 0;
                let answers = asks.iter().map(|ask| self.read_answer(&ask.key_ref, receipts));
                answers.collect::<Result<_, _>>().map(StoreReply::Decided)
            }
            StoreRequest::TakeUpTo(ask) => {
                Ok(StoreReply::Decided(vec![self.read_answer(&ask.key_ref, true)?]))
            }
            StoreRequest::Refund { .. } | StoreRequest::Reset(_) => Ok(StoreReply::Done),
            StoreRequest::Renew { receipt, .. } => {
                let at = self.read_float()?;
                let renewed = (at >= 0.0).then(|| Receipt { at: Micros::new(at as u64), ..*receipt });
                Ok(StoreReply::Renewed(renewed))
            }
        }
    }

    fn read_answer(&mut self, place: &KeyRef, receipts: bool) -> Result<StoreDecision, MalformedReply> {
        let generation = if receipts { self.read_number()? } else { 0 };
        let mut steps = Vec::with_capacity(place.quota_indices().len());
        for quota in &place.limit.quotas()[place.quota_indices()] {
            let numbers =
                [self.read_number()?, self.read_number()?, self.read_number()?, self.read_number()?];
            let decision = quota.kind().decode_reply(numbers).ok_or(MalformedReply)?;
            let mut receipt = Receipt::default();
            if receipts {
                receipt.cost = self.read_number()?;
                receipt.at = Micros::new(self.read_number()?);
                receipt.mark = self.read_number()?;
                receipt.stored = self.read_float()?.to_bits();
            }
            steps.push(ChargeResult { decision, receipt });
        }
        Ok(StoreDecision { steps, generation })
    }

    fn read_number(&mut self) -> Result<u64, MalformedReply> {
        rmp::decode::read_int(&mut self.bytes).map_err(|_| MalformedReply)
    }

    /// A number that may have a fraction; the server writes it in as few bytes as it can.
    fn read_float(&mut self) -> Result<f64, MalformedReply> {
        match self.bytes.first() {
            Some(0xca) => rmp::decode::read_f32(&mut self.bytes).map(f64::from).map_err(|_| MalformedReply),
            Some(0xcb) => rmp::decode::read_f64(&mut self.bytes).map_err(|_| MalformedReply),
            _ => rmp::decode::read_int::<i64, _>(&mut self.bytes)
                .map(|int| int as f64)
                .map_err(|_| MalformedReply),
        }
    }

    fn read_text(&mut self) -> Result<String, MalformedReply> {
        let length = rmp::decode::read_str_len(&mut self.bytes).map_err(|_| MalformedReply)? as usize;
        let (text, rest) = self.bytes.split_at_checked(length).ok_or(MalformedReply)?;
        self.bytes = rest;
        Ok(String::from_utf8_lossy(text).into_owned())
    }
}
