//! Reads `on-limit` of rules and `respond` of routes.

use super::{
    PolicyReader,
    matching::header_name,
    references::ReferenceTarget,
    values::{unknown_word_error, write_duration},
};
use crate::{
    head::is_hop_by_hop,
    map_schema::{
        MapSchema, OutputValue, TextKind, ValueSchema, duration, field, key, with_default, with_example,
        without,
    },
    model::{Fallback, FallbackResponse, OnLimit, Reject, Respond},
    source::{SyntaxNode, SyntaxValue, truncate},
};
use std::{collections::BTreeMap, time::Duration};

/// The keys of `on-limit`, before they are converted to an [`OnLimit`].
#[derive(Default)]
pub(super) struct OnLimitMap {
    reject: Reject,
    redirect: Option<String>,
    fallback: Option<Fallback>,
}

pub(super) static ON_LIMIT: MapSchema<OnLimitMap> = MapSchema {
    name: "on-limit",
    required: &[],
    keys: &[
        without(
            field!("status": ValueSchema::Integer("HTTP status", 503), reject.status = status(300..=599) => write_status,
            "The status of the response, from 400 to 599, or of the redirect."),
            "An exceeded quota is 429, a list or a ban 403, a missing or repeated key 400, everything else 503, and a redirect 303.",
        ),
        without(
            key(
                "headers",
                "Headers to add to the response.",
                ValueSchema::NamedMap("x-reason", &ValueSchema::Scalar("load")),
                |reader, node, it| it.reject.headers = reader.headers(node),
                |it| OutputValue::named_map(&it.reject.headers, OutputValue::text),
            ),
            "No headers are added.",
        ),
        without(
            field!("body": ValueSchema::Scalar("Try again later."), reject.body = scalar => OutputValue::text,
            "The body of the response if the client accepts none of `bodies`."),
            "The body is a problem document, unless there are `bodies`.",
        ),
        without(
            key(
                "bodies",
                "Bodies by content type. The first one that the client accepts is sent.",
                ValueSchema::NamedMap("application/json", &ValueSchema::Scalar("busy")),
                |reader, node, it| {
                    reader.named_entries(node, "bodies", |reader, name, node| {
                        match name.text.split_once('/') {
                            Some((kind, subtype)) if !kind.is_empty() && !subtype.is_empty() => {
                                it.reject
                                    .bodies
                                    .extend(reader.scalar(node).map(|body| (name.text.clone(), body)));
                            }
                            _ => {
                                let problem = format!("invalid content type `{}`", name.text);
                                reader.report_error(
                                    name.span,
                                    problem,
                                    "write a type and a subtype, as in `application/json`",
                                );
                            }
                        }
                    });
                },
                |it| {
                    let bodies = it.reject.bodies.iter().map(|(kind, body)| (kind, body));
                    OutputValue::named_map(bodies, OutputValue::text)
                },
            ),
            "All clients get the same body.",
        ),
        without(
            field!("redirect": ValueSchema::Text(TextKind::Location, &["/busy.html"]), redirect = location => OutputValue::text,
            "The location that the client is redirected to."),
            "The client is not redirected.",
        ),
        with_example(
            without(
                field!("fallback": ValueSchema::Map(|| FALLBACK.outline()), fallback = fallback => write_fallback,
            "The response instead of a rejection: a cached one, a body, or the response of another upstream."),
                "The request is rejected.",
            ),
            || OutputValue::Map(vec![("cache".to_owned(), OutputValue::text("10min"))]),
        ),
    ],
};

/// The status of a fallback with a body.
const DEFAULT_FALLBACK_STATUS: u16 = 200;

#[derive(Default)]
struct FallbackMap {
    status: Option<u16>,
    headers: BTreeMap<String, String>,
    body: Option<String>,
    upstream: Option<String>,
    cache: Option<Duration>,
}

