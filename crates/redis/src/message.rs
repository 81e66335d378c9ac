//! The messages between a process and the scripts: requests as one list of numbers, replies as another.
//!
//! Both are msgpack, which the server decodes and encodes natively. `decide.lua` documents the layout.

use crate::script::KindSet;
use std::{collections::HashMap, sync::Arc};
use tidegate_core::{
    AlgorithmKind, CarryOver, ChargeResult, Demand, Effect, Micros, Overdraft, Quota, Receipt,
    algorithm::level::IntegerBucket,
};
use tidegate_limiter::store::{
    KeyRef, PermitMode, QuotaSelection, StoreCheck, StoreDecision, StoreLimit, StoreReply, StoreRequest,
};

const DECIDE: u64 = 0;
const REFUND: u64 = 1;
const RESET: u64 = 2;
const RENEW: u64 = 3;

const PEEK: u64 = 1;
const RECEIPTS: u64 = 2;
const TAKE_UP_TO: u64 = 4;

const PERMITS: u64 = 1;

/// The excess that the fast path returns for a state that only the full script can read.
const FALLBACK: f64 = -2.0;

/// Decision codes of the Lua algorithms.
const ALLOW: u64 = 0;
const DENY: u64 = 2;
const NEVER: u64 = 3;

/// The size of one request in a fast-path message.
const REQUEST_BYTES: usize = 8;

/// An index that no algorithm has.
const UNKNOWN_KIND: u64 = 255;

/// Quotas of other processes, by rule name and tag. `None` for a tag without an announced quota.
pub(crate) type ForeignQuotas = HashMap<(String, u16), Option<Quota>>;

/// The requests of one call.
#[derive(Debug, Default)]
pub(crate) struct Message {
    keys: Vec<String>,
    key_indexes: HashMap<String, usize>,
    limits: Vec<(Arc<StoreLimit>, usize)>,
    quotas: NumberList,
    quota_count: usize,
    requests: NumberList,
    kinds: KindSet,
    /// The time of this process, for quotas whose windows follow the calendar.
    now: Micros,
}

/// A list of numbers, encoded as they are added.
#[derive(Debug, Default)]
struct NumberList {
    bytes: Vec<u8>,
    count: usize,
}

impl NumberList {
    /// Caps the number: no valid value is larger, and the server would decode a larger one as negative.
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
    /// An empty message, of a process whose clock shows `now`.
    pub(crate) fn new(now: Micros) -> Self {
        Self { now, ..Self::default() }
    }

    /// Adds a request. The caller bounds the number of requests.
    pub(crate) fn add(&mut self, request: &StoreRequest, name: impl Fn(&KeyRef) -> String) {
        match request {
            StoreRequest::Decide(checks) => {
                let is_peek = checks.iter().all(|check| check.demand.effect == Effect::Peek);
                let flags = if is_peek { PEEK } else { 0 } | receipt_flags(request);
                self.requests.push_all([DECIDE, flags, checks.len() as u64]);
                checks.iter().for_each(|check| self.add_check(check, &name));
            }
            StoreRequest::TakeUpTo(check) => {
                self.requests.push_all([DECIDE, TAKE_UP_TO | RECEIPTS, 1]);
                self.add_check(check, &name);
            }
            StoreRequest::Refund { key_ref, charge, cost } => {
                self.requests.push(REFUND);
                self.add_key(key_ref, PermitMode::Peek, &name);
                self.requests.push_all([charge.generation, *cost]);
                for index in 0..key_ref.quota_indices().len() {
                    self.add_receipt(charge.receipts.get(index).copied().unwrap_or_default());
                }
            }
            StoreRequest::Reset(key_ref) => {
                self.requests.push(RESET);
                self.add_key(key_ref, PermitMode::Peek, &name);
            }
            StoreRequest::Renew { key_ref, receipt } => {
                self.requests.push(RENEW);
                self.add_key(key_ref, PermitMode::Acquire, &name);
                self.add_receipt(*receipt);
            }
        }
    }

    fn add_check(&mut self, check: &StoreCheck, name: impl Fn(&KeyRef) -> String) {
        let StoreCheck { key_ref, demand, permit_mode: slots, .. } = check;
        self.add_key(key_ref, *slots, name);
        let overdraft = match demand.overdraft {
            Overdraft::Deny => 0,
            Overdraft::Grant => 1,
            Overdraft::Force => 2,
        };
        self.requests.push_all([demand.cost, demand.max_wait.get(), overdraft]);
    }

    fn add_receipt(&mut self, receipt: Receipt) {
        self.requests.push_all([receipt.cost, receipt.at.get(), receipt.level_or_debt]);
        self.requests.push_f64(f64::from_bits(receipt.permits_or_epoch));
    }

