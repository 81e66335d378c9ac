//! All that is seen of one gateway.

use super::{
    ChangeAccess, ConfigSnapshot, DenialRecord, HistoryEntry, LiveFeed, OperatorBans, PolicyCounters,
    ring_buffer::RingBuffer,
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

/// All that is seen of one gateway. It outlives policies.
pub struct Observer {
    /// The clock of all that is seen.
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
    /// Snapshots for those who watch.
    pub live: LiveFeed,
    change_access: Mutex<ChangeAccess>,
}

/// What was counted under policies before.
#[derive(Default)]
struct PastCounters {
    /// Those in which somebody may still count.
    counters: Vec<Arc<PolicyCounters>>,
    /// Of rules that there still are.
    rules: BTreeMap<Arc<str>, RuleCounts>,
    totals: Totals,
}

/// How long each store was away.
#[derive(Default)]
struct Outages {
    checked_at: Option<Micros>,
    durations: BTreeMap<Option<String>, Micros>,
}

/// How it went with policies that were read again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reloads {
    pub(crate) applied: u64,
    pub(crate) rejected: u64,
    /// Why the last one was refused; `None` if it was not.
    pub(crate) error: Option<String>,
}

impl Observer {
    /// For limiters of these rules.
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
            clock,
        })
    }

    /// What is in force now; `None` before anything is.
    pub fn config(&self) -> Option<Arc<ConfigSnapshot>> {
        self.config.load_full()
    }

    /// The counts of a policy that comes into force.
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

    /// This is in force from now on.
    pub fn activate(&self, scene: ConfigSnapshot) {
        let before = self.config();
        let observe = &scene.policy.observe;
        if before.as_ref().is_some_and(|before| before.policy.observe.keys != observe.keys) {
            // What was kept in the other way is not shown in this one.
            self.denials.clear();
            self.history.clear();
        }
        self.denials.resize(observe.denials);
        self.history.resize(observe.history);
        lock(&self.tables).retain(|name, _| scene.counters.rule_index(name).is_some());
        let mut past = lock(&self.past);
        if let Some(before) = before.filter(|before| !Arc::ptr_eq(&before.counters, &scene.counters)) {
            past.counters.push(before.counters.clone());
        }
        past.merge_finished();
        past.rules.retain(|name, _| scene.counters.rule_index(name).is_some());
        // Under the lock: whoever adds up sees a tally once.
        self.config.store(Some(Arc::new(scene)));
    }

    /// What was counted since the start, by the places of the rules in force.
    pub(super) fn totals(&self) -> (Option<Arc<ConfigSnapshot>>, Totals) {
        let mut past = lock(&self.past);
        past.merge_finished();
        let Some(scene) = self.config() else { return (None, Totals::default()) };
        let mut sum = scene.counters.totals();
        sum.add_except_rules(&past.totals);
        let mut add = |name: &str, counts: &RuleCounts| {
            if let Some(sums) = scene.counters.rule_index(name).and_then(|place| sum.rules.get_mut(place)) {
                sums.add(counts);
            }
        };
        past.rules.iter().for_each(|(name, counts)| add(name, counts));
        let mut rest = Totals::default();
        for tally in &past.counters {
            let totals = tally.totals();
            tally.names().iter().zip(&totals.rules).for_each(|(name, counts)| add(name, counts));
            rest.add_except_rules(&totals);
        }
        sum.add_except_rules(&rest);
        (Some(scene), sum)
    }

    /// A policy was read again.
    pub fn record_reload(&self, error: Option<String>) {
        let mut reloads = lock(&self.reloads);
        match &error {
            None => reloads.applied += 1,
            Some(_) => reloads.rejected += 1,
        }
        reloads.error = error;
    }

    /// Whether operators may change something.
    pub fn set_change_access(&self, changes: ChangeAccess) {
        *lock(&self.change_access) = changes;
    }

    pub(super) fn change_access(&self) -> ChangeAccess {
        *lock(&self.change_access)
    }

    pub(super) fn reloads(&self) -> Reloads {
        lock(&self.reloads).clone()
    }

    /// Looks at what only time tells; to be called every second or so.
    pub fn tick(&self) {
        self.bans.remove_expired();
        self.update_outages();
        if let Some(snapshot) = (self.live.watchers() > 0).then(|| self.snapshot()).flatten() {
            self.live.publish(|| snapshot.to_json().to_string());
        }
    }

    /// All stores, and how long each was away.
    pub(super) fn update_outages(&self) -> Vec<(StoreStatus, Micros)> {
        let stores = self.rules.stores();
        let mut outages = lock(&self.outages);
        let now = self.clock.now();
        let since = outages.checked_at.replace(now).map_or(Micros::ZERO, |looked| now.since(looked));
        let known = std::mem::take(&mut outages.durations);
        for store in &stores {
            let away = known.get(&store.name).copied().unwrap_or_default();
            let more = if store.last_error.is_some() { since } else { Micros::ZERO };
            outages.durations.insert(store.name.clone(), away.plus(more));
        }
        let away = |store: &StoreStatus| outages.durations.get(&store.name).copied().unwrap_or_default();
        stores.into_iter().map(|store| (store.clone(), away(&store))).collect()
    }
}

impl PastCounters {
    /// Adds up what nobody counts in any more.
    fn merge_finished(&mut self) {
        let mut place = 0;
        while let Some(tally) = self.counters.get_mut(place) {
            if Arc::get_mut(tally).is_none() {
                place += 1;
                continue;
            }
            let tally = self.counters.swap_remove(place);
            let totals = tally.totals();
            for (name, counts) in tally.names().iter().zip(&totals.rules) {
                self.rules.entry(name.clone()).or_default().add(counts);
            }
            self.totals.add_except_rules(&totals);
        }
    }
}
