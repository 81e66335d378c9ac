//! Rules and routes, of servers and their locations.
//!
//! Locations that use a zone alike have one rule together, so that they share its counts as they did. Where they use it in
//! different ways, another burst, say, each way is a rule of its own.

use super::{
    Importer,
    access::{AccessEntry, rule_of},
    bodies::USUAL_BODY,
    level::{Denial, Terms},
    location::Place,
    names::{free_name, list_name, name_of},
    region::{and, both, region, union},
    respond::{Answered, SCHEME},
    servers::{Location, Named, Server},
    sites::{Serves, Site},
    variables::{KeyPlan, PerServer},
};
use crate::LossKind;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};
use tidegate_core::{Quota, QuotaError};
use tidegate_policy::{
    model::{
        AccessSpec, BandwidthSpec, Expression, KeyPart, KeySpec, Match, Network, OnLimit, PathPattern,
        Quotas, Reject, Respond, RouteAction, RouteSpec, RuleEnforcement, RuleSpec,
    },
    source::{SourceSpan, truncate},
};
use tidegate_rule::Mode;

/// What locations have in common that one rule is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Limit {
    Requests { zone: String, burst: u64, delay: u64 },
    Connections { zone: String, most: u64 },
    Bytes { rate: u64, after: u64 },
    Access { entries: Vec<AccessEntry>, methods: Methods },
    Body { bytes: u64 },
}

/// Which methods a list is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Methods {
    All,
    These(Vec<String>),
    AllBut(Vec<String>),
}

/// A rule to be, and where it applies.
#[derive(Clone, Debug)]
struct Use {
    limit: Limit,
    denial: Denial,
    /// The server that counts for itself.
    server: Option<usize>,
    /// Sites and locations.
    places: Vec<(usize, usize)>,
    at: SourceSpan,
}

