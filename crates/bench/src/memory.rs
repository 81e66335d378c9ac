//! What keys cost in memory. Each measurement is made in a process of its own: this program, started again.

use crate::{
    BenchResult, keys,
    peers::{self, ClockKind, Peer, PeerQuota, PeerSetup, QuotaPeriod, REFERENCE, TIDEGATE},
    report::{self, CaseReport},
};
use std::{env, process::Command, slice};
use tidegate_bench::machine::resident_memory;

/// The cases of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryCase {
    /// Resident memory per key that is counted on its own.
    BytesPerKey,
    /// Resident memory after a flood of keys, over that before.
    Flood,
}

/// Keys that are live at a time, and the bound that Tidegate is given.
const KEY_COUNT: u32 = 1_000_000;
/// Keys that come on top.
const FLOOD_KEY_COUNT: u32 = 10_000_000;
/// Fresh processes per competitor, interleaved.
const RUNS: usize = 3;

impl MemoryCase {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::BytesPerKey, Self::Flood];

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BytesPerKey => "bytes-per-key",
            Self::Flood => "flood",
        }
    }

    /// The same in words.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::BytesPerKey => "resident bytes per live key, 1 M String keys",
            Self::Flood => "resident memory after 10 M new keys over a bound of 1 M, over that before",
        }
    }

    /// The value that it should not exceed.
    pub(crate) fn at_most(self) -> f64 {
        match self {
            Self::BytesPerKey => 32.0,
            Self::Flood => 1.05,
        }
    }

    /// Runs it, in processes of its own.
    pub(crate) fn run(self) -> BenchResult<CaseReport> {
        match self {
            Self::BytesPerKey => self.bytes_per_key(),
            Self::Flood => self.flood(),
        }
    }

    /// One measurement; what it prints is for [`measure_in_child`].
    pub(crate) fn measure_in_process(self, name: &str) -> BenchResult<()> {
        match self {
            Self::BytesPerKey => {
                let FillResult { bytes, overflowed: crowded_out } = fill(name)?;
                println!("{bytes} {crowded_out}");
            }
            Self::Flood => {
                let FloodResult { before, after, unlimited_keys: escaped } = flood(name)?;
                println!("{before} {after} {escaped}");
            }
        }
        Ok(())
    }

    fn bytes_per_key(self) -> BenchResult<CaseReport> {
        let entries = peers::keyed_peers::<String>();
        let mut samples: Vec<_> = entries.iter().map(|entry| (entry.name, Vec::new())).collect();
        let mut notes = vec![format!("{RUNS} fresh processes each, {KEY_COUNT} keys, all of them live")];
        let mut crowded_us = 0;
        for _ in 0..RUNS {
            for (name, samples) in &mut samples {
                let [bytes, crowded] = measure_in_child(self, name)?;
                samples.push(bytes as f64 / f64::from(KEY_COUNT));
                if crowded > 0 {
                    notes.push(format!("{name}: {crowded} of {KEY_COUNT} keys found no room of their own"));
                }
                crowded_us += if *name == TIDEGATE { crowded } else { 0 };
            }
        }
        // A key that is not counted on its own costs nothing, and is worth nothing.
        Ok(self.report("bytes", &samples, crowded_us, notes))
    }

    fn flood(self) -> BenchResult<CaseReport> {
        let (mut samples, mut notes) = (Vec::new(), Vec::new());
        let mut escaped_us = 0;
        for name in [TIDEGATE, REFERENCE] {
            let [before, after, escaped] = measure_in_child(self, name)?;
            let mib = |bytes: u64| bytes >> 20;
            notes.push(format!(
                "{name}: {} MiB before, {} MiB after; {escaped} of {KEY_COUNT} limited keys were allowed afterwards",
                mib(before),
                mib(after)
            ));
            samples.push((name, vec![after as f64 / before as f64]));
            escaped_us += if name == TIDEGATE { escaped } else { 0 };
        }
        Ok(self.report("times", &samples, escaped_us, notes))
    }

    /// The value is Tidegate's own figure, or beyond any target when it failed a key.
    fn report(
        self,
        unit: &'static str,
        samples: &[(&str, Vec<f64>)],
        failed_keys: u64,
        notes: Vec<String>,
    ) -> CaseReport {
        let rows = report::rows(samples);
        let own = rows.iter().find(|row| row.name == TIDEGATE).map_or(f64::NAN, |row| row.quartiles.median);
        let value = if failed_keys == 0 { own } else { f64::INFINITY };
        CaseReport {
            name: self.name().to_owned(),
            about: self.about().to_owned(),
            table: "Memory".to_owned(),
            unit,
            rows,
            value,
            at_most: Some(self.at_most()),
            notes,
            disturbance: None,
        }
    }
}

/// Starts this program again for one measurement of `N` numbers.
fn measure_in_child<const N: usize>(case: MemoryCase, name: &str) -> BenchResult<[u64; N]> {
    let output = Command::new(env::current_exe()?).args(["measure", case.name(), name]).output()?;
    if !output.status.success() {
        return Err(format!("{} of {name}: {}", case.name(), String::from_utf8_lossy(&output.stderr)).into());
    }
    let text = String::from_utf8(output.stdout)?;
    let numbers: Vec<u64> = text.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>()?;
    Ok(numbers.try_into().map_err(|_| format!("{} of {name} text `{}`", case.name(), text.trim()))?)
}

struct FillResult {
    bytes: u64,
    overflowed: u64,
}

/// What a limiter takes for a million keys, its own fixed part included.
fn fill(name: &str) -> BenchResult<FillResult> {
    let before = resident_memory()?;
    let peer = create_peer(name, 10)?;
    check_keys(peer.as_ref(), 0, KEY_COUNT);
    let after = resident_memory()?;
    Ok(FillResult { bytes: after.saturating_sub(before), overflowed: peer.overflowed() })
}

struct FloodResult {
    before: u64,
    after: u64,
    unlimited_keys: u64,
}

/// Fills a limiter with keys that have used up their quota, then floods it, then asks for the limited keys again.
fn flood(name: &str) -> BenchResult<FloodResult> {
    let peer = create_peer(name, 1)?;
    check_keys(peer.as_ref(), 0, KEY_COUNT);
    if check_keys(peer.as_ref(), 0, KEY_COUNT) > 0 {
        return Err("a key was not limited before the flood".into());
    }
    let before = resident_memory()?;
    check_keys(peer.as_ref(), KEY_COUNT, KEY_COUNT + FLOOD_KEY_COUNT);
    let after = resident_memory()?;
    Ok(FloodResult { before, after, unlimited_keys: check_keys(peer.as_ref(), 0, KEY_COUNT) })
}

fn create_peer(name: &str, burst: u32) -> BenchResult<Box<dyn Peer<String>>> {
    let setup = PeerSetup {
        keys: KEY_COUNT,
        quota: PeerQuota { tokens: 1, unit: QuotaPeriod::Hour, burst },
        clock: ClockKind::Exact,
    };
    let entry = peers::keyed_peers().into_iter().find(|entry| entry.name == name);
    (entry.ok_or_else(|| format!("no peer is called {name}"))?.make)(&setup)
}

/// Asks once for each key from `from` to `to`, and counts the allowed ones. Keys are written into one buffer: what
/// remains in memory is what the limiter keeps.
fn check_keys(peer: &dyn Peer<String>, from: u32, to: u32) -> u64 {
    let mut key = String::with_capacity(32);
    let mut allowed = 0;
    for place in from..to {
        key.clear();
        keys::write_user_key(&mut key, place);
        allowed += peer.decide_all(slice::from_ref(&key), &[place]);
    }
    allowed
}
