//! Rules and routes, of servers and their locations.
//!
//! Locations that use a zone alike have one rule together, so that they share its counts as they did. Where they use it in
//! different ways, another burst, say, each way is a rule of its own.

use super::{
    Importer,
    level::{Denial, Terms},
    location::Place,
    names::{free_name, list_name, name_of},
    region::{both, region, union},
    servers::{Location, Named, Server, Serves},
    variables::{KeyPlan, PerServer},
};
use crate::{
    model::{
        Access, Bandwidth, Enforcement, Key, Match, Network, OnLimit, Part, PathPattern, Quotas, Reject,
        Route, Rule,
    },
    source::{Span, short},
};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};
use tidegate_core::{Quota, QuotaError};
use tidegate_rule::Mode;

/// What locations have in common that one rule is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Limit {
    Requests { zone: String, burst: u64, delay: u64 },
    Connections { zone: String, most: u64 },
    Bytes { rate: u64, after: u64 },
}

/// A rule to be, and where it applies.
#[derive(Clone, Debug)]
struct Use {
    limit: Limit,
    denial: Denial,
    /// The server that counts for itself.
    server: Option<usize>,
    /// Servers and locations.
    places: Vec<(usize, usize)>,
    at: Span,
}

impl Importer<'_> {
    pub(super) fn rules(&mut self, servers: &[Server]) {
        let uses = self.uses(servers);
        let mut first: HashMap<String, (Span, Option<usize>)> = HashMap::new();
        for its in &uses {
            let Some(left) = self.left.rules.checked_sub(1) else {
                return self.blame(its.at, "one of more than a thousand limits", "import a part of them");
            };
            self.left.rules = left;
            if let Limit::Requests { zone, .. } | Limit::Connections { zone, .. } = &its.limit {
                match first.get(zone) {
                    Some((at, server)) if *server == its.server => {
                        let place = self.line(*at);
                        let reason =
                            format!("counted apart from {place}, which uses zone `{zone}` in another way");
                        self.lose_at(its.at, reason);
                    }
                    Some(_) => {}
                    None => _ = first.insert(zone.clone(), (its.at, its.server)),
                }
            }
            self.rule(its, servers);
        }
    }

    /// Who uses which zone in which way, in the order in which they do.
    fn uses(&mut self, servers: &[Server]) -> Vec<Use> {
        let (mut uses, mut known) = (Vec::<Use>::new(), HashMap::new());
        let mut add =
            |limit: Limit, denial: Denial, server: Option<usize>, place: (usize, usize), at: Span| {
                let index = *known
                    .entry((limit.clone(), denial.status, denial.mode == Mode::Shadow, server))
                    .or_insert_with(|| {
                        uses.push(Use { limit, denial, server, places: Vec::new(), at });
                        uses.len() - 1
                    });
                uses[index].places.push(place);
            };
        for (server, said) in servers.iter().enumerate() {
            for (location, Location { terms, .. }) in said.locations.iter().enumerate() {
                let place = (server, location);
                let by_itself = |plan: &Arc<KeyPlan>| (plan.per == PerServer::Each).then_some(server);
                let counts = |plan: &Arc<KeyPlan>| {
                    said.named == Named::Yes || plan.per == PerServer::Together || plan.key != Key::All
                };
                for limit in &terms.requests {
                    if let Some(plan) = self.request_plan(&limit.zone, limit.at).filter(counts) {
                        let by = by_itself(&plan);
                        let (zone, burst, delay) = (limit.zone.clone(), limit.burst, limit.delay);
                        add(
                            Limit::Requests { zone, burst, delay },
                            terms.request_denial,
                            by,
                            place,
                            limit.at,
                        );
                    }
                }
                for limit in &terms.connections {
                    if let Some(plan) = self.connection_plan(&limit.zone, limit.at).filter(counts) {
                        let by = by_itself(&plan);
                        let (zone, most) = (limit.zone.clone(), limit.most);
                        add(Limit::Connections { zone, most }, terms.connection_denial, by, place, limit.at);
                    }
                }
                if let Some(rate) = terms.rate {
                    let limit = Limit::Bytes { rate: rate.bytes, after: terms.rate_after };
                    add(limit, Terms::default().request_denial, None, place, rate.at);
                }
            }
        }
        uses.sort_by_key(|its| its.at);
        uses
    }

    fn request_plan(&mut self, zone: &str, at: Span) -> Option<Arc<KeyPlan>> {
        match self.request_zones.get(zone) {
            Some(known) => known.plan.clone(),
            None => {
                let known: Vec<_> = self.request_zones.keys().cloned().collect();
                self.unknown_zone(zone, "limit_req_zone", &known, at);
                None
            }
        }
    }

    fn connection_plan(&mut self, zone: &str, at: Span) -> Option<Arc<KeyPlan>> {
        match self.connection_zones.get(zone) {
            Some(known) => known.plan.clone(),
            None => {
                let known: Vec<_> = self.connection_zones.keys().cloned().collect();
                self.unknown_zone(zone, "limit_conn_zone", &known, at);
                None
            }
        }
    }

    fn unknown_zone(&mut self, zone: &str, directive: &str, known: &[String], at: Span) {
        let fix = match known.is_empty() {
            true => format!("say what it counts with `{directive}`"),
            false => {
                format!("say what it counts with `{directive}`; there are: {}", short(&known.join(", ")))
            }
        };
        self.blame(at, format!("unknown zone `{}`", short(zone)), fix);
    }

    fn rule(&mut self, its: &Use, servers: &[Server]) {
        let places: HashSet<_> = its.places.iter().copied().collect();
        let is_in = |server: usize, location: usize| places.contains(&(server, location));
        let Some(matching) = requests_to(servers, is_in) else { return };
        let reject = Reject { status: Some(its.denial.status), ..Reject::default() };
        let mut rule = Rule {
            matching,
            enforcement: Enforcement::All(its.denial.mode),
            on_limit: OnLimit::Reject(reject),
            ..Rule::new("")
        };
        let (name, plan, quota) = match &its.limit {
            Limit::Requests { zone, burst, delay } => {
                let Some(known) = self.request_zones.get(zone).cloned() else { return };
                if delay < burst {
                    rule.wait = known.rate.longest_wait(*burst, *delay);
                }
                (zone.clone(), known.plan, known.rate.quota(*burst, *delay))
            }
            Limit::Connections { zone, most } => {
                let plan = self.connection_zones.get(zone).and_then(|zone| zone.plan.clone());
                (zone.clone(), plan, Quota::at_once(*most))
            }
            Limit::Bytes { rate, after } => {
                let quota = match bytes(*rate, *after) {
                    Ok(quota) => quota,
                    Err(error) => {
                        return self.blame(
                            its.at,
                            error.to_string(),
                            "give a smaller `limit_rate` or `limit_rate_after`",
                        );
                    }
                };
                rule.key = Key::Part(Part::Request);
                rule.bandwidth = Some(Bandwidth { down: Some(quota), up: None });
                rule.on_limit = OnLimit::default();
                let name = self.rule_name("limit_rate");
                self.policy.rules.push(Rule { name, ..rule });
                return;
            }
        };
        let quota = match quota {
            Ok(quota) => quota,
            Err(error) => return self.blame(its.at, error.to_string(), "give a smaller burst"),
        };
        let Some(plan) = plan else { return };
        rule.name = self.rule_name(&name_of(&name));
        rule.quotas = Quotas::All(vec![quota]);
        self.by_key(&mut rule, &plan);
        self.policy.rules.push(rule);
    }

    /// For whom a rule counts, and for whom it does not.
    fn by_key(&mut self, rule: &mut Rule, plan: &KeyPlan) {
        rule.key = plan.key.clone();
        rule.missing = plan.missing;
        if let Some(only) = plan.only.clone() {
            rule.matching = both(std::mem::take(&mut rule.matching), only);
        }
        if let Some((name, list)) = plan.allow.clone() {
            let lists = &self.policy.lists;
            let name =
                free_name(&list_name(&name), |name| lists.get(name).is_some_and(|known| *known != list));
            self.policy.lists.insert(name.clone(), list);
            rule.access = Some(Access { allow: vec![Network::List(name)], ..Access::default() });
        }
    }

    fn rule_name(&mut self, name: &str) -> String {
        let name = free_name(name, |name| self.rule_names.contains(name));
        self.rule_names.insert(name.clone());
        name
    }

    pub(super) fn routes(&mut self, servers: &[Server]) {
        let mut order: Vec<usize> = (0..servers.len()).collect();
        order.sort_by_key(|place| servers[*place].rank());
        let is_complete = |server: &Server| server.locations.iter().all(|location| location.pass.is_some());
        for place in order {
            let server = &servers[place];
            let others = servers.iter().filter(|other| other.at != server.at);
            let hosts = match server.serves {
                // Nothing of theirs comes this far.
                Serves::Everybody if others.into_iter().all(is_complete) => Match::default(),
                _ => server.matching(servers),
            };
            let routes = match has_plain_order(server) {
                true => in_order(server),
                false => apart(server),
            };
            let routes = routes.into_iter().map(|route| Route {
                matching: both(hosts.clone(), route.matching),
                upstream: route.upstream,
            });
            self.policy.routes.extend(routes);
        }
    }
}

