//! Keys and the sequences in which they are requested.

use crate::peers::{self, PeerEntry};
use std::{
    fmt::{self, Write},
    hash::Hash,
    net::Ipv4Addr,
};

/// A key type of the keyed cases.
pub(crate) trait BenchKey:
    Hash + Eq + Clone + fmt::Debug + fmt::Display + Send + Sync + 'static
{
    /// Peers that support only this key type.
    fn extra_peers() -> Vec<PeerEntry<Self>> {
        Vec::new()
    }
}

impl BenchKey for u64 {}

impl BenchKey for Ipv4Addr {}

impl BenchKey for String {
    fn extra_peers() -> Vec<PeerEntry<Self>> {
        peers::string_peers()
    }
}

/// A number as a key. This and the functions below return distinct keys for distinct indexes.
pub(crate) fn number_key(index: u32) -> u64 {
    mix(u64::from(index))
}

/// A user name as a key.
pub(crate) fn user_key(index: u32) -> String {
    let mut key = String::with_capacity(11);
    write_user_key(&mut key, index);
    key
}

/// Appends a user name to a string.
pub(crate) fn write_user_key(into: &mut String, index: u32) {
    // Writing to a string cannot fail.
    _ = write!(into, "user:{index:06}");
}

/// An address as a key.
pub(crate) fn address_key(index: u32) -> Ipv4Addr {
    // An odd factor permutes the addresses, so that they spread over the whole range instead of one subnet.
    Ipv4Addr::from_bits(index.wrapping_mul(0x9E37_79B1))
}

/// An address as a string, as in a header.
pub(crate) fn address_string_key(index: u32) -> String {
    address_key(index).to_string()
}

/// The distribution of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyDistribution {
    /// All keys are equally frequent.
    Uniform,
    /// The key of rank `r` has a weight of `1/r`; ranks are shuffled.
    Zipf,
}

/// A sequence of requests: their keys in order, and the index of each key among the distinct keys.
pub(crate) struct Workload<K> {
    pub(crate) keys: Vec<K>,
    pub(crate) indexes: Vec<u32>,
}

impl<K: Clone> Workload<K> {
    /// Creates a million requests for these keys. The keys are cloned in order, so that reading them is sequential and
    /// cheap.
    pub(crate) fn new(distinct: &[K], distribution: KeyDistribution) -> Self {
        let mut random = SplitMix64::new(0x7167_6174_6500);
        let count = distinct.len() as u32;
        let indexes: Vec<u32> = match distribution {
            KeyDistribution::Uniform => (0..REQUEST_COUNT).map(|_| random.next_below(count)).collect(),
            KeyDistribution::Zipf => zipf(count, &mut random),
        };
        let keys = indexes.iter().map(|index| distinct[*index as usize].clone()).collect();
        Self { keys, indexes }
    }
}

/// The length of a [`Workload`].
pub(crate) const REQUEST_COUNT: usize = 1_000_000;

fn zipf(count: u32, random: &mut SplitMix64) -> Vec<u32> {
    let mut total = 0.0;
    let sums: Vec<f64> = (1..=count)
        .map(|rank| {
            total += 1.0 / f64::from(rank);
            total
        })
        .collect();
    let mut owners: Vec<u32> = (0..count).collect();
    random.shuffle(&mut owners);
    (0..REQUEST_COUNT)
        .map(|_| {
            let point = random.next_f64() * total;
            owners[sums.partition_point(|sum| *sum <= point).min(owners.len() - 1)]
        })
        .collect()
}

/// A seeded SplitMix64 generator, so that every run has the same requests.
pub(crate) struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// Creates a generator with a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// A number below `bound`.
    pub(crate) fn next_below(&mut self, bound: u32) -> u32 {
        (((self.next_u64() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// A number in `0.0..1.0`.
    fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Shuffles `items`.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.next_below(end as u32 + 1) as usize);
        }
    }
}

fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_are_distinct() {
        fn distinct<K: BenchKey>(nth: fn(u32) -> K) -> usize {
            (0..100_000).map(nth).collect::<HashSet<_>>().len()
        }
        assert_eq!(distinct(number_key), 100_000);
        assert_eq!(distinct(user_key), 100_000);
        assert_eq!(distinct(address_key), 100_000);
        assert_eq!(distinct(address_string_key), 100_000);
    }

    #[test]
    fn zipf_prefers_few_keys() {
        let distinct: Vec<u32> = (0..1_000).collect();
        let most = |spread| {
            let mut counts = vec![0_u32; distinct.len()];
            Workload::new(&distinct, spread).indexes.iter().for_each(|index| counts[*index as usize] += 1);
            counts.into_iter().max().unwrap()
        };
        assert!(most(KeyDistribution::Uniform) < 1_300);
        // The first of a thousand ranks has a weight of 1/H(1000), about 13 %.
        assert!((120_000..150_000).contains(&most(KeyDistribution::Zipf)));
    }
}
