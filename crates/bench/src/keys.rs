//! Keys, and the order in which they come.

use crate::peers::{self, Entry};
use std::{
    fmt::{self, Write},
    hash::Hash,
    net::Ipv4Addr,
};

/// What a keyed case is limited by.
pub(crate) trait Key: Hash + Eq + Clone + fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// Peers that take no other keys.
    fn only_for_these() -> Vec<Entry<Self>> {
        Vec::new()
    }
}

impl Key for u64 {}

impl Key for Ipv4Addr {}

impl Key for String {
    fn only_for_these() -> Vec<Entry<Self>> {
        peers::only_strings()
    }
}

/// A number as a key; different ones for different places, as are all below.
pub(crate) fn number(place: u32) -> u64 {
    mix(u64::from(place))
}

/// A user as a key.
pub(crate) fn user(place: u32) -> String {
    let mut key = String::with_capacity(11);
    write_user(&mut key, place);
    key
}

/// The same at the end of a string.
pub(crate) fn write_user(into: &mut String, place: u32) {
    // Writing to a string cannot fail.
    _ = write!(into, "user:{place:06}");
}

/// An address as a key.
pub(crate) fn address(place: u32) -> Ipv4Addr {
    // An odd factor permutes the addresses, so that they look like the world's and not like one subnet.
    Ipv4Addr::from_bits(place.wrapping_mul(0x9E37_79B1))
}

/// An address as a string, as a header brings it.
pub(crate) fn quad(place: u32) -> String {
    address(place).to_string()
}

/// How often which key comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// All alike.
    Uniform,
    /// The key of rank `r` with a weight of `1/r`; ranks are shuffled.
    Zipf,
}

/// Requests in the order in which they are made: keys in one array, read from front to back, and beside each key
/// its place among all keys.
pub(crate) struct Work<K> {
    pub(crate) keys: Vec<K>,
    pub(crate) places: Vec<u32>,
}

impl<K: Clone> Work<K> {
    /// A million requests for these keys. Each is cloned, one after the other, so that reading a key costs next to
    /// nothing however far apart its owners' states are.
    pub(crate) fn of(distinct: &[K], spread: Spread) -> Self {
        let mut random = Random::new(0x7167_6174_6500);
        let count = distinct.len() as u32;
        let places: Vec<u32> = match spread {
            Spread::Uniform => (0..REQUESTS).map(|_| random.below(count)).collect(),
            Spread::Zipf => zipf(count, &mut random),
        };
        let keys = places.iter().map(|place| distinct[*place as usize].clone()).collect();
        Self { keys, places }
    }
}

/// Length of a [`Work`].
pub(crate) const REQUESTS: usize = 1_000_000;

fn zipf(count: u32, random: &mut Random) -> Vec<u32> {
    let mut total = 0.0;
    let sums: Vec<f64> = (1..=count)
        .map(|rank| {
            total += 1.0 / f64::from(rank);
            total
        })
        .collect();
    let mut owners: Vec<u32> = (0..count).collect();
    random.shuffle(&mut owners);
    (0..REQUESTS)
        .map(|_| {
            let point = random.unit() * total;
            owners[sums.partition_point(|sum| *sum <= point).min(owners.len() - 1)]
        })
        .collect()
}

/// SplitMix64: the same requests in every run.
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// A sequence of its own for each seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        (((self.next() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// A number in `0.0..1.0`.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Brings `items` into any order.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end as u32 + 1) as usize);
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
    fn keys_differ() {
        fn distinct<K: Key>(nth: fn(u32) -> K) -> usize {
            (0..100_000).map(nth).collect::<HashSet<_>>().len()
        }
        assert_eq!(distinct(number), 100_000);
        assert_eq!(distinct(user), 100_000);
        assert_eq!(distinct(address), 100_000);
        assert_eq!(distinct(quad), 100_000);
    }

    #[test]
    fn zipf_prefers_a_few() {
        let distinct: Vec<u32> = (0..1_000).collect();
        let most = |spread| {
            let mut counts = vec![0_u32; distinct.len()];
            Work::of(&distinct, spread).places.iter().for_each(|place| counts[*place as usize] += 1);
            counts.into_iter().max().unwrap()
        };
        assert!(most(Spread::Uniform) < 1_300);
        // The first of a thousand ranks has a weight of 1/H(1000), about 13 %.
        assert!((120_000..150_000).contains(&most(Spread::Zipf)));
    }
}
