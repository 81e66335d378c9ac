//! A cluster: which node has which key, and what to do when that changes.
//!
//! Requests are batched for each node. A node refuses a key that it does not have before anything is done, so such a
//! request, and no other, is put to the right one. Who has what is looked up in the background, by one task at a time:
//! meanwhile the nodes themselves tell where a key is.

mod map;
mod parts;

use crate::{
    dial::{Dial, Security},
    error::ConnectError,
    health::{Health, Modes, Status},
    names::Names,
    node::{Answered, Caller, Keys, Node, Problem, places},
};
use map::{Address, Map};
use redis::{Cmd, ConnectionInfo, ErrorKind, RedisError, ServerErrorKind, Value};
use std::{
    fmt,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tidegate_core::Micros;
use tidegate_limiter::{
    StoreError,
    store::{StoreReply, StoreRequest},
};
use tokio::{sync::Mutex, task::JoinSet, time::timeout};

/// How often a request may be put to another node.
const MOST_MOVES: usize = 8;
/// Before a request is put to another node once more.
const PAUSE: Duration = Duration::from_millis(2);
/// The deadline of a node comes first, because it takes note of it.
const GRACE: Duration = Duration::from_millis(2);
/// How long a node may take to connect, or to tell who has what.
const TELL: Duration = Duration::from_secs(3);
/// Between two looks at who has what.
const REST: Duration = Duration::from_millis(100);

/// All nodes, and who has which slot.
pub(crate) struct Cluster {
    names: Arc<Names>,
    seeds: Vec<ConnectionInfo>,
    security: Security,
    deadline: Duration,
    /// Of the cluster as a whole: whether it is known which node has what.
    health: Health,
    modes: Arc<Modes>,
    map: RwLock<Arc<Map>>,
    /// Held by the one who draws the map.
    drawing: Mutex<()>,
    is_watched: AtomicBool,
}

/// Where a node sends those who ask for a key that it does not have.
enum Redirect {
    /// To the node that has its slot.
    Moved(Arc<Node>),
    /// To the node that its slot is moving to, for this key only.
    Ask(Arc<Node>),
}

impl Cluster {
    pub(crate) fn new(
        names: Arc<Names>,
        (seeds, security): (Vec<ConnectionInfo>, Security),
        deadline: Duration,
        modes: &Arc<Modes>,
    ) -> Arc<Self> {
        let (map, drawing, is_watched) = (RwLock::default(), Mutex::default(), AtomicBool::new(false));
        let (health, modes) = (Health::new(shown(&seeds), modes.clone()), modes.clone());
        Arc::new(Self { names, seeds, security, deadline, health, modes, map, drawing, is_watched })
    }

    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    /// Finds out who has what, or says why it cannot.
    pub(crate) async fn connect(&self) -> Result<(), ConnectError> {
        let mut problem = ConnectError::url(&self.shown(), "it names no node");
        for seed in &self.seeds {
            let node = self.node(seed.clone()).map_err(|error| ConnectError::url(&self.shown(), &error))?;
            problem = match timeout(TELL, node.connect()).await {
                Ok(Ok(())) => match node.inspect().await {
                    Ok(()) if self.look().await => return Ok(()),
                    Ok(()) => ConnectError::new(
                        format!("the cluster of {} is not whole", node.shown()),
                        "every slot needs a node: see redis-cli --cluster check",
                    ),
                    Err(error) => error,
                },
                Ok(Err(error)) => ConnectError::refused(node.shown(), &error),
                Err(_) => ConnectError::new(
                    format!("no connection to {}: it did not answer within {TELL:?}", node.shown()),
                    "is a server running there?",
                ),
            };
        }
        Err(problem)
    }

    /// Does what is asked. What spans several nodes is charged on each, and given back if one of them denies.
    pub(crate) async fn submit(self: &Arc<Self>, request: StoreRequest, caller: Caller) -> Answered {
        if self.health.status() == Status::Connecting {
            let _ = timeout(self.deadline, self.health.ready()).await;
        }
        let answer = timeout(self.deadline + GRACE, self.submit_whole(request, caller)).await;
        answer.unwrap_or_else(|_| Err(StoreError::Timeout.into()))
    }

    async fn submit_whole(self: &Arc<Self>, request: StoreRequest, caller: Caller) -> Answered {
        let asks = match request {
            StoreRequest::Decide(asks) if asks.len() > 1 => asks,
            other => return self.submit_to_one(other, caller).await,
        };
        let map = self.map();
        let keys: Vec<_> = asks.iter().map(|ask| self.names.key(&ask.key_ref)).collect();
        let node = |key: &String| map.node_of(key).map(Arc::as_ptr);
        if keys.iter().all(|key| node(key) == node(&keys[0])) {
            match self.submit_together(&keys[0], StoreRequest::Decide(asks.clone()), caller).await {
                Err(Problem::Elsewhere) => {}
                other => return other,
            }
        }
        self.submit_parts(asks).await
    }

    /// A request about keys that the node of `key` has, or none of it.
    async fn submit_together(self: &Arc<Self>, key: &str, request: StoreRequest, caller: Caller) -> Answered {
        let node = self.node_of(key)?;
        let answer = node.submit(request, caller).await;
        if matches!(answer, Err(Problem::Elsewhere | Problem::Store(StoreError::Unavailable(_)))) {
            self.watch();
        }
        answer
    }

    /// A request about one key, whichever node turns out to have it.
    async fn submit_to_one(self: &Arc<Self>, request: StoreRequest, caller: Caller) -> Answered {
        let Some(key) = places(&request).next().map(|place| self.names.key(place)) else {
            return Ok(StoreReply::Decided(Vec::new()));
        };
        let mut node = self.node_of(&key)?;
        for attempt in 0..MOST_MOVES {
            match node.submit(request.clone(), caller).await {
                Err(Problem::Elsewhere) => {}
                Err(Problem::Store(StoreError::Unavailable(why))) => {
                    self.watch();
                    return Err(StoreError::Unavailable(why).into());
                }
                other => return other,
            }
            // A script is not told where the key is; who asks for it is.
            if let Err(error) = node.send(redis::cmd("EXISTS").arg(&key)).await {
                match self.redirect(&node, &error).await? {
                    Redirect::Moved(other) => node = other,
                    Redirect::Ask(target) => match target.submit_asking(&request).await {
                        Err(Problem::Elsewhere) => {}
                        other => return other,
                    },
                }
            }
            if attempt > 0 {
                tokio::time::sleep(PAUSE).await;
            }
        }
        Err(StoreError::Unavailable("its slot is on the move".to_owned()).into())
    }

    /// What is asked, at a moment that the caller names.
    pub(crate) async fn submit_at(self: &Arc<Self>, requests: &[StoreRequest], now: Micros) -> Vec<Answered> {
        let map = self.map();
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            let node = places(request).next().and_then(|place| map.node_of(&self.names.key(place)));
            let answer = match node {
                Some(node) => node.submit_at(std::slice::from_ref(request), now).await.pop(),
                None => None,
            };
            let nobody = || Err(StoreError::Unavailable("no node has the key".to_owned()).into());
            answers.push(answer.unwrap_or_else(nobody));
        }
        answers
    }

    /// Sends a plain command about one key.
    pub(crate) async fn command(self: &Arc<Self>, key: &str, command: &Cmd) -> Result<Value, StoreError> {
        if self.health.status() == Status::Connecting {
            let _ = timeout(self.deadline, self.health.ready()).await;
        }
        let mut node = self.node_of(key)?;
        for _ in 0..MOST_MOVES {
            if let Status::Unavailable(cause) = node.health().status() {
                self.watch();
                return Err(StoreError::Unavailable(cause.to_string()));
            }
            let error = match timeout(self.deadline, node.send(command)).await {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(error)) => error,
                Err(_) => return Err(StoreError::Timeout),
            };
            match self.redirect(&node, &error).await? {
                Redirect::Moved(other) => node = other,
                Redirect::Ask(target) => {
                    let told = timeout(self.deadline, target.send_asking(command)).await;
                    return told.map_err(|_| StoreError::Timeout)?.map_err(|error| target.explain(&error));
                }
            }
        }
        Err(StoreError::Unavailable("its slot is on the move".to_owned()))
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        let map = self.map();
        let trouble = |node: &Arc<Node>| Some(format!("{}: {}", node.shown(), node.health().trouble()?));
        match map.slots_without_node() {
            0 => map.nodes.values().find_map(trouble),
            _ if map.nodes.is_empty() => self.health.trouble().or_else(|| Some(NO_NODE.to_owned())),
            count => Some(format!("{count} slots have no node")),
        }
    }

    pub(crate) fn outages(&self) -> u64 {
        let map = self.map();
        self.health.times_down()
            + map.past_outages
            + map.nodes.values().map(|node| node.health().times_down()).sum::<u64>()
    }

    pub(crate) fn shown(&self) -> String {
        shown(&self.seeds)
    }

    /// Looks who has what, in the background and until all is well.
    pub(crate) fn watch(self: &Arc<Self>) {
        if self.is_watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let cluster = Arc::downgrade(self);
        drop(tokio::spawn(async move {
            while let Some(cluster) = cluster.upgrade() {
                let is_well = cluster.reach().await && cluster.is_up();
                let weak = Arc::downgrade(&cluster);
                drop(cluster);
                tokio::time::sleep(REST).await;
                if is_well && let Some(cluster) = weak.upgrade() {
                    return cluster.is_watched.store(false, Ordering::Release);
                }
            }
        }));
    }

    /// Finds out who has what, and reports why it cannot.
    async fn reach(&self) -> bool {
        // The first time its nodes are looked at, too.
        if self.health.is_available() && self.look().await {
            return true;
        }
        match self.connect().await {
            Ok(()) => self.health.available(),
            Err(cause) => drop(self.health.unavailable(&cause)),
        }
        self.health.is_available()
    }

    fn is_up(&self) -> bool {
        self.map().nodes.values().all(|node| node.health().is_available())
    }

    /// Looks who has what. False when nobody tells, or not of all slots.
    async fn look(&self) -> bool {
        let _guard = self.drawing.lock().await;
        let old = self.map();
        let known = old.nodes.iter().filter(|(_, node)| node.health().is_available());
        let known = known.map(|(address, node)| (address.clone(), node.clone()));
        let seeds = self.seeds.iter().filter_map(|seed| {
            let address = map::address(seed)?;
            let node = old.nodes.get(&address).cloned().or_else(|| self.node(seed.clone()).ok())?;
            Some((address, node))
        });
        let mut best: Option<Map> = None;
        for (address, node) in known.chain(seeds) {
            let Some(map) = self.draw(&old, &address, &node).await else { continue };
            let missing = map.slots_without_node();
            if best.as_ref().is_none_or(|best| missing < best.slots_without_node()) {
                best = Some(map);
            }
            if missing == 0 {
                break;
            }
        }
        let Some(mut map) = best else { return false };
        let gone = old.nodes.iter().filter(|(address, _)| !map.nodes.contains_key(*address));
        gone.clone().for_each(|(_, node)| node.health().replaced(&shown(&self.seeds)));
        map.past_outages = old.past_outages + gone.map(|(_, node)| node.health().times_down()).sum::<u64>();
        let mut visits = JoinSet::new();
        map.nodes.values().for_each(|node| drop(visits.spawn(visit(node.clone()))));
        visits.join_all().await;
        let is_whole = map.slots_without_node() == 0;
        self.set_map(map);
        is_whole
    }

    /// Draws the map that a node tells.
    async fn draw(&self, old: &Map, (own_host, _): &Address, node: &Arc<Node>) -> Option<Map> {
        if !node.is_connected() {
            timeout(TELL, node.connect()).await.ok()?.ok()?;
        }
        let slots = redis::cmd("CLUSTER").arg("SLOTS").to_owned();
        let told = timeout(TELL, node.send(&slots)).await.ok()?.ok()?;
        let mut map = Map::default();
        for mut range in map::ranges(&told)? {
            if range.primary.0.is_empty() {
                range.primary.0.clone_from(own_host);
            }
            let known = map.nodes.get(&range.primary).or_else(|| old.nodes.get(&range.primary)).cloned();
            let node = known.or_else(|| self.new_node(&range.primary))?;
            map.give(&range, &node);
            map.nodes.insert(range.primary, node);
        }
        (!map.nodes.is_empty()).then_some(map)
    }

    /// Follows what a node says instead of an answer; any other error is that of the node.
    async fn redirect(
        self: &Arc<Self>,
        node: &Arc<Node>,
        error: &RedisError,
    ) -> Result<Redirect, StoreError> {
        let direction: fn(_) -> _ = match error.kind() {
            ErrorKind::Server(ServerErrorKind::Ask) => Redirect::Ask,
            ErrorKind::Server(ServerErrorKind::Moved) => Redirect::Moved,
            _ => {
                self.watch();
                let error = node.explain(error);
                node.take_note(Some(&error));
                return Err(error);
            }
        };
        if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) {
            self.watch();
        }
        let nowhere = || StoreError::Unavailable(format!("its slot has moved: {error}"));
        let (host, port) =
            error.redirect_node().and_then(|(text, _)| map::redirection(text)).ok_or_else(nowhere)?;
        let host = match host.is_empty() {
            true => self.map().address_of(node).map(|(host, _)| host.clone()).ok_or_else(nowhere)?,
            false => host,
        };
        self.node_at((host, port)).await.map(direction).ok_or_else(nowhere)
    }

    /// The node at an address; one that has no slots yet is not on the map.
    async fn node_at(self: &Arc<Self>, address: Address) -> Option<Arc<Node>> {
        if let Some(node) = self.map().nodes.get(&address) {
            return Some(node.clone());
        }
        let cluster = self.clone();
        // A caller that gives up does not keep the others from it.
        let arrival = tokio::spawn(async move {
            let _guard = cluster.drawing.lock().await;
            let map = cluster.map();
            if let Some(node) = map.nodes.get(&address) {
                return Some(node.clone());
            }
            let node = cluster.new_node(&address)?;
            visit(node.clone()).await;
            let mut map = Map::clone(&map);
            map.nodes.insert(address, node.clone());
            cluster.set_map(map);
            Some(node)
        });
        arrival.await.ok()?
    }

    pub(crate) fn node_of(self: &Arc<Self>, key: &str) -> Result<Arc<Node>, StoreError> {
        let node = self.map().node_of(key).cloned();
        node.ok_or_else(|| {
            self.watch();
            let trouble = self.health.trouble();
            StoreError::Unavailable(trouble.unwrap_or_else(|| NO_NODE.to_owned()))
        })
    }

    fn new_node(&self, address: &Address) -> Option<Arc<Node>> {
        self.node(map::at(self.seeds.first()?, address)).ok()
    }

    fn node(&self, info: ConnectionInfo) -> Result<Arc<Node>, String> {
        let dial = Dial::address(info, &self.security).map_err(|error| error.to_string())?;
        Ok(Node::new(self.names.clone(), dial, self.deadline, Keys::Argued, &self.modes))
    }

    fn map(&self) -> Arc<Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_map(&self, map: Map) {
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
    }
}

/// Connects to a node. One that cannot be reached is looked for in the background, as any that went away.
async fn visit(node: Arc<Node>) {
    if node.is_connected() || !node.health().is_available() {
        return;
    }
    let cause = match timeout(TELL, node.connect()).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => ConnectError::refused(node.shown(), &error),
        Err(_) => ConnectError::of(&format!("no answer within {TELL:?}")),
    };
    if node.health().unavailable(&cause) {
        node.look_after();
    }
}

const NO_NODE: &str = "no node of the cluster is known to have the key";

fn shown(seeds: &[ConnectionInfo]) -> String {
    let seeds: Vec<_> = seeds.iter().map(|seed| seed.addr().to_string()).collect();
    seeds.join(",")
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({})", self.shown())
    }
}