impl Importer<'_> {
    pub(super) fn rules(&mut self, sites: &[Site<'_>]) {
        let uses = self.uses(sites);
        let mut first: HashMap<String, (SourceSpan, Option<usize>)> = HashMap::new();
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
            self.rule(its, sites);
        }
    }

    /// Who uses which zone in which way, in the order in which they do.
    fn uses(&mut self, sites: &[Site<'_>]) -> Vec<Use> {
        let (mut uses, mut known) = (Vec::<Use>::new(), HashMap::new());
        let mut add =
            |limit: Limit, denial: Denial, server: Option<usize>, place: (usize, usize), at: SourceSpan| {
                let index = *known
                    .entry((limit.clone(), denial.status, denial.mode == Mode::Shadow, server))
                    .or_insert_with(|| {
                        uses.push(Use { limit, denial, server, places: Vec::new(), at });
                        uses.len() - 1
                    });
                uses[index].places.push(place);
            };
        let largest = self.policy.connections.body_size;
        for (site, Site { server, place: server_place, .. }) in sites.iter().enumerate() {
            for (location, Location { terms, except, action, .. }) in server.locations.iter().enumerate() {
                let place = (site, location);
                let by_itself = |plan: &Arc<KeyPlan>| (plan.per == PerServer::Each).then_some(*server_place);
                let counts = |plan: &Arc<KeyPlan>| {
                    server.named == Named::Yes || plan.per == PerServer::Together || plan.key != KeySpec::All
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
                let usual = Terms::default().request_denial;
                if let Some(rate) = terms.rate {
                    let limit = Limit::Bytes { rate: rate.bytes, after: terms.rate_after };
                    add(limit, usual, None, place, rate.at);
                }
                // Other methods have a list of their own, if they have any.
                let except = except.as_ref().filter(|except| !except.access.entries.is_empty());
                let methods = except.map_or(Methods::All, |except| Methods::These(except.methods.clone()));
                let its = (&terms.access, methods);
                let others = except.map(|it| (&it.access, Methods::AllBut(it.methods.clone())));
                for (list, methods) in [its].into_iter().chain(others) {
                    if let Some(at) = list.at {
                        let entries = list.entries.clone();
                        add(Limit::Access { entries, methods }, usual, None, place, at);
                    }
                }
                let bytes = terms.body.map_or(Some(USUAL_BODY), |body| body.bytes);
                if let (Some(RouteAction::Forward(_)), Some(bytes), true) = (action, bytes, bytes != largest)
                {
                    let at = terms.body.map_or(server.at, |body| body.at);
                    add(Limit::Body { bytes }, usual, None, place, at);
                }
            }
        }
        uses.sort_by_key(|its| its.at);
        uses
    }

    fn request_plan(&mut self, zone: &str, at: SourceSpan) -> Option<Arc<KeyPlan>> {
        match self.request_zones.get(zone) {
            Some(known) => {
                let plan = known.plan.clone().ok();
                self.used_zones.insert(known.at);
                plan
            }
            None => {
                let known: Vec<_> = self.request_zones.keys().cloned().collect();
                self.unknown_zone(zone, "limit_req_zone", &known, at);
                None
            }
        }
    }

    fn connection_plan(&mut self, zone: &str, at: SourceSpan) -> Option<Arc<KeyPlan>> {
        match self.connection_zones.get(zone) {
            Some(known) => {
                let plan = known.plan.clone().ok();
                self.used_zones.insert(known.at);
                plan
            }
            None => {
                let known: Vec<_> = self.connection_zones.keys().cloned().collect();
                self.unknown_zone(zone, "limit_conn_zone", &known, at);
                None
            }
        }
    }

    /// Zones whose key cannot be carried over: what uses them is not limited any longer.
    pub(super) fn finish_zones(&mut self) {
        let requests = self.request_zones.values().map(|zone| (zone.at, &zone.plan));
        let connections = self.connection_zones.values().map(|zone| (zone.at, &zone.plan));
        let strange = |(at, plan): (SourceSpan, &Result<Arc<KeyPlan>, String>)| {
            Some((at, plan.as_ref().err()?.clone()))
        };
        let all: Vec<(SourceSpan, String)> = requests.chain(connections).filter_map(strange).collect();
        for (at, strange) in all {
            let kind = match self.used_zones.contains(&at) {
                true => LossKind::Protection,
                false => LossKind::Decoration,
            };
            let reason = format!("{strange} cannot be said; nothing that uses this zone is limited by it");
            self.lose_as(kind, at, reason);
        }
    }

    fn unknown_zone(&mut self, zone: &str, directive: &str, known: &[String], at: SourceSpan) {
        let fix = match known.is_empty() {
            true => format!("say what it counts with `{directive}`"),
            false => {
                format!("say what it counts with `{directive}`; there are: {}", truncate(&known.join(", ")))
            }
        };
        self.blame(at, format!("unknown zone `{}`", truncate(zone)), fix);
    }

    fn rule(&mut self, its: &Use, sites: &[Site<'_>]) {
        let places: HashSet<_> = its.places.iter().copied().collect();
        let is_in = |site: usize, location: usize| places.contains(&(site, location));
        let Some(matching) = requests_to(sites, is_in) else { return };
        let mut rule = RuleSpec {
            matching,
            enforcement: RuleEnforcement::All(its.denial.mode),
            on_limit: match its.denial.status {
                444 => OnLimit::Drop,
                status => OnLimit::Reject(Reject { status: Some(status), ..Reject::default() }),
            },
            ..RuleSpec::new("")
        };
        let (name, plan, quota) = match &its.limit {
            Limit::Requests { zone, burst, delay } => {
                let Some(known) = self.request_zones.get(zone).cloned() else { return };
                if delay < burst {
                    rule.wait = known.rate.longest_wait(*burst, *delay);
                }
                (zone.clone(), known.plan.ok(), known.rate.quota(*burst, *delay))
            }
            Limit::Connections { zone, most } => {
                let plan = self.connection_zones.get(zone).and_then(|zone| zone.plan.clone().ok());
                (zone.clone(), plan, Quota::concurrency(*most))
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
                rule.key = KeySpec::Part(KeyPart::Request);
                rule.bandwidth = Some(BandwidthSpec { down: Some(quota), up: None });
                rule.on_limit = OnLimit::default();
                let name = self.rule_name("limit_rate");
                self.policy.rules.push(RuleSpec { name, ..rule });
                return;
            }
            Limit::Access { entries, methods } => {
                let Some((access, denied)) = rule_of(entries) else { return };
                let about = match methods {
                    Methods::All => Match::default(),
                    Methods::These(methods) => Match { methods: methods.clone(), ..Match::default() },
                    Methods::AllBut(methods) => {
                        let not = Match { methods: methods.clone(), ..Match::default() };
                        Match { not: Some(Box::new(not)), ..Match::default() }
                    }
                };
                let matching = and(and(rule.matching, about), denied);
                let (name, access) = (self.rule_name("access"), Some(access));
                // Who is denied is answered with 403, as by nginx.
                self.policy.rules.push(RuleSpec {
                    name,
                    matching,
                    access,
                    on_limit: OnLimit::default(),
                    ..rule
                });
                return;
            }
            Limit::Body { bytes } => {
                let when = Some(Expression(format!("request.size > {bytes}").into()));
                let matching = and(rule.matching, Match { when, ..Match::default() });
                let deny = vec![Network::List("all".to_owned())];
                let access = Some(AccessSpec { deny, ..AccessSpec::default() });
                let on_limit = OnLimit::Reject(Reject { status: Some(413), ..Reject::default() });
                let name = self.rule_name("client_max_body_size");
                self.policy.rules.push(RuleSpec { name, matching, access, on_limit, ..rule });
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
    fn by_key(&mut self, rule: &mut RuleSpec, plan: &KeyPlan) {
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
            rule.access = Some(AccessSpec { allow: vec![Network::List(name)], ..AccessSpec::default() });
        }
    }

    fn rule_name(&mut self, name: &str) -> String {
        let name = free_name(name, |name| self.rule_names.contains(name));
        self.rule_names.insert(name.clone());
        name
    }

    pub(super) fn routes(&mut self, sites: &[Site<'_>]) {
        let mut order: Vec<&Site<'_>> = sites.iter().collect();
        order.sort_by_key(|site| site.rank());
        for site in order {
            let server = site.server;
            let matching = site.matching(sites);
            for answered in &server.answered {
                self.answered(site, matching.clone(), answered);
            }
            for (place, location) in server.locations.iter().enumerate() {
                if location.answered.is_empty() {
                    continue;
                }
                let places = server.locations.iter().enumerate();
                let all: Vec<_> = places.map(|(at, location)| (&location.place, at == place)).collect();
                if let Some(region) = region(&all) {
                    let matching = both(matching.clone(), region);
                    location.answered.iter().for_each(|it| self.answered(site, matching.clone(), it));
                }
            }
            let is_complete = |site: &Site<'_>| site.server.locations.iter().all(|it| it.action.is_some());
            let hosts = match site.serves {
                // Nothing of theirs comes this far.
                Serves::Everybody if site.others(sites).all(is_complete) => site.at_listener(),
                _ => matching,
            };
            let routes = match has_plain_order(server) {
                true => in_order(server),
                false => apart(server),
            };
            for RouteSpec { matching, action } in routes {
                let action = match action {
                    RouteAction::Respond(respond) => RouteAction::Respond(at_scheme(site, respond)),
                    forward @ RouteAction::Forward(_) => forward,
                };
                self.policy.routes.push(RouteSpec { matching: both(hosts.clone(), matching), action });
            }
        }
    }

    /// The answer to some of these requests.
    fn answered(&mut self, site: &Site<'_>, these: Match, answered: &Answered) {
        let Answered { condition, respond } = answered;
        if condition.scheme.is_some() && condition.scheme != site.scheme {
            return;
        }
        let matching = and(these, condition.matching.clone());
        let action = RouteAction::Respond(at_scheme(site, respond.clone()));
        self.policy.routes.push(RouteSpec { matching, action });
    }
}

/// A redirection to the scheme that the request came with.
fn at_scheme(site: &Site<'_>, respond: Respond) -> Respond {
    match respond {
        Respond::Redirect { location, status } => {
            Respond::Redirect { location: location.replace(SCHEME, site.scheme.unwrap_or("https")), status }
        }
        respond => respond,
    }
}

/// So many bytes in a second of each answer, after so many that are free. nginx gives a second's worth at the start, too.
fn bytes(rate: u64, after: u64) -> Result<Quota, QuotaError> {
    Quota::bytes_per_second(rate).burst(rate.saturating_add(after))
}

/// Requests to these locations of all servers; `None` if there are none.
fn requests_to(sites: &[Site<'_>], is_in: impl Fn(usize, usize) -> bool) -> Option<Match> {
    let mut parts = Vec::new();
    let mut is_everything = true;
    for (place, site) in sites.iter().enumerate() {
        let all: Vec<(&Place, bool)> = site
            .server
            .locations
            .iter()
            .enumerate()
            .map(|(location, said)| (&said.place, is_in(place, location)))
            .collect();
        is_everything &= all.iter().all(|(_, is_in)| *is_in);
        if all.iter().any(|(_, is_in)| *is_in) {
            parts.extend(region(&all).map(|region| both(site.matching(sites), region)));
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
        Place::Exact(_) => location.action.is_some(),
        Place::Prefix(text, _) => location.action.is_some() || text.is_empty(),
    })
}

/// Whole paths first, then longer ones before shorter ones.
fn in_order(server: &Server) -> Vec<RouteSpec> {
    let mut locations: Vec<&Location> = server.locations.iter().filter(|it| it.action.is_some()).collect();
    let length = |location: &Location| location.place.text().map_or(0, str::len);
    locations.sort_by_key(|location| {
        (!matches!(location.place, Place::Exact(_)), std::cmp::Reverse(length(location)))
    });
    let mut routes: Vec<RouteSpec> = Vec::new();
    for location in locations {
        let (Some(action), Some(pattern)) = (location.action.clone(), location.place.pattern()) else {
            continue;
        };
        let is_everything = |path: &PathPattern| path.segments.is_empty() && path.tail.is_some();
        match routes.last_mut() {
            Some(last) if last.action == action && is_everything(&pattern) => last.matching.paths.clear(),
            Some(last) if last.action == action => last.matching.paths.push(pattern),
            _ => {
                let paths = if is_everything(&pattern) { Vec::new() } else { vec![pattern] };
                routes.push(RouteSpec { matching: Match { paths, ..Match::default() }, action });
            }
        }
    }
    routes
}

/// One route for each upstream or answer, which is about its locations and no others.
fn apart(server: &Server) -> Vec<RouteSpec> {
    let mut actions: Vec<&RouteAction> = Vec::new();
    for action in server.locations.iter().filter_map(|location| location.action.as_ref()) {
        if !actions.contains(&action) {
            actions.push(action);
        }
    }
    actions.sort_by_key(|action| match action {
        RouteAction::Forward(upstream) => (0, upstream.as_str()),
        RouteAction::Respond(_) => (1, ""),
    });
    let route = |action: &RouteAction| {
        let all: Vec<(&Place, bool)> =
            server.locations.iter().map(|it| (&it.place, it.action.as_ref() == Some(action))).collect();
        region(&all).map(|matching| RouteSpec { matching, action: action.clone() })
    };
    actions.into_iter().filter_map(route).collect()
}
