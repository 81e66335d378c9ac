//! A deny list of a million prefixes, compared with a hash map of a million addresses.

use fastrand::Rng;
use std::{
    collections::{HashMap, HashSet},
    hint::black_box,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Instant,
};
use tidegate_access::{AccessList, AccessMatch, Prefix};
use tidegate_bench::{BenchResult, interleaved::median, suite::Measurement};

const ENTRY_COUNT: usize = 1_000_000;
const LOOKUP_COUNT: usize = 1_000_000;
const ROUNDS: usize = 15;

/// One in five prefixes is IPv6. Half of the lookups hit, in the list and in the map.
pub(crate) fn measure_deny() -> BenchResult<Measurement> {
    let mixed = compare(20)?;
    let (four, six) = (compare(0)?.value, compare(100)?.value);
    let figures = format!("{}; IPv4 only {four:.2}, IPv6 only {six:.2}", mixed.figures);
    Ok(Measurement { figures, ..mixed })
}

fn compare(percent_v6: u32) -> BenchResult<Measurement> {
    let mut generator = AddressGenerator::new(percent_v6);
    let mut prefixes = HashSet::new();
    while prefixes.len() < ENTRY_COUNT {
        prefixes.insert(generator.next_prefix()?);
    }
    let prefixes: Vec<Prefix> = prefixes.into_iter().collect();
    let list = prefixes.iter().fold(AccessList::builder(), |list, prefix| list.deny(*prefix)).build()?;
    let mut map = HashMap::new();
    while map.len() < ENTRY_COUNT {
        map.insert(generator.next_address(), ());
    }
    let members: Vec<IpAddr> = map.keys().copied().collect();

    let listed = |generator: &mut AddressGenerator| {
        let prefix = prefixes[generator.rng.usize(..ENTRY_COUNT)];
        generator.address_in(prefix)
    };
    let list_lookups = generator.lookups(listed, |address| list.check(address) == AccessMatch::Unlisted);
    let member = |generator: &mut AddressGenerator| members[generator.rng.usize(..ENTRY_COUNT)];
    let map_lookups = generator.lookups(member, |address| !map.contains_key(&address));

    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let list_time = time(&list_lookups, |address| list.check(address) == AccessMatch::Denied);
        let map_time = time(&map_lookups, |address| map.contains_key(&address));
        ours.push(list_time);
        theirs.push(map_time);
        ratios.push(list_time / map_time);
    }
    let figures = format!("list {:.0} ns, HashMap {:.0} ns", median(&ours), median(&theirs));
    Ok(Measurement::from_rounds(&ratios, figures))
}

/// Returns the nanoseconds per lookup; half of them must hit.
fn time(lookups: &[IpAddr], is_hit: impl Fn(IpAddr) -> bool) -> f64 {
    let start = Instant::now();
    let hits = lookups.iter().filter(|address| is_hit(**black_box(address))).count();
    let nanos = start.elapsed().as_nanos() as f64 / lookups.len() as f64;
    assert_eq!(hits, lookups.len() / 2);
    nanos
}

/// Generates realistic addresses: IPv4 from 1.0.0.0 on, IPv6 of 65,536 providers in five registries.
struct AddressGenerator {
    rng: Rng,
    percent_v6: u32,
    providers: Vec<u128>,
}

impl AddressGenerator {
    fn new(percent_v6: u32) -> Self {
        let mut rng = Rng::with_seed(42);
        let registries = [0x2400_u128, 0x2600, 0x2800, 0x2a00, 0x2c00];
        let provider = |index: usize| registries[index % 5] << 112 | u128::from(rng.u32(..1 << 20)) << 96;
        let providers = (0..1 << 16).map(provider).collect();
        Self { rng, percent_v6, providers }
    }

    fn next_address(&mut self) -> IpAddr {
        if self.rng.u32(..100) < self.percent_v6 {
            let provider = self.providers[self.rng.usize(..self.providers.len())];
            return Ipv6Addr::from(provider | self.rng.u128(..) >> 32).into();
        }
        Ipv4Addr::from(self.rng.u32(1 << 24..223 << 24)).into()
    }

    /// Generates a prefix, mostly a /24, a /48, a /64 or a single host.
    fn next_prefix(&mut self) -> BenchResult<Prefix> {
        let address = self.next_address();
        let bits = match (address, self.rng.u32(..10_000)) {
            (IpAddr::V4(_), 0) => self.rng.u8(8..16),
            (IpAddr::V4(_), 1..200) => self.rng.u8(16..24),
            (IpAddr::V4(_), 200..4_000) => 24,
            (IpAddr::V4(_), 4_000..5_000) => self.rng.u8(25..32),
            (IpAddr::V4(_), _) => 32,
            (IpAddr::V6(_), 0..300) => self.rng.u8(32..48),
            (IpAddr::V6(_), 300..4_000) => 48,
            (IpAddr::V6(_), 4_000..5_000) => self.rng.u8(49..64),
            (IpAddr::V6(_), 5_000..8_500) => 64,
            (IpAddr::V6(_), _) => self.rng.u8(65..=128),
        };
        let first: IpAddr = match address {
            IpAddr::V4(address) => Ipv4Addr::from(u32::from(address) & (!0 << (32 - bits))).into(),
            IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) & (!0 << (128 - bits))).into(),
        };
        Ok(Prefix::new(first, bits)?)
    }

    /// Generates an address in a prefix.
    fn address_in(&mut self, prefix: Prefix) -> IpAddr {
        match prefix.network_address() {
            IpAddr::V4(first) => {
                let rest = self.rng.u32(..).checked_shr(prefix.prefix_len().into()).unwrap_or(0);
                Ipv4Addr::from(u32::from(first) | rest).into()
            }
            IpAddr::V6(first) => {
                let rest = self.rng.u128(..).checked_shr(prefix.prefix_len().into()).unwrap_or(0);
                Ipv6Addr::from(u128::from(first) | rest).into()
            }
        }
    }

    /// Generates lookups in random order, half of which hit.
    fn lookups(
        &mut self,
        hit: impl Fn(&mut Self) -> IpAddr,
        is_miss: impl Fn(IpAddr) -> bool,
    ) -> Vec<IpAddr> {
        let mut lookups: Vec<IpAddr> = (0..LOOKUP_COUNT / 2).map(|_| hit(self)).collect();
        while lookups.len() < LOOKUP_COUNT {
            let address = self.next_address();
            if is_miss(address) {
                lookups.push(address);
            }
        }
        self.rng.shuffle(&mut lookups);
        lookups
    }
}