/// So many bytes in a second of each answer, after so many that are free. nginx gives a second's worth at the start, too.
fn bytes(rate: u64, after: u64) -> Result<Quota, QuotaError> {
    Quota::bytes_per_second(rate).burst(rate.saturating_add(after))
}

/// Requests to these locations of all servers; `None` if there are none.
fn requests_to(servers: &[Server], is_in: impl Fn(usize, usize) -> bool) -> Option<Match> {
    let mut parts = Vec::new();
    let mut is_everything = true;
    for (place, server) in servers.iter().enumerate() {
        let all: Vec<(&Place, bool)> = server
            .locations
            .iter()
            .enumerate()
            .map(|(location, said)| (&said.place, is_in(place, location)))
            .collect();
        is_everything &= all.iter().all(|(_, is_in)| *is_in);
        if all.iter().any(|(_, is_in)| *is_in) {
            parts.extend(region(&all).map(|region| both(server.matching(servers), region)));
        }
    }
    match is_everything {
        true => Some(Match::default()),
        false => union(parts),
    }
}

/// Whether the first of its routes that fits can be the right one: nothing but paths, and none that goes nowhere.
fn has_plain_order(server: &Server) -> bool {
    server.locations.iter().all(|location| match &location.place {
        Place::Expression(_) => false,
        Place::Exact(_) => location.pass.is_some(),
        Place::Prefix(text, _) => location.pass.is_some() || text.is_empty(),
    })
}

