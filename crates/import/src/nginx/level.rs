//! The settings of a configuration level, and how nested levels inherit them.
//!
//! A level inherits each number and switch that it does not set. A level with a `limit_req` inherits no `limit_req`; the
//! same applies to `limit_conn`, to `proxy_set_header`, and to `allow` and `deny` together.

use super::{
    Importer,
    access::NginxAccessList,
    lexer::Directive,
    numbers::{parse_integer, parse_size, parse_time},
};
use std::time::Duration;
use tidegate_policy::source::SourceSpan;
use tidegate_rule::Mode;

/// The settings of `http`, a server or a location.
#[derive(Clone, Debug)]
pub(super) struct LevelSettings {
    pub(super) requests: Vec<LimitReq>,
    pub(super) connections: Vec<LimitConn>,
    /// `allow` and `deny`.
    pub(super) access: NginxAccessList,
    pub(super) request_denial: LimitDenial,
    pub(super) connection_denial: LimitDenial,
    /// `limit_rate`: bytes per second of each response.
    pub(super) rate: Option<ByteRate>,
    pub(super) rate_after: u64,
    /// `client_max_body_size`, if set.
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

/// The response to a denied request.
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
    /// `None` is unlimited.
    pub(super) bytes: Option<u64>,
    pub(super) span: SourceSpan,
}

/// The `Host` header that an upstream receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostHeader {
    /// The `Host` of the request.
    Preserved,
    /// The name of the upstream, which is the default of nginx.
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
    /// Removes the limits, which nginx does not apply to requests that it answers with `return`.
    pub(super) fn without_limits(self) -> Self {
        let (requests, connections) = (Vec::new(), Vec::new());
        Self { requests, connections, access: NginxAccessList::default(), rate: None, body: None, ..self }
    }
}

/// Whether a directive was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirectiveHandling {
    Handled,
    Unhandled,
}

impl Importer<'_> {
    /// Reads the settings of a level and returns the directives that are not settings.
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
                            "more than 100 limits on one level",
                            "remove some of them",
                        );
                        return DirectiveHandling::Handled;
                    }
                    if terms.requests.iter().any(|known| known.zone == limit.zone) {
                        self.report_error(
                            directive.span,
                            format!("duplicate zone `{}` on one level", limit.zone),
                            "remove one of them",
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
                        "more than 100 limits on one level",
                        "remove some of them",
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
                    // Zero disables the check in nginx.
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
        let fix = "write for example `limit_req zone=one burst=5 nodelay;`";
        let Some((zone, _)) = directive.option("zone").filter(|(zone, _)| !zone.is_empty()) else {
            self.report_error(directive.span, "`limit_req` has no zone", fix);
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
                        let problem = format!("`{}` is not a valid number of requests", word.text);
                        self.report_error(
                            word.span,
                            problem,
                            format!("write `{name}=` and a whole number of at least 1"),
                        );
                    }
                },
                _ => self.report_error(word.span, format!("unknown parameter `{}`", word.text), fix),
            }
        }
        limit.delay = limit.delay.min(limit.burst);
        Some(limit)
    }

    fn read_limit_conn(&mut self, directive: &Directive) -> Option<LimitConn> {
        let fix = "write for example `limit_conn one 10;`; the maximum is 65535";
        let number = directive.arg(1).and_then(parse_integer).filter(|most| (1..=65_535).contains(most));
        match (directive.arg(0), number, directive.args.len()) {
            (Some(zone), Some(most), 2) => {
                Some(LimitConn { zone: zone.to_owned(), max_connections: most, span: directive.span })
            }
            _ => {
                self.report_error(
                    directive.span,
                    "`limit_conn` takes a zone and a number of connections",
                    fix,
                );
                None
            }
        }
    }

    fn read_status(&mut self, directive: &Directive, denial: &mut LimitDenial) {
        match directive.arg(0).and_then(parse_integer).and_then(|status| u16::try_from(status).ok()) {
            Some(status @ 400..=599) => denial.status = status,
            _ => {
                let problem = format!("`{}` takes a status from 400 to 599", directive.name);
                self.report_error(directive.span, problem, format!("write `{} 429;`", directive.name));
            }
        }
    }

    fn read_dry_run(&mut self, directive: &Directive, denial: &mut LimitDenial) {
        match directive.arg(0) {
            Some("on") => denial.mode = Mode::Shadow,
            Some("off") => denial.mode = Mode::Enforce,
            _ => {
                let problem = format!("`{}` takes `on` or `off`", directive.name);
                let fix = format!("write `{0} on;` or `{0} off;`", directive.name);
                self.report_error(directive.span, problem, fix);
            }
        }
    }

    fn read_bytes(&mut self, directive: &Directive) -> Option<u64> {
        let value = directive.arg(0).unwrap_or_default();
        if value.contains('$') {
            self.record_protection_loss(
                directive,
                "sizes that depend on the request are not supported; write rules with `match` and `bandwidth`",
            );
            return None;
        }
        let bytes = parse_size(value);
        if bytes.is_none() {
            let problem = format!("`{}` takes a number of bytes", directive.name);
            self.report_error(
                directive.span,
                problem,
                format!("write for example `{} 100k;`", directive.name),
            );
        }
        bytes
    }

    pub(super) fn read_time(&mut self, directive: &Directive) -> Option<Duration> {
        let found = directive.arg(0).and_then(parse_time).filter(|time| !time.is_zero());
        if found.is_none() {
            self.record_loss(directive, "not a valid duration for a policy; the default applies");
        }
        found
    }

    fn read_set_header(&mut self, directive: &Directive, terms: &mut LevelSettings) {
        let (name, value) = (directive.arg(0).unwrap_or_default(), directive.arg(1).unwrap_or_default());
        match name.to_ascii_lowercase().as_str() {
            "host" if matches!(value, "$host" | "$http_host" | "$host:$server_port") => {
                terms.host = HostHeader::Preserved;
            }
            // The gateway sends these by default.
            "x-forwarded-for" | "x-forwarded-proto" | "x-forwarded-host" | "x-request-id" | "upgrade"
            | "connection" => {}
            "x-real-ip" => self.record_loss(
                directive,
                "the gateway sends the client address in X-Forwarded-For and removes X-Real-IP",
            ),
            name if UNTRUSTED_HEADERS.contains(&name) || name == "host" => {
                self.record_loss(directive, "request headers are forwarded unchanged");
            }
            // The upstream may trust this header, because clients cannot set it with nginx.
            _ => self.record_protection_loss(
                directive,
                "request headers are forwarded unchanged, so clients can set this one",
            ),
        }
    }
}

/// Request headers that carry no authentication or authorization.
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

/// The maximum number of limits on one level. Each nested level has a copy of them.
const MAX_LIMITS_PER_LEVEL: usize = 100;

/// The largest number of requests that nginx can count, in thousandths.
const MAX_REQUEST_COUNT: u64 = i64::MAX.unsigned_abs() / 1_000;
