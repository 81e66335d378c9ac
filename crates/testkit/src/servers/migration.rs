//! The migration of a slot from one node to another.

use super::{RedisCluster, RedisServer, wait_until};

/// A slot in migration. Its keys move one by one, or all with [`Self::finish`].
///
/// ```text
///   key           not moved    moved    new
///   source node   replies      ASK      ASK
/// ```
#[derive(Debug)]
#[must_use = "the slot stays in migration until `finish`"]
pub struct Migration<'a> {
    cluster: &'a RedisCluster,
    slot: u16,
    source: &'a RedisServer,
    target: &'a RedisServer,
}

impl<'a> Migration<'a> {
    pub(super) fn begin(cluster: &'a RedisCluster, slot: u16, to: &'a RedisServer) -> Result<Self, String> {
        let from = cluster.primary_of(slot)?;
        let name = slot.to_string();
        to.command(&["CLUSTER", "SETSLOT", &name, "IMPORTING", &from.id()])?;
        from.command(&["CLUSTER", "SETSLOT", &name, "MIGRATING", &to.id()])?;
        Ok(Self { cluster, slot, source: from, target: to })
    }

    /// The source node.
    pub fn source(&self) -> &'a RedisServer {
        self.source
    }

    /// The target node.
    pub fn target(&self) -> &'a RedisServer {
        self.target
    }

    /// Moves one key.
    pub fn move_key(&self, key: &str) -> Result<(), String> {
        let (host, port) = (self.target.address().ip().to_string(), self.target.port().to_string());
        let mut words = vec!["MIGRATE", &host, &port, "", "0", "5000"];
        words.extend(self.target.password().iter().flat_map(|password| ["AUTH", password]));
        words.extend(["KEYS", key]);
        self.source.command(&words).map(drop)
    }

    /// Moves the remaining keys, and assigns the slot to the target. Returns when all nodes agree.
    pub fn finish(self) -> Result<(), String> {
        let slot = self.slot.to_string();
        loop {
            let keys = self.source.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"])?;
            if keys.items().is_empty() {
                break;
            }
            keys.items().iter().filter_map(|key| key.text()).try_for_each(|key| self.move_key(key))?;
        }

        // The target first, so that the slot always has a node.
        for node in [self.target, self.source] {
            node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &self.target.id()])?;
        }
        wait_until("the slot has moved", || {
            let owner = self.cluster.owner(&self.cluster.slot_owners()?, self.slot)?;
            if owner.port() == self.target.port() {
                Ok(())
            } else {
                Err(format!("{} still has it", owner.address()))
            }
        })
    }
}
