//! Actions for denied requests, and responses of routes.

use crate::{
    matching::RequestView,
    model::{Fallback, FallbackResponse, OnLimit, Reject, Respond},
};
use arc_swap::ArcSwapOption;
use std::{fmt, sync::Arc};
use tidegate_core::{Quota, header::ceil_seconds};
use tidegate_rule::{Gate, LimitDecision, PolicyFields, RejectionResponse};

/// The action for a denied request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RejectAction {
    /// Send this response. Denials with the same numbers share it.
    Response(Arc<RejectionResponse>),
    /// Forward the request to this upstream.
    Upstream(Arc<str>),
    /// Close the connection without a response; in HTTP/2, the stream.
    Drop,
}

impl RejectAction {
    /// The action of a rule, based on the `default` response, for a client with this `Accept` header.
    pub(crate) fn for_rule(on_limit: &OnLimit, default: RejectionResponse, accept: Option<&[u8]>) -> Self {
        match on_limit {
            OnLimit::Reject(reject) => build_rejection(reject, default, accept).into(),
            OnLimit::Redirect { location, status } => {
                RejectionResponse::new(*status).header("location", location.as_str()).into()
            }
            OnLimit::Fallback(Fallback { response: None, .. }) => default.into(),
            OnLimit::Fallback(Fallback {
                response: Some(FallbackResponse::Body { status, headers, body }),
                ..
            }) => {
                let response = RejectionResponse::new(*status).text(body.as_str());
                let add = |response: RejectionResponse, (name, value): (&String, &String)| {
                    response.header(name, value.as_str())
                };
                headers.iter().fold(response, add).into()
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
                headers.iter().fold(response, add).into()
            }
            Respond::Redirect { location, status } => {
                RejectionResponse::new(*status).header("location", expand_location(location, view)).into()
            }
            Respond::Drop => Self::Drop,
        }
    }
}

impl From<RejectionResponse> for RejectAction {
    fn from(response: RejectionResponse) -> Self {
        Self::Response(Arc::new(response))
    }
}

/// The responses to denials by one quota: they are rendered once for each rule and each value of their numbers, because floods of
/// requests are rejected with few different ones.
pub(crate) struct RejectionCache {
    slots: [ArcSwapOption<CachedRejection>; CACHED_REJECTIONS],
}

/// A denial by one quota, and all that it depends on.
struct CachedRejection {
    key: RejectionKey,
    denial: RenderedDenial,
}

/// What denials with the same numbers have in common.
#[derive(Clone)]
pub(super) struct RenderedDenial {
    pub(super) rule: Arc<str>,
    pub(super) quota: Option<Quota>,
    pub(super) action: RejectAction,
}

/// Denials with the same key have the same response.
pub(super) struct RejectionKey {
    limit: usize,
    quota: usize,
    remaining: u64,
    retry_after: u64,
    /// The header fields of the quotas. They change with the load and with schedules.
    fields: Arc<PolicyFields>,
}

/// Clients of a quota per minute have at most 60 different times to wait.
const CACHED_REJECTIONS: usize = 64;

impl RejectionKey {
    /// The key of a denial; `None` if its response also depends on something else.
    pub(super) fn new(denial: &LimitDecision, gate: &Gate, on_limit: &OnLimit) -> Option<Self> {
        // These depend on the request.
        if matches!(on_limit, OnLimit::Reject(reject) if !reject.bodies.is_empty()) {
            return None;
        }
        let decision = denial.decision().filter(|decision| !decision.is_degraded())?;
        Some(Self {
            limit: denial.limit,
            quota: decision.quota(),
            remaining: decision.remaining(),
            retry_after: ceil_seconds(decision.retry_after()?),
            fields: denial.rule(gate)?.policy_fields().clone(),
        })
    }

    fn slot(&self) -> usize {
        (self.limit * 31 + self.quota * 7 + self.retry_after as usize) % CACHED_REJECTIONS
    }
}

impl PartialEq for RejectionKey {
    fn eq(&self, other: &Self) -> bool {
        let numbers = |key: &Self| (key.limit, key.quota, key.remaining, key.retry_after);
        numbers(self) == numbers(other) && Arc::ptr_eq(&self.fields, &other.fields)
    }
}

impl RejectionCache {
    /// Returns the denial of a key, which is rendered if it is not cached.
    pub(super) fn get_or_render(
        &self,
        key: RejectionKey,
        render: impl FnOnce() -> RenderedDenial,
    ) -> RenderedDenial {
        let slot = &self.slots[key.slot()];
        if let Some(cached) = slot.load().as_ref().filter(|cached| cached.key == key) {
            return cached.denial.clone();
        }
        let denial = render();
        slot.store(Some(Arc::new(CachedRejection { key, denial: denial.clone() })));
        denial
    }
}

impl Default for RejectionCache {
    fn default() -> Self {
        Self { slots: [const { ArcSwapOption::const_empty() }; CACHED_REJECTIONS] }
    }
}

impl fmt::Debug for RejectionCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RejectionCache")
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
