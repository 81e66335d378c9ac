//! Sites: a server at the listeners where nginx chooses it, apart from the other servers there.
//!
//! nginx chooses the server by the address and port first, and by the name only among the servers there. Listeners with the
//! same servers make one group; where there are several groups, each gives its listeners a name, and everything that is
//! made of a server says which of them it is about.

use super::{Importer, names::free_name, servers::Server};
use std::{
    collections::{BTreeMap, HashSet},
    net::SocketAddr,
};
use tidegate_policy::model::{Glob, Match};

/// A server at the listeners of one group.
#[derive(Clone, Debug)]
pub(super) struct Site<'s> {
    pub(super) server: &'s Server,
    /// The place of the server among all of them.
    pub(super) place: usize,
    /// Names that no server before it has here.
    names: Vec<String>,
    pub(super) serves: Serves,
    group: usize,
    /// What the listeners of the group are called; `None` where there is one group only.
    listener: Option<String>,
    /// `http` or `https`, where that is the same for all listeners of the group.
    pub(super) scheme: Option<&'static str>,
}

/// Which hosts a site is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Serves {
    /// Those that it is called.
    ItsNames,
    /// All that no other site of its group is called.
    Everybody,
}

/// One address, as servers listen there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listen {
    pub(super) address: SocketAddr,
    /// It has `default_server`.
    pub(super) is_default: bool,
    pub(super) scheme: &'static str,
}

/// The servers at an address, and which of them is for all other hosts.
type Servers = (Vec<usize>, usize, Option<&'static str>);

impl Importer<'_> {
    /// All servers, each at the listeners where it is chosen. Gives listeners their names.
    pub(super) fn sites<'s>(&mut self, servers: &'s [Server]) -> Vec<Site<'s>> {
        let mut groups: Vec<(Servers, Vec<Listen>)> = Vec::new();
        for (listen, at_address) in by_address(servers, self.needs_scheme) {
            match groups.iter_mut().find(|(known, _)| *known == at_address) {
                Some((_, listens)) => listens.push(listen),
                None => groups.push((at_address, vec![listen])),
            }
        }
        let (mut sites, mut is_chosen) = (Vec::new(), vec![false; servers.len()]);
        let mut taken = HashSet::new();
        let has_several = groups.len() > 1;
        for (group, ((places, default, _), listens)) in groups.iter().enumerate() {
            let listener = has_several.then(|| {
                let name = listens.first().map_or(0, |listen| listen.address.port());
                let name = free_name(&format!("port-{name}"), |name| taken.contains(name));
                taken.insert(name.clone());
                name
            });
            for declared in &mut self.policy.listen {
                if listens.iter().any(|listen| listen.address == declared.address) {
                    declared.name.clone_from(&listener);
                }
            }
            let scheme = listens.first().map(|listen| listen.scheme);
            let scheme = scheme.filter(|scheme| listens.iter().all(|listen| listen.scheme == *scheme));
            let mut known: HashSet<&str> = HashSet::new();
            for place in places {
                let server = &servers[*place];
                let names: Vec<String> =
                    server.names.iter().filter(|name| known.insert(name)).cloned().collect();
                let serves = if place == default { Serves::Everybody } else { Serves::ItsNames };
                if serves == Serves::Everybody || !names.is_empty() {
                    is_chosen[*place] = true;
                    let listener = listener.clone();
                    sites.push(Site { server, place: *place, names, serves, group, listener, scheme });
                }
            }
        }
        for (server, _) in servers.iter().zip(is_chosen).filter(|(_, is_chosen)| !is_chosen) {
            let reason = match (server.listens.is_empty(), server.names.is_empty()) {
                (true, _) => "it listens nowhere that is carried over, so nothing of it is",
                (_, true) => "it has no name, and other servers come first at its addresses: never chosen",
                (_, false) => "other servers at its addresses have its names and come first: never chosen",
            };
            self.lose(&server.head, reason);
        }
        sites.sort_by_key(|site| (site.server.at, site.group));
        sites
    }
}

/// At each address, the servers there; `default_server`, or else the first one, is for all other hosts.
fn by_address(servers: &[Server], needs_scheme: bool) -> Vec<(Listen, Servers)> {
    let mut order: Vec<Listen> = Vec::new();
    let mut found: BTreeMap<SocketAddr, (Vec<usize>, usize, bool)> = BTreeMap::new();
    for (place, server) in servers.iter().enumerate() {
        for listen in &server.listens {
            let known = found.entry(listen.address).or_insert_with(|| {
                order.push(*listen);
                (Vec::new(), place, false)
            });
            if known.0.last() != Some(&place) {
                known.0.push(place);
            }
            if listen.is_default && !known.2 {
                (known.1, known.2) = (place, true);
            }
            // One server that says `ssl` says it for the address.
            if listen.scheme == "https" {
                order.iter_mut().filter(|it| it.address == listen.address).for_each(|it| it.scheme = "https");
            }
        }
    }
    let servers = |listen: Listen| {
        let (servers, default, _) = found.remove(&listen.address).unwrap_or_default();
        (listen, (servers, default, needs_scheme.then_some(listen.scheme)))
    };
    order.into_iter().map(servers).collect()
}

impl Site<'_> {
    /// Those of the same listeners.
    pub(super) fn others<'a, 's>(&'a self, all: &'a [Site<'s>]) -> impl Iterator<Item = &'a Site<'s>> {
        all.iter().filter(move |other| other.group == self.group && other.place != self.place)
    }

    /// Requests to the listeners of this site; an empty match is all requests.
    pub(super) fn at_listener(&self) -> Match {
        Match { listeners: self.listener.iter().cloned().collect(), ..Match::default() }
    }

    /// Requests to this site among all of them; an empty match is all requests.
    pub(super) fn matching(&self, all: &[Site<'_>]) -> Match {
        let globs =
            |names: Vec<&String>| -> Vec<Glob> { names.into_iter().map(|name| Glob(name.clone())).collect() };
        let others = || self.others(all).flat_map(|other| &other.names);
        let (hosts, not) = match self.serves {
            Serves::Everybody => (Vec::new(), globs(others().collect())),
            Serves::ItsNames => {
                let nearer = others().filter(|name| {
                    self.names
                        .iter()
                        .any(|ours| ours.contains('*') && fits(ours, name) && is_nearer(name, ours))
                });
                (globs(self.names.iter().collect()), globs(nearer.collect()))
            }
        };
        let not = (!not.is_empty()).then(|| Box::new(Match { hosts: not, ..Match::default() }));
        Match { hosts, not, ..self.at_listener() }
    }

    /// Where it stands among sites of which the first that fits is taken.
    pub(super) fn rank(&self) -> (usize, bool, bool, usize) {
        let wild = self.names.iter().filter(|name| name.contains('*'));
        let longest = wild.clone().map(String::len).max().unwrap_or(0);
        (self.group, self.serves == Serves::Everybody, wild.count() > 0, usize::MAX - longest)
    }
}

fn fits(glob: &str, name: &str) -> bool {
    match (glob.strip_prefix('*'), glob.strip_suffix('*')) {
        (Some(end), _) => name.ends_with(end) && name.len() > end.len(),
        (_, Some(start)) => name.starts_with(start) && name.len() > start.len(),
        _ => glob == name,
    }
}

/// Whole names go before those with a star, and longer ones before shorter ones.
fn is_nearer(name: &str, than: &str) -> bool {
    !name.contains('*') || name.len() > than.len()
}
