//! The observer of one gateway: counters, denials, history, bans and the live feed.

use super::{
    ChangeAccess, ConfigSnapshot, DenialRecord, HistoryEntry, LiveFeed, OperatorBans, PolicyCounters,
    ring_buffer::RingBuffer,
    series::SeriesBuffer,
    shard::{RuleCounts, Totals, lock},
};
use arc_swap::ArcSwapOption;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
};
use tidegate_core::Micros;
use tidegate_limiter::Clock;
use tidegate_policy::model::Observe;
use tidegate_rule::{Rules, StoreStatus};

/// The counters, denials, history and bans of one gateway. It outlives policies.
pub struct Observer {
    /// The clock of all timestamps.
    pub clock: Clock,
    /// When the process started.
    pub started_at: Micros,
    config: ArcSwapOption<ConfigSnapshot>,
    pub(super) rules: Rules,
    past: Mutex<PastCounters>,
    /// The newest denials.
    pub denials: RingBuffer<DenialRecord>,
    /// The newest requests.
    pub history: RingBuffer<HistoryEntry>,
    /// Bans by operators.
    pub bans: Arc<OperatorBans>,
    outages: Mutex<Outages>,
    pub(super) tables: Mutex<HashMap<String, (Micros, u64)>>,
    reloads: Mutex<Reloads>,
    /// Snapshots for the live stream.
    pub live: LiveFeed,
    change_access: Mutex<ChangeAccess>,
    pub(super) series: SeriesBuffer,
}

/// The counters of previous policies.
#[derive(Default)]
struct PastCounters {
    /// Counters that a request may still increment.
    counters: Vec<Arc<PolicyCounters>>,
    /// Sums by rule, of rules that still exist.
    rules: BTreeMap<Arc<str>, RuleCounts>,
    totals: Totals,
}

/// The total outage of each store.
#[derive(Default)]
struct Outages {
    checked_at: Option<Micros>,
    durations: BTreeMap<Option<String>, Micros>,
}

/// The results of policy reloads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reloads {
    pub(crate) applied: u64,
    pub(crate) rejected: u64,
    /// The error of the last reload; `None` if it was applied.
    pub(crate) error: Option<String>,
}