    /// Adds a key and the quotas that apply to it. Lua indexes start at one.
    fn add_key(&mut self, key_ref: &KeyRef, slots: PermitMode, name: impl Fn(&KeyRef) -> String) {
        let next = self.keys.len() + 1;
        let key = *self.key_indexes.entry(name(key_ref)).or_insert_with_key(|name| {
            self.keys.push(name.clone());
            next
        });
        let applied = key_ref.quota_indices();
        let first = self.add_limit(&key_ref.limit) + applied.start + 1;
        let permits = if slots == PermitMode::Acquire { PERMITS } else { 0 };
        let carry_over = match key_ref.limit.carry_over() {
            CarryOver::Keep => 0,
            CarryOver::Reset => 1,
        };
        self.requests.push_all([key as u64, first as u64, applied.len() as u64, permits, carry_over]);
    }

    /// The index of the first quota of a limit, which is added on first use.
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

    /// The index of a rule: that of the first limit with its name.
    fn rule_index(&self, name: &str) -> usize {
        self.limits.iter().position(|(limit, _)| limit.name() == name).unwrap_or(self.limits.len())
    }

    fn add_quota(&mut self, quota: &Quota, tag: u16, rule: usize) {
        let index = quota.kind().index();
        self.kinds.add(index);
        self.quotas.push_all([index as u64, tag.into(), rule as u64]);
        quota.kind().lua_args(self.now).into_iter().for_each(|number| self.quotas.push_f64(number));
        self.quota_count += 1;
    }

