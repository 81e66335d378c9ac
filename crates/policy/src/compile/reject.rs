//! Actions for denied requests, and responses of routes.

use crate::{
    matching::RequestView,
    model::{Fallback, FallbackResponse, OnLimit, Reject, Respond},
};
use std::sync::Arc;
use tidegate_rule::RejectionResponse;

/// The action for a denied request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RejectAction {
    /// Send this response.
    Response(RejectionResponse),
    /// Forward the request to this upstream.
    Upstream(Arc<str>),
    /// Close the connection without a response; in HTTP/2, the stream.
    Drop,
}

impl RejectAction {
    /// The action of a rule, based on the `default` response, for a client with this `Accept` header.
    pub(crate) fn for_rule(on_limit: &OnLimit, default: RejectionResponse, accept: Option<&[u8]>) -> Self {
        match on_limit {
            OnLimit::Reject(reject) => Self::Response(build_rejection(reject, default, accept)),
            OnLimit::Redirect { location, status } => {
                Self::Response(RejectionResponse::new(*status).header("location", location.as_str()))
            }
            OnLimit::Fallback(Fallback { response: None, .. }) => Self::Response(default),
            OnLimit::Fallback(Fallback {
                response: Some(FallbackResponse::Body { status, headers, body }),
                ..
            }) => {
                let response = RejectionResponse::new(*status).text(body.as_str());
                let add = |response: RejectionResponse, (name, value): (&String, &String)| {
                    response.header(name, value.as_str())
                };
                Self::Response(headers.iter().fold(response, add))
            }
            OnLimit::Fallback(Fallback { response: Some(FallbackResponse::Upstream(name)), .. }) => {
                Self::Upstream(name.as_str().into())
            }
            OnLimit::Drop => Self::Drop,
        }
    }

    /// The action of a route with `respond`, for this request.
    pub fn for_route(respond: &Respond, view: &RequestView<'_>) -> Self {
        match respond {
            Respond::Status { status, headers, body } => {
                let response = match body.is_empty() {
                    true => RejectionResponse::new(*status),
                    false => RejectionResponse::new(*status).text(body.as_str()),
                };
                let add = |response: RejectionResponse, (name, value): (&String, &String)| {
                    response.header(name, value.as_str())
                };
                Self::Response(headers.iter().fold(response, add))
            }
            Respond::Redirect { location, status } => Self::Response(
                RejectionResponse::new(*status).header("location", expand_location(location, view)),
            ),
            Respond::Drop => Self::Drop,
        }
    }
}

/// Replaces the placeholders of a location.
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
            // The reader has rejected all others.
            _ => {}
        }
        rest = behind;
    }
    text + rest
}

fn build_rejection(reject: &Reject, default: RejectionResponse, accept: Option<&[u8]>) -> RejectionResponse {
    let mut response = match reject.status {
        Some(status) => default.status(status),
        None => default,
    };
    let chosen = reject.bodies.iter().find(|(kind, _)| accepts(accept, kind));
    response = match (chosen, &reject.body) {
        (Some((kind, body)), _) => {
            RejectionResponse { body: body.clone(), ..response.header("content-type", kind.as_str()) }
        }
        (None, Some(body)) => response.text(body.as_str()),
        (None, None) => response,
    };
    reject.headers.iter().fold(response, |response, (name, value)| response.header(name, value.as_str()))
}

/// Whether a client accepts this content type. Without an `Accept` header it accepts any. Weights above zero are ignored: the
/// policy determines the order.
fn accepts(accept: Option<&[u8]>, kind: &str) -> bool {
    let Some(accept) = accept else { return true };
    let accept = String::from_utf8_lossy(accept);
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let family = kind.split('/').next().unwrap_or_default();
    let mut best = None;
    for range in accept.split(',') {
        let mut parts = range.split(';').map(|part| part.trim().to_ascii_lowercase());
        let named = parts.next().unwrap_or_default();
        // The most specific range applies: `text/html;q=0, */*` is anything but `text/html`.
        let specificity = match named.strip_suffix("/*") {
            _ if named == kind => 3,
            Some("*") => 1,
            Some(named) if named == family => 2,
            _ => continue,
        };
        let is_rejected = parts.any(|part| {
            part.strip_prefix("q=")
                .is_some_and(|weight| weight.trim().parse().is_ok_and(|weight: f32| weight <= 0.0))
        });
        if best.is_none_or(|(known, _)| specificity > known) {
            best = Some((specificity, !is_rejected));
        }
    }
    best.is_some_and(|(_, is_accepted)| is_accepted)
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
        for (accept, kind, is_accepted) in cases {
            assert_eq!(accepts(accept.map(str::as_bytes), kind), is_accepted, "{accept:?} {kind}");
        }
    }
}
