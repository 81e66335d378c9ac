//! The timed cases.

use crate::{
    BenchResult,
    instructions::counted_pass,
    keys::{self, KeyDistribution, Workload},
    measure::{self, BenchDecision, CALLS_PER_ROUND, Competitors, RunSettings},
    peers::{self, ClockKind, PeerEntry, PeerQuota, PeerSetup, QuotaPeriod},
    report::{self, CaseReport},
};
use std::net::Ipv4Addr;
use tidegate_bench::machine::CpuTimes;

/// The targets by case; [`crate::memory`] has the targets of its cases.
const TARGETS: &[(&str, f64)] = &[
    ("direct-allow", 1.00),
    ("direct-deny", 1.00),
    ("direct-2t", 1.00),
    ("hot-2t", 0.60),
    ("string-10k", 0.55),
    ("string-1m", 0.40),
    ("u64-1m-2t", 0.50),
];

/// A timed case.
#[derive(Clone, Copy)]
pub(crate) struct TimedCase {
    keys: KeyKind,
    count: u32,
    distribution: KeyDistribution,
    threads: usize,
    answer: BenchDecision,
    clock: ClockKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyKind {
    None,
    U64,
    User,
    Ipv4String,
    Ipv4Addr,
}

/// Returns all timed cases.
pub(crate) fn all_cases() -> Vec<TimedCase> {
    use {BenchDecision::Deny, KeyDistribution::Zipf, KeyKind as K};
    let mut cases = vec![
        TimedCase::new(K::None, 1),
        TimedCase { answer: Deny, ..TimedCase::new(K::None, 1) },
        TimedCase { clock: ClockKind::Coarse, ..TimedCase::new(K::None, 1) },
        TimedCase { threads: 2, ..TimedCase::new(K::None, 1) },
        TimedCase { answer: Deny, threads: 2, ..TimedCase::new(K::None, 1) },
    ];
    for keys in [K::U64, K::User, K::Ipv4String] {
        for threads in [1, 2] {
            cases.push(TimedCase { threads, ..TimedCase::new(keys, 1) });
            for count in [10_000, 1_000_000] {
                cases.push(TimedCase { threads, ..TimedCase::new(keys, count) });
                cases.push(TimedCase { threads, distribution: Zipf, ..TimedCase::new(keys, count) });
            }
            if keys != K::Ipv4String {
                cases.push(TimedCase { threads, answer: Deny, ..TimedCase::new(keys, 10_000) });
            }
        }
    }
    cases.extend([TimedCase::new(K::Ipv4Addr, 10_000), TimedCase::new(K::Ipv4Addr, 1_000_000)]);
    cases
}

impl TimedCase {
    fn new(keys: KeyKind, count: u32) -> Self {
        let (distribution, answer, clock) =
            (KeyDistribution::Uniform, BenchDecision::Allow, ClockKind::Exact);
        Self { keys, count, distribution, threads: 1, answer, clock }
    }

    /// Finds a case by its name.
    pub(crate) fn find(name: &str) -> Option<Self> {
        all_cases().into_iter().find(|case| case.name() == name)
    }

    /// The name: kind and number of keys, distribution, expected result, threads.
    pub(crate) fn name(&self) -> String {
        let mut words = match (self.keys, self.count) {
            (KeyKind::None, _) => vec!["direct"],
            (KeyKind::User, 1) => vec![],
            (KeyKind::User, _) => vec!["string"],
            (KeyKind::U64, _) => vec!["u64"],
            (KeyKind::Ipv4String, _) => vec!["ipv4"],
            (KeyKind::Ipv4Addr, _) => vec!["ipv4addr"],
        };
        match self.count {
            1 if self.keys == KeyKind::None => {}
            1 => words.push("hot"),
            10_000 => words.push("10k"),
            _ => words.push("1m"),
        }
        if self.distribution == KeyDistribution::Zipf {
            words.push("zipf");
        }
        match (self.keys, self.answer, self.clock, self.threads) {
            (_, _, ClockKind::Coarse, _) => words.push("coarse"),
            (_, BenchDecision::Deny, ..) => words.push("deny"),
            (KeyKind::None, BenchDecision::Allow, _, 1) => words.push("allow"),
            _ => {}
        }
        if self.threads == 2 {
            words.push("2t");
        }
        words.join("-")
    }

