//! All numbers at one moment.

use super::{
    ChangeAccess, ConfigSnapshot, Observer,
    observer::Reloads,
    shard::{Totals, lock},
};
use crate::UpstreamReports;
use std::sync::Arc;
use tidegate_core::Micros;
use tidegate_limiter::TableSize;
use tidegate_policy::compile::RuleView;
use tidegate_rule::StoreStatus;

/// All numbers at one moment.
pub struct Snapshot {
    /// The moment.
    pub now: Micros,
    pub(crate) uptime: Micros,
    pub(crate) config: Arc<ConfigSnapshot>,
    pub(crate) totals: Totals,
    pub(crate) reloads: Reloads,
    /// Each with how long it was away.
    pub(crate) stores: Vec<(StoreStatus, Micros)>,
    /// By the place of the rule.
    pub(crate) tables: Vec<Option<RuleTable>>,
    pub(crate) upstreams: UpstreamReports,
    pub(crate) operator_bans: usize,
    pub(crate) denials: usize,
    pub(crate) watchers: usize,
    pub(crate) change_access: ChangeAccess,
}

/// The table of a rule that is counted in memory.
#[derive(Clone, Copy)]
pub(crate) struct RuleTable {
    pub(crate) size: TableSize,
    /// Keys whose state is worth keeping; `None` where it would take long to count them.
    pub(crate) live_keys: Option<u64>,
}

/// How often tables are looked through, and the largest that are.
const TABLE_SCAN_INTERVAL: Micros = Micros::from_secs(10);
const MAX_SCANNED_TABLE_SIZE: u64 = 16 << 20;

impl Observer {
    /// All numbers now; `None` before anything is in force.
    pub fn snapshot(&self) -> Option<Snapshot> {
        let (scene, totals) = self.totals();
        let scene = scene?;
        let now = self.clock.now();
        Some(Snapshot {
            now,
            uptime: now.since(self.started_at),
            totals,
            reloads: self.reloads(),
            stores: self.update_outages(),
            tables: scene.gate.views().map(|rule| self.rule_table(rule, now)).collect(),
            upstreams: (scene.upstreams)(),
            operator_bans: self.bans.count(),
            denials: self.denials.len(),
            watchers: self.live.watchers(),
            change_access: self.change_access(),
            config: scene,
        })
    }

    fn rule_table(&self, rule: RuleView<'_>, now: Micros) -> Option<RuleTable> {
        let limiter = rule.limiter()?;
        let size = limiter.size()?;
        if size.bytes > MAX_SCANNED_TABLE_SIZE {
            return Some(RuleTable { size, live_keys: None });
        }
        let known = lock(&self.tables).get(rule.name()).copied();
        let live = match known {
            Some((looked, live)) if now.since(looked) < TABLE_SCAN_INTERVAL => live,
            _ => {
                let live = limiter.stats()?.live;
                lock(&self.tables).insert(rule.name().to_owned(), (now, live));
                live
            }
        };
        Some(RuleTable { size, live_keys: Some(live) })
    }
}

impl Snapshot {
    /// Requests that are with a server.
    pub(crate) fn in_flight(&self) -> u64 {
        self.upstreams.iter().flat_map(|(_, servers)| servers).map(|(_, report)| report.in_flight).sum()
    }
}
