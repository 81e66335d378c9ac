//! `http`, its servers and their locations.

use super::{
    Importer,
    access::Except,
    known,
    level::{Taken, Terms},
    lexer::Directive,
    listen::Certificate,
    location::{Place, Strength},
    proxies::RealIp,
    respond::{Answered, Answers},
    sites::Listen,
};
use crate::LossKind;
use std::collections::HashSet;
use tidegate_policy::{is_host, model::RouteAction, source::SourceSpan};

/// A `server` block.
#[derive(Clone, Debug)]
pub(super) struct Server {
    /// What it is called; a catch-all is called nothing.
    pub(super) names: Vec<String>,
    /// Whether `$server_name` is anything.
    pub(super) named: Named,
    pub(super) locations: Vec<Location>,
    /// What it answers to some requests, before any of its locations.
    pub(super) answered: Vec<Answered>,
    pub(super) at: SourceSpan,
    pub(super) head: Directive,
    pub(super) listens: Vec<Listen>,
}

/// Whether a server has a name, if only `_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    Yes,
    No,
}

/// One of its locations, or what is in none of them.
#[derive(Clone, Debug)]
pub(super) struct Location {
    pub(super) place: Place,
    pub(super) terms: Terms,
    /// What happens to its requests; not found where that is not carried over.
    pub(super) action: Option<RouteAction>,
    /// What it answers to some of them, before anything else.
    pub(super) answered: Vec<Answered>,
    /// What holds for other methods.
    pub(super) except: Option<Except>,
}

/// Each of them leaves out all before it.
const MOST_EXPRESSIONS: usize = 50;