    /// The description.
    pub(crate) fn about(&self) -> String {
        let distribution = match self.distribution {
            KeyDistribution::Uniform => "uniform",
            KeyDistribution::Zipf => "Zipf",
        };
        let count = match self.count {
            1 => "one hot key".to_owned(),
            10_000 => format!("10 k {distribution}"),
            _ => format!("1 M {distribution}"),
        };
        let keys = match self.keys {
            KeyKind::None => "no key".to_owned(),
            KeyKind::U64 => format!("u64 keys, {count}"),
            KeyKind::User => format!("String keys, {count}"),
            KeyKind::Ipv4String => format!("IPv4 keys as String, {count}"),
            KeyKind::Ipv4Addr => format!("IPv4 keys as Ipv4Addr, {count}"),
        };
        let answer = match self.answer {
            BenchDecision::Allow => "allowed",
            BenchDecision::Deny => "denied",
        };
        let clock = match self.clock {
            ClockKind::Exact => "",
            ClockKind::Coarse => ", Tidegate on its coarse clock",
        };
        format!("{keys}, {}, {answer}{clock}", self.thread_label())
    }

    /// The target of its ratio, if it has one.
    pub(crate) fn at_most(&self) -> Option<f64> {
        let name = self.name();
        TARGETS.iter().find(|(target, _)| *target == name).map(|(_, most)| *most)
    }

    /// Runs the case.
    pub(crate) fn run(&self) -> BenchResult<CaseReport> {
        match self.keys {
            KeyKind::None => self.measure(&peers::direct_peers(), |_| ()),
            KeyKind::U64 => self.measure(&peers::keyed_peers(), keys::number_key),
            KeyKind::User => self.measure(&peers::keyed_peers(), keys::user_key),
            KeyKind::Ipv4String => self.measure(&peers::keyed_peers(), keys::address_string_key),
            KeyKind::Ipv4Addr => self.measure(&peers::keyed_peers(), keys::address_key),
        }
    }

    /// Makes `calls` calls to one peer under the instruction counter of [`crate::instructions`]. Fails if a call has
    /// another result than the case expects.
    pub(crate) fn count(&self, peer: &str, calls: usize) -> BenchResult<()> {
        match self.keys {
            KeyKind::None => self.count_one(peers::direct_peers(), |_| (), peer, calls),
            KeyKind::U64 => self.count_one(peers::keyed_peers(), keys::number_key, peer, calls),
            KeyKind::User => self.count_one(peers::keyed_peers(), keys::user_key, peer, calls),
            KeyKind::Ipv4String => {
                self.count_one(peers::keyed_peers(), keys::address_string_key, peer, calls)
            }
            KeyKind::Ipv4Addr => self.count_one(peers::keyed_peers(), keys::address_key, peer, calls),
        }
    }

    fn count_one<K: Clone>(
        &self,
        mut entries: Vec<PeerEntry<K>>,
        nth: fn(u32) -> K,
        peer: &str,
        calls: usize,
    ) -> BenchResult<()> {
        entries.retain(|entry| entry.name == peer);
        let (competitors, work) = self.prepare(&entries, nth)?;
        let (name, peer) = competitors.first().ok_or_else(|| format!("unknown peer `{peer}`"))?;
        let allowed = counted_pass(peer.as_ref(), &work.keys[..calls], &work.indexes[..calls]);
        measure::check_answers(name, allowed, calls, self.answer)
    }

    /// The names of the competitors.
    pub(crate) fn competitors(&self) -> Vec<&'static str> {
        match self.keys {
            KeyKind::None => peer_names(&peers::direct_peers()),
            KeyKind::U64 => peer_names(&peers::keyed_peers::<u64>()),
            KeyKind::User | KeyKind::Ipv4String => peer_names(&peers::keyed_peers::<String>()),
            KeyKind::Ipv4Addr => peer_names(&peers::keyed_peers::<Ipv4Addr>()),
        }
    }

