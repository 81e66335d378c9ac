//! A cluster: which node has which key, and what to do when that changes.
//!
//! Requests are batched for each node. A node refuses a key that it does not have before anything is done, so such a
//! request is simply put to the right one.

use crate::{
    dial::Dial,
    error::ConnectError,
    health::Mood,
    names::Names,
    node::{Answered, Keys, Node, Problem, places},
};
use redis::{Cmd, ConnectionAddr, ConnectionInfo, Value};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};
use tidegate_core::{Demand, Effect, Micros};
use tidegate_engine::{
    StoreError,
    store::{Answer, Inquiry, Reply, Request},
};
use tokio::{sync::Mutex, time::timeout};

const SLOTS: usize = 16_384;
/// How often a request may be put to another node.
const MOST_MOVES: usize = 8;
/// How long a node may take to tell who has what.
const TELL: Duration = Duration::from_millis(500);
/// Between two looks at a cluster that is rearranging itself.
const PAUSE: Duration = Duration::from_millis(2);

/// A host and a port.
type Address = (String, u16);

/// All nodes, and who has which slot.
pub(crate) struct Cluster {
    names: Arc<Names>,
    seeds: Vec<ConnectionInfo>,
    deadline: Duration,
    map: RwLock<Arc<Map>>,
    /// Held by the one who looks who has what.
    looking: Mutex<()>,
}

#[derive(Default)]
struct Map {
    nodes: HashMap<Address, Arc<Node>>,
    /// The node of each slot.
    slots: Vec<Option<Arc<Node>>>,
    /// How often it was drawn.
    version: u64,
}

impl Cluster {
    pub(crate) fn new(names: Arc<Names>, seeds: Vec<ConnectionInfo>, deadline: Duration) -> Arc<Self> {
        Arc::new(Self { names, seeds, deadline, map: RwLock::default(), looking: Mutex::default() })
    }

    /// Finds out who has what, or says why it cannot.
    pub(crate) async fn connect(&self) -> Result<(), ConnectError> {
        let mut problem = ConnectError::url(&self.shown(), "it names no node");
        for seed in &self.seeds {
            let node = self.node(seed.clone()).map_err(|error| ConnectError::url(&self.shown(), &error))?;
            match timeout(TELL, node.connect()).await {
                Ok(Ok(())) => {
                    node.inspect().await?;
                    if self.look(0).await {
                        return Ok(());
                    }
                    problem = ConnectError::new(
                        format!("the cluster of {} is not whole", node.shown()),
                        "every slot needs a node: see redis-cli --cluster check",
                    );
                }
                Ok(Err(error)) => problem = ConnectError::refused(node.shown(), &error),
                Err(_) => {
                    problem = ConnectError::new(
                        format!("no connection to {}: it did not answer within {TELL:?}", node.shown()),
                        "is a server running there?",
                    );
                }
            }
        }
        Err(problem)
    }

