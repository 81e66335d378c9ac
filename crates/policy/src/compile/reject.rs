//! What is done with a denied request.

use crate::{
    matching::RequestView,
    model::{Fallback, OnLimit, Reject, Respond},
};
use std::sync::Arc;
use tidegate_rule::RejectionResponse;

/// What is done with a denied request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RejectAction {
    /// It is answered so.
    Response(RejectionResponse),
    /// This upstream answers it.
    Upstream(Arc<str>),
    /// Its connection is closed without an answer; in HTTP/2, its stream is.
    Drop,
}

impl RejectAction {
    /// What a rule says, where `usual` would be answered if it said nothing to a client that accepts this.
    pub(crate) fn for_rule(on_limit: &OnLimit, default: RejectionResponse, accept: Option<&[u8]>) -> Self {
        match on_limit {
            OnLimit::Reject(reject) => Self::Response(build_rejection(reject, default, accept)),
            OnLimit::Redirect { location, status } => {
                Self::Response(RejectionResponse::new(*status).header("location", location.as_str()))
            }
            OnLimit::Fallback(Fallback::Body { status, headers, body }) => {
                let answer = RejectionResponse::new(*status).text(body.as_str());
                let add = |answer: RejectionResponse, (name, value): (&String, &String)| {
                    answer.header(name, value.as_str())
                };
                Self::Response(headers.iter().fold(answer, add))
            }
            OnLimit::Fallback(Fallback::Upstream(name)) => Self::Upstream(name.as_str().into()),
            OnLimit::Drop => Self::Drop,
        }
    }

    /// What a route answers to this request itself.
    pub fn for_route(respond: &Respond, view: &RequestView<'_>) -> Self {
        match respond {
            Respond::Status { status, headers, body } => {
                let answer = match body.is_empty() {
                    true => RejectionResponse::new(*status),
                    false => RejectionResponse::new(*status).text(body.as_str()),
                };
                let add = |answer: RejectionResponse, (name, value): (&String, &String)| {
                    answer.header(name, value.as_str())
                };
                Self::Response(headers.iter().fold(answer, add))
            }
            Respond::Redirect { location, status } => Self::Response(
                RejectionResponse::new(*status).header("location", expand_location(location, view)),
            ),
            Respond::Drop => Self::Drop,
        }
    }
}

/// A location with what its placeholders stand for.
fn expand_location(location: &str, view: &RequestView<'_>) -> String {
    let head = view.head();
    let (mut text, mut rest) = (String::with_capacity(location.len() + head.path().len()), location);
    while let Some((before, behind)) = rest.split_once('{') {
        text.push_str(before);
        let (name, behind) = behind.split_once('}').unwrap_or((behind, ""));
        match name {
            "host" => text.push_str(view.host().unwrap_or_default()),
            "path" => text.push_str(head.path()),
            "uri" => {
                text.push_str(head.path());
                if let Some(query) = head.query() {
                    text.extend(["?", query]);
                }
            }
            // The reader has refused all others.
            _ => {}
        }
        rest = behind;
    }
    text + rest
}

fn build_rejection(reject: &Reject, default: RejectionResponse, accept: Option<&[u8]>) -> RejectionResponse {
    let mut answer = match reject.status {
        Some(status) => default.status(status),
        None => default,
    };
    let chosen = reject.bodies.iter().find(|(kind, _)| accepts(accept, kind));
    answer = match (chosen, &reject.body) {
        (Some((kind, body)), _) => {
            RejectionResponse { body: body.clone(), ..answer.header("content-type", kind.as_str()) }
        }
        (None, Some(body)) => answer.text(body.as_str()),
        (None, None) => answer,
    };
    reject.headers.iter().fold(answer, |answer, (name, value)| answer.header(name, value.as_str()))
}

/// Whether a client takes this kind of content; one that does not say takes any. What it likes best does not matter, only
/// what it takes: the order is that of the policy.
fn accepts(accept: Option<&[u8]>, kind: &str) -> bool {
    let Some(accept) = accept else { return true };
    let accept = String::from_utf8_lossy(accept);
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let family = kind.split('/').next().unwrap_or_default();
    let mut best = None;
    for range in accept.split(',') {
        let mut parts = range.split(';').map(|part| part.trim().to_ascii_lowercase());
        let named = parts.next().unwrap_or_default();
        // The closest says whether: `text/html;q=0, */*` is anything but that.
        let closeness = match named.strip_suffix("/*") {
            _ if named == kind => 3,
            Some("*") => 1,
            Some(named) if named == family => 2,
            _ => continue,
        };
        let is_refused = parts.any(|part| {
            part.strip_prefix("q=")
                .is_some_and(|weight| weight.trim().parse().is_ok_and(|weight: f32| weight <= 0.0))
        });
        if best.is_none_or(|(known, _)| closeness > known) {
            best = Some((closeness, !is_refused));
        }
    }
    best.is_some_and(|(_, is_taken)| is_taken)
}

#[cfg(test)]
mod tests {
    use super::accepts;

    #[test]
    fn accept_header_selects_content_type() {
        let cases = [
            (None, "text/html", true),
            (Some("text/html"), "text/html", true),
            (Some("text/html"), "text/html; charset=utf-8", true),
            (Some("TEXT/*"), "text/html", true),
            (Some("application/json"), "text/html", false),
            (Some("*/*;q=0.1"), "text/html", true),
            (Some("text/html;q=0, */*"), "text/html", false),
            (Some("*/*, text/html; Q=0.0"), "text/html", false),
            (Some(""), "text/html", false),
        ];
        for (accept, kind, is_taken) in cases {
            assert_eq!(accepts(accept.map(str::as_bytes), kind), is_taken, "{accept:?} {kind}");
        }
    }
}
