//! How many connections there may be, in total and from one network.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};
use tidegate_policy::model::Connections;

/// Places for connections, which all workers share.
pub(crate) struct Places {
    most: u64,
    per_client: u64,
    taken: AtomicU64,
    /// By address, or network of IPv6.
    by_client: Mutex<HashMap<IpAddr, Arc<OfClient>>>,
}

/// What all connections of one client have together.
#[derive(Default)]
struct OfClient {
    /// Changed only while the map is locked.
    connections: AtomicU64,
    /// Bytes of answers of HTTP/2 that wait to be sent.
    unsent: AtomicU64,
}

/// A place that is taken until it is dropped.
pub(crate) struct Place {
    places: Arc<Places>,
    client: IpAddr,
    of_client: Arc<OfClient>,
}

/// Bytes of answers of HTTP/2 that may wait to be sent on one connection, where its client does not read them.
const CONNECTION_BUFFER: u64 = 4 << 20;
/// Bytes that may wait on all connections of one client. Beyond it each connection has its least share.
const CLIENT_BUFFER: u64 = 64 << 20;
const LEAST_SHARE: u64 = 128 << 10;

/// Why there is no place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// There are too many connections.
    InTotal,
    /// There are too many of this client.
    PerClient,
}

impl Places {
    pub(crate) fn new(connections: &Connections) -> Arc<Self> {
        Arc::new(Self {
            most: connections.max,
            per_client: connections.per_client,
            taken: AtomicU64::new(0),
            by_client: Mutex::default(),
        })
    }

    pub(crate) fn take(self: &Arc<Self>, client: IpAddr) -> Result<Place, Full> {
        let client = network(client);
        let mut by_client = self.by_client();
        if self.taken.load(Ordering::Relaxed) >= self.most {
            return Err(Full::InTotal);
        }
        let of_client = by_client.entry(client).or_default();
        if of_client.connections.load(Ordering::Relaxed) >= self.per_client {
            return Err(Full::PerClient);
        }
        of_client.connections.fetch_add(1, Ordering::Relaxed);
        self.taken.fetch_add(1, Ordering::Relaxed);
        Ok(Place { places: self.clone(), client, of_client: of_client.clone() })
    }

    /// Connections that are there.
    #[cfg(test)]
    fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    fn by_client(&self) -> MutexGuard<'_, HashMap<IpAddr, Arc<OfClient>>> {
        self.by_client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// The bytes of answers that may wait to be sent on this connection.
    pub(crate) fn most_unsent(&self) -> u64 {
        match self.of_client.unsent.load(Ordering::Relaxed) < CLIENT_BUFFER {
            true => CONNECTION_BUFFER,
            false => LEAST_SHARE,
        }
    }

    pub(crate) fn add_unsent(&self, bytes: u64) {
        self.of_client.unsent.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn remove_unsent(&self, bytes: u64) {
        self.of_client.unsent.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut by_client = self.places.by_client();
        self.places.taken.fetch_sub(1, Ordering::Relaxed);
        self.of_client.connections.fetch_sub(1, Ordering::Relaxed);
        if let Entry::Occupied(of_client) = by_client.entry(self.client)
            && of_client.get().connections.load(Ordering::Relaxed) == 0
        {
            of_client.remove();
        }
    }
}

/// An address, or the /64 that one client of IPv6 has to itself.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_limited_in_total_and_per_network() {
        let places = Places::new(&Connections { max: 3, per_client: 2, ..Connections::default() });
        let take = |address: &str| places.take(address.parse().unwrap());

        let first = take("2001:db8::1").unwrap();
        let _second = take("2001:db8::2").unwrap();
        assert_eq!(take("2001:db8::3").err(), Some(Full::PerClient));
        let _other = take("::ffff:10.0.0.1").unwrap();
        assert_eq!(take("10.0.0.1").err(), Some(Full::InTotal));

        drop(first);
        let _again = take("10.0.0.1").unwrap();
        assert_eq!(places.taken(), 3);
    }

    #[test]
    fn unsent_bytes_are_bounded_per_client() {
        let places = Places::new(&Connections::default());
        let take = |address: &str| places.take(address.parse().unwrap()).unwrap();
        let (first, second, other) = (take("10.0.0.1"), take("10.0.0.1"), take("10.0.0.2"));
        first.add_unsent(CLIENT_BUFFER - 1);
        assert_eq!(second.most_unsent(), CONNECTION_BUFFER);
        second.add_unsent(1);
        assert_eq!([&first, &second].map(Place::most_unsent), [LEAST_SHARE; 2]);
        assert_eq!(other.most_unsent(), CONNECTION_BUFFER);
        first.remove_unsent(CLIENT_BUFFER - 1);
        assert_eq!(second.most_unsent(), CONNECTION_BUFFER);
    }

    #[test]
    fn nobody_is_remembered_who_is_gone() {
        let places = Places::new(&Connections::default());
        drop(places.take("10.0.0.1".parse().unwrap()).unwrap());
        assert!(places.by_client().is_empty());
        assert_eq!(places.taken(), 0);
    }
}
