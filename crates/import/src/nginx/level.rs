//! What holds at a level, and what of it the levels below inherit.
//!
//! A number or a switch is inherited unless a level says it itself. Of `limit_req`, `limit_conn`, `proxy_set_header`, and of
//! `allow` and `deny` together, a level that has one inherits none.

use super::{
    Importer,
    access::NginxAccessList,
    lexer::Directive,
    numbers::{parse_integer, parse_size, parse_time},
};
use std::time::Duration;
use tidegate_policy::source::SourceSpan;
use tidegate_rule::Mode;

/// What holds at a level.
#[derive(Clone, Debug)]
pub(super) struct LevelSettings {
    pub(super) requests: Vec<LimitReq>,
    pub(super) connections: Vec<LimitConn>,
    /// `allow` and `deny`.
    pub(super) access: NginxAccessList,
    pub(super) request_denial: LimitDenial,
    pub(super) connection_denial: LimitDenial,
    /// `limit_rate`: bytes per second of each answer.
    pub(super) rate: Option<ByteRate>,
    pub(super) rate_after: u64,
    /// `client_max_body_size`, where it is said.
    pub(super) body: Option<BodySize>,
    pub(super) host: HostHeader,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) read_timeout: Option<Duration>,
}

/// One `limit_req`.
#[derive(Clone, Debug)]
pub(super) struct LimitReq {
    pub(super) zone: String,
    pub(super) burst: u64,
    pub(super) delay: u64,
    pub(super) span: SourceSpan,
}

/// One `limit_conn`.
#[derive(Clone, Debug)]
pub(super) struct LimitConn {
    pub(super) zone: String,
    pub(super) max_connections: u64,
    pub(super) span: SourceSpan,
}

/// What becomes of those over a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LimitDenial {
    pub(super) status: u16,
    pub(super) mode: Mode,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ByteRate {
    pub(super) bytes: u64,
    pub(super) span: SourceSpan,
}

/// One `client_max_body_size`.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodySize {
    /// `None` is without an end.
    pub(super) bytes: Option<u64>,
    pub(super) span: SourceSpan,
}

/// Which name a server behind the proxy hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostHeader {
    /// That of the request.
    Preserved,
    /// That of the upstream, which is usual.
    Replaced,
}

impl Default for LevelSettings {
    fn default() -> Self {
        let usual = LimitDenial { status: 503, mode: Mode::Enforce };
        Self {
            requests: Vec::new(),
            connections: Vec::new(),
            access: NginxAccessList::default(),
            request_denial: usual,
            connection_denial: usual,
            rate: None,
            rate_after: 0,
            body: None,
            host: HostHeader::Replaced,
            connect_timeout: None,
            read_timeout: None,
        }
    }
}

impl LevelSettings {
    /// Without what is asked only about requests that nginx does not answer itself.
    pub(super) fn without_limits(self) -> Self {
        let (requests, connections) = (Vec::new(), Vec::new());
        Self { requests, connections, access: NginxAccessList::default(), rate: None, body: None, ..self }
    }
}

/// Whether a directive was one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirectiveHandling {
    Handled,
    Unhandled,
}

