//! Actions for denied requests, and responses of routes.

use crate::{
    matching::RequestView,
    model::{Fallback, FallbackResponse, OnLimit, Reject, Respond},
};
use arc_swap::ArcSwap;
use std::{collections::BTreeMap, fmt, sync::Arc};
use tidegate_core::Quota;
use tidegate_rule::{
    NumberForm, RejectionNumbers, RejectionResponse, RejectionShape, RejectionTemplate, SharedRejection,
};

/// The action for a denied request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RejectAction {
    /// Send this response. It shares its text with those that differ only in numbers.
    Response(SharedRejection),
    /// Forward the request to this upstream.
    Upstream(Arc<str>),
    /// Close the connection without a response; in HTTP/2, the stream.
    Drop,
}

impl RejectAction {
    /// The action of a rule, based on the `default` response, for a client with this `Accept` header.
    pub(crate) fn for_rule(on_limit: &OnLimit, default: RejectionResponse, accept: Option<&[u8]>) -> Self {
        Self::without_response(on_limit)
            .unwrap_or_else(|| build_response(on_limit, default, choose_body(on_limit, accept)).into())
    }

    /// The action of a rule that sends no response of its own.
    pub(super) fn without_response(on_limit: &OnLimit) -> Option<Self> {
        match on_limit {
            OnLimit::Fallback(Fallback { response: Some(FallbackResponse::Upstream(name)), .. }) => {
                Some(Self::Upstream(name.as_str().into()))
            }
            OnLimit::Drop => Some(Self::Drop),
            OnLimit::Reject(_) | OnLimit::Redirect { .. } | OnLimit::Fallback(_) => None,
        }
    }

    /// The action of a route with `respond`, if it is the same for all requests.
    pub fn for_all_requests(respond: &Respond) -> Option<Self> {
        match respond {
            Respond::Redirect { location, .. } if location.contains('{') => None,
            Respond::Redirect { location, status } => {
                Some(RejectionResponse::new(*status).header("location", location.as_str()).into())
            }
            Respond::Status { status, headers, body } => {
                let response = match body.is_empty() {
                    true => RejectionResponse::new(*status),
                    false => RejectionResponse::new(*status).text(body.as_str()),
                };
                Some(with_headers(response, headers).into())
            }
            Respond::Drop => Some(Self::Drop),
        }
    }

    /// The action of a route with `respond`, for this request.
    pub fn for_route(respond: &Respond, view: &RequestView<'_>) -> Self {
        Self::for_all_requests(respond).unwrap_or_else(|| match respond {
            Respond::Redirect { location, status } => {
                RejectionResponse::new(*status).header("location", expand_location(location, view)).into()
            }
            Respond::Status { .. } | Respond::Drop => Self::Drop,
        })
    }
}

impl From<RejectionResponse> for RejectAction {
    fn from(response: RejectionResponse) -> Self {
        Self::Response(response.into())
    }
}

/// The rejections of a rule. The text of each is rendered once, with holes for the numbers.
#[derive(Default)]
pub(crate) struct RejectionTemplates {
    rendered: ArcSwap<Vec<Arc<RenderedRejection>>>,
}

/// A rejection without its numbers, and all that it depends on.
struct RenderedRejection {
    key: RejectionKey,
    text: RejectionText,
}

/// What rejections with the same key have in common.
#[derive(Clone)]
pub(super) struct RejectionText {
    pub(super) rule: Arc<str>,
    /// The quota that denies the request, if one does.
    pub(super) quota: Option<Quota>,
    pub(super) template: Arc<RejectionTemplate>,
}

/// Rejections by a rule with the same key have the same text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RejectionKey {
    pub(super) cause: RejectionCause,
    /// The index of the body that the client accepts, of those by content type.
    pub(super) body: Option<usize>,
}

/// The cause of a rejection, as far as its text depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RejectionCause {
    DuplicateKey,
    /// With the value of `WWW-Authenticate`, if there is one.
    Unauthenticated(Option<&'static str>),
    InvalidCredentials,
    DenyListed,
    Banned,
    /// A guard, with or without a known time to wait.
    Guard(RetryTime),
    Limit(RejectionShape),
}

/// Whether it is known when a retry can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryTime {
    Known,
    Unknown,
}

/// The number of texts of a rule. It has few, but each change of a quota by the load or a schedule makes new ones.
const MAX_TEXTS: usize = 64;

impl RejectionTemplates {
    /// Returns the text of a rejection. `render` is called for the first one with this key, or if its text cannot be shared.
    pub(super) fn get_or_render(
        &self,
        key: RejectionKey,
        numbers: &RejectionNumbers,
        render: impl Fn(NumberForm) -> RejectionResponse,
        describe: impl FnOnce() -> (Arc<str>, Option<Quota>),
    ) -> RejectionText {
        let rendered = self.rendered.load();
        if let Some(found) = rendered.iter().find(|one| one.key == key) {
            return found.text.clone();
        }
        let (rule, quota) = describe();
        let Some(template) = RejectionTemplate::new(&render, numbers) else {
            let template = RejectionTemplate::fixed(render(NumberForm::Digits)).into();
            return RejectionText { rule, quota, template };
        };
        let text = RejectionText { rule, quota, template: template.into() };
        let mut all = if rendered.len() < MAX_TEXTS { rendered.to_vec() } else { Vec::new() };
        all.push(Arc::new(RenderedRejection { key, text: text.clone() }));
        // Another thread may add one at the same time. One of them is rendered again.
        self.rendered.store(Arc::new(all));
        text
    }
}

impl fmt::Debug for RejectionTemplates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.rendered.load().iter().map(|one| &one.key)).finish()
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

/// The response of a rule, based on the `default` one.
pub(super) fn build_response(
    on_limit: &OnLimit,
    default: RejectionResponse,
    body: Option<usize>,
) -> RejectionResponse {
    match on_limit {
        OnLimit::Reject(reject) => build_rejection(reject, default, body),
        OnLimit::Redirect { location, status } => {
            RejectionResponse::new(*status).header("location", location.as_str())
        }
        OnLimit::Fallback(Fallback {
            response: Some(FallbackResponse::Body { status, headers, body }),
            ..
        }) => with_headers(RejectionResponse::new(*status).text(body.as_str()), headers),
        OnLimit::Fallback(_) | OnLimit::Drop => default,
    }
}

/// The index of the body for a client with this `Accept` header, of those by content type.
pub(super) fn choose_body(on_limit: &OnLimit, accept: Option<&[u8]>) -> Option<usize> {
    match on_limit {
        OnLimit::Reject(reject) => reject.bodies.iter().position(|(kind, _)| accepts(accept, kind)),
        OnLimit::Redirect { .. } | OnLimit::Fallback(_) | OnLimit::Drop => None,
    }
}

fn with_headers(response: RejectionResponse, headers: &BTreeMap<String, String>) -> RejectionResponse {
    headers.iter().fold(response, |response, (name, value)| response.header(name, value.as_str()))
}

fn build_rejection(reject: &Reject, default: RejectionResponse, body: Option<usize>) -> RejectionResponse {
    let mut response = match reject.status {
        Some(status) => default.status(status),
        None => default,
    };
    response = match (body.and_then(|body| reject.bodies.get(body)), &reject.body) {
        (Some((kind, body)), _) => {
            RejectionResponse { body: body.clone(), ..response.header("content-type", kind.as_str()) }
        }
        (None, Some(body)) => response.text(body.as_str()),
        (None, None) => response,
    };
    with_headers(response, &reject.headers)
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
