//! `/v1/auth`: external authorization for proxies: nginx (`auth_request`), Traefik (`ForwardAuth`), Caddy
//! (`forward_auth`), Envoy (`ext_authz` over HTTP, which puts the path of the request behind `/v1/auth/envoy`).
//!
//! The whole policy decides on the request that the proxy describes in headers. The listener trusts these headers, so only
//! proxies should reach it. A client may send the headers of another kind of proxy, and the real proxy would pass them on.
//! So a request described in both dialects is rejected, unless `?proxy=` selects one.

use super::{ApiResponse, rejection, state::AppState};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header, request};
use http_body_util::Full;
use std::net::IpAddr;
use tidegate_http_server::{ApiError, TOKEN_HEADER, bearer_token, truncate};
use tidegate_observe::DenialId;
use tidegate_policy::{
    compile::{PolicyAdmission, PolicyRejection, PolicyResult},
    head::{HttpRequestHead, ParsedRequest},
};
use tidegate_rule::{Evaluation, HeaderStyle};

/// The headers that describe the original request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxyKind {
    /// `X-Original-URI`, `X-Original-Method`, `X-Real-IP`.
    Nginx,
    /// `X-Forwarded-Uri`, `-Method`, `-Host`, `-For`.
    Forwarded,
    /// The request itself, behind [`ENVOY_PATH_PREFIX`]; `X-Real-IP`.
    Envoy,
}

/// The prefix that Envoy puts before the path of a request.
pub(super) const ENVOY_PATH_PREFIX: &str = "/v1/auth/envoy";

/// The status of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AuthDenyStatus {
    /// The status of the policy.
    Policy,
    /// This status; 403 by default, since nginx treats only 401 and 403 as a denial.
    Status(StatusCode),
}

const STATUS_HEADER: HeaderName = HeaderName::from_static("x-tidegate-status");
const RULE_HEADER: HeaderName = HeaderName::from_static("x-tidegate-rule");

pub(super) async fn handle(
    state: &AppState,
    parts: request::Parts,
    proxy_kind: Option<ProxyKind>,
    deny: AuthDenyStatus,
) -> Result<ApiResponse, ApiError> {
    let (original, client) = original_request(parts, proxy_kind)?;
    let original = ParsedRequest::from(&original);
    let active = state.active();
    let result = match active.gate.check(&HttpRequestHead::new(&original, client)) {
        Evaluation::Ready(result) => result,
        Evaluation::Pending(evaluation) => evaluation.await,
    };
    let denial = active.recorder.record_decision(
        &result,
        &active.gate,
        Some(&HttpRequestHead::new(&original, client)),
    );
    Ok(match result {
        PolicyResult::Admitted(admission) => allow_response(&admission),
        PolicyResult::Rejected(rejection) => deny_response(*rejection, denial.as_ref(), deny),
    })
}

/// Keeps the charge and releases permits at once, since the proxy does not report the end of a request.
fn allow_response(admission: &PolicyAdmission) -> ApiResponse {
    let mut response = ApiResponse::default();
    if admission.header_style() != HeaderStyle::None {
        admission.write_headers(|name, value| {
            if let Ok(value) = HeaderValue::from_str(value) {
                response.headers_mut().insert(HeaderName::from_static(name), value);
            }
        });
    }
    response
}

fn deny_response(rejection: PolicyRejection, denial: Option<&DenialId>, deny: AuthDenyStatus) -> ApiResponse {
    let rule = HeaderValue::from_str(&rejection.rule);
    let mut response = rejection::build_response(rejection, denial).map(Full::from);
    let status = response.status();
    let headers = response.headers_mut();
    headers.insert(STATUS_HEADER, status.as_u16().into());
    if let Ok(rule) = rule {
        headers.insert(RULE_HEADER, rule);
    }
    *response.status_mut() = match deny {
        AuthDenyStatus::Policy => status,
        AuthDenyStatus::Status(status) => status,
    };
    response
}

