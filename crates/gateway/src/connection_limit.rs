//! Limits client connections, in total and per client network.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Waker,
};
use tidegate_policy::model::Connections;

/// The connection limits, shared by all workers.
pub(crate) struct ConnectionLimiter {
    max_connections: u64,
    max_per_client: u64,
    open: AtomicU64,
    /// By IPv4 address or IPv6 /64 network.
    by_client: Mutex<HashMap<IpAddr, Arc<ClientUsage>>>,
}

/// The usage of all connections of one client.
struct ClientUsage {
    client: IpAddr,
    /// Changed only under the lock of the map.
    connections: AtomicU64,
    /// Bytes of HTTP/2 responses that are buffered for sending.
    unsent: AtomicU64,
    /// Whether there are too many of them.
    is_full: AtomicBool,
    /// The connections that wait until there are not, by their id.
    blocked: Mutex<BTreeMap<u64, Waker>>,
    next_id: AtomicU64,
}

/// A permit for one connection, released on drop.
pub(crate) struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    usage: Arc<ClientUsage>,
    /// Among the connections of the client.
    id: u64,
}

/// Bytes of HTTP/2 responses that may be buffered on one connection while its client does not read.
const CONNECTION_BUFFER: u64 = 4 << 20;
/// Bytes that may be buffered on all connections of one client. Beyond it, each connection has its minimum, until a part is sent:
/// waking all connections for each frame would cost more than the frame.
const CLIENT_BUFFER: u64 = 64 << 20;
const CLIENT_BUFFER_RESUME: u64 = 60 << 20;
const MIN_CONNECTION_BUFFER: u64 = 128 << 10;

/// The limit that rejects a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConnectionLimitReached {
    /// Too many connections in total.
    Total,
    /// Too many connections of this client.
    PerClient,
}

impl ConnectionLimiter {
    pub(crate) fn new(connections: &Connections) -> Arc<Self> {
        Arc::new(Self {
            max_connections: connections.max,
            max_per_client: connections.per_client,
            open: AtomicU64::new(0),
            by_client: Mutex::default(),
        })
    }

    pub(crate) fn acquire(
        self: &Arc<Self>,
        client: IpAddr,
    ) -> Result<ConnectionPermit, ConnectionLimitReached> {
        let client = client_network(client);
        let mut by_client = self.lock_clients();
        if self.open.load(Ordering::Relaxed) >= self.max_connections {
            return Err(ConnectionLimitReached::Total);
        }
        let of_client = by_client.entry(client).or_insert_with(|| ClientUsage::new(client));
        if of_client.connections.load(Ordering::Relaxed) >= self.max_per_client {
            return Err(ConnectionLimitReached::PerClient);
        }
        of_client.connections.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        let id = of_client.next_id.fetch_add(1, Ordering::Relaxed);
        Ok(ConnectionPermit { limiter: self.clone(), usage: of_client.clone(), id })
    }

