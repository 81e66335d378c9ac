//! All metrics and states at one time.

use super::{
    ChangeAccess, ConfigSnapshot, Observer,
    observer::Reloads,
    shard::{Totals, lock},
};
use crate::{CacheCounts, UpstreamReports};
use std::sync::Arc;
use tidegate_core::Micros;
use tidegate_limiter::TableSize;
use tidegate_policy::compile::RuleView;
use tidegate_rule::StoreStatus;

/// All metrics and states at one time.
pub struct Snapshot {
    /// The time of the snapshot.
    pub now: Micros,
    pub(crate) uptime: Micros,
    pub(crate) config: Arc<ConfigSnapshot>,
    pub(crate) totals: Totals,
    pub(crate) reloads: Reloads,
    /// Each with the total time that it was unavailable.
    pub(crate) stores: Vec<(StoreStatus, Micros)>,
    /// By the index of the rule.
    pub(crate) tables: Vec<Option<RuleTable>>,
    pub(crate) upstreams: UpstreamReports,
    /// Sent and lost.
    pub(crate) spans: Option<[u64; 2]>,
    pub(crate) cache: Option<CacheCounts>,
    pub(crate) operator_bans: usize,
    pub(crate) denials: usize,
    pub(crate) watchers: usize,
    pub(crate) change_access: ChangeAccess,
}

/// The key table of a rule with an in-memory store.
#[derive(Clone, Copy)]
pub(crate) struct RuleTable {
    pub(crate) size: TableSize,
    /// Keys with state that differs from that of a new key; `None` if the table is too large to count them.
    pub(crate) live_keys: Option<u64>,
}

/// How often tables are scanned, and the largest size of a scanned table.
const TABLE_SCAN_INTERVAL: Micros = Micros::from_secs(10);
const MAX_SCANNED_TABLE_SIZE: u64 = 16 << 20;

impl Observer {
    /// Takes a snapshot; `None` before a policy is in force.
    pub fn snapshot(&self) -> Option<Snapshot> {
        let (config, totals) = self.totals();
        let config = config?;
        let now = self.clock.now();
        Some(Snapshot {
            now,
            uptime: now.saturating_sub(self.started_at),
            totals,
            reloads: self.reloads(),
            stores: self.update_outages(),
            tables: config.gate.views().map(|rule| self.rule_table(rule, now)).collect(),
            upstreams: (config.upstreams)(),
            spans: config.spans.as_ref().map(|report| report()),
            cache: config.cache.as_ref().map(|report| report()),
            operator_bans: self.bans.count(),
            denials: self.denials.len(),
            watchers: self.live.watchers(),
            change_access: self.change_access(),
            config,
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
            Some((scanned_at, live)) if now.saturating_sub(scanned_at) < TABLE_SCAN_INTERVAL => live,
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
    /// Requests in flight to upstream servers.
    pub(crate) fn in_flight(&self) -> u64 {
        self.upstreams.iter().flat_map(|(_, servers)| servers).map(|(_, report)| report.in_flight).sum()
    }
}
