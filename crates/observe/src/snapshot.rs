//! All numbers at one moment.

use super::{
    Changes, Observer, Scene,
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
    pub(crate) scene: Arc<Scene>,
    pub(crate) totals: Totals,
    pub(crate) reloads: Reloads,
    /// Each with how long it was away.
    pub(crate) stores: Vec<(StoreStatus, Micros)>,
    /// By the place of the rule.
    pub(crate) tables: Vec<Option<Table>>,
    pub(crate) upstreams: UpstreamReports,
    pub(crate) operator_bans: usize,
    pub(crate) denials: usize,
    pub(crate) watchers: usize,
    pub(crate) changes: Changes,
}

/// The table of a rule that is counted in memory.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    pub(crate) size: TableSize,
    /// Keys whose state is worth keeping; `None` where it would take long to count them.
    pub(crate) live: Option<u64>,
}

/// How often tables are looked through, and the largest that are.
const LOOK: Micros = Micros::from_secs(10);
const LARGEST: u64 = 16 << 20;

impl Observer {
    /// All numbers now; `None` before anything is in force.
    pub fn snapshot(&self) -> Option<Snapshot> {
        let (scene, totals) = self.totals();
        let scene = scene?;
        let now = self.clock.now();
        Some(Snapshot {
            now,
            uptime: now.since(self.started),
            totals,
            reloads: self.reloads(),
            stores: self.outages(),
            tables: scene.gate.views().map(|rule| self.table(rule, now)).collect(),
            upstreams: (scene.upstreams)(),
            operator_bans: self.bans.count(),
            denials: self.denials.len(),
            watchers: self.live.watchers(),
            changes: self.changes(),
            scene,
        })
    }

    fn table(&self, rule: RuleView<'_>, now: Micros) -> Option<Table> {
        let limiter = rule.limiter()?;
        let size = limiter.size()?;
        if size.bytes > LARGEST {
            return Some(Table { size, live: None });
        }
        let known = lock(&self.tables).get(rule.name()).copied();
        let live = match known {
            Some((looked, live)) if now.since(looked) < LOOK => live,
            _ => {
                let live = limiter.stats()?.live;
                lock(&self.tables).insert(rule.name().to_owned(), (now, live));
                live
            }
        };
        Some(Table { size, live: Some(live) })
    }
}

impl Snapshot {
    /// Requests that are with a server.
    pub(crate) fn in_flight(&self) -> u64 {
        self.upstreams.iter().flat_map(|(_, servers)| servers).map(|(_, report)| report.in_flight).sum()
    }
}