impl Importer<'_> {
    pub(super) fn http(&mut self, directives: &[Directive]) {
        // Names may be used before they are said.
        for directive in directives {
            match (directive.name.as_str(), &directive.block) {
                ("geo" | "map", Some(_)) => self.variable(directive),
                ("upstream", Some(_)) => self.group(directive),
                _ => {}
            }
        }
        let (terms, others) = self.terms(directives, &Terms::default());
        let (mut servers, mut certificate) = (Vec::new(), Certificate::default());
        let mut real_ip = RealIp::default();
        for directive in others {
            match (directive.name.as_str(), &directive.block) {
                ("geo" | "map" | "upstream", Some(_)) => {}
                ("limit_req_zone", _) => self.request_zone(directive),
                ("limit_conn_zone", _) => self.connection_zone(directive),
                ("server", Some(_)) => servers.push(directive),
                ("ssl_certificate", _) => certificate.chain = self.file(directive),
                ("ssl_certificate_key", _) => certificate.key = self.file(directive),
                ("ssl_client_certificate", _) => certificate.clients = self.file(directive),
                ("ssl_verify_client", _) => certificate.verify = Some(directive.clone()),
                ("keepalive_timeout" | "client_header_timeout" | "client_body_timeout", _) => {
                    self.connection_time(directive);
                }
                _ => {
                    if self.real_ip(directive, &mut real_ip) == Taken::No {
                        self.other(directive);
                    }
                }
            }
        }
        let mut servers: Vec<Server> = servers
            .into_iter()
            .filter_map(|directive| self.server(directive, &terms, &certificate, &mut real_ip))
            .collect();
        self.finish_real_ip(&real_ip);
        self.drop_covered(&mut servers);
        let sites = self.sites(&servers);
        self.body_size(&terms, &servers);
        self.rules(&sites);
        self.routes(&sites);
        self.finish_zones();
    }

    /// How long a client may take.
    fn connection_time(&mut self, directive: &Directive) {
        let Some(time) = self.time(directive) else { return };
        let connections = &mut self.policy.connections;
        match directive.name.as_str() {
            "keepalive_timeout" => connections.idle_timeout = time,
            "client_header_timeout" => connections.header_timeout = time,
            _ => connections.body_timeout = time,
        }
    }

    fn server(
        &mut self,
        directive: &Directive,
        above: &Terms,
        certificate: &Certificate,
        real_ip: &mut RealIp,
    ) -> Option<Server> {
        let block = directive.block.as_deref()?;
        let Some(left) = self.left.servers.checked_sub(1) else {
            self.lose_once(directive, "one of thousands of servers; the rest is not carried over");
            return None;
        };
        self.left.servers = left;
        let (terms, others) = self.terms(block, above);
        let (mut certificate, mut listens, mut names) = (certificate.clone(), Vec::new(), Vec::new());
        let mut locations = Locations { server_name: server_name(block), ..Locations::default() };
        let mut answers = Answers::default();
        for entry in others {
            match (entry.name.as_str(), &entry.block) {
                ("listen", _) => listens.push(entry),
                ("server_name", _) => self.names(entry, &mut names),
                ("location", Some(_)) => self.location(entry, &terms, None, &mut locations),
                ("ssl_certificate", _) => certificate.chain = self.file(entry),
                ("ssl_certificate_key", _) => certificate.key = self.file(entry),
                ("ssl_client_certificate", _) => certificate.clients = self.file(entry),
                ("ssl_verify_client", _) => certificate.verify = Some(entry.clone()),
                ("return" | "rewrite" | "if", _) => {
                    self.answer(entry, locations.server_name.as_deref(), &mut answers);
                }
                _ => {
                    if self.real_ip(entry, real_ip) == Taken::No {
                        self.other(entry);
                    }
                }
            }
        }
        let everywhere = |action, terms| Location {
            place: Place::Prefix(String::new(), Strength::Usual),
            terms,
            action,
            answered: Vec::new(),
            except: None,
        };
        match answers.always {
            // It is answered before a location is looked for, and before limits.
            Some(respond) => {
                locations.all = vec![everywhere(Some(RouteAction::Respond(respond)), terms.without_limits())];
            }
            // What is in none of them, unless one of them is everything.
            None if !locations.texts.contains(&(String::from("/"), Kind::Prefix)) => {
                locations.all.insert(0, everywhere(None, terms));
            }
            None => {}
        }
        let says_name = |entry: &&Directive| {
            entry.name == "server_name" && entry.arg(0).is_some_and(|name| !name.is_empty())
        };
        let named = if block.iter().any(|entry| says_name(&entry)) { Named::Yes } else { Named::No };
        let listens = self.listen(directive, &listens, &certificate);
        Some(Server {
            names,
            named,
            locations: locations.all,
            answered: answers.conditional,
            at: directive.at,
            head: Directive { block: None, ..directive.clone() },
            listens,
        })
    }

    /// `server_name a.com *.b.com .c.com;`
    fn names(&mut self, directive: &Directive, names: &mut Vec<String>) {
        for word in &directive.args {
            let Some(left) = self.left.names.checked_sub(1) else {
                let reason = "one of thousands of names; the rest is not carried over";
                if self.told.insert(reason) {
                    self.lose_protection(directive, reason);
                }
                return;
            };
            self.left.names = left;
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
                    self.lose_protection(directive, reason);
                }
            }
        }
    }

    /// What stands in a location is not carried over: its requests are those of another one then.
    fn lose_location(&mut self, directive: &Directive, reason: impl Into<String>) {
        let kind = match directive.block.iter().flatten().any(protects) {
            true => LossKind::Protection,
            false => LossKind::Decoration,
        };
        self.lose_as(kind, directive.at, reason);
    }

    /// A location, and those in it, which are about parts of what it is about.
    fn location(
        &mut self,
        directive: &Directive,
        above: &Terms,
        around: Option<&Place>,
        locations: &mut Locations,
    ) {
        let place = match Place::of(directive) {
            Ok(place) => place,
            Err(strange) => {
                let reason = format!("{strange}; what stands in it is not carried over");
                // Nobody else gets to a location of this kind.
                return match directive.arg(0).is_some_and(|name| name.starts_with('@')) {
                    true => self.lose(directive, reason),
                    false => self.lose_location(directive, reason),
                };
            }
        };
        let is_expression = matches!(place, Place::Expression(_));
        if is_expression && around.is_some() {
            return self.lose_location(
                directive,
                "a regular expression in a location; what stands in it is not carried over",
            );
        }
        if is_expression && locations.expressions >= MOST_EXPRESSIONS {
            let reason = format!(
                "one of more than {MOST_EXPRESSIONS} regular expressions; what stands in it is not carried over"
            );
            return self.lose_location(directive, reason);
        }
        locations.expressions += usize::from(is_expression);
        let Some(left) = self.left.locations.checked_sub(1) else {
            let reason = "one of thousands of locations; the rest is not carried over";
            if self.told.insert(reason) {
                self.lose_location(directive, reason);
            }
            return;
        };
        self.left.locations = left;
        if let Some(text) = place.text() {
            let kind = match place {
                Place::Exact(_) => Kind::Exact(text.trim_end_matches('/').to_owned()),
                _ => Kind::Prefix,
            };
            let text = if kind == Kind::Prefix { text } else { "" };
            if !locations.texts.insert((text.to_owned(), kind)) {
                return self.lose_location(
                    directive,
                    "a second location for the same path; what stands in it is not carried over",
                );
            }
        }
        let Some(block) = directive.block.as_deref() else { return };
        let (terms, others) = self.terms(block, above);
        let (mut pass, mut inner) = (None, Vec::new());
        let (mut answers, mut except) = (Answers::default(), None);
        let is_internal = block.iter().any(|entry| entry.name == "internal");
        for entry in others {
            match (entry.name.as_str(), &entry.block) {
                ("proxy_pass", _) => pass = self.pass(entry, &place, &terms),
                ("return" | "rewrite" | "if", _) => {
                    self.answer(entry, locations.server_name.as_deref(), &mut answers);
                }
                ("limit_except", Some(_)) => except = Some(self.except(entry)),
                // Nobody gets there but nginx itself.
                ("internal", _) => {}
                ("location", Some(_)) => inner.push(entry),
                _ => self.other(entry),
            }
        }
        for entry in inner {
            self.location(entry, &terms, Some(&place), locations);
        }
        let (action, terms) = match (answers.always, pass) {
            _ if is_internal => (None, terms.without_limits()),
            (Some(respond), _) => (Some(RouteAction::Respond(respond)), terms.without_limits()),
            (None, Some(upstream)) => (Some(RouteAction::Forward(upstream)), terms),
            (None, None) => (None, terms),
        };
        let answered = if is_internal { Vec::new() } else { answers.conditional };
        locations.all.push(Location { place, terms, action, answered, except });
    }
}

/// Locations of a server that is being read.
#[derive(Debug, Default)]
struct Locations {
    /// `$server_name`
    server_name: Option<String>,
    all: Vec<Location>,
    texts: HashSet<(String, Kind)>,
    expressions: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Prefix,
    /// Without a slash at its end, which makes no difference to a policy.
    Exact(String),
}

/// Whether this, or anything in it, keeps requests away.
fn protects(directive: &Directive) -> bool {
    known::may_protect(&directive.name) || directive.block.iter().flatten().any(protects)
}

/// The first name of a server, unless that is a pattern.
fn server_name(block: &[Directive]) -> Option<String> {
    let name = block.iter().find(|entry| entry.name == "server_name")?.arg(0)?;
    let name = name.strip_prefix('.').unwrap_or(name).to_lowercase();
    (is_host(&name) && !name.contains('*')).then_some(name)
}
