//! A cluster: routes requests to the nodes that serve their keys, and follows changes of the slot map.
//!
//! Each node batches its requests. A node rejects a key of another node before it charges anything, so only that request
//! is sent again, to the right node. One background task at a time refreshes the slot map; until it is done, requests
//! follow the redirects of the nodes.

mod slot_map;
mod split;

use crate::{
    connector::{ClientTls, Connector},
    error::ConnectError,
    health::{FailureModes, RedisHealth, ServerAvailability},
    key_names::KeyNames,
    node::{CallOrigin, KeyPassing, NodeError, NodeResult, RedisNode, key_refs},
};
use redis::{Cmd, ConnectionInfo, ErrorKind, RedisError, ServerErrorKind, Value};
use slot_map::{HostPort, SlotMap};
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

/// The maximum number of redirects of one request.
const MAX_REDIRECTS: usize = 8;
/// The pause before the second and later redirects.
const REDIRECT_BACKOFF: Duration = Duration::from_millis(2);
/// Added to the cluster's deadline, so that the node's deadline expires first: the node records timeouts.
const DEADLINE_GRACE: Duration = Duration::from_millis(2);
/// The time limit for connecting to a node, and for its `CLUSTER SLOTS` reply.
const NODE_TIMEOUT: Duration = Duration::from_secs(3);
/// The pause between two refreshes of the slot map.
const REFRESH_INTERVAL: Duration = Duration::from_millis(100);

/// All nodes and the slot map.
pub(crate) struct Cluster {
    key_names: Arc<KeyNames>,
    seeds: Vec<ConnectionInfo>,
    security: ClientTls,
    deadline: Duration,
    /// The health of the whole cluster: whether the slot map is known.
    health: RedisHealth,
    modes: Arc<FailureModes>,
    slot_map: RwLock<Arc<SlotMap>>,
    /// Serializes changes of the slot map.
    refresh_lock: Mutex<()>,
    is_refreshing: AtomicBool,
}

/// The redirect of a node for a key that it does not have.
enum Redirect {
    /// The node that serves the slot.
    Moved(Arc<RedisNode>),
    /// The node that the slot is migrating to; for this request only.
    Ask(Arc<RedisNode>),
}

impl Cluster {
    pub(crate) fn new(
        key_names: Arc<KeyNames>,
        (seeds, security): (Vec<ConnectionInfo>, ClientTls),
        deadline: Duration,
        modes: &Arc<FailureModes>,
    ) -> Arc<Self> {
        let (map, refresh_lock, is_refreshing) =
            (RwLock::default(), Mutex::default(), AtomicBool::new(false));
        let (health, modes) = (RedisHealth::new(display_seeds(&seeds), modes.clone()), modes.clone());
        Arc::new(Self {
            key_names,
            seeds,
            security,
            deadline,
            health,
            modes,
            slot_map: map,
            refresh_lock,
            is_refreshing,
        })
    }

    pub(crate) fn health(&self) -> &RedisHealth {
        &self.health
    }

    /// Connects to the seed nodes in order until one returns a complete slot map.
    pub(crate) async fn connect(&self) -> Result<(), ConnectError> {
        let mut problem = ConnectError::invalid_url(&self.display_name(), "missing host");
        for seed in &self.seeds {
            let node = self
                .create_node(seed.clone())
                .map_err(|error| ConnectError::invalid_url(&self.display_name(), &error))?;
            problem = match timeout(NODE_TIMEOUT, node.connect()).await {
                Ok(Ok(())) => match node.inspect().await {
                    Ok(()) if self.refresh().await => return Ok(()),
                    Ok(()) => ConnectError::new(
                        format!("the cluster of {} does not cover all slots", node.display_name()),
                        "assign every slot to a node: run redis-cli --cluster check",
                    ),
                    Err(error) => error,
                },
                Ok(Err(error)) => ConnectError::connection_failed(node.display_name(), &error),
                Err(_) => ConnectError::new(
                    format!(
                        "cannot connect to {}: it did not respond within {NODE_TIMEOUT:?}",
                        node.display_name()
                    ),
                    "check that a server is running and listening on that address",
                ),
            };
        }
        Err(problem)
    }

    /// Executes a request within the deadline. One that spans several nodes charges each of them, and refunds if one
    /// denies.
    pub(crate) async fn submit(self: &Arc<Self>, request: StoreRequest, caller: CallOrigin) -> NodeResult {
        if self.health.status() == ServerAvailability::Connecting {
            let _ = timeout(self.deadline, self.health.ready()).await;
        }
        let answer = timeout(self.deadline + DEADLINE_GRACE, self.dispatch(request, caller)).await;
        answer.unwrap_or_else(|_| Err(StoreError::Timeout.into()))
    }

