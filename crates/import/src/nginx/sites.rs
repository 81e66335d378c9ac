//! Sites: a server at the listeners where nginx selects it, and the requests that it receives there.
//!
//! nginx selects the server by address and port first, and by name only among the servers there. Listeners with the same
//! servers form one group. With several groups, each group names its listeners, and the rules and routes of a server match
//! these names.

use super::{Importer, names::unused_name, servers::ServerBlock};
use std::{
    collections::{BTreeMap, HashSet},
    net::SocketAddr,
};
use tidegate_policy::model::{Glob, Match};

/// A server at the listeners of one group.
#[derive(Clone, Debug)]
pub(super) struct Site<'s> {
    pub(super) server: &'s ServerBlock,
    /// The index of the server among all servers.
    pub(super) server_index: usize,
    /// Names that no earlier server of the group has.
    names: Vec<String>,
    pub(super) host_scope: HostScope,
    group: usize,
    /// The name of the listeners of the group; `None` if there is only one group.
    listener: Option<String>,
    /// `http` or `https`, if all listeners of the group have the same scheme.
    pub(super) scheme: Option<&'static str>,
}

/// The hosts of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostScope {
    /// Its own names.
    Named,
    /// All hosts that no other site of its group has.
    CatchAll,
}

/// An address of a `listen` directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListenAddress {
    pub(super) address: SocketAddr,
    /// Whether the directive has `default_server`.
    pub(super) is_default: bool,
    pub(super) scheme: &'static str,
}

/// The servers at an address, the default one among them, and the scheme.
type AddressServers = (Vec<usize>, usize, Option<&'static str>);

impl Importer<'_> {
    /// Builds the sites of all servers, and names the listeners.
    pub(super) fn build_sites<'s>(&mut self, servers: &'s [ServerBlock]) -> Vec<Site<'s>> {
        let mut groups: Vec<(AddressServers, Vec<ListenAddress>)> = Vec::new();
        for (listen, at_address) in group_by_address(servers, self.needs_scheme) {
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
                let name = unused_name(&format!("port-{name}"), |name| taken.contains(name));
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
                let serves = if place == default { HostScope::CatchAll } else { HostScope::Named };
                if serves == HostScope::CatchAll || !names.is_empty() {
                    is_chosen[*place] = true;
                    let listener = listener.clone();
                    sites.push(Site {
                        server,
                        server_index: *place,
                        names,
                        host_scope: serves,
                        group,
                        listener,
                        scheme,
                    });
                }
            }
        }
        for (server, _) in servers.iter().zip(is_chosen).filter(|(_, is_chosen)| !is_chosen) {
            let reason = match (server.listeners.is_empty(), server.names.is_empty()) {
                (true, _) => "none of its listeners is imported, so the server is not imported either",
                (_, true) => {
                    "never selected: it has no name, and other servers take precedence at its addresses"
                }
                (_, false) => "never selected: other servers with its names take precedence at its addresses",
            };
            self.record_loss(&server.directive, reason);
        }
        sites.sort_by_key(|site| (site.server.span, site.group));
        sites
    }
}

/// Groups servers by address. The server with `default_server`, or else the first one, receives all other hosts.
fn group_by_address(servers: &[ServerBlock], needs_scheme: bool) -> Vec<(ListenAddress, AddressServers)> {
    let mut order: Vec<ListenAddress> = Vec::new();
    let mut found: BTreeMap<SocketAddr, (Vec<usize>, usize, bool)> = BTreeMap::new();
    for (place, server) in servers.iter().enumerate() {
        for listen in &server.listeners {
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
            // `ssl` of one server applies to the address.
            if listen.scheme == "https" {
                order.iter_mut().filter(|it| it.address == listen.address).for_each(|it| it.scheme = "https");
            }
        }
    }
    let servers = |listen: ListenAddress| {
        let (servers, default, _) = found.remove(&listen.address).unwrap_or_default();
        (listen, (servers, default, needs_scheme.then_some(listen.scheme)))
    };
    order.into_iter().map(servers).collect()
}

impl Site<'_> {
    /// Returns the other sites of the same listeners.
    pub(super) fn siblings<'a, 's>(&'a self, all: &'a [Site<'s>]) -> impl Iterator<Item = &'a Site<'s>> {
        all.iter().filter(move |other| other.group == self.group && other.server_index != self.server_index)
    }

    /// Matches requests to the listeners of this site; an empty match is all requests.
    pub(super) fn listener_match(&self) -> Match {
        Match { listeners: self.listener.iter().cloned().collect(), ..Match::default() }
    }

    /// Matches requests to this site among all sites; an empty match is all requests.
    pub(super) fn matching(&self, all: &[Site<'_>]) -> Match {
        let globs =
            |names: Vec<&String>| -> Vec<Glob> { names.into_iter().map(|name| Glob(name.clone())).collect() };
        let others = || self.siblings(all).flat_map(|other| &other.names);
        let (hosts, not) = match self.host_scope {
            HostScope::CatchAll => (Vec::new(), globs(others().collect())),
            HostScope::Named => {
                let nearer = others().filter(|name| {
                    self.names.iter().any(|ours| {
                        ours.contains('*') && matches_name(ours, name) && is_more_specific(name, ours)
                    })
                });
                (globs(self.names.iter().collect()), globs(nearer.collect()))
            }
        };
        let not = (!not.is_empty()).then(|| Box::new(Match { hosts: not, ..Match::default() }));
        Match { hosts, not, ..self.listener_match() }
    }

    /// Returns the sort key of the site; the first matching site receives the request.
    pub(super) fn rank(&self) -> (usize, bool, bool, usize) {
        let wild = self.names.iter().filter(|name| name.contains('*'));
        let longest = wild.clone().map(String::len).max().unwrap_or(0);
        (self.group, self.host_scope == HostScope::CatchAll, wild.count() > 0, usize::MAX - longest)
    }
}

fn matches_name(glob: &str, name: &str) -> bool {
    match (glob.strip_prefix('*'), glob.strip_suffix('*')) {
        (Some(end), _) => name.ends_with(end) && name.len() > end.len(),
        (_, Some(start)) => name.starts_with(start) && name.len() > start.len(),
        _ => glob == name,
    }
}

/// Exact names take precedence over wildcards, and longer wildcards over shorter ones.
fn is_more_specific(name: &str, than: &str) -> bool {
    !name.contains('*') || name.len() > than.len()
}
