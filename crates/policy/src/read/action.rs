//! What happens to requests over the limit.

use super::{Reader, matching::header_name, references::Target, values::unknown_word};
use crate::{
    model::{Fallback, OnLimit, Reject, Respond},
    source::{Node, Value, short},
    table::{Shape, Table, Written, field, key},
};
use std::collections::BTreeMap;

/// `on-limit`, before it is known which of the four it is.
#[derive(Default)]
pub(super) struct OnLimitMap {
    reject: Reject,
    redirect: Option<String>,
    fallback: Option<Fallback>,
}

pub(super) static ON_LIMIT: Table<OnLimitMap> = Table {
    what: "on-limit",
    required: &[],
    keys: &[
        field!("status": Shape::Whole, reject.status = status(300..=599) => write_status,
            "The status of the answer, from 400 to 599, or of the redirection."),
        key(
            "headers",
            "Headers of the answer, besides the usual ones.",
            Shape::Names(&Shape::Scalar),
            |reader, node, it| it.reject.headers = reader.headers(node),
            |it| Written::named(&it.reject.headers, Written::text),
        ),
        field!("body": Shape::Scalar, reject.body = scalar => Written::text,
            "The body of the answer, for whoever accepts none of `bodies`."),
        key(
            "bodies",
            "Bodies by content type: the first that a client accepts.",
            Shape::Names(&Shape::Scalar),
            |reader, node, it| {
                reader.names(node, "bodies", |reader, name, node| match name.text.split_once('/') {
                    Some((kind, subtype)) if !kind.is_empty() && !subtype.is_empty() => {
                        it.reject.bodies.extend(reader.scalar(node).map(|body| (name.text.clone(), body)));
                    }
                    _ => {
                        let problem = format!("`{}` is not a content type", name.text);
                        reader.blame(name.at, problem, "write one, as in `application/json`");
                    }
                });
            },
            |it| {
                let bodies = it.reject.bodies.iter().map(|(kind, body)| (kind, body));
                Written::named(bodies, Written::text)
            },
        ),
        field!("redirect": Shape::Text(&["/busy.html"]), redirect = location => Written::text,
            "Where the client is sent instead."),
        field!("fallback": Shape::Keys(|| FALLBACK.outline()), fallback = fallback => write_fallback,
            "What the client gets instead: a body, or what another upstream answers."),
    ],
};

#[derive(Default)]
struct FallbackMap {
    status: Option<u16>,
    headers: BTreeMap<String, String>,
    body: Option<String>,
    upstream: Option<String>,
}

static FALLBACK: Table<FallbackMap> = Table {
    what: "fallback",
    required: &[],
    keys: &[
        field!("body": Shape::Scalar, body = scalar => Written::text, "The body."),
        key(
            "status",
            "Its status; 200 where it is left out.",
            Shape::Whole,
            |reader, node, it| it.status = reader.status(node, 200..=599),
            |it| it.status.filter(|status| *status != 200).map(|status| Written::Number(status.into())),
        ),
        key(
            "headers",
            "Its headers.",
            Shape::Names(&Shape::Scalar),
            |reader, node, it| it.headers = reader.headers(node),
            |it| Written::named(&it.headers, Written::text),
        ),
        field!("upstream": Shape::Text(&["spare"]), upstream = upstream_name => Written::text,
            "The upstream that answers instead, by its name."),
    ],
};

/// `respond`, before it is known which it is.
#[derive(Default)]
pub(super) struct RespondMap {
    status: Option<u16>,
    headers: BTreeMap<String, String>,
    body: Option<String>,
    redirect: Option<String>,
}