impl Observer {
    /// An observer of these rules.
    pub fn new(rules: Rules, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            started_at: clock.now(),
            config: ArcSwapOption::empty(),
            rules,
            past: Mutex::default(),
            denials: RingBuffer::default(),
            history: RingBuffer::default(),
            bans: Arc::new(OperatorBans::new(clock.clone())),
            outages: Mutex::default(),
            tables: Mutex::default(),
            reloads: Mutex::default(),
            live: LiveFeed::default(),
            change_access: Mutex::new(ChangeAccess::Disabled),
            series: SeriesBuffer::default(),
            clock,
        })
    }

    /// The configuration in force; `None` before the first one.
    pub fn config(&self) -> Option<Arc<ConfigSnapshot>> {
        self.config.load_full()
    }

    /// Creates the counters of a policy that is about to be in force.
    pub(crate) fn new_counters<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
        observe: &Observe,
    ) -> Arc<PolicyCounters> {
        let before = self.config();
        let is_same = |before: &&Arc<ConfigSnapshot>| before.policy.observe.keys == observe.keys;
        let before = before.as_ref().filter(is_same).map(|before| &*before.counters);
        PolicyCounters::new(names, self.clock.clone(), before)
    }

    /// Puts a configuration in force.
    pub fn activate(&self, config: ConfigSnapshot) {
        let before = self.config();
        let observe = &config.policy.observe;
        if before.as_ref().is_some_and(|before| before.policy.observe.keys != observe.keys) {
            // Records with the previous display of keys must not be shown.
            self.denials.clear();
            self.history.clear();
        }
        self.denials.resize(observe.denials);
        self.history.resize(observe.history);
        lock(&self.tables).retain(|name, _| config.counters.rule_index(name).is_some());
        self.retain_series(&config);
        let mut past = lock(&self.past);
        if let Some(before) = before.filter(|before| !Arc::ptr_eq(&before.counters, &config.counters)) {
            past.counters.push(before.counters.clone());
        }
        past.merge_finished();
        past.rules.retain(|name, _| config.counters.rule_index(name).is_some());
        // Under the lock, so that a sum includes the counters of each policy exactly once.
        self.config.store(Some(Arc::new(config)));
    }

    /// The sums since the start, by the indexes of the rules in force.
    pub(super) fn totals(&self) -> (Option<Arc<ConfigSnapshot>>, Totals) {
        let mut past = lock(&self.past);
        past.merge_finished();
        let Some(config) = self.config() else { return (None, Totals::default()) };
        let mut sum = config.counters.totals();
        sum.add_except_rules(&past.totals);
        let mut add = |name: &str, counts: &RuleCounts| {
            if let Some(sums) = config.counters.rule_index(name).and_then(|index| sum.rules.get_mut(index)) {
                sums.add(counts);
            }
        };
        past.rules.iter().for_each(|(name, counts)| add(name, counts));
        let mut past_totals = Totals::default();
        for counters in &past.counters {
            let totals = counters.totals();
            counters.names().iter().zip(&totals.rules).for_each(|(name, counts)| add(name, counts));
            past_totals.add_except_rules(&totals);
        }
        sum.add_except_rules(&past_totals);
        (Some(config), sum)
    }

    /// Records the result of a policy reload.
    pub fn record_reload(&self, error: Option<String>) {
        let mut reloads = lock(&self.reloads);
        match &error {
            None => reloads.applied += 1,
            Some(_) => reloads.rejected += 1,
        }
        reloads.error = error;
    }

    /// Sets which callers may change something.
    pub fn set_change_access(&self, access: ChangeAccess) {
        *lock(&self.change_access) = access;
    }

    pub(super) fn change_access(&self) -> ChangeAccess {
        *lock(&self.change_access)
    }

    pub(super) fn reloads(&self) -> Reloads {
        lock(&self.reloads).clone()
    }

    /// Updates everything that depends on time; call it about once per second.
    pub fn tick(&self) {
        self.bans.remove_expired();
        self.update_outages();
        self.sample_series();
        if let Some(snapshot) = (self.live.watchers() > 0).then(|| self.snapshot()).flatten() {
            self.live.publish(|| snapshot.to_json().to_string());
        }
    }

    /// All stores, each with the total time that it was unavailable.
    pub(super) fn update_outages(&self) -> Vec<(StoreStatus, Micros)> {
        let stores = self.rules.stores();
        let mut outages = lock(&self.outages);
        let now = self.clock.now();
        let elapsed =
            outages.checked_at.replace(now).map_or(Micros::ZERO, |checked_at| now.saturating_sub(checked_at));
        let previous = std::mem::take(&mut outages.durations);
        for store in &stores {
            let outage = previous.get(&store.name).copied().unwrap_or_default();
            let added = if store.last_error.is_some() { elapsed } else { Micros::ZERO };
            outages.durations.insert(store.name.clone(), outage.saturating_add(added));
        }
        let outage = |store: &StoreStatus| outages.durations.get(&store.name).copied().unwrap_or_default();
        stores.into_iter().map(|store| (store.clone(), outage(&store))).collect()
    }
}

impl PastCounters {
    /// Sums the counters that no request can increment, and drops them.
    fn merge_finished(&mut self) {
        let mut index = 0;
        while let Some(counters) = self.counters.get_mut(index) {
            if Arc::get_mut(counters).is_none() {
                index += 1;
                continue;
            }
            let counters = self.counters.swap_remove(index);
            let totals = counters.totals();
            for (name, counts) in counters.names().iter().zip(&totals.rules) {
                self.rules.entry(name.clone()).or_default().add(counts);
            }
            self.totals.add_except_rules(&totals);
        }
    }
}
