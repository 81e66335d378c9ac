//! All that is seen of one gateway.

use super::{
    Changes, Denial, HistoryEntry, Live, OperatorBans, Scene, Tally,
    ring::Ring,
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
    pub started: Micros,
    scene: ArcSwapOption<Scene>,
    pub(super) rules: Rules,
    past: Mutex<Past>,
    /// The newest denials.
    pub denials: Ring<Denial>,
    /// The newest requests.
    pub history: Ring<HistoryEntry>,
    /// Bans by operators.
    pub bans: Arc<OperatorBans>,
    outages: Mutex<Outages>,
    pub(super) tables: Mutex<HashMap<String, (Micros, u64)>>,
    reloads: Mutex<Reloads>,
    /// Snapshots for those who watch.
    pub live: Live,
    changes: Mutex<Changes>,
}

/// What was counted under policies before.
#[derive(Default)]
struct Past {
    /// Those in which somebody may still count.
    tallies: Vec<Arc<Tally>>,
    /// Of rules that there still are.
    rules: BTreeMap<Arc<str>, RuleCounts>,
    rest: Totals,
}

/// How long each store was away.
#[derive(Default)]
struct Outages {
    looked: Option<Micros>,
    away: BTreeMap<Option<String>, Micros>,
}

/// How it went with policies that were read again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reloads {
    pub(crate) applied: u64,
    pub(crate) refused: u64,
    /// Why the last one was refused; `None` if it was not.
    pub(crate) error: Option<String>,
}

impl Observer {
    /// For limiters of these rules.
    pub fn new(rules: Rules, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            started: clock.now(),
            scene: ArcSwapOption::empty(),
            rules,
            past: Mutex::default(),
            denials: Ring::default(),
            history: Ring::default(),
            bans: Arc::new(OperatorBans::new(clock.clone())),
            outages: Mutex::default(),
            tables: Mutex::default(),
            reloads: Mutex::default(),
            live: Live::default(),
            changes: Mutex::new(Changes::Never),
            clock,
        })
    }

    /// What is in force now; `None` before anything is.
    pub fn scene(&self) -> Option<Arc<Scene>> {
        self.scene.load_full()
    }

    /// The counts of a policy that comes into force.
    pub(crate) fn tally<'a>(&self, names: impl Iterator<Item = &'a str>, observe: &Observe) -> Arc<Tally> {
        let before = self.scene();
        let is_same = |before: &&Arc<Scene>| before.policy.observe.keys == observe.keys;
        let before = before.as_ref().filter(is_same).map(|before| &*before.tally);
        Tally::new(names, self.clock.clone(), before)
    }

    /// This is in force from now on.
    pub fn show(&self, scene: Scene) {
        let before = self.scene();
        let observe = &scene.policy.observe;
        if before.as_ref().is_some_and(|before| before.policy.observe.keys != observe.keys) {
            // What was kept in the other way is not shown in this one.
            self.denials.clear();
            self.history.clear();
        }
        self.denials.resize(observe.denials);
        self.history.resize(observe.history);
        lock(&self.tables).retain(|name, _| scene.tally.place_of(name).is_some());
        let mut past = lock(&self.past);
        if let Some(before) = before.filter(|before| !Arc::ptr_eq(&before.tally, &scene.tally)) {
            past.tallies.push(before.tally.clone());
        }
        past.fold();
        past.rules.retain(|name, _| scene.tally.place_of(name).is_some());
        // Under the lock: whoever adds up sees a tally once.
        self.scene.store(Some(Arc::new(scene)));
    }

    /// What was counted since the start, by the places of the rules in force.
    pub(super) fn totals(&self) -> (Option<Arc<Scene>>, Totals) {
        let mut past = lock(&self.past);
        past.fold();
        let Some(scene) = self.scene() else { return (None, Totals::default()) };
        let mut sum = scene.tally.totals();
        sum.add_all_but_rules(&past.rest);
        let mut add = |name: &str, counts: &RuleCounts| {
            if let Some(sums) = scene.tally.place_of(name).and_then(|place| sum.rules.get_mut(place)) {
                sums.add(counts);
            }
        };
        past.rules.iter().for_each(|(name, counts)| add(name, counts));
        let mut rest = Totals::default();
        for tally in &past.tallies {
            let totals = tally.totals();
            tally.names().iter().zip(&totals.rules).for_each(|(name, counts)| add(name, counts));
            rest.add_all_but_rules(&totals);
        }
        sum.add_all_but_rules(&rest);
        (Some(scene), sum)
    }

    /// A policy was read again.
    pub fn reloaded(&self, error: Option<String>) {
        let mut reloads = lock(&self.reloads);
        match &error {
            None => reloads.applied += 1,
            Some(_) => reloads.refused += 1,
        }
        reloads.error = error;
    }

    /// Whether operators may change something.
    pub fn takes_changes(&self, changes: Changes) {
        *lock(&self.changes) = changes;
    }

    pub(super) fn changes(&self) -> Changes {
        *lock(&self.changes)
    }

    pub(super) fn reloads(&self) -> Reloads {
        lock(&self.reloads).clone()
    }

    /// Looks at what only time tells; to be called every second or so.
    pub fn follow_time(&self) {
        self.bans.follow_time();
        self.outages();
        if let Some(snapshot) = (self.live.watchers() > 0).then(|| self.snapshot()).flatten() {
            self.live.publish(|| snapshot.json().to_string());
        }
    }

    /// All stores, and how long each was away.
    pub(super) fn outages(&self) -> Vec<(StoreStatus, Micros)> {
        let stores = self.rules.stores();
        let mut outages = lock(&self.outages);
        let now = self.clock.now();
        let since = outages.looked.replace(now).map_or(Micros::ZERO, |looked| now.since(looked));
        let known = std::mem::take(&mut outages.away);
        for store in &stores {
            let away = known.get(&store.name).copied().unwrap_or_default();
            let more = if store.last_error.is_some() { since } else { Micros::ZERO };
            outages.away.insert(store.name.clone(), away.plus(more));
        }
        let away = |store: &StoreStatus| outages.away.get(&store.name).copied().unwrap_or_default();
        stores.into_iter().map(|store| (store.clone(), away(&store))).collect()
    }
}

impl Past {
    /// Adds up what nobody counts in any more.
    fn fold(&mut self) {
        let mut place = 0;
        while let Some(tally) = self.tallies.get_mut(place) {
            if Arc::get_mut(tally).is_none() {
                place += 1;
                continue;
            }
            let tally = self.tallies.swap_remove(place);
            let totals = tally.totals();
            for (name, counts) in tally.names().iter().zip(&totals.rules) {
                self.rules.entry(name.clone()).or_default().add(counts);
            }
            self.rest.add_all_but_rules(&totals);
        }
    }
}
