//! Every case that is timed: its name says what it is.

use crate::{
    Result,
    instructions::watched_pass,
    keys::{self, Spread, Work},
    measure::{self, Answer, CALLS, Competitors, Effort},
    peers::{self, Entry, Quota, Setup, Tick, Unit},
    report::{self, Report},
};
use std::net::Ipv4Addr;
use tidegate_bench::machine::Load;

/// What must be shown, by case; see also [`crate::memory`].
const TARGETS: &[(&str, f64)] = &[
    ("direct-allow", 1.00),
    ("direct-deny", 1.00),
    ("hot-2t", 0.60),
    ("string-10k", 0.55),
    ("string-1m", 0.40),
    ("u64-1m-2t", 0.50),
];

/// A case that is timed.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    keys: Keys,
    count: u32,
    spread: Spread,
    threads: usize,
    answer: Answer,
    tick: Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    None,
    U64,
    User,
    Quad,
    Address,
}

/// All of them.
pub(crate) fn all() -> Vec<Case> {
    use {Answer::Deny, Keys as K, Spread::Zipf};
    let mut cases = vec![
        Case::of(K::None, 1),
        Case { answer: Deny, ..Case::of(K::None, 1) },
        Case { tick: Tick::Coarse, ..Case::of(K::None, 1) },
        Case { threads: 2, ..Case::of(K::None, 1) },
        Case { answer: Deny, threads: 2, ..Case::of(K::None, 1) },
    ];
    for keys in [K::U64, K::User, K::Quad] {
        for threads in [1, 2] {
            cases.push(Case { threads, ..Case::of(keys, 1) });
            for count in [10_000, 1_000_000] {
                cases.push(Case { threads, ..Case::of(keys, count) });
                cases.push(Case { threads, spread: Zipf, ..Case::of(keys, count) });
            }
            if keys != K::Quad {
                cases.push(Case { threads, answer: Deny, ..Case::of(keys, 10_000) });
            }
        }
    }
    cases.extend([Case::of(K::Address, 10_000), Case::of(K::Address, 1_000_000)]);
    cases
}

impl Case {
    fn of(keys: Keys, count: u32) -> Self {
        let (spread, answer, tick) = (Spread::Uniform, Answer::Allow, Tick::Exact);
        Self { keys, count, spread, threads: 1, answer, tick }
    }