    /// Does what is asked. What spans several nodes is charged on each, and given back if one of them denies.
    pub(crate) async fn submit(self: &Arc<Self>, request: Request) -> Answered {
        match timeout(self.deadline, self.submit_whole(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(StoreError::Late.into()),
        }
    }

    async fn submit_whole(self: &Arc<Self>, request: Request) -> Answered {
        let map = self.map();
        let nodes: Vec<_> = places(&request).map(|place| map.number(&self.names.key(place))).collect();
        let is_spread = nodes.iter().any(|node| *node != nodes[0]);
        match request {
            Request::Decide(asks) if is_spread => self.submit_parts(asks).await,
            other => self.submit_to_one(other).await,
        }
    }

    /// A request about keys of one node, whichever that turns out to be.
    async fn submit_to_one(self: &Arc<Self>, request: Request) -> Answered {
        let Some(key) = places(&request).next().map(|place| self.names.key(place)) else {
            return Ok(Reply::Decided(Vec::new()));
        };
        for attempt in 0..MOST_MOVES {
            let map = self.map();
            let Some(node) = map.node_of(&key) else {
                if !self.look(map.version).await {
                    return Err(StoreError::Away("no node of the cluster answers".to_owned()).into());
                }
                continue;
            };
            if let Mood::Down(_) = node.health().mood() {
                self.look_soon(map.version);
            }
            match node.submit(request.clone()).await {
                Err(Problem::Elsewhere) => {}
                Err(Problem::Store(StoreError::Away(why))) => {
                    self.look_soon(map.version);
                    return Err(StoreError::Away(why).into());
                }
                other => return other,
            }
            // The slot has moved, or is about to.
            if let Some(answer) = self.submit_ahead(&node, &key, &request).await {
                return answer;
            }
            self.look(map.version).await;
            if attempt > 0 {
                tokio::time::sleep(PAUSE).await;
            }
        }
        Err(StoreError::Away("its slot is on the move".to_owned()).into())
    }

    /// Puts a request to the node that a slot is moving to, if its node says so.
    async fn submit_ahead(&self, node: &Arc<Node>, key: &str, request: &Request) -> Option<Answered> {
        let exists = redis::cmd("EXISTS").arg(key).to_owned();
        let error = node.send(&exists).await.err()?;
        if error.code() != Some("ASK") {
            return None;
        }
        let (host, port) = error.redirect_node()?;
        let target = self.map().nodes.get(&(host.to_owned(), port)).cloned()?;
        Some(target.submit_asking(request).await)
    }

    /// One part for each node. All or none is a promise of a single node; here what was charged is given back.
    async fn submit_parts(self: &Arc<Self>, asks: Vec<Inquiry>) -> Answered {
        let map = self.map();
        let mut parts: Vec<(usize, Vec<(usize, Inquiry)>)> = Vec::new();
        for (index, mut ask) in asks.into_iter().enumerate() {
            let node = map.number(&self.names.key(&ask.place));
            ask.receipt = true;
            match parts.iter_mut().find(|(known, _)| *known == node) {
                Some((_, part)) => part.push((index, ask)),
                None => parts.push((node, vec![(index, ask)])),
            }
        }
        let mut answers: Vec<(usize, Inquiry, Answer)> = Vec::new();
        let mut failure = None;
        for (_, part) in parts {
            let questions = part.iter().map(|(_, ask)| ask.clone()).collect();
            match self.submit_to_one(Request::Decide(questions)).await {
                Ok(Reply::Decided(part_answers)) => {
                    let part = part.into_iter().zip(part_answers);
                    answers.extend(part.map(|((index, ask), answer)| (index, ask, answer)));
                }
                Ok(_) => {
                    failure = Some(StoreError::Refused("an answer to another question".to_owned()).into());
                }
                Err(problem) => failure = Some(problem),
            }
            let denied = answers.iter().any(|(_, _, answer)| !is_granted(answer));
            if failure.is_some() || denied {
                break;
            }
        }
        let granted = failure.is_none() && answers.iter().all(|(_, _, answer)| is_granted(answer));
        if !granted {
            for (_, ask, answer) in answers.iter().filter(|(_, _, answer)| is_granted(answer)) {
                self.give_back(ask, answer).await;
            }
        }
        if let Some(problem) = failure {
            return Err(problem);
        }
        answers.sort_by_key(|(index, ..)| *index);
        Ok(Reply::Decided(answers.into_iter().map(|(_, _, answer)| answer).collect()))
    }

    async fn give_back(self: &Arc<Self>, ask: &Inquiry, answer: &Answer) {
        let Demand { cost, effect, .. } = ask.demand;
        if effect == Effect::Charge && cost > 0 {
            let (place, charge) = (ask.place.clone(), answer.charged());
            let _ = self.submit_to_one(Request::Refund { place, charge, cost }).await;
        }
    }

    /// What is asked, at a moment that the caller names.
    pub(crate) async fn submit_at(self: &Arc<Self>, requests: &[Request], now: Micros) -> Vec<Answered> {
        let map = self.map();
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            let node = places(request).next().and_then(|place| map.node_of(&self.names.key(place)));
            let answer = match node {
                Some(node) => node.submit_at(std::slice::from_ref(request), now).await.pop(),
                None => None,
            };
            let nobody = || Err(StoreError::Away("no node has the key".to_owned()).into());
            answers.push(answer.unwrap_or_else(nobody));
        }
        answers
    }