    fn measure<K: Clone + Sync>(
        &self,
        entries: &[PeerEntry<K>],
        nth: fn(u32) -> K,
    ) -> BenchResult<CaseReport> {
        let before = CpuTimes::now()?;
        let (competitors, work) = self.prepare(entries, nth)?;
        let rounds = if self.count > 10_000 { 15 } else { 25 };
        let settings = RunSettings { threads: self.threads, rounds };
        let samples = measure::interleave(&competitors, &work, settings, self.answer)?;

        let rounds = samples.first().map_or(0, |(_, samples)| samples.len());
        let notes = vec![format!(
            "{rounds} rounds of {CALLS_PER_ROUND} calls per thread and competitor, in a random order per round"
        )];
        let mut report = CaseReport {
            name: self.name(),
            about: self.about(),
            table: self.table(),
            unit: "ns",
            rows: report::rows(&samples),
            value: f64::NAN,
            at_most: self.at_most(),
            notes,
            disturbance: CpuTimes::now()?.disturbance_since(before),
        };
        report.value = report.own_ratio();
        Ok(report)
    }

    /// Creates the competitors and calls each with every key once, which also empties the buckets of a denied case.
    fn prepare<K: Clone>(
        &self,
        entries: &[PeerEntry<K>],
        nth: fn(u32) -> K,
    ) -> BenchResult<(Competitors<K>, Workload<K>)> {
        let distinct: Vec<K> = (0..self.count).map(nth).collect();
        let indexes: Vec<u32> = (0..self.count).collect();
        let setup = PeerSetup { keys: self.count, quota: self.quota(), clock: self.clock };
        let mut competitors = Vec::new();
        for entry in entries {
            let peer = (entry.make)(&setup)?;
            peer.decide_all(&distinct, &indexes);
            competitors.push((entry.name, peer));
        }
        Ok((competitors, Workload::new(&distinct, self.distribution)))
    }

    /// The quota. With keys it refills so slowly that no key resets, so that a peer gains nothing by evicting keys.
    fn quota(&self) -> PeerQuota {
        const LARGE_BURST: u32 = 1_000_000_000;
        match (self.answer, self.keys) {
            (BenchDecision::Deny, _) => PeerQuota { tokens: 1, unit: QuotaPeriod::Hour, burst: 1 },
            (BenchDecision::Allow, KeyKind::None) => {
                PeerQuota { tokens: LARGE_BURST, unit: QuotaPeriod::Second, burst: LARGE_BURST }
            }
            (BenchDecision::Allow, _) => {
                PeerQuota { tokens: 1, unit: QuotaPeriod::Second, burst: LARGE_BURST }
            }
        }
    }

    fn table(&self) -> String {
        let keys = match self.keys {
            KeyKind::None => return "No key".to_owned(),
            KeyKind::Ipv4Addr => return "IPv4 keys as `Ipv4Addr`, 1 thread".to_owned(),
            KeyKind::U64 => "u64 keys",
            KeyKind::User => "String keys (`user:123456`)",
            KeyKind::Ipv4String => "IPv4 keys as String",
        };
        format!("{keys}, {}", self.thread_label())
    }

    fn thread_label(&self) -> &'static str {
        if self.threads == 1 { "1 thread" } else { "2 threads" }
    }
}

fn peer_names<K>(entries: &[PeerEntry<K>]) -> Vec<&'static str> {
    entries.iter().map(|entry| entry.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_every_target_has_a_case() {
        let names: HashSet<String> = all_cases().iter().map(TimedCase::name).collect();
        assert_eq!(names.len(), all_cases().len());
        for (name, most) in TARGETS {
            assert_eq!(TimedCase::find(name).unwrap().at_most(), Some(*most));
        }
        for name in ["direct-coarse", "hot", "u64-10k-deny-2t", "string-1m-zipf-2t", "ipv4addr-1m"] {
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn every_peer_gives_expected_answer() {
        for name in
            ["direct-allow", "direct-deny", "u64-10k", "u64-10k-deny", "string-10k", "string-10k-deny"]
        {
            let case = TimedCase::find(name).unwrap();
            for peer in case.competitors() {
                case.count(peer, 1_000).unwrap();
            }
        }
        assert!(TimedCase::find("direct-allow").unwrap().count("unknown", 1).is_err());
    }
}
