//! `http`, its servers and their locations.

use super::{
    Importer,
    level::{Taken, Terms},
    lexer::Directive,
    listen::Certificate,
    location::{Place, Strength},
    proxies::RealIp,
};
use crate::{
    model::{Glob, Match},
    read::is_host,
    source::Span,
};
use std::{
    collections::{BTreeMap, HashSet},
    net::SocketAddr,
};

/// A `server` block.
#[derive(Clone, Debug)]
pub(super) struct Server {
    /// What it is called; a catch-all is called nothing.
    pub(super) names: Vec<String>,
    /// Whether `$server_name` is anything.
    pub(super) named: Named,
    pub(super) serves: Serves,
    pub(super) locations: Vec<Location>,
    pub(super) at: Span,
    head: Directive,
    /// Where it listens, and whether it says that it is the one for all others there.
    listens: Vec<(SocketAddr, bool)>,
}

/// Whether a server has a name, if only `_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    Yes,
    No,
}

/// Which hosts a server is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Serves {
    /// Those that it is called.
    ItsNames,
    /// All that no other server is called.
    Everybody,
}

/// One of its locations, or what is in none of them.
#[derive(Clone, Debug)]
pub(super) struct Location {
    pub(super) place: Place,
    pub(super) terms: Terms,
    /// The upstream.
    pub(super) pass: Option<String>,
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
        let servers: Vec<Server> = servers
            .into_iter()
            .filter_map(|directive| self.server(directive, &terms, &certificate, &mut real_ip))
            .collect();
        self.finish_real_ip(&real_ip);
        let servers = self.told_apart(servers);
        self.body_size(&terms, &servers);
        self.rules(&servers);
        self.routes(&servers);
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
        let mut locations = Locations::default();
        for entry in others {
            match (entry.name.as_str(), &entry.block) {
                ("listen", _) => listens.push(entry),
                ("server_name", _) => self.names(entry, &mut names),
                ("location", Some(_)) => self.location(entry, &terms, None, &mut locations),
                ("ssl_certificate", _) => certificate.chain = self.file(entry),
                ("ssl_certificate_key", _) => certificate.key = self.file(entry),
                _ => {
                    if self.real_ip(entry, real_ip) == Taken::No {
                        self.other(entry);
                    }
                }
            }
        }
        // What is in none of them, unless one of them is everything.
        if !locations.texts.contains(&(String::from("/"), Kind::Prefix)) {
            let place = Place::Prefix(String::new(), Strength::Usual);
            locations.all.insert(0, Location { place, terms, pass: None });
        }
        let says_name = |entry: &&Directive| {
            entry.name == "server_name" && entry.arg(0).is_some_and(|name| !name.is_empty())
        };
        let named = if block.iter().any(|entry| says_name(&entry)) { Named::Yes } else { Named::No };
        let listens = self.listen(directive, &listens, &certificate);
        Some(Server {
            names,
            named,
            serves: Serves::ItsNames,
            locations: locations.all,
            at: directive.at,
            head: Directive { block: None, ..directive.clone() },
            listens,
        })
    }

    /// `server_name a.com *.b.com .c.com;`
    fn names(&mut self, directive: &Directive, names: &mut Vec<String>) {
        for word in &directive.args {
            let Some(left) = self.left.names.checked_sub(1) else {
                return self.lose_once(directive, "one of thousands of names; the rest is not carried over");
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
                _ => self.lose(directive, format!("`{}` is no name that a policy could compare", word.text)),
            }
        }
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
                return self.lose(directive, format!("{strange}; what stands in it is not carried over"));
            }
        };
        let is_expression = matches!(place, Place::Expression(_));
        if is_expression && around.is_some() {
            return self.lose(
                directive,
                "a regular expression in a location; what stands in it is not carried over",
            );
        }
        if is_expression && locations.expressions >= MOST_EXPRESSIONS {
            let reason = format!(
                "one of more than {MOST_EXPRESSIONS} regular expressions; what stands in it is not carried over"
            );
            return self.lose(directive, reason);
        }
        locations.expressions += usize::from(is_expression);
        let Some(left) = self.left.locations.checked_sub(1) else {
            return self.lose_once(directive, "one of thousands of locations; the rest is not carried over");
        };
        self.left.locations = left;
        if let Some(text) = place.text() {
            let kind = match place {
                Place::Exact(_) => Kind::Exact(text.trim_end_matches('/').to_owned()),
                _ => Kind::Prefix,
            };
            let text = if kind == Kind::Prefix { text } else { "" };
            if !locations.texts.insert((text.to_owned(), kind)) {
                return self.lose(
                    directive,
                    "a second location for the same path; what stands in it is not carried over",
                );
            }
        }
        let Some(block) = directive.block.as_deref() else { return };
        let (terms, others) = self.terms(block, above);
        let (mut pass, mut inner) = (None, Vec::new());
        for entry in others {
            match (entry.name.as_str(), &entry.block) {
                ("proxy_pass", _) => pass = self.pass(entry, &place, &terms),
                ("location", Some(_)) => inner.push(entry),
                _ => self.other(entry),
            }
        }
        for entry in inner {
            self.location(entry, &terms, Some(&place), locations);
        }
        locations.all.push(Location { place, terms, pass });
    }

    /// Servers that a policy can tell apart: by their names, and not by their ports.
    fn told_apart(&mut self, mut servers: Vec<Server>) -> Vec<Server> {
        find_defaults(&mut servers);
        let is_worth = |server: &Server| {
            let says = |location: &Location| {
                let terms = &location.terms;
                location.pass.is_some()
                    || !terms.requests.is_empty()
                    || !terms.connections.is_empty()
                    || terms.rate.is_some()
            };
            server.locations.iter().any(says)
        };
        let (worth, worthless): (Vec<_>, Vec<_>) = servers.into_iter().partition(is_worth);
        let mut kept: Vec<Server> = Vec::new();
        let mut names: HashSet<String> = HashSet::new();
        let has_everybody = |kept: &[Server]| kept.iter().any(|server| server.serves == Serves::Everybody);
        for mut server in worth {
            let mut taken = None;
            server.names.retain(|name| {
                let is_new = names.insert(name.clone());
                if !is_new {
                    taken.get_or_insert_with(|| name.clone());
                }
                is_new
            });
            if server.serves == Serves::Everybody && has_everybody(&kept) {
                server.serves = Serves::ItsNames;
            }
            if server.serves == Serves::ItsNames && server.names.is_empty() {
                let head = server.head.clone();
                self.lose(&head, "a policy tells servers apart by their names, not by their ports; nothing that stands in this one is carried over");
                continue;
            }
            if let Some(name) = taken {
                let head = server.head.clone();
                self.lose(&head, format!("another server is called `{name}`, too, and goes first"));
            }
            kept.push(server);
        }
        // One that only redirects is still about its names.
        for mut server in worthless {
            server.names.retain(|name| names.insert(name.clone()));
            let is_everybody = server.serves == Serves::Everybody && !has_everybody(&kept);
            server.serves = if is_everybody { Serves::Everybody } else { Serves::ItsNames };
            if is_everybody || !server.names.is_empty() {
                kept.push(server);
            }
        }
        kept.sort_by_key(|server| server.at);
        kept
    }
}