    /// Appends the quotas of other processes, and the tags without a quota, whose states the script discards. Call it
    /// after all requests are added.
    pub(crate) fn append_foreign(&mut self, foreign_quotas: &ForeignQuotas) {
        for ((name, tag), quota) in foreign_quotas {
            let rule = self.rule_index(name);
            match quota {
                _ if rule == self.limits.len() => {}
                Some(quota) => self.add_quota(quota, *tag, rule),
                None => {
                    self.quotas.push_all([UNKNOWN_KIND, (*tag).into(), rule as u64, 0, 0, 0, 0, 0, 0, 0]);
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

    /// Encodes the message; without `now` the script uses the server's time.
    pub(crate) fn encode(&self, now: Option<Micros>) -> Vec<u8> {
        encode_message(now, self.quota_count, &self.quotas, &self.requests)
    }
}

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

/// Requests that each charge bucket quotas of one key, without waiting or overdraft.
#[derive(Debug, Default)]
pub(crate) struct FastPathMessage {
    keys: Vec<String>,
    /// Each limit with the argument index of its first quota.
    limits: Vec<(Arc<StoreLimit>, u8)>,
    quotas: Vec<Vec<u8>>,
    requests: Vec<u8>,
}

impl FastPathMessage {
    /// Returns a message if all requests qualify for the fast path.
    pub(crate) fn try_new(
        requests: &[StoreRequest],
        now: Option<Micros>,
        name: impl Fn(&KeyRef) -> String,
    ) -> Option<Self> {
        let mut message = Self::default();
        message.keys.reserve(requests.len());
        message.requests.extend(now.map_or(-1.0, |now| now.get() as f64).to_be_bytes());
        message.requests.extend(u32::try_from(requests.len()).ok()?.to_be_bytes());
        let start = message.requests.len();
        for request in requests {
            let (key_ref, cost) = fast_path_check(request)?;
            let [first, count] =
                [message.add_limit(&key_ref.limit)?, u8::try_from(key_ref.limit.quotas().len()).ok()?];
            // A cost takes six bytes; the two high bytes are zero.
            let [_, _, cost @ ..] = cost.to_be_bytes();
            message.requests.extend([first, count]);
            message.requests.extend(cost);
            message.keys.push(name(key_ref));
        }
        // Identical requests are encoded once.
        let (one, rest) = message.requests.get(start..)?.split_first_chunk::<REQUEST_BYTES>()?;
        if rest.chunks(REQUEST_BYTES).all(|other| other == one) {
            message.requests.truncate(start + REQUEST_BYTES);
        }
        Some(message)
    }

    /// The argument index of a limit's first quota: Lua indexes start at one, and the first argument is the costs.
    /// `None` when one of its quotas is not a bucket, or there are too many.
    fn add_limit(&mut self, limit: &Arc<StoreLimit>) -> Option<u8> {
        if let Some((_, first)) = self.limits.iter().find(|(known, _)| Arc::ptr_eq(known, limit)) {
            return Some(*first);
        }
        let first = u8::try_from(self.quotas.len() + 2).ok()?;
        u8::try_from(self.quotas.len() + 1 + limit.quotas().len()).ok()?;
        for (quota, tag) in limit.quotas().iter().zip(limit.tags()) {
            let IntegerBucket { units_per_token, units_per_us, capacity, .. } = *integer_bucket(quota)?;
            let mut numbers = Vec::with_capacity(26);
            numbers.extend(tag.to_be_bytes());
            [units_per_token, units_per_us, capacity]
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

    /// The arguments that follow the keys.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &[u8]> {
        [self.requests.as_slice()].into_iter().chain(self.quotas.iter().map(Vec::as_slice))
    }

    /// Decodes the reply to each request; `None` where the full script must decide.
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
        let (key_ref, cost) = fast_path_check(request).ok_or(MalformedReply)?;
        let mut results = Vec::with_capacity(key_ref.limit.quotas().len());
        let mut is_usual = true;
        for quota in key_ref.limit.quotas() {
            let (level, excess) = (self.read_number()?, self.read_float()?);
            is_usual &= excess != FALLBACK;
            let (code, excess) = match excess as u64 {
                0 if excess < 0.0 => (NEVER, 0),
                0 => (ALLOW, 0),
                excess => (DENY, excess),
            };
            if is_usual {
                let decision = quota.kind().decode_reply([code, level, excess, 0]).ok_or(MalformedReply)?;
                // The fast path does not return the time of the charge; a refund looks it up.
                let receipt = Receipt { cost, level_or_debt: level, ..Receipt::default() };
                results.push(ChargeResult { decision, receipt });
            }
        }
        Ok(is_usual.then(|| StoreReply::Decided(vec![StoreDecision { results, generation: 0 }])))
    }
}

/// The key and cost of a request that qualifies for the fast path.
fn fast_path_check(request: &StoreRequest) -> Option<(&KeyRef, u64)> {
    let StoreRequest::Decide(checks) = request else { return None };
    let [StoreCheck { key_ref, demand, receipt: false, .. }] = checks.as_slice() else { return None };
    let is_plain = *demand == Demand::new(demand.cost)
        && (1..COST_BOUND).contains(&demand.cost)
        && key_ref.limit.selection() == QuotaSelection::All;
    is_plain.then_some((key_ref, demand.cost))
}

/// Costs below this fit in six bytes.
const COST_BOUND: u64 = 1 << 48;

fn integer_bucket(quota: &Quota) -> Option<&IntegerBucket> {
    let bucket = match quota.kind() {
        AlgorithmKind::TokenBucket(it) => it.integer_bucket(),
        AlgorithmKind::LeakyBucket(it) => it.integer_bucket(),
        _ => return None,
    };
    // The first check of a key that starts with a part of its burst writes even if it is denied.
    (bucket.initial_level == 0).then_some(bucket)
}

/// Requests receipts for the caller, and for the refund of a charge whose reply is late.
fn receipt_flags(request: &StoreRequest) -> u64 {
    let is_charged = |check: &StoreCheck| check.receipt || check.demand.effect == Effect::Charge;
    match request {
        StoreRequest::Decide(checks) if checks.iter().any(is_charged) => RECEIPTS,
        _ => 0,
    }
}

/// The reply of the script to one request.
#[derive(Clone, Debug)]
pub(crate) enum ScriptReply {
    Reply(StoreReply),
    /// A quota with this tag wrote the state, and it is missing from the message.
    UnknownTag(u16),
    /// The server rejected the request.
    Error(String),
}

/// Reads replies in the order of their requests.
#[derive(Debug)]
pub(crate) struct ReplyReader<'a> {
    bytes: &'a [u8],
}

/// A reply that does not have the expected layout.
#[derive(Debug)]
pub(crate) struct MalformedReply;

impl<'a> ReplyReader<'a> {
    pub(crate) fn new(mut bytes: &'a [u8]) -> Result<Self, MalformedReply> {
        rmp::decode::read_array_len(&mut bytes).map_err(|_| MalformedReply)?;
        Ok(Self { bytes })
    }

    /// Reads the reply to `request`.
    pub(crate) fn read_next(&mut self, request: &StoreRequest) -> Result<ScriptReply, MalformedReply> {
        match self.read_number()? {
            0 => self.read_reply(request).map(ScriptReply::Reply),
            1 => self
                .read_number()
                .and_then(|tag| u16::try_from(tag).map_err(|_| MalformedReply))
                .map(ScriptReply::UnknownTag),
            _ => self.read_text().map(ScriptReply::Error),
        }
    }

    fn read_reply(&mut self, request: &StoreRequest) -> Result<StoreReply, MalformedReply> {
        match request {
            StoreRequest::Decide(checks) => {
                let receipts = receipt_flags(request) != 0;
                let answers = checks.iter().map(|check| self.read_answer(&check.key_ref, receipts));
                answers.collect::<Result<_, _>>().map(StoreReply::Decided)
            }
            StoreRequest::TakeUpTo(check) => {
                Ok(StoreReply::Decided(vec![self.read_answer(&check.key_ref, true)?]))
            }
            StoreRequest::Refund { .. } | StoreRequest::Reset(_) => Ok(StoreReply::Done),
            StoreRequest::Renew { receipt, .. } => {
                let at = self.read_float()?;
                let renewed = (at >= 0.0).then(|| Receipt { at: Micros::new(at as u64), ..*receipt });
                Ok(StoreReply::Renewed(renewed))
            }
        }
    }

    fn read_answer(&mut self, key_ref: &KeyRef, receipts: bool) -> Result<StoreDecision, MalformedReply> {
        let generation = if receipts { self.read_number()? } else { 0 };
        let mut results = Vec::with_capacity(key_ref.quota_indices().len());
        for quota in &key_ref.limit.quotas()[key_ref.quota_indices()] {
            let numbers =
                [self.read_number()?, self.read_number()?, self.read_number()?, self.read_number()?];
            let decision = quota.kind().decode_reply(numbers).ok_or(MalformedReply)?;
            let mut receipt = Receipt::default();
            if receipts {
                receipt.cost = self.read_number()?;
                receipt.at = Micros::new(self.read_number()?);
                receipt.level_or_debt = self.read_number()?;
                receipt.permits_or_epoch = self.read_float()?.to_bits();
            }
            results.push(ChargeResult { decision, receipt });
        }
        Ok(StoreDecision { results, generation })
    }

    fn read_number(&mut self) -> Result<u64, MalformedReply> {
        rmp::decode::read_int(&mut self.bytes).map_err(|_| MalformedReply)
    }

    /// Reads a number that may have a fraction; the server encodes it in the shortest form.
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

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used, reason = "this is how a test fails")]
mod tests {
    use super::*;
    use crate::script::decide_script;
    use tidegate_testkit::servers::RedisServer;

    const DAY: u64 = 86_400_000_000;

    /// The reply to a check of a process whose clock shows `client`, at this time of the server.
    async fn check_at(
        connection: &mut redis::aio::MultiplexedConnection,
        client: Micros,
        server: Micros,
    ) -> Result<StoreReply, String> {
        let quota = "2/day fixed-window in UTC".parse().unwrap();
        let limit = StoreLimit::new("rule", vec![quota], QuotaSelection::All, CarryOver::Keep);
        let key_ref = KeyRef { limit: Arc::new(limit), key: "a".to_owned(), tier: 0 };
        let (demand, permit_mode) = (Demand::new(1), PermitMode::Peek);
        let request = StoreRequest::Decide(vec![StoreCheck { key_ref, demand, permit_mode, receipt: true }]);
        let mut message = Message::new(client);
        message.add(&request, |key_ref| key_ref.key.clone());
        let script = decide_script(message.kinds());
        let mut eval = redis::cmd("EVAL");
        eval.arg(script.text()).arg(1).arg(message.keys()).arg(message.encode(Some(server)));
        let reply: Vec<u8> = eval.query_async(connection).await.unwrap();
        match ReplyReader::new(&reply).unwrap().read_next(&request).unwrap() {
            ScriptReply::Reply(reply) => Ok(reply),
            ScriptReply::Error(error) => Err(error),
            ScriptReply::UnknownTag(tag) => Err(format!("unknown tag {tag}")),
        }
    }

    fn retry_after(reply: StoreReply) -> Option<Micros> {
        let StoreReply::Decided(answers) = reply else { return None };
        answers[0].results[0].decision.retry_after()
    }

    /// The server selects the window. A clock that is off by up to a window changes nothing; by more, the call fails.
    #[tokio::test]
    async fn calendar_window_is_selected_by_the_time_of_the_server() {
        let server = RedisServer::start().unwrap();
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let noon = Micros::new(20_000 * DAY + DAY / 2);
        let shifted = |days: i64| Micros::new(noon.get().checked_add_signed(days * DAY as i64).unwrap());
        for days in [-1, 0] {
            check_at(&mut connection, shifted(days), noon).await.unwrap();
        }
        for days in [-1, 0, 1] {
            let denied = check_at(&mut connection, shifted(days), noon).await.unwrap();
            assert_eq!(retry_after(denied), Some(Micros::new(DAY / 2)), "a client off by {days} days");
        }
        for days in [-400, -3, -2, 2, 3, 400] {
            let error = check_at(&mut connection, shifted(days), noon).await.unwrap_err();
            assert!(
                error.contains("1728043200") && error.contains("synchronize the clocks"),
                "{days}: {error}"
            );
        }
    }
}
