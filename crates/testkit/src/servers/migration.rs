//! A slot on its way from one node to another.

use super::{RedisCluster, RedisServer, wait_until};

/// A slot that two nodes share for a while. Its keys move one by one, or all with [`Self::finish`].
///
/// ```text
///   a key that   is still there    has moved    is new
///   its node     answers           ASK          ASK
/// ```
#[derive(Debug)]
#[must_use = "the slot stays between two nodes until `finish`"]
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

    /// The node that the slot leaves.
    pub fn source(&self) -> &'a RedisServer {
        self.source
    }

    /// The node that it goes to.
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

    /// Moves all keys that are left, and gives the slot to its new node. Returns when all nodes know.
    pub fn finish(self) -> Result<(), String> {
        let slot = self.slot.to_string();
        loop {
            let keys = self.source.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"])?;
            if keys.items().is_empty() {
                break;
            }
            keys.items().iter().filter_map(|key| key.text()).try_for_each(|key| self.move_key(key))?;
        }

        // First the one that gains it, so that the slot is never without a node.
        for node in [self.target, self.source] {
            node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &self.target.id()])?;
        }
        wait_until("the slot has moved", || {
            let owner = self.cluster.owner(&self.cluster.slot_owners()?, self.slot)?;
            if owner.port() == self.target.port() {
                Ok(())
            } else {
                Err(format!("{} has it", owner.address()))
            }
        })
    }
}