    async fn dispatch(self: &Arc<Self>, request: StoreRequest, caller: CallOrigin) -> NodeResult {
        let checks = match request {
            StoreRequest::Decide(checks) if checks.len() > 1 => checks,
            other => return self.submit_single_key(other, caller).await,
        };
        let map = self.slot_map();
        let keys: Vec<_> = checks.iter().map(|check| self.key_names.key(&check.key_ref)).collect();
        let node = |key: &String| map.node_for_key(key).map(Arc::as_ptr);
        if keys.iter().all(|key| node(key) == node(&keys[0])) {
            match self.submit_to_node(&keys[0], StoreRequest::Decide(checks.clone()), caller).await {
                Err(NodeError::NotLocal) => {}
                other => return other,
            }
        }
        self.submit_split(checks).await
    }

    /// Sends a request to the node of `key`; fails without a charge if that node lacks one of its keys.
    async fn submit_to_node(
        self: &Arc<Self>,
        key: &str,
        request: StoreRequest,
        caller: CallOrigin,
    ) -> NodeResult {
        let node = self.node_for_key(key)?;
        let answer = node.submit(request, caller).await;
        if matches!(answer, Err(NodeError::NotLocal | NodeError::Store(StoreError::Unavailable(_)))) {
            self.refresh_in_background();
        }
        answer
    }

    /// Sends a request about one key and follows redirects.
    async fn submit_single_key(self: &Arc<Self>, request: StoreRequest, caller: CallOrigin) -> NodeResult {
        let Some(key) = key_refs(&request).next().map(|key_ref| self.key_names.key(key_ref)) else {
            return Ok(StoreReply::Decided(Vec::new()));
        };
        let mut node = self.node_for_key(&key)?;
        for attempt in 0..MAX_REDIRECTS {
            match node.submit(request.clone(), caller).await {
                Err(NodeError::NotLocal) => {}
                Err(NodeError::Store(StoreError::Unavailable(cause))) => {
                    self.refresh_in_background();
                    return Err(StoreError::Unavailable(cause).into());
                }
                other => return other,
            }
            // The error of a script does not name the node of the key; the error of EXISTS does.
            if let Err(error) = node.send(redis::cmd("EXISTS").arg(&key)).await {
                match self.resolve_redirect(&node, &error).await? {
                    Redirect::Moved(other) => node = other,
                    Redirect::Ask(target) => match target.submit_asking(&request).await {
                        Err(NodeError::NotLocal) => {}
                        other => return other,
                    },
                }
            }
            if attempt > 0 {
                tokio::time::sleep(REDIRECT_BACKOFF).await;
            }
        }
        Err(StoreError::Unavailable(MIGRATING_ERROR.to_owned()).into())
    }