pub(super) static RESPOND: Table<RespondMap> = Table {
    what: "respond",
    required: &[],
    keys: &[
        field!("status": Shape::Whole, status = status(200..=599) => write_status,
            "The status: from 200 to 599; of a redirection 301, 302, 303, 307 or 308, and 302 where it is left out."),
        key(
            "headers",
            "Headers of the answer.",
            Shape::Names(&Shape::Scalar),
            |reader, node, it| it.headers = reader.headers(node),
            |it| Written::named(&it.headers, Written::text),
        ),
        field!("body": Shape::Scalar, body = scalar => Written::text, "The body of the answer."),
        field!("redirect": Shape::Text(&["https://{host}{uri}"]), redirect = redirect_target => Written::text,
            "Where the client is sent; `{host}`, `{path}` and `{uri}` (path and query) are those of the request."),
    ],
};

/// What a `redirect` of a route can take from a request.
const PLACEHOLDERS: [&str; 3] = ["host", "path", "uri"];

const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

impl Reader<'_> {
    pub(super) fn on_limit(&mut self, node: &Node) -> Option<OnLimit> {
        if let Value::Text(text) = &node.value {
            if text == "drop" {
                return Some(OnLimit::Drop);
            }
            let (problem, _) = unknown_word(text, ["drop"].into_iter());
            let fix = "write `drop`, or a map with `status`, `redirect` or `fallback`";
            self.blame(node.at, problem, fix);
            return None;
        }
        let mut map = OnLimitMap::default();
        let before = self.faults.len();
        self.fill(node, &ON_LIMIT, &mut map);
        if self.faults.len() > before {
            return None;
        }
        let OnLimitMap { reject, redirect, fallback } = map;
        let Reject { status, headers, body, bodies } = &reject;
        let says_answer = !headers.is_empty() || body.is_some() || !bodies.is_empty();
        match (redirect, fallback) {
            (None, None) if status.is_some_and(|status| status < 400) => {
                self.blame(node.at, "a refusal with a status of redirections", "give one from 400 to 599");
                None
            }
            (None, None) => Some(OnLimit::Reject(reject)),
            (Some(_), None) if status.is_some_and(|status| !REDIRECTS.contains(&status)) => {
                self.blame(node.at, "a redirection needs its own status", "give 301, 302, 303, 307 or 308");
                None
            }
            (Some(location), None) if !says_answer => {
                Some(OnLimit::Redirect { location, status: status.unwrap_or(303) })
            }
            (None, Some(fallback)) if !says_answer && status.is_none() => Some(OnLimit::Fallback(fallback)),
            _ => {
                let place = self.here("on-limit");
                let fix = "say what is answered, or `redirect`, or `fallback`";
                self.blame(node.at, format!("{place} says several things at once"), fix);
                None
            }
        }
    }

    /// `respond` of a route.
    pub(super) fn respond(&mut self, node: &Node) -> Option<Respond> {
        if let Value::Text(text) = &node.value {
            if text == "drop" {
                return Some(Respond::Drop);
            }
            let (problem, _) = unknown_word(text, ["drop"].into_iter());
            self.blame(node.at, problem, "write `drop`, or a map with `status` or `redirect`");
            return None;
        }
        let mut map = RespondMap::default();
        let before = self.faults.len();
        self.fill(node, &RESPOND, &mut map);
        if self.faults.len() > before {
            return None;
        }
        match map {
            RespondMap { status: Some(status), headers, body, redirect: None } => {
                Some(Respond::Status { status, headers, body: body.unwrap_or_default() })
            }
            RespondMap { status: None, redirect: None, .. } => {
                self.blame(node.at, "`respond` without a status", "write `status`, or `redirect`");
                None
            }
            RespondMap { redirect: Some(_), headers, body, .. } if !headers.is_empty() || body.is_some() => {
                self.blame(node.at, "a redirection with headers or a body", "leave them out");
                None
            }
            RespondMap { status, redirect: Some(location), .. } => match status.unwrap_or(302) {
                status if REDIRECTS.contains(&status) => Some(Respond::Redirect { location, status }),
                _ => {
                    self.blame(
                        node.at,
                        "a redirection needs its own status",
                        "give 301, 302, 303, 307 or 308",
                    );
                    None
                }
            },
        }
    }

    /// A location whose placeholders are known.
    fn redirect_target(&mut self, node: &Node) -> Option<String> {
        let location = self.location(node)?;
        let mut rest = location.as_str();
        while let Some((_, behind)) = rest.split_once('{') {
            let name = behind.split_once('}').map(|(name, _)| name);
            match name.filter(|name| PLACEHOLDERS.contains(name)) {
                Some(name) => rest = &behind[name.len() + 1..],
                None => {
                    let name = name.unwrap_or(behind);
                    let problem = format!("unknown placeholder `{{{}}}` in a redirection", short(name));
                    self.blame(node.at, problem, "use {host}, {path} or {uri}");
                    return None;
                }
            }
        }
        Some(location)
    }

    fn fallback(&mut self, node: &Node) -> Option<Fallback> {
        let mut map = FallbackMap::default();
        let before = self.faults.len();
        self.fill(node, &FALLBACK, &mut map);
        match map {
            FallbackMap { body: Some(body), status, headers, upstream: None } => {
                Some(Fallback::Body { status: status.unwrap_or(200), headers, body })
            }
            FallbackMap { body: None, status: None, headers, upstream: Some(upstream) }
                if headers.is_empty() =>
            {
                Some(Fallback::Upstream(upstream))
            }
            _ => {
                if self.faults.len() == before {
                    let place = self.here("fallback");
                    let fix = "say `body`, with `status` and `headers`, or `upstream`";
                    self.blame(node.at, format!("{place} must say exactly one thing"), fix);
                }
                None
            }
        }
    }

    pub(super) fn upstream_name(&mut self, node: &Node) -> Option<String> {
        let name = self.name(node)?;
        self.refer(Target::Upstream, &name, node.at);
        Some(name)
    }

    fn status(&mut self, node: &Node, range: std::ops::RangeInclusive<u64>) -> Option<u16> {
        self.whole(node, range).and_then(|status| status.try_into().ok())
    }

    fn location(&mut self, node: &Node) -> Option<String> {
        let location = self.filled(node)?;
        if location.contains(|c: char| c.is_control() || c.is_whitespace()) {
            self.blame(node.at, "a space or a control character in a location", "write a URL or a path");
            return None;
        }
        Some(location)
    }

    fn headers(&mut self, node: &Node) -> BTreeMap<String, String> {
        let mut headers = BTreeMap::new();
        self.names(node, "headers", |reader, name, node| {
            let Some(value) = reader.scalar(node) else { return };
            match header_name(&name.text) {
                Err(mistake) => reader.blame(name.at, mistake.problem, mistake.fix),
                Ok(_) if value.chars().any(|c| c.is_control() && c != '\t') => {
                    reader.blame(node.at, "a control character in a header", "write it in one line");
                }
                Ok(header) if headers.contains_key(&header) => {
                    reader.blame(name.at, format!("the header `{header}` is here twice"), "leave one out");
                }
                Ok(header) => {
                    headers.insert(header, value);
                }
            }
        });
        headers
    }
}

pub(super) fn write(on_limit: &OnLimit) -> Option<Written> {
    let map = match on_limit.clone() {
        OnLimit::Drop => return Some(Written::text("drop")),
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

pub(super) fn write_respond(respond: &Respond) -> Written {
    RESPOND.write(&match respond.clone() {
        Respond::Drop => return Written::text("drop"),
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

fn write_status(status: &u16) -> Written {
    Written::Number((*status).into())
}

fn write_fallback(fallback: &Fallback) -> Written {
    FALLBACK.write(&match fallback.clone() {
        Fallback::Body { status, headers, body } => {
            FallbackMap { status: Some(status), headers, body: Some(body), upstream: None }
        }
        Fallback::Upstream(name) => FallbackMap { upstream: Some(name), ..FallbackMap::default() },
    })
}