static FALLBACK: MapSchema<FallbackMap> = MapSchema {
    name: "fallback",
    required: &[],
    keys: &[
        without(
            field!("body": ValueSchema::Scalar("Try again later."), body = scalar => OutputValue::text, "The body of the response."),
            "Either `upstream` or `cache` is needed.",
        ),
        with_default(
            key(
                "status",
                "The status of the response with `body`.",
                ValueSchema::Integer("HTTP status", 203),
                |reader, node, it| it.status = reader.status(node, 200..=599),
                |it| {
                    it.status
                        .filter(|status| *status != DEFAULT_FALLBACK_STATUS)
                        .map(|status| OutputValue::Number(status.into()))
                },
            ),
            || OutputValue::Number(DEFAULT_FALLBACK_STATUS.into()),
        ),
        without(
            key(
                "headers",
                "The headers of the response.",
                ValueSchema::NamedMap("x-reason", &ValueSchema::Scalar("load")),
                |reader, node, it| it.headers = reader.headers(node),
                |it| OutputValue::named_map(&it.headers, OutputValue::text),
            ),
            "The response has no headers of its own.",
        ),
        without(
            field!("upstream": ValueSchema::Text(TextKind::Name, &["spare"]), upstream = upstream_name => OutputValue::text,
            "The name of the upstream that handles the request instead."),
            "Either `body` or `cache` is needed.",
        ),
        without(
            field!("cache": duration(&["10min"]), cache = positive_duration => write_duration,
            "The maximum age of the last good response to the same request, which is sent if it is stored; otherwise `body`, `upstream` or the rejection."),
            "No responses are stored.",
        ),
    ],
};

/// The keys of `respond`, before they are converted to a [`Respond`].
#[derive(Default)]
pub(super) struct RespondMap {
    status: Option<u16>,
    headers: BTreeMap<String, String>,
    body: Option<String>,
    redirect: Option<String>,
}

pub(super) static RESPOND: MapSchema<RespondMap> = MapSchema {
    name: "respond",
    required: &[],
    keys: &[
        without(
            field!("status": ValueSchema::Integer("HTTP status", 404), status = status(200..=599) => write_status,
            "The status, from 200 to 599. For a redirect 301, 302, 303, 307 or 308."),
            "A redirect is 302. Without a redirect: error.",
        ),
        without(
            key(
                "headers",
                "The headers of the response.",
                ValueSchema::NamedMap("x-reason", &ValueSchema::Scalar("load")),
                |reader, node, it| it.headers = reader.headers(node),
                |it| OutputValue::named_map(&it.headers, OutputValue::text),
            ),
            "The response has no headers of its own.",
        ),
        without(
            field!("body": ValueSchema::Scalar("Try again later."), body = scalar => OutputValue::text, "The body of the response."),
            "The body is empty.",
        ),
        without(
            field!("redirect": ValueSchema::Text(TextKind::Location, &["https://{host}{uri}"]), redirect = redirect_target => OutputValue::text,
            "The location that the client is redirected to; `{host}`, `{path}` and `{uri}` (path and query) are replaced by those of the request."),
            "The client is not redirected.",
        ),
    ],
};

/// The placeholders in `redirect` of a route.
const PLACEHOLDERS: [&str; 3] = ["host", "path", "uri"];

const REDIRECT_STATUSES: [u16; 5] = [301, 302, 303, 307, 308];