    /// Executes requests at the given time instead of the server's.
    pub(crate) async fn submit_at(
        self: &Arc<Self>,
        requests: &[StoreRequest],
        now: Micros,
    ) -> Vec<NodeResult> {
        let map = self.slot_map();
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            let node =
                key_refs(request).next().and_then(|key_ref| map.node_for_key(&self.key_names.key(key_ref)));
            let answer = match node {
                Some(node) => node.submit_at(std::slice::from_ref(request), now).await.pop(),
                None => None,
            };
            let no_node = || Err(StoreError::Unavailable(NO_NODE_ERROR.to_owned()).into());
            answers.push(answer.unwrap_or_else(no_node));
        }
        answers
    }

    /// Sends one command about one key and follows redirects.
    pub(crate) async fn send_command(
        self: &Arc<Self>,
        key: &str,
        command: &Cmd,
    ) -> Result<Value, StoreError> {
        if self.health.status() == ServerAvailability::Connecting {
            let _ = timeout(self.deadline, self.health.ready()).await;
        }
        let mut node = self.node_for_key(key)?;
        for _ in 0..MAX_REDIRECTS {
            if let ServerAvailability::Unavailable(cause) = node.health().status() {
                self.refresh_in_background();
                return Err(StoreError::Unavailable(cause.to_string()));
            }
            let error = match timeout(self.deadline, node.send(command)).await {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(error)) => error,
                Err(_) => return Err(StoreError::Timeout),
            };
            match self.resolve_redirect(&node, &error).await? {
                Redirect::Moved(other) => node = other,
                Redirect::Ask(target) => {
                    let reply = timeout(self.deadline, target.send_asking(command)).await;
                    return reply
                        .map_err(|_| StoreError::Timeout)?
                        .map_err(|error| target.convert_error(&error));
                }
            }
        }
        Err(StoreError::Unavailable(MIGRATING_ERROR.to_owned()))
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        let map = self.slot_map();
        let node_error =
            |node: &Arc<RedisNode>| Some(format!("{}: {}", node.display_name(), node.health().last_error()?));
        match map.unassigned_slots() {
            0 => map.nodes.values().find_map(node_error),
            _ if map.nodes.is_empty() => self.health.last_error().or_else(|| Some(NO_NODE_ERROR.to_owned())),
            count => Some(format!("{count} slots have no node")),
        }
    }

    pub(crate) fn outages(&self) -> u64 {
        let map = self.slot_map();
        self.health.outages()
            + map.past_outages
            + map.nodes.values().map(|node| node.health().outages()).sum::<u64>()
    }

    pub(crate) fn display_name(&self) -> String {
        display_seeds(&self.seeds)
    }

    /// Refreshes the slot map in the background until it is complete and all nodes are available.
    pub(crate) fn refresh_in_background(self: &Arc<Self>) {
        if self.is_refreshing.swap(true, Ordering::AcqRel) {
            return;
        }
        let cluster = Arc::downgrade(self);
        drop(tokio::spawn(async move {
            while let Some(cluster) = cluster.upgrade() {
                let is_healthy = cluster.try_reconnect().await && cluster.is_up();
                let weak = Arc::downgrade(&cluster);
                drop(cluster);
                tokio::time::sleep(REFRESH_INTERVAL).await;
                if is_healthy && let Some(cluster) = weak.upgrade() {
                    return cluster.is_refreshing.store(false, Ordering::Release);
                }
            }
        }));
    }

    /// Refreshes the slot map, and records and logs a failure. Returns whether the cluster is available.
    async fn try_reconnect(&self) -> bool {
        // At first the health is `Connecting`, so `connect` also inspects the nodes.
        if self.health.is_available() && self.refresh().await {
            return true;
        }
        match self.connect().await {
            Ok(()) => self.health.mark_available(),
            Err(cause) => drop(self.health.mark_unavailable(&cause)),
        }
        self.health.is_available()
    }

    fn is_up(&self) -> bool {
        self.slot_map().nodes.values().all(|node| node.health().is_available())
    }

    /// Fetches the slot map from the first node that has a complete one. Returns whether all slots have a node.
    async fn refresh(&self) -> bool {
        let _guard = self.refresh_lock.lock().await;
        let old = self.slot_map();
        let known = old.nodes.iter().filter(|(_, node)| node.health().is_available());
        let known = known.map(|(address, node)| (address.clone(), node.clone()));
        let seeds = self.seeds.iter().filter_map(|seed| {
            let address = slot_map::host_port(seed)?;
            let node = old.nodes.get(&address).cloned().or_else(|| self.create_node(seed.clone()).ok())?;
            Some((address, node))
        });
        let mut best: Option<SlotMap> = None;
        for (address, node) in known.chain(seeds) {
            let Some(map) = self.fetch_slot_map(&old, &address, &node).await else { continue };
            let missing = map.unassigned_slots();
            if best.as_ref().is_none_or(|best| missing < best.unassigned_slots()) {
                best = Some(map);
            }
            if missing == 0 {
                break;
            }
        }
        let Some(mut map) = best else { return false };
        let gone = old.nodes.iter().filter(|(address, _)| !map.nodes.contains_key(*address));
        gone.clone().for_each(|(_, node)| node.health().mark_replaced(&display_seeds(&self.seeds)));
        map.past_outages = old.past_outages + gone.map(|(_, node)| node.health().outages()).sum::<u64>();
        let mut connects = JoinSet::new();
        map.nodes.values().for_each(|node| drop(connects.spawn(connect_node(node.clone()))));
        connects.join_all().await;
        let is_complete = map.unassigned_slots() == 0;
        self.set_slot_map(map);
        is_complete
    }

    /// Fetches the slot map of one node.
    async fn fetch_slot_map(
        &self,
        old: &SlotMap,
        (own_host, _): &HostPort,
        node: &Arc<RedisNode>,
    ) -> Option<SlotMap> {
        if !node.is_connected() {
            timeout(NODE_TIMEOUT, node.connect()).await.ok()?.ok()?;
        }
        let slots = redis::cmd("CLUSTER").arg("SLOTS").to_owned();
        let reply = timeout(NODE_TIMEOUT, node.send(&slots)).await.ok()?.ok()?;
        let mut map = SlotMap::default();
        for mut range in slot_map::parse_slots(&reply)? {
            if range.primary.0.is_empty() {
                range.primary.0.clone_from(own_host);
            }
            let known = map.nodes.get(&range.primary).or_else(|| old.nodes.get(&range.primary)).cloned();
            let node = known.or_else(|| self.create_node_at(&range.primary))?;
            map.assign(&range, &node);
            map.nodes.insert(range.primary, node);
        }
        (!map.nodes.is_empty()).then_some(map)
    }

    /// Resolves a `MOVED` or `ASK` error; records any other error and returns it.
    async fn resolve_redirect(
        self: &Arc<Self>,
        node: &Arc<RedisNode>,
        error: &RedisError,
    ) -> Result<Redirect, StoreError> {
        let redirect: fn(_) -> _ = match error.kind() {
            ErrorKind::Server(ServerErrorKind::Ask) => Redirect::Ask,
            ErrorKind::Server(ServerErrorKind::Moved) => Redirect::Moved,
            _ => {
                self.refresh_in_background();
                let error = node.convert_error(error);
                node.record_result(Some(&error));
                return Err(error);
            }
        };
        if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) {
            self.refresh_in_background();
        }
        let unresolved = || StoreError::Unavailable(format!("cannot follow the redirect: {error}"));
        let (host, port) = error
            .redirect_node()
            .and_then(|(text, _)| slot_map::parse_redirect(text))
            .ok_or_else(unresolved)?;
        let host = match host.is_empty() {
            true => {
                self.slot_map().host_port_of(node).map(|(host, _)| host.clone()).ok_or_else(unresolved)?
            }
            false => host,
        };
        self.node_at((host, port)).await.map(redirect).ok_or_else(unresolved)
    }

    /// The node at an address. A node without slots is not in the map yet and is added.
    async fn node_at(self: &Arc<Self>, address: HostPort) -> Option<Arc<RedisNode>> {
        if let Some(node) = self.slot_map().nodes.get(&address) {
            return Some(node.clone());
        }
        let cluster = self.clone();
        // A task of its own, so that a cancelled caller does not abort the connection for the others.
        let task = tokio::spawn(async move {
            let _guard = cluster.refresh_lock.lock().await;
            let map = cluster.slot_map();
            if let Some(node) = map.nodes.get(&address) {
                return Some(node.clone());
            }
            let node = cluster.create_node_at(&address)?;
            connect_node(node.clone()).await;
            let mut map = SlotMap::clone(&map);
            map.nodes.insert(address, node.clone());
            cluster.set_slot_map(map);
            Some(node)
        });
        task.await.ok()?
    }

    pub(crate) fn node_for_key(self: &Arc<Self>, key: &str) -> Result<Arc<RedisNode>, StoreError> {
        let node = self.slot_map().node_for_key(key).cloned();
        node.ok_or_else(|| {
            self.refresh_in_background();
            let error = self.health.last_error();
            StoreError::Unavailable(error.unwrap_or_else(|| NO_NODE_ERROR.to_owned()))
        })
    }

    fn create_node_at(&self, address: &HostPort) -> Option<Arc<RedisNode>> {
        self.create_node(slot_map::with_host_port(self.seeds.first()?, address)).ok()
    }

    fn create_node(&self, info: ConnectionInfo) -> Result<Arc<RedisNode>, String> {
        let connector = Connector::for_server(info, &self.security).map_err(|error| error.to_string())?;
        Ok(RedisNode::new(self.key_names.clone(), connector, self.deadline, KeyPassing::Argv, &self.modes))
    }

    fn slot_map(&self) -> Arc<SlotMap> {
        self.slot_map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_slot_map(&self, map: SlotMap) {
        *self.slot_map.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
    }
}

/// Connects to a node. On failure it reconnects in the background.
async fn connect_node(node: Arc<RedisNode>) {
    if node.is_connected() || !node.health().is_available() {
        return;
    }
    let cause = match timeout(NODE_TIMEOUT, node.connect()).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => ConnectError::connection_failed(node.display_name(), &error),
        Err(_) => ConnectError::from_message(&format!("no reply within {NODE_TIMEOUT:?}")),
    };
    if node.health().mark_unavailable(&cause) {
        node.reconnect();
    }
}

const NO_NODE_ERROR: &str = "no node of the cluster serves the slot of the key";
const MIGRATING_ERROR: &str = "too many redirects: the slot of the key is migrating";

fn display_seeds(seeds: &[ConnectionInfo]) -> String {
    let seeds: Vec<_> = seeds.iter().map(|seed| seed.addr().to_string()).collect();
    seeds.join(",")
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({})", self.display_name())
    }
}
