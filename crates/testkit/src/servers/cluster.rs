//! A Redis cluster of six nodes.

use super::{
    Migration, RedisServer, RedisServerBuilder, RedisServerState, RespConnection, RespValue,
    builder::RedisRole,
    slot::{self, SLOT_COUNT},
    wait_until,
};
use std::iter;

/// Three primaries with a replica and a third of the slots each.
///
/// The nodes skip discovery: each starts with a configuration file that lists the others, as after a restart.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

const PRIMARY_COUNT: usize = 3;

/// The milliseconds after which a silent node is considered dead. On a busy machine a smaller value causes failovers.
const NODE_TIMEOUT: &str = "1500";

/// A range of slots and the port of its primary.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SlotOwner {
    first: u16,
    last: u16,
    port: u16,
}

impl RedisCluster {
    /// Starts nodes with default settings.
    pub fn start() -> Result<Self, String> {
        Self::start_with(&RedisServer::builder())
    }

    /// Starts nodes with these settings.
    pub fn start_with(node: &RedisServerBuilder) -> Result<Self, String> {
        let node = node
            .clone()
            .role(RedisRole::Node)
            .config("cluster-enabled", "yes")
            .config("cluster-node-timeout", NODE_TIMEOUT)
            .config("cluster-config-file", "nodes.conf");
        let nodes = iter::repeat_with(|| node.prepare()).take(2 * PRIMARY_COUNT).collect::<Result<_, _>>()?;
        let cluster = Self { nodes };
        for node in &cluster.nodes {
            node.append("nodes.conf", &cluster.nodes_conf(node))?;
            node.launch()?;
        }
        cluster.wait_until_ok()?;
        Ok(cluster)
    }

    /// The URL of a running node.
    pub fn url(&self) -> String {
        self.running_nodes().next().unwrap_or(&self.nodes[0]).url()
    }

    /// The URLs of all nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// All nodes; the first three were primaries at the start.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The slot of a key: that of its hash tag, which is the part in the first braces, or of the whole key.
    pub fn slot_of(key: impl AsRef<[u8]>) -> u16 {
        slot::slot_of(key.as_ref())
    }

    /// The primary of a slot, as a running node reports it.
    pub fn primary_of(&self, slot: u16) -> Result<&RedisServer, String> {
        let shares = fetch_slot_owners(&mut self.any_node()?.connect()?)?;
        self.owner(&shares, slot)
    }

    /// The primaries that do not have a slot: the possible targets of a migration.
    pub fn primaries_without(&self, slot: u16) -> Result<Vec<&RedisServer>, String> {
        let shares = fetch_slot_owners(&mut self.any_node()?.connect()?)?;
        let owner = self.owner(&shares, slot)?;
        let is_other = |node: &&RedisServer| {
            node.port() != owner.port() && shares.iter().any(|share| share.port == node.port())
        };
        Ok(self.nodes.iter().filter(is_other).collect())
    }

    /// Kills the primary of a slot, and returns it. Its replica is the primary when [`Self::wait_until_ok`] returns.
    pub fn kill_primary_of(&self, slot: u16) -> Result<&RedisServer, String> {
        let primary = self.primary_of(slot)?;
        primary.kill();
        Ok(primary)
    }

    /// Migrates a slot with all of its keys.
    pub fn migrate_slot(&self, slot: u16, to: &RedisServer) -> Result<(), String> {
        self.begin_migration(slot, to)?.finish()
    }

    /// Begins to migrate a slot: its node returns `ASK` for every key that it does not have.
    pub fn begin_migration<'a>(&'a self, slot: u16, to: &'a RedisServer) -> Result<Migration<'a>, String> {
        Migration::begin(self, slot, to)
    }

    /// Stops all nodes and starts them again. They keep the cluster configuration, and their keys only with persistence.
    pub fn restart_all(&self) -> Result<(), String> {
        self.nodes.iter().try_for_each(RedisServer::stop)?;
        self.nodes.iter().try_for_each(RedisServer::launch)?;
        self.wait_until_ok()
    }