impl Importer<'_> {
    /// What holds at a level; what does not belong to it is left for others.
    pub(super) fn read_level<'d>(
        &mut self,
        directives: &'d [Directive],
        above: &LevelSettings,
    ) -> (LevelSettings, Vec<&'d Directive>) {
        let has = |name: &str| directives.iter().any(|directive| directive.name == name);
        let mut terms = above.clone();
        if has("limit_req") {
            terms.requests.clear();
        }
        if has("limit_conn") {
            terms.connections.clear();
        }
        if has("allow") || has("deny") {
            terms.access = NginxAccessList::default();
        }
        if has("proxy_set_header") {
            terms.host = HostHeader::Replaced;
        }
        let mut others = Vec::new();
        for directive in directives {
            if self.read_directive(directive, &mut terms) == DirectiveHandling::Unhandled {
                others.push(directive);
            }
        }
        (terms, others)
    }

    fn read_directive(&mut self, directive: &Directive, terms: &mut LevelSettings) -> DirectiveHandling {
        match directive.name.as_str() {
            "limit_req" => {
                let limit = self.read_limit_req(directive);
                if let Some(limit) = limit {
                    if terms.requests.len() >= MAX_LIMITS_PER_LEVEL {
                        self.report_error(
                            directive.span,
                            "one of more than a hundred limits of a level",
                            "leave it out",
                        );
                        return DirectiveHandling::Handled;
                    }
                    if terms.requests.iter().any(|known| known.zone == limit.zone) {
                        self.report_error(
                            directive.span,
                            format!("zone `{}` is here twice", limit.zone),
                            "leave one out",
                        );
                    }
                    terms.requests.push(limit);
                }
            }
            "limit_conn" => {
                let limit = self.read_limit_conn(directive);
                if terms.connections.len() >= MAX_LIMITS_PER_LEVEL {
                    self.report_error(
                        directive.span,
                        "one of more than a hundred limits of a level",
                        "leave it out",
                    );
                    return DirectiveHandling::Handled;
                }
                terms.connections.extend(limit);
            }
            "allow" | "deny" => self.read_access(directive, &mut terms.access),
            "limit_req_status" => self.read_status(directive, &mut terms.request_denial),
            "limit_conn_status" => self.read_status(directive, &mut terms.connection_denial),
            "limit_req_dry_run" => self.read_dry_run(directive, &mut terms.request_denial),
            "limit_conn_dry_run" => self.read_dry_run(directive, &mut terms.connection_denial),
            "limit_rate" => {
                if let Some(bytes) = self.read_bytes(directive) {
                    terms.rate = (bytes > 0).then_some(ByteRate { bytes, span: directive.span });
                }
            }
            "limit_rate_after" => {
                if let Some(bytes) = self.read_bytes(directive) {
                    terms.rate_after = bytes;
                }
            }
            "client_max_body_size" => {
                if let Some(bytes) = self.read_bytes(directive) {
                    // nginx does not look where it is zero.
                    let bytes = Some(bytes).filter(|bytes| *bytes > 0);
                    terms.body = Some(BodySize { bytes, span: directive.span });
                }
            }
            "proxy_connect_timeout" => {
                terms.connect_timeout = self.read_time(directive).or(terms.connect_timeout);
            }
            "proxy_read_timeout" => terms.read_timeout = self.read_time(directive).or(terms.read_timeout),
            "proxy_set_header" => self.read_set_header(directive, terms),
            _ => return DirectiveHandling::Unhandled,
        }
        DirectiveHandling::Handled
    }

    fn read_limit_req(&mut self, directive: &Directive) -> Option<LimitReq> {
        let fix = "write it as in `limit_req zone=one burst=5 nodelay;`";
        let Some((zone, _)) = directive.option("zone").filter(|(zone, _)| !zone.is_empty()) else {
            self.report_error(directive.span, "`limit_req` without a zone", fix);
            return None;
        };
        let mut limit = LimitReq { zone: zone.to_owned(), burst: 0, delay: 0, span: directive.span };
        for word in &directive.args {
            let number =
                |text: &str| parse_integer(text).filter(|number| *number > 0 && *number <= MAX_REQUEST_COUNT);
            match word.text.split_once('=').unwrap_or((&word.text, "")) {
                ("zone", _) => {}
                ("nodelay", "") => limit.delay = u64::MAX,
                (name @ ("burst" | "delay"), value) => match number(value) {
                    Some(number) if name == "burst" => limit.burst = number,
                    Some(number) => limit.delay = number,
                    None => {
                        let problem = format!("`{}` is not a number of requests", word.text);
                        self.report_error(
                            word.span,
                            problem,
                            format!("write `{name}=` and a whole number from 1"),
                        );
                    }
                },
                _ => self.report_error(word.span, format!("unknown word `{}`", word.text), fix),
            }
        }
        limit.delay = limit.delay.min(limit.burst);
        Some(limit)
    }

    fn read_limit_conn(&mut self, directive: &Directive) -> Option<LimitConn> {
        let fix = "write it as in `limit_conn one 10;`, up to 65535";
        let number = directive.arg(1).and_then(parse_integer).filter(|most| (1..=65_535).contains(most));
        match (directive.arg(0), number, directive.args.len()) {
            (Some(zone), Some(most), 2) => {
                Some(LimitConn { zone: zone.to_owned(), max_connections: most, span: directive.span })
            }
            _ => {
                self.report_error(directive.span, "`limit_conn` has a zone and a number of connections", fix);
                None
            }
        }
    }

    fn read_status(&mut self, directive: &Directive, denial: &mut LimitDenial) {
        match directive.arg(0).and_then(parse_integer).and_then(|status| u16::try_from(status).ok()) {
            Some(status @ 400..=599) => denial.status = status,
            _ => {
                let problem = format!("`{}` has a status from 400 to 599", directive.name);
                self.report_error(directive.span, problem, format!("write `{} 429;`", directive.name));
            }
        }
    }

    fn read_dry_run(&mut self, directive: &Directive, denial: &mut LimitDenial) {
        match directive.arg(0) {
            Some("on") => denial.mode = Mode::Shadow,
            Some("off") => denial.mode = Mode::Enforce,
            _ => {
                let problem = format!("`{}` is `on` or `off`", directive.name);
                self.report_error(directive.span, problem, "write one of them");
            }
        }
    }

    fn read_bytes(&mut self, directive: &Directive) -> Option<u64> {
        let value = directive.arg(0).unwrap_or_default();
        if value.contains('$') {
            self.record_protection_loss(
                directive,
                "a size that depends on the request cannot be said; write rules with `match` and `bandwidth`",
            );
            return None;
        }
        let bytes = parse_size(value);
        if bytes.is_none() {
            let problem = format!("`{}` has a number of bytes", directive.name);
            self.report_error(directive.span, problem, format!("write it as in `{} 100k;`", directive.name));
        }
        bytes
    }

    pub(super) fn read_time(&mut self, directive: &Directive) -> Option<Duration> {
        let found = directive.arg(0).and_then(parse_time).filter(|time| !time.is_zero());
        if found.is_none() {
            self.record_loss(directive, "not a time that a policy could say; the usual one holds");
        }
        found
    }

    fn read_set_header(&mut self, directive: &Directive, terms: &mut LevelSettings) {
        let (name, value) = (directive.arg(0).unwrap_or_default(), directive.arg(1).unwrap_or_default());
        match name.to_ascii_lowercase().as_str() {
            "host" if matches!(value, "$host" | "$http_host" | "$host:$server_port") => {
                terms.host = HostHeader::Preserved;
            }
            // Those are sent anyway.
            "x-forwarded-for" | "x-forwarded-proto" | "x-forwarded-host" | "x-request-id" | "upgrade"
            | "connection" => {}
            "x-real-ip" => self.record_loss(
                directive,
                "servers find the client in X-Forwarded-For; an X-Real-IP that a client sent is removed",
            ),
            name if UNTRUSTED_HEADERS.contains(&name) || name == "host" => {
                self.record_loss(directive, "requests are forwarded with the headers that they have");
            }
            // A server may trust it, since clients could not set it.
            _ => self.record_protection_loss(
                directive,
                "requests are forwarded with the headers that they have, so clients can set this one",
            ),
        }
    }
}

/// Headers of requests that nobody is trusted by.
const UNTRUSTED_HEADERS: [&str; 13] = [
    "accept",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "content-length",
    "content-type",
    "early-data",
    "if-modified-since",
    "if-none-match",
    "range",
    "referer",
    "te",
    "user-agent",
];

/// Every level below has a copy of them.
const MAX_LIMITS_PER_LEVEL: usize = 100;

/// More than nginx can count to, in thousandths.
const MAX_REQUEST_COUNT: u64 = i64::MAX.unsigned_abs() / 1_000;
