//! Builds rules and routes from servers and their locations.
//!
//! Locations that use a zone with the same parameters share one rule and its counters, as in nginx. Each different use of
//! the zone, for example with another burst, is a separate rule.

use super::{
    Importer,
    access::{AccessEntry, access_rule},
    body_size::DEFAULT_BODY_SIZE,
    level::{LevelSettings, LimitDenial},
    location::LocationPattern,
    match_set::{intersect, merge, selected_match, union},
    names::{list_name, sanitize_name, unused_name},
    responses::{ConditionalResponse, SCHEME_PLACEHOLDER},
    servers::{LocationBlock, ServerBlock, ServerNaming},
    sites::{HostScope, Site},
    variables::{CountScope, ZoneKey},
};
use crate::LossKind;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};
use tidegate_core::Quota;
use tidegate_policy::{
    model::{
        AccessSpec, BandwidthRate, BandwidthSpec, Expression, KeyPart, KeySpec, Match, Network, OnLimit,
        PathPattern, Quotas, Reject, Respond, RouteAction, RouteSpec, RuleEnforcement, RuleSpec,
    },
    source::{SourceSpan, truncate},
};
use tidegate_rule::Mode;

/// The parameters of one rule. Locations with the same parameters share the rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum LimitSpec {
    Requests { zone: String, burst: u64, delay: u64 },
    Connections { zone: String, max: u64 },
    Bytes { rate: u64, free_bytes: u64 },
    Access { entries: Vec<AccessEntry>, methods: MethodFilter },
    Body { bytes: u64 },
}

/// The methods that an access list applies to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum MethodFilter {
    All,
    Only(Vec<String>),
    Except(Vec<String>),
}

/// A limit, and the locations that use it.
#[derive(Clone, Debug)]
struct LimitUse {
    limit: LimitSpec,
    denial: LimitDenial,
    /// The server, if each server has its own counter.
    server: Option<usize>,
    /// Sites and locations.
    locations: Vec<(usize, usize)>,
    span: SourceSpan,
}

