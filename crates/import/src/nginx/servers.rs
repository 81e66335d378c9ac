//! `http`, its servers and their locations.

use super::{
    Importer,
    access::LimitExcept,
    directives,
    level::{DirectiveHandling, LevelSettings},
    lexer::Directive,
    listen::TlsCertificate,
    location::{LocationPattern, PrefixPriority},
    proxies::RealIp,
    responses::{ConditionalResponse, LevelResponses},
    sites::ListenAddress,
};
use crate::LossKind;
use std::collections::HashSet;
use tidegate_policy::{is_host, model::RouteAction, source::SourceSpan};

/// A `server` block.
#[derive(Clone, Debug)]
pub(super) struct ServerBlock {
    /// The names of the server; empty for a catch-all.
    pub(super) names: Vec<String>,
    /// Whether `$server_name` is set.
    pub(super) naming: ServerNaming,
    pub(super) locations: Vec<LocationBlock>,
    /// Conditional responses that precede all locations.
    pub(super) responses: Vec<ConditionalResponse>,
    pub(super) span: SourceSpan,
    pub(super) directive: Directive,
    pub(super) listeners: Vec<ListenAddress>,
}

/// Whether a server has a name, including `_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerNaming {
    Named,
    Unnamed,
}

/// A location of a server, or the requests outside of its locations.
#[derive(Clone, Debug)]
pub(super) struct LocationBlock {
    pub(super) pattern: LocationPattern,
    pub(super) settings: LevelSettings,
    /// The action for its requests; `None` responds with 404.
    pub(super) action: Option<RouteAction>,
    /// Conditional responses that precede the action.
    pub(super) responses: Vec<ConditionalResponse>,
    /// The access list for other methods.
    pub(super) except: Option<LimitExcept>,
}

/// The maximum number of regular expressions per server. The match of each excludes all earlier ones.
const MAX_REGEX_LOCATIONS: usize = 50;