    /// Waits until all running nodes report `ok`, agree on the slot map, and assign no slot to a dead node.
    pub fn wait_until_ok(&self) -> Result<(), String> {
        wait_until("the cluster is ok", || self.slot_owners().map(drop))
    }
}

impl RedisCluster {
    /// The slot map, if all running nodes agree on it and report `ok`.
    pub(super) fn slot_owners(&self) -> Result<Vec<SlotOwner>, String> {
        let mut agreed: Option<Vec<SlotOwner>> = None;
        for node in self.running_nodes() {
            let mut connection = node.connect()?;
            let problem = |what: &str| format!("{} {what}", node.address());
            if !reply_has_line(&mut connection, &["CLUSTER", "INFO"], "cluster_state:ok")? {
                return Err(problem("reports that the cluster is down"));
            }
            if reply_has_line(&mut connection, &["INFO", "replication"], "master_link_status:down")? {
                return Err(problem("has no link to its primary"));
            }
            let shares = fetch_slot_owners(&mut connection)?;
            if agreed.as_ref().is_some_and(|agreed| *agreed != shares) {
                return Err(problem("has another slot map"));
            }
            agreed = Some(shares);
        }
        let agreed = agreed.ok_or("no node is running")?;
        for share in &agreed {
            let owner = self.owner(&agreed, share.first)?;
            if owner.state() != RedisServerState::Running {
                return Err(format!("{} still has slots", owner.address()));
            }
        }
        Ok(agreed)
    }

    pub(super) fn owner(&self, shares: &[SlotOwner], slot: u16) -> Result<&RedisServer, String> {
        let share = shares.iter().find(|share| (share.first..=share.last).contains(&slot));
        let port = share.ok_or_else(|| format!("no node has slot {slot}"))?.port;
        let node = self.nodes.iter().find(|node| node.port() == port);
        node.ok_or_else(|| format!("port {port} is not a node of this cluster"))
    }

    fn running_nodes(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().filter(|node| node.state() == RedisServerState::Running)
    }

    fn any_node(&self) -> Result<&RedisServer, String> {
        self.running_nodes().next().ok_or_else(|| "no node is running".into())
    }

    /// The cluster configuration file of a node.
    fn nodes_conf(&self, own: &RedisServer) -> String {
        let mut text = String::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let myself = if node.port() == own.port() { "myself," } else { "" };
            let (id, address, bus) = (node.id(), node.address(), node.bus().unwrap_or_default());
            let role = match index {
                ..PRIMARY_COUNT => {
                    let (first, last) = slot_range(index);
                    format!("master - 0 0 {} connected {first}-{last}", index + 1)
                }
                _ => {
                    let primary = index - PRIMARY_COUNT;
                    format!("slave {} 0 0 {} connected", self.nodes[primary].id(), primary + 1)
                }
            };
            text += &format!("{id} {address}@{bus} {myself}{role}\n");
        }
        text + &format!("vars currentEpoch {PRIMARY_COUNT} lastVoteEpoch 0\n")
    }
}

fn slot_range(index: usize) -> (u16, u16) {
    let bound = |index: usize| usize::from(SLOT_COUNT) * index / PRIMARY_COUNT;
    (bound(index) as u16, bound(index + 1) as u16 - 1)
}

fn reply_has_line(connection: &mut RespConnection, words: &[&str], line: &str) -> Result<bool, String> {
    let answer = connection.command(words)?;
    Ok(answer.text().is_some_and(|text| text.lines().any(|reply_line| reply_line == line)))
}

fn fetch_slot_owners(connection: &mut RespConnection) -> Result<Vec<SlotOwner>, String> {
    let answer = connection.command(&["CLUSTER", "SLOTS"])?;
    let number = |value: &RespValue| u16::try_from(value.integer()?).ok();
    let share = |item: &RespValue| match item.items() {
        [first, last, primary, ..] => Some(SlotOwner {
            first: number(first)?,
            last: number(last)?,
            port: number(primary.items().get(1)?)?,
        }),
        _ => None,
    };
    let shares: Option<Vec<_>> = answer.items().iter().map(share).collect();
    let mut shares = shares.ok_or_else(|| format!("invalid CLUSTER SLOTS reply: {answer}"))?;
    shares.sort_unstable();
    Ok(shares)
}