/// Whole paths first, then longer ones before shorter ones.
fn in_order(server: &Server) -> Vec<Route> {
    let mut locations: Vec<&Location> = server.locations.iter().filter(|it| it.pass.is_some()).collect();
    let length = |location: &Location| location.place.text().map_or(0, str::len);
    locations.sort_by_key(|location| {
        (!matches!(location.place, Place::Exact(_)), std::cmp::Reverse(length(location)))
    });
    let mut routes: Vec<Route> = Vec::new();
    for location in locations {
        let (Some(upstream), Some(pattern)) = (location.pass.clone(), location.place.pattern()) else {
            continue;
        };
        let is_everything = |path: &PathPattern| path.segments.is_empty() && path.rest.is_some();
        match routes.last_mut() {
            Some(last) if last.upstream == upstream && is_everything(&pattern) => last.matching.paths.clear(),
            Some(last) if last.upstream == upstream => last.matching.paths.push(pattern),
            _ => {
                let paths = if is_everything(&pattern) { Vec::new() } else { vec![pattern] };
                routes.push(Route { matching: Match { paths, ..Match::default() }, upstream });
            }
        }
    }
    routes
}

/// One route for each upstream, which is about its locations and no others.
fn apart(server: &Server) -> Vec<Route> {
    let mut upstreams: Vec<&String> = server.locations.iter().filter_map(|it| it.pass.as_ref()).collect();
    upstreams.sort();
    upstreams.dedup();
    let route = |upstream: &String| {
        let all: Vec<(&Place, bool)> =
            server.locations.iter().map(|it| (&it.place, it.pass.as_ref() == Some(upstream))).collect();
        region(&all).map(|matching| Route { matching, upstream: upstream.clone() })
    };
    upstreams.into_iter().filter_map(route).collect()
}