/// Returns the request that the proxy describes, and the address of its client.
fn original_request(
    parts: request::Parts,
    proxy_kind: Option<ProxyKind>,
) -> Result<(request::Parts, IpAddr), ApiError> {
    let mut headers = parts.headers;
    let proxy_kind = match proxy_kind {
        Some(proxy_kind) => proxy_kind,
        None => detect_proxy_kind(&headers)?,
    };
    // Remove the API token. `Authorization` belongs to the client if the token is in its own header.
    let has_token_header = headers.remove(TOKEN_HEADER).is_some();
    let is_token_in_authorization =
        parts.extensions.get::<TokenInAuthorization>().is_some() && bearer_token(&headers).is_some();
    if !has_token_header && is_token_in_authorization {
        headers.remove(header::AUTHORIZATION);
    }
    let names = match proxy_kind {
        ProxyKind::Nginx => ["x-original-uri", "x-original-method", "x-real-ip"],
        ProxyKind::Forwarded => ["x-forwarded-uri", "x-forwarded-method", "x-forwarded-for"],
        ProxyKind::Envoy => ["path", "method", "x-real-ip"],
    };
    let [uri, method, client] = names;
    let target = match proxy_kind {
        ProxyKind::Nginx | ProxyKind::Forwarded => {
            single_header(&headers, uri)?.ok_or_else(|| missing_header(uri))?
        }
        ProxyKind::Envoy => {
            let path_and_query = parts.uri.path_and_query().map_or("", http::uri::PathAndQuery::as_str);
            path_and_query.strip_prefix(ENVOY_PATH_PREFIX).unwrap_or(path_and_query).to_owned()
        }
    };
    let target: Uri = target.parse().map_err(|_| invalid_header(uri, &target, "a path, as in `/a?b=c`"))?;
    let path = target.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let path = path.parse().map_err(|_| invalid_header(uri, path, "a path, as in `/a?b=c`"))?;
    let method = match proxy_kind {
        ProxyKind::Nginx | ProxyKind::Forwarded => {
            let method_name = single_header(&headers, method)?.unwrap_or_else(|| "GET".to_owned());
            Method::from_bytes(method_name.as_bytes())
                .map_err(|_| invalid_header(method, &method_name, "a method, as in `GET`"))?
        }
        ProxyKind::Envoy => parts.method,
    };
    let client_address = match proxy_kind {
        ProxyKind::Nginx | ProxyKind::Envoy => single_header(&headers, client)?,
        // The proxy appends the peer address; the addresses before it are not trustworthy.
        ProxyKind::Forwarded => last_header_value(&headers, client),
    };
    let client_address = client_address.ok_or_else(|| missing_header(client))?;
    let client = client_address
        .trim()
        .parse()
        .map_err(|_| invalid_header(client, &client_address, "an address, as in `192.0.2.1`"))?;
    if proxy_kind == ProxyKind::Forwarded
        && let Some(host) = headers.get("x-forwarded-host").cloned()
    {
        headers.insert(header::HOST, host);
    }
    headers.remove("x-original-uri");
    headers.remove("x-original-method");
    let (mut original, ()) = http::Request::new(()).into_parts();
    (original.method, original.uri, original.headers) = (method, path, headers);
    Ok((original, client))
}

/// Request extension: `Authorization` carries the API token.
#[derive(Clone, Copy)]
pub(super) struct TokenInAuthorization;

fn detect_proxy_kind(headers: &HeaderMap) -> Result<ProxyKind, ApiError> {
    match (headers.contains_key("x-original-uri"), headers.contains_key("x-forwarded-uri")) {
        (true, false) => Ok(ProxyKind::Nginx),
        (false, true) => Ok(ProxyKind::Forwarded),
        (true, true) => Err(ApiError::bad_request(
            "both `X-Original-URI` and `X-Forwarded-Uri` are present; configure the proxy to use `?proxy=nginx` or \
             `?proxy=forwarded`",
        )),
        (false, false) => Err(ApiError::bad_request(
            "no header describes the request; configure the proxy to send `X-Original-URI` (nginx) or `X-Forwarded-Uri` \
             (Traefik, Caddy)",
        )),
    }
}

fn single_header(headers: &HeaderMap, name: &str) -> Result<Option<String>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(ApiError::bad_request(format!(
            "duplicate header `{name}`; configure the proxy to replace it, not to add to it"
        )));
    }
    Ok(first.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()))
}

fn last_header_value(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get_all(name).iter().next_back()?;
    let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
    text.rsplit(',').next().map(|last| last.trim().to_owned())
}

fn missing_header(name: &str) -> ApiError {
    ApiError::bad_request(format!("missing header `{name}`; configure the proxy to send it"))
}

fn invalid_header(name: &str, value: &str, expected: &str) -> ApiError {
    ApiError::bad_request(format!("invalid header `{name}`: `{}`; send {expected}", truncate(value)))
}
