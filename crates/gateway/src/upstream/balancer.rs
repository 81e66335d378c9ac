//! Load balancing: selects the next server.

use super::UpstreamEndpoint;
use std::{
    cell::Cell,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    net::IpAddr,
    rc::Rc,
};
use tidegate_observe::ServerState;
use tidegate_policy::model::Balance;

/// The load balancer of an upstream.
pub(super) struct Balancer {
    balance: Balance,
    /// The current weight of each server, for smooth weighted round robin.
    current_weights: Vec<Cell<i64>>,
}

impl Balancer {
    pub(super) fn new(balance: Balance, servers: usize) -> Self {
        Self { balance, current_weights: vec![Cell::new(0); servers] }
    }

    /// The index of the next server, excluding those that were tried.
    pub(super) fn next(
        &self,
        servers: &[Rc<UpstreamEndpoint>],
        tried: &[usize],
        client: IpAddr,
    ) -> Option<usize> {
        if let [only] = servers {
            return (tried.is_empty() && only.state() != ServerState::Down).then_some(0);
        }
        let open = || (0..servers.len()).filter(|index| !tried.contains(index));
        let best = open().map(|index| servers[index].state()).max()?;
        if best == ServerState::Down {
            return None;
        }
        let open = || open().filter(|index| servers[*index].state() == best);
        match self.balance {
            Balance::RoundRobin => self.round_robin(servers, open()),
            Balance::LeastRequests => least_requests(servers, &open().collect::<Vec<_>>()),
            Balance::Client => client_hash(servers, open(), client),
        }
    }

    /// Smooth weighted round robin: adds its weight to each server, selects the highest, and subtracts the total from it.
    fn round_robin(
        &self,
        servers: &[Rc<UpstreamEndpoint>],
        open: impl Iterator<Item = usize>,
    ) -> Option<usize> {
        let (mut chosen, mut total) = (None, 0);
        for index in open {
            let weight = i64::try_from(servers[index].weight()).unwrap_or(i64::MAX / 1_024);
            total += weight;
            let owed = self.current_weights[index].get() + weight;
            self.current_weights[index].set(owed);
            if chosen.is_none_or(|(_, most)| owed > most) {
                chosen = Some((index, owed));
            }
        }
        let (index, owed) = chosen?;
        self.current_weights[index].set(owed - total);
        Some(index)
    }
}

/// Power of two choices: of two random servers, selects the one with less load per weight. Nearly as good as the least
/// loaded of all, without a herd on it.
fn least_requests(servers: &[Rc<UpstreamEndpoint>], open: &[usize]) -> Option<usize> {
    let load = |index: &usize| {
        let server = &servers[*index];
        (server.in_flight() + 1) as f64 / server.weight() as f64
    };
    let one = fastrand::choice(open)?;
    let other = fastrand::choice(open)?;
    Some(if load(other) < load(one) { *other } else { *one })
}

/// Weighted rendezvous hashing. When a server fails, only its own clients move.
fn client_hash(
    servers: &[Rc<UpstreamEndpoint>],
    open: impl Iterator<Item = usize>,
    client: IpAddr,
) -> Option<usize> {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let score = |index: usize| {
        let hash = hasher.hash_one((client, servers[index].name()));
        // In the open interval (0, 1).
        let unit = ((hash >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
        servers[index].weight() as f64 / -unit.ln()
    };
    open.map(|index| (index, score(index)))
        .max_by(|one, other| one.1.total_cmp(&other.1))
        .map(|(index, _)| index)
}
