//! Where requests go: `upstream` blocks and `proxy_pass`.

use super::{
    Importer,
    level::{HostHeader, Terms},
    lexer::Directive,
    location::Place,
    names::name_of,
    numbers::{time, whole},
};
use std::{collections::BTreeMap, time::Duration};
use tidegate_policy::{
    is_upstream_url,
    model::{Balance, Upstream, UpstreamServer},
};

/// `upstream name { … }`, without the scheme that a `proxy_pass` gives it.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    /// Each with its weight.
    servers: Vec<(String, u64)>,
    balance: Balance,
    keep_alive: Option<u64>,
    /// `max_fails` and `fail_timeout`, as the first server that says one has them.
    fails: Option<(u64, Duration)>,
}

impl Importer<'_> {
    /// `upstream name { … }`
    pub(super) fn group(&mut self, directive: &Directive) {
        let Some(name) = directive.arg(0) else {
            self.blame(directive.at, "`upstream` without a name", "write `upstream NAME { … }`");
            return;
        };
        let mut group = Group::default();
        for entry in directive.block.iter().flatten() {
            match entry.name.as_str() {
                "server" => self.group_server(entry, &mut group),
                "least_conn" => group.balance = Balance::LeastRequests,
                "random" if entry.has("two") => group.balance = Balance::LeastRequests,
                "ip_hash" => group.balance = Balance::Client,
                "hash" if matches!(entry.arg(0), Some("$remote_addr" | "$binary_remote_addr")) => {
                    group.balance = Balance::Client;
                }
                "keepalive" => group.keep_alive = entry.arg(0).and_then(whole).filter(|most| *most <= 10_000),
                "zone" | "keepalive_timeout" | "keepalive_requests" | "keepalive_time" => {}
                _ => self.lose(entry, "servers of an upstream are chosen in turn, by how busy they are or by the client; see `balance`"),
            }
        }
        self.groups.insert(name.to_owned(), group);
    }

    fn group_server(&mut self, entry: &Directive, group: &mut Group) {
        let Some(address) = entry.arg(0) else {
            self.blame(entry.at, "`server` without an address", "write `server ADDRESS;`");
            return;
        };
        if entry.has("down") {
            return;
        }
        if entry.has("backup") {
            self.lose(entry, "an upstream has no servers in reserve; leave out `backup`, and write `health` for the upstream");
            return;
        }
        let Some(address) = with_port(address, 80) else {
            self.lose(entry, "a server of an upstream is a host and a port; let it listen on one");
            return;
        };
        let known = |word: &str| {
            ["weight=", "max_fails=", "fail_timeout="].iter().any(|known| word.starts_with(known))
        };
        let strange = entry.args.iter().skip(1).find(|word| !known(&word.text));
        if let Some(strange) = strange {
            let reason = format!("the server is carried over, `{}` is not", strange.text);
            self.lose(entry, reason);
        }
        self.fails(entry, group);
        let weight = entry.option("weight").and_then(|(weight, _)| whole(weight));
        group.servers.push((address, weight.filter(|weight| (1..=1_000).contains(weight)).unwrap_or(1)));
    }

    /// `max_fails=3 fail_timeout=30s`; nginx takes 1 and 10 s where only one of them is given.
    fn fails(&mut self, entry: &Directive, group: &mut Group) {
        let (count, period) = (entry.option("max_fails"), entry.option("fail_timeout"));
        if count.is_none() && period.is_none() {
            return;
        }
        let number = count.map_or(Some(1), |(text, _)| whole(text).filter(|count| *count <= 1_000_000));
        let period = period.map_or(Some(Duration::from_secs(10)), |(text, _)| time(text));
        let (Some(number), Some(period)) = (number, period) else {
            let fix = "write them as in `max_fails=3 fail_timeout=30s`";
            return self.blame(entry.at, "`max_fails` is a number, and `fail_timeout` a time", fix);
        };
        // Without a time it is never out, as without a number.
        let fails = match period.is_zero() {
            true => (0, Duration::from_secs(10)),
            false => (number, period),
        };
        match group.fails {
            Some(known) if known != fails => {
                self.lose(
                    entry,
                    "all servers of an upstream have the `max_fails` and `fail_timeout` of the first",
                );
            }
            _ => group.fails = Some(fails),
        }
    }

    /// The name of the upstream that a `proxy_pass` means, which is made if there is none.
    pub(super) fn pass(&mut self, directive: &Directive, place: &Place, terms: &Terms) -> Option<String> {
        let said = directive.arg(0).unwrap_or_default();
        let Some((scheme, rest)) =
            said.split_once("://").filter(|(scheme, _)| ["http", "https"].contains(scheme))
        else {
            self.lose(directive, "only addresses that start with http:// or https:// are carried over");
            return None;
        };
        if said.contains('$') || rest.starts_with("unix:") {
            self.lose(directive, "an upstream is a host and a port that are the same for all requests");
            return None;
        }
        let slash = rest.find('/').unwrap_or(rest.len());
        let (host, path) = rest.split_at(slash);
        if !path.is_empty() && place.text() != Some(path) {
            self.lose(
                directive,
                "requests keep their paths: the one in `proxy_pass` does not take the place of theirs",
            );
        }
        if terms.host == HostHeader::Replaced {
            let reason = "servers hear the `Host` of the request, as with `proxy_set_header Host $host;`";
            self.lose_once(directive, reason);
        }
        let made = match self.groups.get(host) {
            Some(group) => group.made(scheme),
            None => {
                let port = if scheme == "https" { 443 } else { 80 };
                let url = with_port(host, port).map(|place| format!("{scheme}://{place}"));
                Some(Upstream::new(vec![UpstreamServer { url: url.unwrap_or_default(), weight: 1 }]))
            }
        };
        let made = made.filter(|made| {
            !made.servers.is_empty() && made.servers.iter().all(|server| is_upstream_url(&server.url))
        });
        let Some(mut made) = made else {
            self.lose(directive, "none of its servers is a host and a port");
            return None;
        };
        if let Some(time) = terms.connect_timeout {
            made.timeouts.connect = time;
        }
        if let Some(time) = terms.read_timeout {
            (made.timeouts.response, made.timeouts.idle) = (time, time);
        }
        Some(self.put(host, made))
    }

    /// One of the same name that differs, by its times, say, gets another name.
    fn put(&mut self, host: &str, made: Upstream) -> String {
        let taken: &BTreeMap<String, Upstream> = &self.policy.upstreams;
        let plain = name_of(&host.replace("://", "-"));
        let known = taken.iter().find(|(name, known)| **known == made && name.starts_with(&plain));
        if let Some((name, _)) = known {
            return name.clone();
        }
        let names = (2..).map(|number: u32| format!("{plain}-{number}"));
        let free = [plain.clone()].into_iter().chain(names).find(|name| !taken.contains_key(name));
        let name = free.unwrap_or(plain);
        self.policy.upstreams.insert(name.clone(), made);
        name
    }
}

impl Group {
    fn made(&self, scheme: &str) -> Option<Upstream> {
        let server = |(place, weight): &(String, u64)| UpstreamServer {
            url: format!("{scheme}://{place}"),
            weight: *weight,
        };
        let mut made = Upstream::new(self.servers.iter().map(server).collect());
        made.balance = self.balance;
        made.keep_alive = self.keep_alive.unwrap_or(made.keep_alive);
        (made.max_fails, made.fail_timeout) = self.fails.unwrap_or((made.max_fails, made.fail_timeout));
        (!made.servers.is_empty()).then_some(made)
    }
}

/// A host and a port; `None` for what is neither a name nor an address.
fn with_port(text: &str, usual: u16) -> Option<String> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok().filter(|port| *port > 0)?),
        _ => (text, usual),
    };
    let place = format!("{host}:{port}");
    is_upstream_url(&format!("http://{place}")).then_some(place)
}
