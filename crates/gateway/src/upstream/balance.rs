//! Which server is next.

use super::Server;
use std::{
    cell::Cell,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    net::IpAddr,
    rc::Rc,
};
use tidegate_observe::ServerState;
use tidegate_policy::model::Balance;

/// How servers take turns.
pub(super) struct Turns {
    balance: Balance,
    /// Of each server: what it is owed, for turns by weight.
    owed: Vec<Cell<i64>>,
}

impl Turns {
    pub(super) fn new(balance: Balance, servers: usize) -> Self {
        Self { balance, owed: vec![Cell::new(0); servers] }
    }

    /// The place of the next server, which is none of those that were tried.
    pub(super) fn next(&self, servers: &[Rc<Server>], tried: &[usize], client: IpAddr) -> Option<usize> {
        if let [only] = servers {
            return (tried.is_empty() && only.standing() != ServerState::Down).then_some(0);
        }
        let open = || (0..servers.len()).filter(|place| !tried.contains(place));
        let best = open().map(|place| servers[place].standing()).max()?;
        if best == ServerState::Down {
            return None;
        }
        let open = || open().filter(|place| servers[*place].standing() == best);
        match self.balance {
            Balance::RoundRobin => self.by_turns(servers, open()),
            Balance::LeastRequests => by_requests(servers, &open().collect::<Vec<_>>()),
            Balance::Client => by_client(servers, open(), client),
        }
    }

    /// Each is owed its weight at every turn; whoever is owed most gets it, and pays for all. So turns are spread evenly.
    fn by_turns(&self, servers: &[Rc<Server>], open: impl Iterator<Item = usize>) -> Option<usize> {
        let (mut chosen, mut total) = (None, 0);
        for place in open {
            let weight = i64::try_from(servers[place].weight()).unwrap_or(i64::MAX / 1_024);
            total += weight;
            let owed = self.owed[place].get() + weight;
            self.owed[place].set(owed);
            if chosen.is_none_or(|(_, most)| owed > most) {
                chosen = Some((place, owed));
            }
        }
        let (place, owed) = chosen?;
        self.owed[place].set(owed - total);
        Some(place)
    }
}

/// The one of two random ones that has less to do for its weight: nearly as good as the best of all, and no herd runs to it.
fn by_requests(servers: &[Rc<Server>], open: &[usize]) -> Option<usize> {
    let load = |place: &usize| {
        let server = &servers[*place];
        (server.in_flight() + 1) as f64 / server.weight() as f64
    };
    let one = fastrand::choice(open)?;
    let other = fastrand::choice(open)?;
    Some(if load(other) < load(one) { *other } else { *one })
}

/// The highest of one number for each pair of client and server. When a server goes, only its own clients move.
fn by_client(servers: &[Rc<Server>], open: impl Iterator<Item = usize>, client: IpAddr) -> Option<usize> {
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