impl Importer<'_> {
    pub(super) fn build_rules(&mut self, sites: &[Site<'_>]) {
        let uses = self.collect_limits(sites);
        let mut first: HashMap<String, (SourceSpan, Option<usize>)> = HashMap::new();
        for limit_use in &uses {
            let Some(left) = self.budget.rules.checked_sub(1) else {
                return self.report_error(
                    limit_use.span,
                    "too many different limits",
                    "import a part of the configuration",
                );
            };
            self.budget.rules = left;
            if let LimitSpec::Requests { zone, .. } | LimitSpec::Connections { zone, .. } = &limit_use.limit {
                match first.get(zone) {
                    Some((at, server)) if *server == limit_use.server => {
                        let line = self.source_line(*at);
                        let reason =
                            format!("counted separately from {line}, which uses zone `{zone}` differently");
                        self.record_loss_at(limit_use.span, reason);
                    }
                    Some(_) => {}
                    None => _ = first.insert(zone.clone(), (limit_use.span, limit_use.server)),
                }
            }
            self.build_rule(limit_use, sites);
        }
    }

    /// Collects the limits of all locations, in file order.
    fn collect_limits(&mut self, sites: &[Site<'_>]) -> Vec<LimitUse> {
        let (mut uses, mut known) = (Vec::<LimitUse>::new(), HashMap::new());
        let mut add = |limit: LimitSpec,
                       denial: LimitDenial,
                       server: Option<usize>,
                       location: (usize, usize),
                       at: SourceSpan| {
            let index = *known
                .entry((limit.clone(), denial.status, denial.mode == Mode::Shadow, server))
                .or_insert_with(|| {
                    uses.push(LimitUse { limit, denial, server, locations: Vec::new(), span: at });
                    uses.len() - 1
                });
            uses[index].locations.push(location);
        };
        let largest = self.policy.connections.body_size;
        for (site, Site { server, server_index, .. }) in sites.iter().enumerate() {
            for (location, LocationBlock { settings, except, action, .. }) in
                server.locations.iter().enumerate()
            {
                let location_index = (site, location);
                let own_server = |zone_key: &Arc<ZoneKey>| {
                    (zone_key.scope == CountScope::PerServer).then_some(*server_index)
                };
                let is_counted = |zone_key: &Arc<ZoneKey>| {
                    server.naming == ServerNaming::Named
                        || zone_key.scope == CountScope::Shared
                        || zone_key.key != KeySpec::All
                };
                for limit in &settings.requests {
                    if let Some(zone_key) = self.request_zone_key(&limit.zone, limit.span).filter(is_counted)
                    {
                        let own_server_index = own_server(&zone_key);
                        let (zone, burst, delay) = (limit.zone.clone(), limit.burst, limit.delay);
                        add(
                            LimitSpec::Requests { zone, burst, delay },
                            settings.request_denial,
                            own_server_index,
                            location_index,
                            limit.span,
                        );
                    }
                }
                for limit in &settings.connections {
                    if let Some(zone_key) =
                        self.connection_zone_key(&limit.zone, limit.span).filter(is_counted)
                    {
                        let own_server_index = own_server(&zone_key);
                        let (zone, max) = (limit.zone.clone(), limit.max_connections);
                        add(
                            LimitSpec::Connections { zone, max },
                            settings.connection_denial,
                            own_server_index,
                            location_index,
                            limit.span,
                        );
                    }
                }
                let default_denial = LevelSettings::default().request_denial;
                if let Some(rate) = settings.rate {
                    let limit = LimitSpec::Bytes { rate: rate.bytes, free_bytes: settings.rate_after };
                    add(limit, default_denial, None, location_index, rate.span);
                }
                // `limit_except` defines the access list of all other methods.
                let except = except.as_ref().filter(|except| !except.access.entries.is_empty());
                let methods =
                    except.map_or(MethodFilter::All, |except| MethodFilter::Only(except.methods.clone()));
                let server_access = (&settings.access, methods);
                let others = except.map(|it| (&it.access, MethodFilter::Except(it.methods.clone())));
                for (list, methods) in [server_access].into_iter().chain(others) {
                    if let Some(at) = list.span {
                        let entries = list.entries.clone();
                        add(LimitSpec::Access { entries, methods }, default_denial, None, location_index, at);
                    }
                }
                let bytes = settings.body.map_or(Some(DEFAULT_BODY_SIZE), |body| body.bytes);
                if let (Some(RouteAction::Forward(_)), Some(bytes), true) = (action, bytes, bytes != largest)
                {
                    let at = settings.body.map_or(server.span, |body| body.span);
                    add(LimitSpec::Body { bytes }, default_denial, None, location_index, at);
                }
            }
        }
        uses.sort_by_key(|limit_use| limit_use.span);
        uses
    }

    fn request_zone_key(&mut self, zone: &str, at: SourceSpan) -> Option<Arc<ZoneKey>> {
        match self.request_zones.get(zone) {
            Some(known) => {
                let zone_key = known.key.clone().ok();
                self.used_zones.insert(known.span);
                zone_key
            }
            None => {
                let known: Vec<_> = self.request_zones.keys().cloned().collect();
                self.report_unknown_zone(zone, "limit_req_zone", &known, at);
                None
            }
        }
    }

    fn connection_zone_key(&mut self, zone: &str, at: SourceSpan) -> Option<Arc<ZoneKey>> {
        match self.connection_zones.get(zone) {
            Some(known) => {
                let zone_key = known.key.clone().ok();
                self.used_zones.insert(known.span);
                zone_key
            }
            None => {
                let known: Vec<_> = self.connection_zones.keys().cloned().collect();
                self.report_unknown_zone(zone, "limit_conn_zone", &known, at);
                None
            }
        }
    }

    /// Reports zones whose key a policy cannot express. They limit nothing.
    pub(super) fn finish_zones(&mut self) {
        let requests = self.request_zones.values().map(|zone| (zone.span, &zone.key));
        let connections = self.connection_zones.values().map(|zone| (zone.span, &zone.key));
        let unsupported = |(at, zone_key): (SourceSpan, &Result<Arc<ZoneKey>, String>)| {
            Some((at, zone_key.as_ref().err()?.clone()))
        };
        let all: Vec<(SourceSpan, String)> = requests.chain(connections).filter_map(unsupported).collect();
        for (at, unsupported) in all {
            let kind = match self.used_zones.contains(&at) {
                true => LossKind::Protection,
                false => LossKind::Cosmetic,
            };
            let reason = format!("{unsupported} is not supported; this zone limits nothing");
            self.record_loss_of_kind(kind, at, reason);
        }
    }

    fn report_unknown_zone(&mut self, zone: &str, directive: &str, known: &[String], at: SourceSpan) {
        let fix = match known.is_empty() {
            true => format!("define it with `{directive}`"),
            false => {
                format!("define it with `{directive}`; known zones: {}", truncate(&known.join(", ")))
            }
        };
        self.report_error(at, format!("unknown zone `{}`", truncate(zone)), fix);
    }

    fn build_rule(&mut self, limit_use: &LimitUse, sites: &[Site<'_>]) {
        let locations: HashSet<_> = limit_use.locations.iter().copied().collect();
        let is_in = |site: usize, location: usize| locations.contains(&(site, location));
        let Some(matching) = match_locations(sites, is_in) else { return };
        let mut rule = RuleSpec {
            matching,
            enforcement: RuleEnforcement::All(limit_use.denial.mode),
            on_limit: match limit_use.denial.status {
                444 => OnLimit::Drop,
                status => OnLimit::Reject(Reject { status: Some(status), ..Reject::default() }),
            },
            ..RuleSpec::new("")
        };
        let (name, zone_key, quota) = match &limit_use.limit {
            LimitSpec::Requests { zone, burst, delay } => {
                let Some(known) = self.request_zones.get(zone).cloned() else { return };
                if delay < burst {
                    rule.wait = known.rate.max_wait(*burst, *delay);
                }
                (zone.clone(), known.key.ok(), known.rate.quota(*burst, *delay))
            }
            LimitSpec::Connections { zone, max } => {
                let zone_key = self.connection_zones.get(zone).and_then(|zone| zone.key.clone().ok());
                (zone.clone(), zone_key, Quota::concurrency(*max))
            }
            LimitSpec::Bytes { rate, free_bytes: after } => {
                let quota = match Quota::bytes_per_second(*rate).token_bucket(*rate) {
                    Ok(quota) => quota,
                    Err(error) => {
                        return self.report_error(
                            limit_use.span,
                            error.to_string(),
                            "use a smaller `limit_rate`",
                        );
                    }
                };
                rule.key = KeySpec::Part(KeyPart::Request);
                let down = BandwidthRate { quota, after: *after };
                rule.bandwidth = Some(BandwidthSpec { down: Some(down), up: None });
                rule.on_limit = OnLimit::default();
                let name = self.unused_rule_name("limit_rate");
                self.policy.rules.push(RuleSpec { name, ..rule });
                return;
            }
            LimitSpec::Access { entries, methods } => {
                let Some((access, denied)) = access_rule(entries) else { return };
                let about = match methods {
                    MethodFilter::All => Match::default(),
                    MethodFilter::Only(methods) => Match { methods: methods.clone(), ..Match::default() },
                    MethodFilter::Except(methods) => {
                        let not = Match { methods: methods.clone(), ..Match::default() };
                        Match { not: Some(Box::new(not)), ..Match::default() }
                    }
                };
                let matching = intersect(intersect(rule.matching, about), denied);
                let (name, access) = (self.unused_rule_name("access"), Some(access));
                // The default response to a denied client is 403, as in nginx.
                self.policy.rules.push(RuleSpec {
                    name,
                    matching,
                    access,
                    on_limit: OnLimit::default(),
                    ..rule
                });
                return;
            }
            LimitSpec::Body { bytes } => {
                let when = Some(Expression(format!("request.size > {bytes}").into()));
                let matching = intersect(rule.matching, Match { when, ..Match::default() });
                let deny = vec![Network::List("all".to_owned())];
                let access = Some(AccessSpec { deny, ..AccessSpec::default() });
                let on_limit = OnLimit::Reject(Reject { status: Some(413), ..Reject::default() });
                let name = self.unused_rule_name("client_max_body_size");
                self.policy.rules.push(RuleSpec { name, matching, access, on_limit, ..rule });
                return;
            }
        };
        let quota = match quota {
            Ok(quota) => quota,
            Err(error) => return self.report_error(limit_use.span, error.to_string(), "use a smaller burst"),
        };
        let Some(zone_key) = zone_key else { return };
        rule.name = self.unused_rule_name(&sanitize_name(&name));
        rule.quotas = Quotas::All(vec![quota]);
        self.apply_key(&mut rule, &zone_key);
        self.policy.rules.push(rule);
    }

    /// Sets the key of a rule and the requests that it counts.
    fn apply_key(&mut self, rule: &mut RuleSpec, zone_key: &ZoneKey) {
        rule.key = zone_key.key.clone();
        rule.missing = zone_key.missing;
        if let Some(only) = zone_key.condition.clone() {
            rule.matching = merge(std::mem::take(&mut rule.matching), only);
        }
        if let Some((name, list)) = zone_key.allow.clone() {
            let lists = &self.policy.lists;
            let name =
                unused_name(&list_name(&name), |name| lists.get(name).is_some_and(|known| *known != list));
            self.policy.lists.insert(name.clone(), list);
            rule.access = Some(AccessSpec { allow: vec![Network::List(name)], ..AccessSpec::default() });
        }
    }

    fn unused_rule_name(&mut self, name: &str) -> String {
        let name = unused_name(name, |name| self.rule_names.contains(name));
        self.rule_names.insert(name.clone());
        name
    }

    pub(super) fn build_routes(&mut self, sites: &[Site<'_>]) {
        let mut order: Vec<&Site<'_>> = sites.iter().collect();
        order.sort_by_key(|site| site.rank());
        for site in order {
            let server = site.server;
            let matching = site.matching(sites);
            for response in &server.responses {
                self.add_conditional_route(site, matching.clone(), response);
            }
            for (place, location) in server.locations.iter().enumerate() {
                if location.responses.is_empty() {
                    continue;
                }
                let places = server.locations.iter().enumerate();
                let all: Vec<_> = places.map(|(at, location)| (&location.pattern, at == place)).collect();
                if let Some(region) = selected_match(&all) {
                    let matching = merge(matching.clone(), region);
                    location
                        .responses
                        .iter()
                        .for_each(|it| self.add_conditional_route(site, matching.clone(), it));
                }
            }
            let is_complete = |site: &Site<'_>| site.server.locations.iter().all(|it| it.action.is_some());
            let hosts = match site.host_scope {
                // All other sites have an action for every path and precede this one, so their hosts need not be excluded.
                HostScope::CatchAll if site.siblings(sites).all(is_complete) => site.listener_match(),
                _ => matching,
            };
            let routes = match has_plain_order(server) {
                true => ordered_routes(server),
                false => disjoint_routes(server),
            };
            for RouteSpec { matching, action } in routes {
                let action = match action {
                    RouteAction::Respond(respond) => RouteAction::Respond(resolve_scheme(site, respond)),
                    forward @ RouteAction::Forward(_) => forward,
                };
                self.policy.routes.push(RouteSpec { matching: merge(hosts.clone(), matching), action });
            }
        }
    }

    /// Adds a route for a conditional response.
    fn add_conditional_route(&mut self, site: &Site<'_>, these: Match, response: &ConditionalResponse) {
        let ConditionalResponse { condition, respond } = response;
        if condition.scheme.is_some() && condition.scheme != site.scheme {
            return;
        }
        let matching = intersect(these, condition.matching.clone());
        let action = RouteAction::Respond(resolve_scheme(site, respond.clone()));
        self.policy.routes.push(RouteSpec { matching, action });
    }
}

/// Replaces the scheme placeholder of a redirect with the scheme of the site.
fn resolve_scheme(site: &Site<'_>, respond: Respond) -> Respond {
    match respond {
        Respond::Redirect { location, status } => Respond::Redirect {
            location: location.replace(SCHEME_PLACEHOLDER, site.scheme.unwrap_or("https")),
            status,
        },
        respond => respond,
    }
}

/// Matches requests to the selected locations of all servers; `None` if there are none.
fn match_locations(sites: &[Site<'_>], is_in: impl Fn(usize, usize) -> bool) -> Option<Match> {
    let mut parts = Vec::new();
    let mut is_everything = true;
    for (place, site) in sites.iter().enumerate() {
        let all: Vec<(&LocationPattern, bool)> = site
            .server
            .locations
            .iter()
            .enumerate()
            .map(|(index, location)| (&location.pattern, is_in(place, index)))
            .collect();
        is_everything &= all.iter().all(|(_, is_in)| *is_in);
        if all.iter().any(|(_, is_in)| *is_in) {
            parts.extend(selected_match(&all).map(|region| merge(site.matching(sites), region)));
        }
    }
    match is_everything {
        true => Some(Match::default()),
        false => union(parts),
    }
}

/// Whether routes in order of specificity select the right location: no regular expressions, and each path has an action.
fn has_plain_order(server: &ServerBlock) -> bool {
    server.locations.iter().all(|location| match &location.pattern {
        LocationPattern::Regex(_) => false,
        LocationPattern::Exact(_) => location.action.is_some(),
        LocationPattern::Prefix(text, _) => location.action.is_some() || text.is_empty(),
    })
}

/// Returns the routes in order of specificity: exact paths first, then longer prefixes before shorter ones.
fn ordered_routes(server: &ServerBlock) -> Vec<RouteSpec> {
    let mut locations: Vec<&LocationBlock> =
        server.locations.iter().filter(|it| it.action.is_some()).collect();
    let length = |location: &LocationBlock| location.pattern.text().map_or(0, str::len);
    locations.sort_by_key(|location| {
        (!matches!(location.pattern, LocationPattern::Exact(_)), std::cmp::Reverse(length(location)))
    });
    let mut routes: Vec<RouteSpec> = Vec::new();
    for location in locations {
        let (Some(action), Some(pattern)) = (location.action.clone(), location.pattern.pattern()) else {
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

/// Returns one route for each action, which matches exactly its locations.
fn disjoint_routes(server: &ServerBlock) -> Vec<RouteSpec> {
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
        let all: Vec<(&LocationPattern, bool)> =
            server.locations.iter().map(|it| (&it.pattern, it.action.as_ref() == Some(action))).collect();
        selected_match(&all).map(|matching| RouteSpec { matching, action: action.clone() })
    };
    actions.into_iter().filter_map(route).collect()
}
