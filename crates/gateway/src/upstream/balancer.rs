//! Which server is next.

use super::UpstreamEndpoint;
use std::{
    cell::Cell,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    net::IpAddr,
    rc::Rc,
};
use tidegate_observe::ServerState;
use tidegate_policy::model::Balance;

/// How servers take turns.
pub(super) struct Balancer {
    balance: Balance,
    /// Of each server: what it is owed, for turns by weight.
    current_weights: Vec<Cell<i64>>,
}

impl Balancer {
    pub(super) fn new(balance: Balance, servers: usize) -> Self {
        Self { balance, current_weights: vec![Cell::new(0); servers] }
    }

    /// The place of the next server, which is none of those that were tried.
    pub(super) fn next(
        &self,
        servers: &[Rc<UpstreamEndpoint>],
        tried: &[usize],
        client: IpAddr,
    ) -> Option<usize> {
        if let [only] = servers {
            return (tried.is_empty() && only.state() != ServerState::Down).then_some(0);
        }
        let open = || (0..servers.len()).filter(|place| !tried.contains(place));
        let best = open().map(|place| servers[place].state()).max()?;
        if best == ServerState::Down {
            return None;
        }
        let open = || open().filter(|place| servers[*place].state() == best);
        match self.balance {
            Balance::RoundRobin => self.round_robin(servers, open()),
            Balance::LeastRequests => least_requests(servers, &open().collect::<Vec<_>>()),
            Balance::Client => client_hash(servers, open(), client),
        }
    }

    /// Each is owed its weight at every turn; whoever is owed most gets it, and pays for all. So turns are spread evenly.
    fn round_robin(
        &self,
        servers: &[Rc<UpstreamEndpoint>],
        open: impl Iterator<Item = usize>,
    ) -> Option<usize> {
        let (mut chosen, mut total) = (None, 0);
        for place in open {
            let weight = i64::try_from(servers[place].weight()).unwrap_or(i64::MAX / 1_024);
            total += weight;
            let owed = self.current_weights[place].get() + weight;
            self.current_weights[place].set(owed);
            if chosen.is_none_or(|(_, most)| owed > most) {
                chosen = Some((place, owed));
            }
        }
        let (place, owed) = chosen?;
        self.current_weights[place].set(owed - total);
        Some(place)
    }
}

/// The one of two random ones that has less to do for its weight: nearly as good as the best of all, and no herd runs to it.
fn least_requests(servers: &[Rc<UpstreamEndpoint>], open: &[usize]) -> Option<usize> {
    let load = |place: &usize| {
        let server = &servers[*place];
        (server.in_flight() + 1) as f64 / server.weight() as f64
    };
    let one = fastrand::choice(open)?;
    let other = fastrand::choice(open)?;
    Some(if load(other) < load(one) { *other } else { *one })
}

/// The highest of one number for each pair of client and server. When a server goes, only its own clients move.
fn client_hash(
    servers: &[Rc<UpstreamEndpoint>],
    open: impl Iterator<Item = usize>,
    client: IpAddr,
) -> Option<usize> {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let score = |place: usize| {
        let hash = hasher.hash_one((client, servers[place].name()));
        // Between 0 and 1, and neither.
        let unit = ((hash >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
        servers[place].weight() as f64 / -unit.ln()
    };
    open.map(|place| (place, score(place)))
        .max_by(|one, other| one.1.total_cmp(&other.1))
        .map(|(place, _)| place)
}
