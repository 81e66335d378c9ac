//! The memory per key. Each measurement runs in a child process of this program.

use crate::{
    BenchResult, keys,
    peers::{self, ClockKind, Peer, PeerQuota, PeerSetup, QuotaPeriod, REFERENCE, TIDEGATE},
    report::{self, CaseReport},
};
use std::{env, process::Command, slice};
use tidegate_bench::machine::resident_memory;

/// The memory cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryCase {
    /// Resident memory per key with its own state.
    BytesPerKey,
    /// Resident memory after a flood of keys, over that before.
    Flood,
}

/// The number of live keys, and Tidegate's capacity.
const KEY_COUNT: u32 = 1_000_000;
/// The number of additional keys of the flood.
const FLOOD_KEY_COUNT: u32 = 10_000_000;
/// New processes per competitor, interleaved.
const RUNS: usize = 3;

impl MemoryCase {
    /// All cases.
    pub(crate) const ALL: [Self; 2] = [Self::BytesPerKey, Self::Flood];

    /// The name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BytesPerKey => "bytes-per-key",
            Self::Flood => "flood",
        }
    }

    /// The description.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::BytesPerKey => "resident bytes per live key, 1 M String keys",
            Self::Flood => "resident memory after 10 M new keys over a bound of 1 M, over that before",
        }
    }

    /// The target of its value.
    pub(crate) fn at_most(self) -> f64 {
        match self {
            Self::BytesPerKey => 32.0,
            Self::Flood => 1.05,
        }
    }

    /// Runs the case in child processes.
    pub(crate) fn run(self) -> BenchResult<CaseReport> {
        match self {
            Self::BytesPerKey => self.bytes_per_key(),
            Self::Flood => self.flood(),
        }
    }

    /// Measures once and prints the numbers, which [`measure_in_child`] parses.
    pub(crate) fn measure_in_process(self, name: &str) -> BenchResult<()> {
        match self {
            Self::BytesPerKey => {
                let FillResult { bytes, overflowed } = fill(name)?;
                println!("{bytes} {overflowed}");
            }
            Self::Flood => {
                let FloodResult { before, after, unlimited_keys } = flood(name)?;
                println!("{before} {after} {unlimited_keys}");
            }
        }
        Ok(())
    }

    fn bytes_per_key(self) -> BenchResult<CaseReport> {
        let entries = peers::keyed_peers::<String>();
        let mut samples: Vec<_> = entries.iter().map(|entry| (entry.name, Vec::new())).collect();
        let mut notes = vec![format!("{RUNS} new processes each, {KEY_COUNT} keys, all of them live")];
        let mut own_overflowed = 0;
        for _ in 0..RUNS {
            for (name, samples) in &mut samples {
                let [bytes, overflowed] = measure_in_child(self, name)?;
                samples.push(bytes as f64 / f64::from(KEY_COUNT));
                if overflowed > 0 {
                    notes
                        .push(format!("{name}: {overflowed} of {KEY_COUNT} keys have no state of their own"));
                }
                own_overflowed += if *name == TIDEGATE { overflowed } else { 0 };
            }
        }
        // A key without its own state needs no memory, so the figure would be meaningless.
        Ok(self.report("bytes", &samples, own_overflowed, notes))
    }

    fn flood(self) -> BenchResult<CaseReport> {
        let mut samples = [TIDEGATE, REFERENCE].map(|name| (name, Vec::new()));
        let mut notes = Vec::new();
        let mut own_unlimited = 0;
        for _ in 0..RUNS {
            for (name, samples) in &mut samples {
                let [before, after, unlimited] = measure_in_child(self, name)?;
                let mib = |bytes: u64| bytes >> 20;
                notes.push(format!(
                    "{name}: {} MiB before, {} MiB after; {unlimited} of {KEY_COUNT} limited keys were allowed afterwards",
                    mib(before),
                    mib(after)
                ));
                samples.push(after as f64 / before as f64);
                own_unlimited += if *name == TIDEGATE { unlimited } else { 0 };
            }
        }
        Ok(self.report("times", &samples, own_unlimited, notes))
    }

    /// Builds the report. The value is Tidegate's figure, or infinite if a key failed.
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

/// Runs one measurement in a child process and parses its `N` numbers.
fn measure_in_child<const N: usize>(case: MemoryCase, name: &str) -> BenchResult<[u64; N]> {
    let output = Command::new(env::current_exe()?).args(["measure", case.name(), name]).output()?;
    if !output.status.success() {
        return Err(format!(
            "{} failed for {name}: {}",
            case.name(),
            String::from_utf8_lossy(&output.stderr)
        )
        .into());
    }
    let text = String::from_utf8(output.stdout)?;
    let numbers: Vec<u64> = text.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>()?;
    Ok(numbers
        .try_into()
        .map_err(|_| format!("unexpected output of {} for {name}: `{}`", case.name(), text.trim()))?)
}

struct FillResult {
    bytes: u64,
    overflowed: u64,
}

/// Measures the memory of a limiter with a million keys, including its fixed part.
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

/// Fills a limiter with keys that have used up their quota, floods it with others, then checks the limited keys again.
fn flood(name: &str) -> BenchResult<FloodResult> {
    let peer = create_peer(name, 1)?;
    check_keys(peer.as_ref(), 0, KEY_COUNT);
    if check_keys(peer.as_ref(), 0, KEY_COUNT) > 0 {
        return Err("a key is not limited before the flood".into());
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
    (entry.ok_or_else(|| format!("unknown peer `{name}`"))?.make)(&setup)
}

/// Checks each key from `from` to `to` once, and counts the allowed ones. All keys use one buffer, so that only the
/// limiter's own memory remains.
fn check_keys(peer: &dyn Peer<String>, from: u32, to: u32) -> u64 {
    let mut key = String::with_capacity(32);
    let mut allowed = 0;
    for index in from..to {
        key.clear();
        keys::write_user_key(&mut key, index);
        allowed += peer.decide_all(slice::from_ref(&key), &[index]);
    }
    allowed
}
