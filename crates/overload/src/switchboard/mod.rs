//! Features that are turned off by hand or by load, and come back in order.

mod switches;

pub use switches::{Lever, Switch, Switches};

use crate::{
    LoadLevel,
    load::{Follower, Load, LoadMonitor},
};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tidegate_core::{Micros, SettingError};
use tidegate_limiter::sync::{Mutex, lock};

/// Named features, each on or off. Clones are the same board.
///
/// ```
/// use std::time::Duration;
/// use tidegate_overload::{LoadLevel, Switch, Switchboard};
///
/// // The most important first.
/// let board = Switchboard::new(
///     [Switch::off_at("search", LoadLevel::Critical), Switch::off_at("similar", LoadLevel::Rejected)],
///     Duration::from_secs(10),
/// )?;
/// let similar = board.feature("similar")?; // once; asking it is one atomic load
/// assert!(similar.is_on());
/// board.turn_off("similar")?;
/// assert!(!similar.is_on());
/// board.automatic("similar")?;
/// assert!(similar.is_on());
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone)]
pub struct Switchboard {
    board: Arc<Board>,
}

/// One feature of a [`Switchboard`], for the request path.
#[derive(Clone, Debug)]
pub struct Feature {
    name: Arc<str>,
    is_on: Arc<AtomicBool>,
}

impl Feature {
    /// Whether it is on: one atomic load.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }
}

struct Board {
    switches: Mutex<Switches>,
    /// In the order of the switches.
    features: Box<[Feature]>,
}

impl Switchboard {
    /// Features from the most important to the least, all on, and the least time between two that come back.
    pub fn new(switches: impl IntoIterator<Item = Switch>, pause: Duration) -> Result<Self, SettingError> {
        let switches = Switches::new(switches, Micros::from(pause))?;
        let features = switches
            .iter()
            .map(|(name, _, is_on)| Feature { name: name.into(), is_on: Arc::new(AtomicBool::new(is_on)) });
        let features = features.collect();
        Ok(Self { board: Arc::new(Board { switches: Mutex::new(switches), features }) })
    }

    /// Follows the load that `monitor` sees, for as long as both live.
    pub fn follow(&self, monitor: &LoadMonitor) {
        monitor.tell(&self.board);
    }

    /// Takes in a level of load, for those without a monitor.
    pub fn observe(&self, now: Micros, level: LoadLevel) {
        self.board.change(|switches| switches.observe(now, level));
    }

    /// A feature, to be asked at every request.
    pub fn feature(&self, name: &str) -> Result<Feature, SettingError> {
        let place = lock(&self.board.switches).place(name)?;
        // Every place has a feature.
        let feature = self.board.features.get(place).cloned();
        feature.ok_or_else(|| SettingError::new(format!("no feature `{name}`"), "give it a switch"))
    }

    /// Turns a feature on, whatever the load.
    pub fn turn_on(&self, name: &str) -> Result<(), SettingError> {
        self.board.change(|switches| switches.set(name, Lever::On))
    }

    /// Turns a feature off, whatever the load.
    pub fn turn_off(&self, name: &str) -> Result<(), SettingError> {
        self.board.change(|switches| switches.set(name, Lever::Off))
    }

    /// Leaves a feature to the load again.
    pub fn automatic(&self, name: &str) -> Result<(), SettingError> {
        self.board.change(|switches| switches.set(name, Lever::Automatic))
    }

    /// Each feature in order, and what the hand says of it; for operators.
    pub fn list(&self) -> Vec<(Feature, Lever)> {
        let switches = lock(&self.board.switches);
        let levers = switches.iter().map(|(_, lever, _)| lever);
        self.board.features.iter().cloned().zip(levers).collect()
    }
}

impl fmt::Debug for Switchboard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.board.features.iter().map(|it| (it.name(), it.is_on()))).finish()
    }
}

impl Board {
    fn change<T>(&self, change: impl FnOnce(&mut Switches) -> T) -> T {
        let mut switches = lock(&self.switches);
        let end = change(&mut switches);
        // Shown before the lock is given back, so that an older change never overwrites a newer one.
        for (feature, (_, _, is_on)) in self.features.iter().zip(switches.iter()) {
            feature.is_on.store(is_on, Ordering::Relaxed);
        }
        end
    }
}

impl Follower for Board {
    fn follow(&self, now: Micros, load: Load) {
        self.change(|switches| switches.observe(now, load.level));
    }
}
