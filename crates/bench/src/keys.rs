//! Keys, and the order in which they come.

use crate::peers::{self, PeerEntry};
use std::{
    fmt::{self, Write},
    hash::Hash,
    net::Ipv4Addr,
};

/// What a keyed case is limited by.
pub(crate) trait BenchKey:
    Hash + Eq + Clone + fmt::Debug + fmt::Display + Send + Sync + 'static
{
    /// Peers that take no other keys.
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

/// A number as a key; different ones for different places, as are all below.
pub(crate) fn number_key(place: u32) -> u64 {
    mix(u64::from(place))
}

/// A user as a key.
pub(crate) fn user_key(place: u32) -> String {
    let mut key = String::with_capacity(11);
    write_user_key(&mut key, place);
    key
}

/// The same at the end of a string.
pub(crate) fn write_user_key(into: &mut String, place: u32) {
    // Writing to a string cannot fail.
    _ = write!(into, "user:{place:06}");
}

/// An address as a key.
pub(crate) fn address_key(place: u32) -> Ipv4Addr {
    // An odd factor permutes the addresses, so that they look like the world's and not like one subnet.
    Ipv4Addr::from_bits(place.wrapping_mul(0x9E37_79B1))
}

/// An address as a string, as a header brings it.
pub(crate) fn address_string_key(place: u32) -> String {
    address_key(place).to_string()
}

/// How often which key comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyDistribution {
    /// All alike.
    Uniform,
    /// The key of rank `r` with a weight of `1/r`; ranks are shuffled.
    Zipf,
}

/// Requests in the order in which they are made: keys in one array, read from front to back, and beside each key
/// its place among all keys.
pub(crate) struct Workload<K> {
    pub(crate) keys: Vec<K>,
    pub(crate) indexes: Vec<u32>,
}

impl<K: Clone> Workload<K> {
    /// A million requests for these keys. Each is cloned, one after the other, so that reading a key costs next to
    /// nothing however far apart its owners' states are.
    pub(crate) fn new(distinct: &[K], spread: KeyDistribution) -> Self {
        let mut random = SplitMix64::new(0x7167_6174_6500);
        let count = distinct.len() as u32;
        let places: Vec<u32> = match spread {
            KeyDistribution::Uniform => (0..REQUEST_COUNT).map(|_| random.next_below(count)).collect(),
            KeyDistribution::Zipf => zipf(count, &mut random),
        };
        let keys = places.iter().map(|place| distinct[*place as usize].clone()).collect();
        Self { keys, indexes: places }
    }
}

/// Length of a [`Workload`].
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

/// SplitMix64: the same requests in every run.
pub(crate) struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// A sequence of its own for each seed.
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

    /// Brings `items` into any order.
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
            Workload::new(&distinct, spread).indexes.iter().for_each(|place| counts[*place as usize] += 1);
            counts.into_iter().max().unwrap()
        };
        assert!(most(KeyDistribution::Uniform) < 1_300);
        // The first of a thousand ranks has a weight of 1/H(1000), about 13 %.
        assert!((120_000..150_000).contains(&most(KeyDistribution::Zipf)));
    }
}