impl PolicyReader<'_> {
    pub(super) fn on_limit(&mut self, node: &SyntaxNode) -> Option<OnLimit> {
        if let SyntaxValue::Text(text) = &node.value {
            if text == "drop" {
                return Some(OnLimit::Drop);
            }
            let (problem, _) = unknown_word_error(text, &["drop"]);
            let fix = "write `drop`, or a map with `status`, `redirect` or `fallback`";
            self.report_error(node.span, problem, fix);
            return None;
        }
        let mut map = OnLimitMap::default();
        let before = self.errors.len();
        self.read_map(node, &ON_LIMIT, &mut map);
        if self.errors.len() > before {
            return None;
        }
        let OnLimitMap { reject, redirect, fallback } = map;
        let Reject { status, headers, body, bodies } = &reject;
        let has_response = !headers.is_empty() || body.is_some() || !bodies.is_empty();
        match (redirect, fallback) {
            (None, None) if status.is_some_and(|status| status < 400) => {
                self.report_error(
                    node.span,
                    "redirect status in a rejection",
                    "use a status from 400 to 599",
                );
                None
            }
            (None, None) => Some(OnLimit::Reject(reject)),
            (Some(_), None) if status.is_some_and(|status| !REDIRECT_STATUSES.contains(&status)) => {
                self.report_error(node.span, "invalid redirect status", "use 301, 302, 303, 307 or 308");
                None
            }
            (Some(location), None) if !has_response => {
                Some(OnLimit::Redirect { location, status: status.unwrap_or(303) })
            }
            (None, Some(fallback)) if !has_response && status.is_none() => Some(OnLimit::Fallback(fallback)),
            _ => {
                let location = self.describe_location("on-limit");
                let fix = "use either `status`, `headers` and a body, or `redirect`, or `fallback`";
                self.report_error(node.span, format!("{location} has conflicting keys"), fix);
                None
            }
        }
    }

    /// Reads `respond` of a route.
    pub(super) fn respond(&mut self, node: &SyntaxNode) -> Option<Respond> {
        if let SyntaxValue::Text(text) = &node.value {
            if text == "drop" {
                return Some(Respond::Drop);
            }
            let (problem, _) = unknown_word_error(text, &["drop"]);
            self.report_error(node.span, problem, "write `drop`, or a map with `status` or `redirect`");
            return None;
        }
        let mut map = RespondMap::default();
        let before = self.errors.len();
        self.read_map(node, &RESPOND, &mut map);
        if self.errors.len() > before {
            return None;
        }
        match map {
            RespondMap { status: Some(status), headers, body, redirect: None } => {
                Some(Respond::Status { status, headers, body: body.unwrap_or_default() })
            }
            RespondMap { status: None, redirect: None, .. } => {
                self.report_error(node.span, "`respond` without a status", "add `status`, or `redirect`");
                None
            }
            RespondMap { redirect: Some(_), headers, body, .. } if !headers.is_empty() || body.is_some() => {
                self.report_error(node.span, "redirect with headers or a body", "remove them");
                None
            }
            RespondMap { status, redirect: Some(location), .. } => match status.unwrap_or(302) {
                status if REDIRECT_STATUSES.contains(&status) => Some(Respond::Redirect { location, status }),
                _ => {
                    self.report_error(node.span, "invalid redirect status", "use 301, 302, 303, 307 or 308");
                    None
                }
            },
        }
    }

    /// Reads a location and checks its placeholders.
    fn redirect_target(&mut self, node: &SyntaxNode) -> Option<String> {
        let location = self.location(node)?;
        let mut rest = location.as_str();
        while let Some((_, behind)) = rest.split_once('{') {
            let name = behind.split_once('}').map(|(name, _)| name);
            match name.filter(|name| PLACEHOLDERS.contains(name)) {
                Some(name) => rest = &behind[name.len() + 1..],
                None => {
                    let name = name.unwrap_or(behind);
                    let problem = format!("unknown placeholder `{{{}}}` in a redirect", truncate(name));
                    self.report_error(node.span, problem, "use {host}, {path} or {uri}");
                    return None;
                }
            }
        }
        Some(location)
    }

    fn fallback(&mut self, node: &SyntaxNode) -> Option<Fallback> {
        let mut map = FallbackMap::default();
        let before = self.errors.len();
        self.read_map(node, &FALLBACK, &mut map);
        let FallbackMap { status, headers, body, upstream, cache } = map;
        let is_plain = status.is_none() && headers.is_empty();
        let response = match (body, upstream) {
            (Some(body), None) => Ok(Some(FallbackResponse::Body {
                status: status.unwrap_or(DEFAULT_FALLBACK_STATUS),
                headers,
                body,
            })),
            (None, Some(upstream)) if is_plain => Ok(Some(FallbackResponse::Upstream(upstream))),
            (None, None) if is_plain && cache.is_some() => Ok(None),
            _ => Err(()),
        };
        match response {
            Ok(response) => Some(Fallback { cache, response }),
            Err(()) => {
                if self.errors.len() == before {
                    let location = self.describe_location("fallback");
                    let fix = "use either `body`, with `status` and `headers`, or `upstream`; `cache` alone or with one of them";
                    self.report_error(
                        node.span,
                        format!("{location} needs exactly one kind of response"),
                        fix,
                    );
                }
                None
            }
        }
    }

    pub(super) fn upstream_name(&mut self, node: &SyntaxNode) -> Option<String> {
        let name = self.name(node)?;
        self.add_reference(ReferenceTarget::Upstream, &name, node.span);
        Some(name)
    }

    fn status(&mut self, node: &SyntaxNode, range: std::ops::RangeInclusive<u64>) -> Option<u16> {
        self.integer(node, range).and_then(|status| status.try_into().ok())
    }

    fn location(&mut self, node: &SyntaxNode) -> Option<String> {
        let location = self.non_empty_text(node)?;
        if location.contains(|c: char| c.is_control() || c.is_whitespace()) {
            self.report_error(node.span, "space or control character in a location", "write a URL or a path");
            return None;
        }
        Some(location)
    }

    fn headers(&mut self, node: &SyntaxNode) -> BTreeMap<String, String> {
        let mut headers = BTreeMap::new();
        self.named_entries(node, "headers", |reader, name, node| {
            let Some(value) = reader.scalar(node) else { return };
            match header_name(&name.text) {
                Err(mistake) => reader.report_error(name.span, mistake.problem, mistake.fix),
                Ok(header) if is_connection_header(&header) => {
                    reader.report_error(
                        name.span,
                        format!("`{header}` is a header of the connection"),
                        "remove it; it is set when the response is sent",
                    );
                }
                Ok(_) if value.chars().any(|c| c.is_control() && c != '\t') => {
                    reader.report_error(
                        node.span,
                        "control character in a header",
                        "write the value on one line",
                    );
                }
                Ok(header) if headers.contains_key(&header) => {
                    reader.report_error(
                        name.span,
                        format!("duplicate header `{header}`"),
                        "remove one of them",
                    );
                }
                Ok(header) => {
                    headers.insert(header, value);
                }
            }
        });
        headers
    }
}