    /// Sends a plain command about one key.
    pub(crate) async fn command(self: &Arc<Self>, key: &str, command: &Cmd) -> Result<Value, StoreError> {
        let mut problem = StoreError::Away("no node has the key".to_owned());
        for _ in 0..MOST_MOVES {
            let map = self.map();
            let Some(node) = map.node_of(key) else {
                self.look(map.version).await;
                continue;
            };
            match node.send(command).await {
                Ok(value) => return Ok(value),
                Err(error) if matches!(error.code(), Some("MOVED" | "ASK")) => {
                    problem = StoreError::Away("its slot is on the move".to_owned());
                    self.look(map.version).await;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => {
                    self.look_soon(map.version);
                    return Err(node.explain(&error));
                }
            }
        }
        Err(problem)
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        let map = self.map();
        if map.slots.is_empty() {
            return Some("no node of the cluster has answered yet".to_owned());
        }
        map.slots.iter().flatten().find_map(|node| match node.health().mood() {
            Mood::Up => None,
            Mood::Down(why) => Some(format!("{}: {why}", node.shown())),
        })
    }

    pub(crate) fn outages(&self) -> u64 {
        self.map().nodes.values().map(|node| node.health().times_down()).sum()
    }

    pub(crate) fn shown(&self) -> String {
        let seeds: Vec<_> = self.seeds.iter().map(|seed| seed.addr().to_string()).collect();
        seeds.join(",")
    }

    /// Looks who has what in the background, unless somebody has since `version`.
    pub(crate) fn look_soon(self: &Arc<Self>, version: u64) {
        let cluster = self.clone();
        if cluster.looking.try_lock().is_ok() {
            drop(tokio::spawn(async move { cluster.look(version).await }));
        }
    }

    /// Looks until the cluster is whole: for a start without it.
    pub(crate) fn look_until_found(self: &Arc<Self>) {
        let cluster = Arc::downgrade(self);
        drop(tokio::spawn(async move {
            while let Some(cluster) = cluster.upgrade() {
                if cluster.look(0).await {
                    return;
                }
                drop(cluster);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }));
    }

    /// Looks who has what, unless somebody has since `version`. False when nobody tells.
    async fn look(&self, version: u64) -> bool {
        let _guard = self.looking.lock().await;
        let old = self.map();
        if old.version > version {
            return true;
        }
        let known = old.nodes.values().filter(|node| node.health().mood() == Mood::Up).cloned();
        let seeds = self.seeds.iter().filter_map(|seed| self.known_or_new(&old, seed));
        for node in known.chain(seeds).collect::<Vec<_>>() {
            if let Some(map) = self.draw(&old, &node).await {
                *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
                return true;
            }
        }
        false
    }

    /// Draws the map that a node tells.
    async fn draw(&self, old: &Map, node: &Arc<Node>) -> Option<Map> {
        if !node.is_connected() {
            timeout(TELL, node.connect()).await.ok()?.ok()?;
        }
        let slots = redis::cmd("CLUSTER").arg("SLOTS").to_owned();
        let told = timeout(TELL, node.send(&slots)).await.ok()?.ok()?;
        let (own, _) = self.seeds.first().and_then(address)?;
        let mut map = Map { slots: vec![None; SLOTS], version: old.version + 1, ..Map::default() };
        for (first, last, (host, port)) in ranges(&told)? {
            // A node that does not know its own address leaves it out.
            let host = if host.is_empty() { own.clone() } else { host };
            let target = match map
                .nodes
                .get(&(host.clone(), port))
                .or_else(|| old.nodes.get(&(host.clone(), port)))
            {
                Some(known) => known.clone(),
                None => self
                    .node(self.seeds.first()?.clone().set_addr(at(self.seeds.first()?.addr(), &host, port)))
                    .ok()?,
            };
            if !target.is_connected() {
                // A node that cannot be reached is looked for in the background, as any that went away.
                if !matches!(timeout(TELL, target.connect()).await, Ok(Ok(())))
                    && target.health().away("no connection")
                {
                    target.look_after();
                }
            }
            map.nodes.insert((host, port), target.clone());
            for slot in first..=last {
                *map.slots.get_mut(slot)? = Some(target.clone());
            }
        }
        map.slots.iter().all(Option::is_some).then_some(map)
    }

    fn known_or_new(&self, map: &Map, seed: &ConnectionInfo) -> Option<Arc<Node>> {
        let known = address(seed).and_then(|address| map.nodes.get(&address).cloned());
        known.or_else(|| self.node(seed.clone()).ok())
    }

    fn node(&self, info: ConnectionInfo) -> Result<Arc<Node>, String> {
        let dial = Dial::address(info).map_err(|error| error.to_string())?;
        Ok(Node::new(self.names.clone(), dial, self.deadline, Keys::Argued))
    }

    fn map(&self) -> Arc<Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Map {
    fn node_of(&self, key: &str) -> Option<Arc<Node>> {
        self.slots.get(slot(key)).cloned().flatten()
    }

    /// What tells the node of a key from the others.
    fn number(&self, key: &str) -> usize {
        self.node_of(key).map_or(0, |node| Arc::as_ptr(&node).addr())
    }
}

/// The slot of a key: a checksum of what stands in its braces.
fn slot(key: &str) -> usize {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let tag = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    usize::from(crc16::State::<crc16::XMODEM>::calculate(tag.as_bytes())) % SLOTS
}

fn address(info: &ConnectionInfo) -> Option<Address> {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some((host.clone(), *port))
        }
        _ => None,
    }
}

/// The same kind of address, of another host and port.
fn at(like: &ConnectionAddr, host: &str, port: u16) -> ConnectionAddr {
    match like {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host: host.to_owned(),
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host.to_owned(), port),
    }
}

/// The ranges of slots and their primaries, as `CLUSTER SLOTS` tells them.
fn ranges(told: &Value) -> Option<Vec<(usize, usize, Address)>> {
    let Value::Array(ranges) = told else { return None };
    let range = |range: &Value| {
        let Value::Array(fields) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = fields.as_slice() else {
            return None;
        };
        let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
        let host = match host {
            Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
            Value::SimpleString(host) => host.clone(),
            _ => String::new(),
        };
        let number = |slot: i64| usize::try_from(slot).ok();
        Some((number(*first)?, number(*last)?, (host, u16::try_from(*port).ok()?)))
    };
    ranges.iter().map(range).collect()
}

fn is_granted(answer: &Answer) -> bool {
    answer.steps.iter().all(|step| step.decision.is_granted())
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({})", self.shown())
    }
}
