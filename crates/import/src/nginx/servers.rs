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
    /// What it is called; a catch-all is called nothing.
    pub(super) names: Vec<String>,
    /// Whether `$server_name` is anything.
    pub(super) naming: ServerNaming,
    pub(super) locations: Vec<LocationBlock>,
    /// What it answers to some requests, before any of its locations.
    pub(super) responses: Vec<ConditionalResponse>,
    pub(super) span: SourceSpan,
    pub(super) directive: Directive,
    pub(super) listeners: Vec<ListenAddress>,
}

/// Whether a server has a name, if only `_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerNaming {
    Named,
    Unnamed,
}

/// One of its locations, or what is in none of them.
#[derive(Clone, Debug)]
pub(super) struct LocationBlock {
    pub(super) pattern: LocationPattern,
    pub(super) settings: LevelSettings,
    /// What happens to its requests; not found where that is not carried over.
    pub(super) action: Option<RouteAction>,
    /// What it answers to some of them, before anything else.
    pub(super) responses: Vec<ConditionalResponse>,
    /// What holds for other methods.
    pub(super) except: Option<LimitExcept>,
}

/// Each of them leaves out all before it.
const MAX_REGEX_LOCATIONS: usize = 50;

impl Importer<'_> {
    pub(super) fn import_http(&mut self, directives: &[Directive]) {
        // Names may be used before they are said.
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

    /// How long a client may take.
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
            self.record_loss_once(directive, "one of thousands of servers; the rest is not carried over");
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
            // It is answered before a location is looked for, and before limits.
            Some(respond) => {
                locations.all = vec![everywhere(Some(RouteAction::Respond(respond)), terms.without_limits())];
            }
            // What is in none of them, unless one of them is everything.
            None if !locations.paths.contains(&(String::from("/"), LocationKind::Prefix)) => {
                locations.all.insert(0, everywhere(None, terms));
            }
            None => {}
        }
        let says_name = |entry: &&Directive| {
            entry.name == "server_name" && entry.arg(0).is_some_and(|name| !name.is_empty())
        };
        let named = if block.iter().any(|entry| says_name(&entry)) {
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
                let reason = "one of thousands of names; the rest is not carried over";
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
                // It is called so in order not to be called at all.
                None if name == "_" || name.is_empty() => {}
                None if is_host(&name) && !name.starts_with('[') => names.push(name),
                // What the other server keeps away, or does not, is not what this one does.
                _ => {
                    let name = &word.text;
                    let reason = format!(
                        "`{name}` is no name that a policy could compare; its requests would go to another server"
                    );
                    self.record_protection_loss(directive, reason);
                }
            }
        }
    }

    /// What stands in a location is not carried over: its requests are those of another one then.
    fn record_location_loss(&mut self, directive: &Directive, reason: impl Into<String>) {
        let kind = match directive.block.iter().flatten().any(has_protection) {
            true => LossKind::Protection,
            false => LossKind::Cosmetic,
        };
        self.record_loss_of_kind(kind, directive.span, reason);
    }

    /// A location, and those in it, which are about parts of what it is about.
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
                let reason = format!("{strange}; what stands in it is not carried over");
                // Nobody else gets to a location of this kind.
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
                "a regular expression in a location; what stands in it is not carried over",
            );
        }
        if is_expression && locations.regex_count >= MAX_REGEX_LOCATIONS {
            let reason = format!(
                "one of more than {MAX_REGEX_LOCATIONS} regular expressions; what stands in it is not carried over"
            );
            return self.record_location_loss(directive, reason);
        }
        locations.regex_count += usize::from(is_expression);
        let Some(left) = self.budget.locations.checked_sub(1) else {
            let reason = "one of thousands of locations; the rest is not carried over";
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
                    "a second location for the same path; what stands in it is not carried over",
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
                // Nobody gets there but nginx itself.
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

/// Locations of a server that is being read.
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
    /// Without a slash at its end, which makes no difference to a policy.
    Exact(String),
}

/// Whether this, or anything in it, keeps requests away.
fn has_protection(directive: &Directive) -> bool {
    directives::can_protect(&directive.name) || directive.block.iter().flatten().any(has_protection)
}

/// The first name of a server, unless that is a pattern.
fn first_server_name(block: &[Directive]) -> Option<String> {
    let name = block.iter().find(|entry| entry.name == "server_name")?.arg(0)?;
    let name = name.strip_prefix('.').unwrap_or(name).to_lowercase();
    (is_host(&name) && !name.contains('*')).then_some(name)
}