/// Whether a header describes the connection or the length of the body.
fn is_connection_header(name: &str) -> bool {
    name == "content-length" || is_hop_by_hop(name.as_bytes())
}

pub(super) fn write_on_limit(on_limit: &OnLimit) -> Option<OutputValue> {
    let map = match on_limit.clone() {
        OnLimit::Drop => return Some(OutputValue::text("drop")),
        OnLimit::Reject(reject) => OnLimitMap { reject, ..OnLimitMap::default() },
        OnLimit::Fallback(fallback) => OnLimitMap { fallback: Some(fallback), ..OnLimitMap::default() },
        OnLimit::Redirect { location, status } => OnLimitMap {
            reject: Reject { status: Some(status).filter(|status| *status != 303), ..Reject::default() },
            redirect: Some(location),
            fallback: None,
        },
    };
    Some(ON_LIMIT.write(&map)).filter(|written| !written.is_empty_map())
}

pub(super) fn write_respond(respond: &Respond) -> OutputValue {
    RESPOND.write(&match respond.clone() {
        Respond::Drop => return OutputValue::text("drop"),
        Respond::Status { status, headers, body } => RespondMap {
            status: Some(status),
            headers,
            body: Some(body).filter(|body| !body.is_empty()),
            redirect: None,
        },
        Respond::Redirect { location, status } => RespondMap {
            status: Some(status).filter(|status| *status != 302),
            redirect: Some(location),
            ..RespondMap::default()
        },
    })
}

fn write_status(status: &u16) -> OutputValue {
    OutputValue::Number((*status).into())
}

fn write_fallback(fallback: &Fallback) -> OutputValue {
    let Fallback { cache, response } = fallback.clone();
    FALLBACK.write(&match response {
        Some(FallbackResponse::Body { status, headers, body }) => {
            FallbackMap { status: Some(status), headers, body: Some(body), upstream: None, cache }
        }
        Some(FallbackResponse::Upstream(name)) => {
            FallbackMap { upstream: Some(name), cache, ..FallbackMap::default() }
        }
        None => FallbackMap { cache, ..FallbackMap::default() },
    })
}
