//! `upstream` blocks and `proxy_pass`.

use super::{
    Importer,
    level::{HostHeader, LevelSettings},
    lexer::Directive,
    location::LocationPattern,
    names::sanitize_name,
    numbers::{parse_integer, parse_time},
};
use std::{collections::BTreeMap, time::Duration};
use tidegate_policy::{
    is_upstream_url,
    model::{Balance, Upstream, UpstreamServer},
};

/// `upstream name { … }`, without the scheme, which `proxy_pass` defines.
#[derive(Clone, Debug, Default)]
pub(super) struct UpstreamGroup {
    /// Addresses with their weights.
    servers: Vec<(String, u64)>,
    balance: Balance,
    keep_alive: Option<u64>,
    /// `max_fails` and `fail_timeout` of the first server that sets one of them.
    failure_limit: Option<(u64, Duration)>,
}

impl Importer<'_> {
    /// `upstream name { … }`
    pub(super) fn read_upstream(&mut self, directive: &Directive) {
        let Some(name) = directive.arg(0) else {
            self.report_error(directive.span, "`upstream` has no name", "write `upstream NAME { … }`");
            return;
        };
        let mut group = UpstreamGroup::default();
        for entry in directive.block.iter().flatten() {
            match entry.name.as_str() {
                "server" => self.read_upstream_server(entry, &mut group),
                "least_conn" => group.balance = Balance::LeastRequests,
                "random" if entry.has_arg("two") => group.balance = Balance::LeastRequests,
                "ip_hash" => group.balance = Balance::Client,
                "hash" if matches!(entry.arg(0), Some("$remote_addr" | "$binary_remote_addr")) => {
                    group.balance = Balance::Client;
                }
                "keepalive" => group.keep_alive = entry.arg(0).and_then(parse_integer).filter(|most| *most <= 10_000),
                "zone" | "keepalive_timeout" | "keepalive_requests" | "keepalive_time" => {}
                _ => self.record_loss(entry, "unsupported load balancing method; `balance` takes `round-robin`, `least-requests` or `client`"),
            }
        }
        self.upstream_groups.insert(name.to_owned(), group);
    }

    fn read_upstream_server(&mut self, entry: &Directive, group: &mut UpstreamGroup) {
        let Some(address) = entry.arg(0) else {
            self.report_error(entry.span, "`server` has no address", "write `server ADDRESS;`");
            return;
        };
        if entry.has_arg("down") {
            return;
        }
        if entry.has_arg("backup") {
            self.record_loss(
                entry,
                "backup servers are not supported; remove `backup` and write `health` for the upstream",
            );
            return;
        }
        let Some(address) = add_default_port(address, 80) else {
            self.record_loss(entry, "an upstream server needs a host and a port");
            return;
        };
        let known = |word: &str| {
            ["weight=", "max_fails=", "fail_timeout="].iter().any(|known| word.starts_with(known))
        };
        let unsupported = entry.args.iter().skip(1).find(|word| !known(&word.text));
        if let Some(unsupported) = unsupported {
            let reason = format!("the parameter `{}` is not imported", unsupported.text);
            self.record_loss(entry, reason);
        }
        self.read_max_fails(entry, group);
        let weight = entry.option("weight").and_then(|(weight, _)| parse_integer(weight));
        group.servers.push((address, weight.filter(|weight| (1..=1_000).contains(weight)).unwrap_or(1)));
    }

    /// Reads `max_fails=3 fail_timeout=30s`; the defaults of nginx are 1 and 10 s.
    fn read_max_fails(&mut self, entry: &Directive, group: &mut UpstreamGroup) {
        let (count, period) = (entry.option("max_fails"), entry.option("fail_timeout"));
        if count.is_none() && period.is_none() {
            return;
        }
        let number =
            count.map_or(Some(1), |(text, _)| parse_integer(text).filter(|count| *count <= 1_000_000));
        let period = period.map_or(Some(Duration::from_secs(10)), |(text, _)| parse_time(text));
        let (Some(number), Some(period)) = (number, period) else {
            let fix = "write for example `max_fails=3 fail_timeout=30s`";
            return self.report_error(
                entry.span,
                "`max_fails` takes a number and `fail_timeout` a duration",
                fix,
            );
        };
        // A zero `fail_timeout` disables the check, as a zero `max_fails` does.
        let fails = match period.is_zero() {
            true => (0, Duration::from_secs(10)),
            false => (number, period),
        };
        match group.failure_limit {
            Some(known) if known != fails => {
                self.record_loss(
                    entry,
                    "an upstream has one `max_fails` and `fail_timeout`; those of its first server apply",
                );
            }
            _ => group.failure_limit = Some(fails),
        }
    }

    /// Returns the name of the upstream of a `proxy_pass`, and adds the upstream if it does not exist.
    pub(super) fn read_proxy_pass(
        &mut self,
        directive: &Directive,
        place: &LocationPattern,
        terms: &LevelSettings,
    ) -> Option<String> {
        let value = directive.arg(0).unwrap_or_default();
        let Some((scheme, rest)) =
            value.split_once("://").filter(|(scheme, _)| ["http", "https"].contains(scheme))
        else {
            self.record_loss(directive, "only http:// and https:// addresses are imported");
            return None;
        };
        if value.contains('$') || rest.starts_with("unix:") {
            self.record_loss(directive, "upstreams with variables or Unix sockets are not supported");
            return None;
        }
        let slash = rest.find('/').unwrap_or(rest.len());
        let (host, path) = rest.split_at(slash);
        if !path.is_empty() && place.text() != Some(path) {
            self.record_loss(directive, "the path in `proxy_pass` is ignored; requests keep their paths");
        }
        if terms.host == HostHeader::Replaced {
            let reason =
                "the upstream receives the `Host` of the request, as with `proxy_set_header Host $host;`";
            self.record_loss_once(directive, reason);
        }
        let made = match self.upstream_groups.get(host) {
            Some(group) => group.to_upstream(scheme),
            None => {
                let port = if scheme == "https" { 443 } else { 80 };
                let url = add_default_port(host, port).map(|place| format!("{scheme}://{place}"));
                Some(Upstream::new(vec![UpstreamServer { url: url.unwrap_or_default(), weight: 1 }]))
            }
        };
        let made = made.filter(|made| {
            !made.servers.is_empty() && made.servers.iter().all(|server| is_upstream_url(&server.url))
        });
        let Some(mut made) = made else {
            self.record_loss(directive, "none of its servers has a valid host and port");
            return None;
        };
        if let Some(time) = terms.connect_timeout {
            made.timeouts.connect = time;
        }
        if let Some(time) = terms.read_timeout {
            (made.timeouts.response, made.timeouts.idle) = (time, time);
        }
        Some(self.add_upstream(host, made))
    }

    /// Adds an upstream. If the name is taken by a different one, for example with other timeouts, appends a number.
    fn add_upstream(&mut self, host: &str, made: Upstream) -> String {
        let taken: &BTreeMap<String, Upstream> = &self.policy.upstreams;
        let plain = sanitize_name(&host.replace("://", "-"));
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

impl UpstreamGroup {
    fn to_upstream(&self, scheme: &str) -> Option<Upstream> {
        let server = |(place, weight): &(String, u64)| UpstreamServer {
            url: format!("{scheme}://{place}"),
            weight: *weight,
        };
        let mut made = Upstream::new(self.servers.iter().map(server).collect());
        made.balance = self.balance;
        made.keep_alive = self.keep_alive.unwrap_or(made.keep_alive);
        (made.max_fails, made.fail_timeout) =
            self.failure_limit.unwrap_or((made.max_fails, made.fail_timeout));
        (!made.servers.is_empty()).then_some(made)
    }
}

/// Returns the host and the port; `None` if the text is neither a host name nor an address.
fn add_default_port(text: &str, default: u16) -> Option<String> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok().filter(|port| *port > 0)?),
        _ => (text, default),
    };
    let place = format!("{host}:{port}");
    is_upstream_url(&format!("http://{place}")).then_some(place)
}