    /// The case of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        all().into_iter().find(|case| case.name() == name)
    }

    /// Keys, how many, how spread, which answer, how many threads.
    pub(crate) fn name(&self) -> String {
        let mut words = match (self.keys, self.count) {
            (Keys::None, _) => vec!["direct"],
            (Keys::User, 1) => vec![],
            (Keys::User, _) => vec!["string"],
            (Keys::U64, _) => vec!["u64"],
            (Keys::Quad, _) => vec!["ipv4"],
            (Keys::Address, _) => vec!["ipv4addr"],
        };
        match self.count {
            1 if self.keys == Keys::None => {}
            1 => words.push("hot"),
            10_000 => words.push("10k"),
            _ => words.push("1m"),
        }
        if self.spread == Spread::Zipf {
            words.push("zipf");
        }
        match (self.keys, self.answer, self.tick, self.threads) {
            (_, _, Tick::Coarse, _) => words.push("coarse"),
            (_, Answer::Deny, ..) => words.push("deny"),
            (Keys::None, Answer::Allow, _, 1) => words.push("allow"),
            _ => {}
        }
        if self.threads == 2 {
            words.push("2t");
        }
        words.join("-")
    }

    /// The same in words.
    pub(crate) fn about(&self) -> String {
        let spread = match self.spread {
            Spread::Uniform => "uniform",
            Spread::Zipf => "Zipf",
        };
        let count = match self.count {
            1 => "one hot key".to_owned(),
            10_000 => format!("10 k {spread}"),
            _ => format!("1 M {spread}"),
        };
        let keys = match self.keys {
            Keys::None => "no key".to_owned(),
            Keys::U64 => format!("u64 keys, {count}"),
            Keys::User => format!("String keys, {count}"),
            Keys::Quad => format!("IPv4 keys as String, {count}"),
            Keys::Address => format!("IPv4 keys as Ipv4Addr, {count}"),
        };
        let answer = match self.answer {
            Answer::Allow => "allowed",
            Answer::Deny => "denied",
        };
        let tick = match self.tick {
            Tick::Exact => "",
            Tick::Coarse => ", Tidegate on its coarse clock",
        };
        format!("{keys}, {}, {answer}{tick}", self.threads_in_words())
    }

    /// The ratio that it should not exceed.
    pub(crate) fn at_most(&self) -> Option<f64> {
        let name = self.name();
        TARGETS.iter().find(|(target, _)| *target == name).map(|(_, most)| *most)
    }

    /// Runs it.
    pub(crate) fn run(&self) -> Result<Report> {
        match self.keys {
            Keys::None => self.time(&peers::direct(), |_| ()),
            Keys::U64 => self.time(&peers::keyed(), keys::number),
            Keys::User => self.time(&peers::keyed(), keys::user),
            Keys::Quad => self.time(&peers::keyed(), keys::quad),
            Keys::Address => self.time(&peers::keyed(), keys::address),
        }
    }

    /// Makes `calls` calls to one peer, for an instruction counter that watches [`crate::instructions`], and refuses
    /// a peer that gives another answer than the case is about.
    pub(crate) fn count(&self, peer: &str, calls: usize) -> Result<()> {
        match self.keys {
            Keys::None => self.count_one(peers::direct(), |_| (), peer, calls),
            Keys::U64 => self.count_one(peers::keyed(), keys::number, peer, calls),
            Keys::User => self.count_one(peers::keyed(), keys::user, peer, calls),
            Keys::Quad => self.count_one(peers::keyed(), keys::quad, peer, calls),
            Keys::Address => self.count_one(peers::keyed(), keys::address, peer, calls),
        }
    }

    fn count_one<K: Clone>(
        &self,
        mut entries: Vec<Entry<K>>,
        nth: fn(u32) -> K,
        peer: &str,
        calls: usize,
    ) -> Result<()> {
        entries.retain(|entry| entry.name == peer);
        let (competitors, work) = self.prepare(&entries, nth)?;
        let (name, peer) = competitors.first().ok_or_else(|| format!("no peer is called {peer}"))?;
        let allowed = watched_pass(peer.as_ref(), &work.keys[..calls], &work.places[..calls]);
        measure::check(name, allowed, calls, self.answer)
    }

    /// Who takes part.
    pub(crate) fn competitors(&self) -> Vec<&'static str> {
        match self.keys {
            Keys::None => names(&peers::direct()),
            Keys::U64 => names(&peers::keyed::<u64>()),
            Keys::User | Keys::Quad => names(&peers::keyed::<String>()),
            Keys::Address => names(&peers::keyed::<Ipv4Addr>()),
        }
    }

    fn time<K: Clone + Sync>(&self, entries: &[Entry<K>], nth: fn(u32) -> K) -> Result<Report> {
        let before = Load::now()?;
        let (competitors, work) = self.prepare(entries, nth)?;
        let rounds = if self.count > 10_000 { 15 } else { 25 };
        let effort = Effort { threads: self.threads, rounds };
        let samples = measure::interleave(&competitors, &work, effort, self.answer)?;

        let rounds = samples.first().map_or(0, |(_, samples)| samples.len());
        let notes = vec![format!(
            "{rounds} rounds of {CALLS} calls per thread to each, in an order drawn anew per round"
        )];
        let mut report = Report {
            name: self.name(),
            about: self.about(),
            table: self.table(),
            unit: "ns",
            rows: report::rows(&samples),
            value: f64::NAN,
            at_most: self.at_most(),
            notes,
            disturbance: Load::now()?.disturbance_since(before),
        };
        report.value = report.own_ratio();
        Ok(report)
    }

    /// Makes the competitors and shows each of them every key once, which also empties the buckets of a denied case.
    fn prepare<K: Clone>(
        &self,
        entries: &[Entry<K>],
        nth: fn(u32) -> K,
    ) -> Result<(Competitors<K>, Work<K>)> {
        let distinct: Vec<K> = (0..self.count).map(nth).collect();
        let places: Vec<u32> = (0..self.count).collect();
        let setup = Setup { keys: self.count, quota: self.quota(), tick: self.tick };
        let mut competitors = Vec::new();
        for entry in entries {
            let peer = (entry.make)(&setup)?;
            peer.pass(&distinct, &places);
            competitors.push((entry.name, peer));
        }
        Ok((competitors, Work::of(&distinct, self.spread)))
    }

    /// With keys, one that refills so slowly that no key is ever as good as new: nobody gains by forgetting.
    fn quota(&self) -> Quota {
        const PLENTY: u32 = 1_000_000_000;
        match (self.answer, self.keys) {
            (Answer::Deny, _) => Quota { tokens: 1, unit: Unit::Hour, burst: 1 },
            (Answer::Allow, Keys::None) => Quota { tokens: PLENTY, unit: Unit::Second, burst: PLENTY },
            (Answer::Allow, _) => Quota { tokens: 1, unit: Unit::Second, burst: PLENTY },
        }
    }

    fn table(&self) -> String {
        let keys = match self.keys {
            Keys::None => return "No key".to_owned(),
            Keys::Address => return "IPv4 keys as `Ipv4Addr`, 1 thread".to_owned(),
            Keys::U64 => "u64 keys",
            Keys::User => "String keys (`user:123456`)",
            Keys::Quad => "IPv4 keys as String",
        };
        format!("{keys}, {}", self.threads_in_words())
    }

    fn threads_in_words(&self) -> &'static str {
        if self.threads == 1 { "1 thread" } else { "2 threads" }
    }
}

fn names<K>(entries: &[Entry<K>]) -> Vec<&'static str> {
    entries.iter().map(|entry| entry.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_every_target_has_a_case() {
        let names: HashSet<String> = all().iter().map(Case::name).collect();
        assert_eq!(names.len(), all().len());
        for (name, most) in TARGETS {
            assert_eq!(Case::named(name).unwrap().at_most(), Some(*most));
        }
        for name in ["direct-coarse", "hot", "u64-10k-deny-2t", "string-1m-zipf-2t", "ipv4addr-1m"] {
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn every_peer_gives_the_answer_of_its_case() {
        for name in
            ["direct-allow", "direct-deny", "u64-10k", "u64-10k-deny", "string-10k", "string-10k-deny"]
        {
            let case = Case::named(name).unwrap();
            for peer in case.competitors() {
                case.count(peer, 1_000).unwrap();
            }
        }
        assert!(Case::named("direct-allow").unwrap().count("nobody", 1).is_err());
    }
}