/// At each address, the server that says so, or else the first one there, is for all that nobody is called.
fn find_defaults(servers: &mut [Server]) {
    let mut defaults: BTreeMap<SocketAddr, (usize, bool)> = BTreeMap::new();
    for (place, server) in servers.iter().enumerate() {
        for (address, says_so) in &server.listens {
            let known = defaults.entry(*address).or_insert((place, *says_so));
            if *says_so && !known.1 {
                *known = (place, true);
            }
        }
    }
    for (place, _) in defaults.values() {
        servers[*place].serves = Serves::Everybody;
    }
}

/// Locations of a server that is being read.
#[derive(Debug, Default)]
struct Locations {
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

impl Server {
    /// Requests to this server among all of them; an empty match is all requests.
    pub(super) fn matching(&self, all: &[Self]) -> Match {
        let globs =
            |names: Vec<&String>| -> Vec<Glob> { names.into_iter().map(|name| Glob(name.clone())).collect() };
        let others = || all.iter().filter(|other| other.at != self.at);
        match self.serves {
            Serves::Everybody => {
                let hosts = globs(others().flat_map(|other| &other.names).collect());
                match hosts.is_empty() {
                    true => Match::default(),
                    false => {
                        let not = Match { hosts, ..Match::default() };
                        Match { not: Some(Box::new(not)), ..Match::default() }
                    }
                }
            }
            Serves::ItsNames => {
                let nearer = others().flat_map(|other| &other.names).filter(|name| {
                    self.names
                        .iter()
                        .any(|ours| ours.contains('*') && fits(ours, name) && is_nearer(name, ours))
                });
                let hosts = globs(nearer.collect());
                let not = Match { hosts, ..Match::default() };
                let not = (!not.hosts.is_empty()).then(|| Box::new(not));
                Match { hosts: globs(self.names.iter().collect()), not, ..Match::default() }
            }
        }
    }

    /// Where it stands among servers of which the first that fits is taken.
    pub(super) fn rank(&self) -> (bool, bool, usize) {
        let wild = self.names.iter().filter(|name| name.contains('*'));
        let longest = wild.clone().map(String::len).max().unwrap_or(0);
        (self.serves == Serves::Everybody, wild.count() > 0, usize::MAX - longest)
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