    /// The number of open connections.
    #[cfg(test)]
    fn open_connections(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    fn lock_clients(&self) -> MutexGuard<'_, HashMap<IpAddr, Arc<ClientUsage>>> {
        self.by_client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientUsage {
    fn new(client: IpAddr) -> Arc<Self> {
        Arc::new(Self {
            client,
            connections: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
            blocked: Mutex::default(),
            next_id: AtomicU64::new(0),
        })
    }

    fn lock_blocked(&self) -> MutexGuard<'_, BTreeMap<u64, Waker>> {
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionPermit {
    /// The bytes of responses that may be buffered on this connection.
    pub(crate) fn max_unsent(&self) -> u64 {
        if self.is_limited_by_client() { MIN_CONNECTION_BUFFER } else { CONNECTION_BUFFER }
    }

    /// Whether the buffers of all connections of the client are full.
    pub(crate) fn is_limited_by_client(&self) -> bool {
        self.usage.is_full.load(Ordering::SeqCst)
    }

    /// Wakes this task of the connection when the buffers of the client have room, but not if they have room already.
    pub(crate) fn wake_on_capacity(&self, waker: Waker) {
        self.usage.lock_blocked().insert(self.id, waker);
    }

    pub(crate) fn add_unsent(&self, bytes: u64) {
        if self.usage.unsent.fetch_add(bytes, Ordering::SeqCst) + bytes >= CLIENT_BUFFER {
            self.usage.is_full.store(true, Ordering::SeqCst);
        }
    }

    pub(crate) fn remove_unsent(&self, bytes: u64) {
        let unsent = self.usage.unsent.fetch_sub(bytes, Ordering::SeqCst) - bytes;
        if unsent < CLIENT_BUFFER_RESUME
            && self.is_limited_by_client()
            && self.usage.is_full.swap(false, Ordering::SeqCst)
        {
            let blocked = std::mem::take(&mut *self.usage.lock_blocked());
            blocked.into_values().for_each(Waker::wake);
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.usage.lock_blocked().remove(&self.id);
        let mut by_client = self.limiter.lock_clients();
        self.limiter.open.fetch_sub(1, Ordering::Relaxed);
        self.usage.connections.fetch_sub(1, Ordering::Relaxed);
        if let Entry::Occupied(of_client) = by_client.entry(self.usage.client)
            && of_client.get().connections.load(Ordering::Relaxed) == 0
        {
            of_client.remove();
        }
    }
}

/// An IPv4 address, or the /64 network of an IPv6 client.
fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_limited_in_total_and_per_network() {
        let limiter =
            ConnectionLimiter::new(&Connections { max: 3, per_client: 2, ..Connections::default() });
        let take = |address: &str| limiter.acquire(address.parse().unwrap());

        let first = take("2001:db8::1").unwrap();
        let _second = take("2001:db8::2").unwrap();
        assert_eq!(take("2001:db8::3").err(), Some(ConnectionLimitReached::PerClient));
        let _other = take("::ffff:10.0.0.1").unwrap();
        assert_eq!(take("10.0.0.1").err(), Some(ConnectionLimitReached::Total));

        drop(first);
        let _again = take("10.0.0.1").unwrap();
        assert_eq!(limiter.open_connections(), 3);
    }

    #[test]
    fn unsent_bytes_are_bounded_per_client() {
        let limiter = ConnectionLimiter::new(&Connections::default());
        let take = |address: &str| limiter.acquire(address.parse().unwrap()).unwrap();
        let (first, second, other) = (take("10.0.0.1"), take("10.0.0.1"), take("10.0.0.2"));
        first.add_unsent(CLIENT_BUFFER - 1);
        assert_eq!(second.max_unsent(), CONNECTION_BUFFER);
        second.add_unsent(1);
        assert_eq!([&first, &second].map(ConnectionPermit::max_unsent), [MIN_CONNECTION_BUFFER; 2]);
        assert_eq!(other.max_unsent(), CONNECTION_BUFFER);
        first.remove_unsent(CLIENT_BUFFER - CLIENT_BUFFER_RESUME);
        assert_eq!(second.max_unsent(), MIN_CONNECTION_BUFFER);
        first.remove_unsent(1);
        assert_eq!(second.max_unsent(), CONNECTION_BUFFER);
    }

    #[derive(Default)]
    struct CountingWake(AtomicU64);

    impl std::task::Wake for CountingWake {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn connections_are_woken_when_others_of_the_client_have_sent() {
        let limiter = ConnectionLimiter::new(&Connections::default());
        let take = || limiter.acquire("10.0.0.1".parse().unwrap()).unwrap();
        let (sending, waiting, closed) = (take(), take(), take());
        sending.add_unsent(CLIENT_BUFFER);
        let woken = Arc::new(CountingWake::default());
        // A connection waits once, however many of its streams do.
        for permit in [&waiting, &waiting, &closed] {
            permit.wake_on_capacity(woken.clone().into());
        }
        drop(closed);
        sending.remove_unsent(CLIENT_BUFFER - CLIENT_BUFFER_RESUME);
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        sending.remove_unsent(1);
        sending.remove_unsent(1);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn client_entry_is_removed_with_last_connection() {
        let limiter = ConnectionLimiter::new(&Connections::default());
        drop(limiter.acquire("10.0.0.1".parse().unwrap()).unwrap());
        assert!(limiter.lock_clients().is_empty());
        assert_eq!(limiter.open_connections(), 0);
    }
}