impl Importer<'_> {
    pub(super) fn import_http(&mut self, directives: &[Directive]) {
        // Variables and upstreams may be used before their definition.
        for directive in directives {
            match (directive.name.as_str(), &directive.block) {
                ("geo" | "map", Some(_)) => self.read_variable(directive),
                ("upstream", Some(_)) => self.read_upstream(directive),
                _ => {}
            }
        }
        let (terms, others) = self.read_level(directives, &LevelSettings::default());
        let (mut servers, mut certificate) = (Vec::new(), TlsCertificate::default());
        let mut real_ip = RealIp::default();
        for directive in others {
            match (directive.name.as_str(), &directive.block) {
                ("geo" | "map" | "upstream", Some(_)) => {}
                ("limit_req_zone", _) => self.read_request_zone(directive),
                ("limit_conn_zone", _) => self.read_connection_zone(directive),
                ("server", Some(_)) => servers.push(directive),
                ("ssl_certificate", _) => certificate.chain = self.certificate_path(directive),
                ("ssl_certificate_key", _) => certificate.key = self.certificate_path(directive),
                ("ssl_client_certificate", _) => certificate.client_ca = self.certificate_path(directive),
                ("ssl_verify_client", _) => certificate.verify = Some(directive.clone()),
                ("keepalive_timeout" | "client_header_timeout" | "client_body_timeout", _) => {
                    self.read_connection_timeout(directive);
                }
                _ => {
                    if self.read_real_ip(directive, &mut real_ip) == DirectiveHandling::Unhandled {
                        self.record_unsupported(directive);
                    }
                }
            }
        }
        let mut servers: Vec<ServerBlock> = servers
            .into_iter()
            .filter_map(|directive| self.read_server(directive, &terms, &certificate, &mut real_ip))
            .collect();
        self.finish_real_ip(&real_ip);
        self.drop_covered(&mut servers);
        let sites = self.build_sites(&servers);
        self.set_body_size(&terms, &servers);
        self.build_rules(&sites);
        self.build_routes(&sites);
        self.finish_zones();
    }

    /// Reads a timeout of client connections.
    fn read_connection_timeout(&mut self, directive: &Directive) {
        let Some(time) = self.read_time(directive) else { return };
        let connections = &mut self.policy.connections;
        match directive.name.as_str() {
            "keepalive_timeout" => connections.idle_timeout = time,
            "client_header_timeout" => connections.header_timeout = time,
            _ => connections.body_timeout = time,
        }
    }

    fn read_server(
        &mut self,
        directive: &Directive,
        above: &LevelSettings,
        certificate: &TlsCertificate,
        real_ip: &mut RealIp,
    ) -> Option<ServerBlock> {
        let block = directive.block.as_deref()?;
        let Some(left) = self.budget.servers.checked_sub(1) else {
            self.record_loss_once(directive, "too many servers; the remaining ones are not imported");
            return None;
        };
        self.budget.servers = left;
        let (terms, others) = self.read_level(block, above);
        let (mut certificate, mut listens, mut names) = (certificate.clone(), Vec::new(), Vec::new());
        let mut locations =
            LocationCollector { server_name: first_server_name(block), ..LocationCollector::default() };
        let mut answers = LevelResponses::default();
        for entry in others {
            match (entry.name.as_str(), &entry.block) {
                ("listen", _) => listens.push(entry),
                ("server_name", _) => self.read_server_names(entry, &mut names),
                ("location", Some(_)) => self.read_location(entry, &terms, None, &mut locations),
                ("ssl_certificate", _) => certificate.chain = self.certificate_path(entry),
                ("ssl_certificate_key", _) => certificate.key = self.certificate_path(entry),
                ("ssl_client_certificate", _) => certificate.client_ca = self.certificate_path(entry),
                ("ssl_verify_client", _) => certificate.verify = Some(entry.clone()),
                ("return" | "rewrite" | "if", _) => {
                    self.read_response(entry, locations.server_name.as_deref(), &mut answers);
                }
                _ => {
                    if self.read_real_ip(entry, real_ip) == DirectiveHandling::Unhandled {
                        self.record_unsupported(entry);
                    }
                }
            }
        }
        let everywhere = |action, terms| LocationBlock {
            pattern: LocationPattern::Prefix(String::new(), PrefixPriority::Normal),
            settings: terms,
            action,
            responses: Vec::new(),
            except: None,
        };
        match answers.unconditional {
            // nginx sends the response before it selects a location and before it applies limits.
            Some(respond) => {
                locations.all = vec![everywhere(Some(RouteAction::Respond(respond)), terms.without_limits())];
            }
            // Requests outside of all locations, unless `location /` matches everything.
            None if !locations.paths.contains(&(String::from("/"), LocationKind::Prefix)) => {
                locations.all.insert(0, everywhere(None, terms));
            }
            None => {}
        }
        let is_name = |entry: &&Directive| {
            entry.name == "server_name" && entry.arg(0).is_some_and(|name| !name.is_empty())
        };
        let named = if block.iter().any(|entry| is_name(&entry)) {
            ServerNaming::Named
        } else {
            ServerNaming::Unnamed
        };
        let listens = self.read_listeners(directive, &listens, &certificate);
        Some(ServerBlock {
            names,
            naming: named,
            locations: locations.all,
            responses: answers.conditional,
            span: directive.span,
            directive: Directive { block: None, ..directive.clone() },
            listeners: listens,
        })
    }

    /// `server_name a.com *.b.com .c.com;`
    fn read_server_names(&mut self, directive: &Directive, names: &mut Vec<String>) {
        for word in &directive.args {
            let Some(left) = self.budget.names.checked_sub(1) else {
                let reason = "too many server names; the remaining ones are not imported";
                if self.reported.insert(reason) {
                    self.record_protection_loss(directive, reason);
                }
                return;
            };
            self.budget.names = left;
            let name = word.text.to_lowercase();
            match name.strip_prefix('.') {
                Some(name) if is_host(name) => {
                    names.extend([name.to_owned(), format!("*.{name}")]);
                }
                // `_` and the empty name are conventions for a catch-all.
                None if name == "_" || name.is_empty() => {}
                None if is_host(&name) && !name.starts_with('[') => names.push(name),
                // The other server may have different limits and access lists.
                _ => {
                    let name = &word.text;
                    let reason = format!(
                        "a policy cannot match the server name `{name}`; its requests go to another server"
                    );
                    self.record_protection_loss(directive, reason);
                }
            }
        }
    }

    /// Records the loss of a location, whose requests match another location of the policy.
    fn record_location_loss(&mut self, directive: &Directive, reason: impl Into<String>) {
        let kind = match directive.block.iter().flatten().any(has_protection) {
            true => LossKind::Protection,
            false => LossKind::Cosmetic,
        };
        self.record_loss_of_kind(kind, directive.span, reason);
    }

    /// Reads a location and its nested locations.
    fn read_location(
        &mut self,
        directive: &Directive,
        above: &LevelSettings,
        around: Option<&LocationPattern>,
        locations: &mut LocationCollector,
    ) {
        let place = match LocationPattern::parse(directive) {
            Ok(place) => place,
            Err(strange) => {
                let reason = format!("{strange}; its directives are not imported");
                // Clients cannot reach a named location.
                return match directive.arg(0).is_some_and(|name| name.starts_with('@')) {
                    true => self.record_loss(directive, reason),
                    false => self.record_location_loss(directive, reason),
                };
            }
        };
        let is_expression = matches!(place, LocationPattern::Regex(_));
        if is_expression && around.is_some() {
            return self.record_location_loss(
                directive,
                "nested regular expressions are not supported; its directives are not imported",
            );
        }
        if is_expression && locations.regex_count >= MAX_REGEX_LOCATIONS {
            let reason = format!(
                "more than {MAX_REGEX_LOCATIONS} locations with regular expressions; its directives are not imported"
            );
            return self.record_location_loss(directive, reason);
        }
        locations.regex_count += usize::from(is_expression);
        let Some(left) = self.budget.locations.checked_sub(1) else {
            let reason = "too many locations; the remaining ones are not imported";
            if self.reported.insert(reason) {
                self.record_location_loss(directive, reason);
            }
            return;
        };
        self.budget.locations = left;
        if let Some(text) = place.text() {
            let kind = match place {
                LocationPattern::Exact(_) => LocationKind::Exact(text.trim_end_matches('/').to_owned()),
                _ => LocationKind::Prefix,
            };
            let text = if kind == LocationKind::Prefix { text } else { "" };
            if !locations.paths.insert((text.to_owned(), kind)) {
                return self.record_location_loss(
                    directive,
                    "duplicate location for the same path; its directives are not imported",
                );
            }
        }
        let Some(block) = directive.block.as_deref() else { return };
        let (terms, others) = self.read_level(block, above);
        let (mut pass, mut inner) = (None, Vec::new());
        let (mut answers, mut except) = (LevelResponses::default(), None);
        let is_internal = block.iter().any(|entry| entry.name == "internal");
        for entry in others {
            match (entry.name.as_str(), &entry.block) {
                ("proxy_pass", _) => pass = self.read_proxy_pass(entry, &place, &terms),
                ("return" | "rewrite" | "if", _) => {
                    self.read_response(entry, locations.server_name.as_deref(), &mut answers);
                }
                ("limit_except", Some(_)) => except = Some(self.read_limit_except(entry)),
                // Clients cannot reach an internal location, so it gets no route.
                ("internal", _) => {}
                ("location", Some(_)) => inner.push(entry),
                _ => self.record_unsupported(entry),
            }
        }
        for entry in inner {
            self.read_location(entry, &terms, Some(&place), locations);
        }
        let (action, terms) = match (answers.unconditional, pass) {
            _ if is_internal => (None, terms.without_limits()),
            (Some(respond), _) => (Some(RouteAction::Respond(respond)), terms.without_limits()),
            (None, Some(upstream)) => (Some(RouteAction::Forward(upstream)), terms),
            (None, None) => (None, terms),
        };
        let answered = if is_internal { Vec::new() } else { answers.conditional };
        locations.all.push(LocationBlock {
            pattern: place,
            settings: terms,
            action,
            responses: answered,
            except,
        });
    }
}

/// Collects the locations of a server.
#[derive(Debug, Default)]
struct LocationCollector {
    /// `$server_name`
    server_name: Option<String>,
    all: Vec<LocationBlock>,
    paths: HashSet<(String, LocationKind)>,
    regex_count: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum LocationKind {
    Prefix,
    /// Without a trailing slash, which a policy ignores.
    Exact(String),
}

/// Whether this directive or a nested one restricts requests.
fn has_protection(directive: &Directive) -> bool {
    directives::can_protect(&directive.name) || directive.block.iter().flatten().any(has_protection)
}

/// Returns the first name of a server, unless it is a pattern.
fn first_server_name(block: &[Directive]) -> Option<String> {
    let name = block.iter().find(|entry| entry.name == "server_name")?.arg(0)?;
    let name = name.strip_prefix('.').unwrap_or(name).to_lowercase();
    (is_host(&name) && !name.contains('*')).then_some(name)
}
