//! Envoy's rate limit protocol: the rules of the policy over gRPC.
//!
//! ```text
//!   ShouldRateLimit ──▶ one DescriptorHead for each descriptor ──▶ the whole policy ──▶ one status for each descriptor
//! ```
//!
//! Each descriptor is evaluated by itself, as in envoyproxy/ratelimit: the rules that match it are charged all or none, and a
//! denied descriptor does not change what the others are charged. The request is over its limit if one descriptor is.

use super::{
    rejection,
    state::{ActiveRules, AppState},
};
use crate::{
    descriptors::{
        Decide, DecisionError, DomainRequest, DomainVerdict, LimitCode, LimitStatus, ServiceSettings,
        transport::{GrpcServer, GrpcSettings, ServingState},
    },
    events,
};
use futures_util::future::{Either, join_all, ready};
use http::HeaderMap;
use std::{future::Future, sync::Arc, time::Duration};
use tidegate_core::{Decision, Micros, Quota, header::ceil_seconds};
use tidegate_http_server::HttpServer;
use tidegate_policy::{
    compile::{PolicyAdmission, PolicyRejection, PolicyResult},
    descriptors::CalendarUnit,
    model::Connections,
};
use tidegate_rule::{Evaluation, HeaderStyle, Mode, request::DescriptorHead};

/// Returns the gRPC server of the rate limit service.
pub async fn server(state: &Arc<AppState>, connections: &Connections) -> HttpServer {
    let authorization = state.envoy_authorization().clone();
    let server = GrpcServer::new(PolicyDecider::new(state.clone())).await.authorization(authorization);
    server.health().set(ServingState::Serving).await;
    HttpServer::grpc(server, GrpcSettings::default().max_connection_age, connections.drain_timeout)
}

/// Decides descriptors by the rules of the active policy.
pub(super) struct PolicyDecider {
    state: Arc<AppState>,
    max_descriptors: usize,
    max_entries: usize,
}

impl PolicyDecider {
    pub(super) fn new(state: Arc<AppState>) -> Self {
        let ServiceSettings { max_descriptors, max_entries, .. } = ServiceSettings::default();
        Self { state, max_descriptors, max_entries }
    }
}

impl Decide for PolicyDecider {
    async fn decide(&self, request: DomainRequest) -> Result<DomainVerdict, DecisionError> {
        request.validate(self.max_descriptors, self.max_entries)?;
        let active = self.state.active();
        let heads = request.descriptors.iter().map(|descriptor| {
            let entries = descriptor.entries.iter().map(|entry| (&*entry.key, &*entry.value));
            DescriptorHead::new(&*request.domain, entries).with_hits(request.hits_of(descriptor))
        });
        let heads: Vec<_> = heads.collect();
        // All of them start in order, and those in a store share its round trips.
        let results: Vec<_> = heads.iter().map(|head| evaluate(&active, head)).collect();
        let verdict = build_verdict(join_all(results).await);
        let (domain, descriptors) = (&*request.domain, heads.len());
        events::RequestDecided { domain, descriptors, over_limit: verdict.overall_code }.emit();
        Ok(verdict)
    }
}

/// The result of one descriptor.
struct DescriptorResult {
    status: LimitStatus,
    headers: Vec<(String, String)>,
    body: Option<String>,
}

/// Evaluates the policy for one descriptor. The first steps run at once, the rest in the future.
fn evaluate<'a>(
    active: &'a ActiveRules,
    head: &'a DescriptorHead,
) -> impl Future<Output = DescriptorResult> + Send + use<'a> {
    let view = active.gate.view_request(head);
    if let Some((rejection, denial)) = active.recorder.reject_banned(&view, &active.gate) {
        let mut response = rejection.to_response();
        if let Some(id) = &denial {
            response.set_instance(&id.uri());
        }
        let mut response: http::Response<String> = response.into();
        if let Some(id) = denial {
            id.write_header(response.headers_mut());
        }
        return Either::Left(ready(denied(response, limit_status(LimitCode::OverLimit, None))));
    }
    match active.gate.evaluate(&view) {
        Evaluation::Ready(result) => Either::Left(ready(finish(active, head, result))),
        Evaluation::Pending(evaluation) => {
            Either::Right(async move { finish(active, head, evaluation.await) })
        }
    }
}

/// Records the result, and releases the permits at once, since Envoy does not report the end of a request.
fn finish(active: &ActiveRules, head: &DescriptorHead, result: PolicyResult) -> DescriptorResult {
    let denial = active.recorder.record_decision(&result, &active.gate, Some(head));
    match result {
        PolicyResult::Admitted(admission) => allowed(active, &admission),
        PolicyResult::Rejected(rejection) => {
            let status = rejection_status(&rejection);
            denied(rejection::build_response(*rejection, denial.as_ref()), status)
        }
    }
}

fn allowed(active: &ActiveRules, admission: &PolicyAdmission) -> DescriptorResult {
    let enforced = admission.decisions().filter(|one| one.mode == Mode::Enforce);
    let decided = enforced.filter_map(|one| Some((one.rule, *one.decision?)));
    let lowest = decided.min_by_key(|(_, decision)| decision.remaining());
    let limit = lowest.and_then(|(rule, decision)| {
        let view = active.gate.view(rule)?;
        Some(AppliedLimit { name: view.name().into(), decision, quota: view.quota_at(decision.quota()) })
    });
    let mut headers = Vec::new();
    if admission.header_style() != HeaderStyle::None {
        admission.write_headers(|name, value| headers.push((name.to_owned(), value.to_owned())));
    }
    DescriptorResult { status: limit_status(LimitCode::Ok, limit), headers, body: None }
}

fn denied(response: http::Response<String>, status: LimitStatus) -> DescriptorResult {
    let (parts, body) = response.into_parts();
    let body = Some(body).filter(|body| !body.is_empty());
    DescriptorResult { status, headers: header_pairs(&parts.headers), body }
}

fn header_pairs(headers: &HeaderMap) -> Vec<(String, String)> {
    let pair = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
    };
    headers.iter().filter_map(pair).collect()
}

/// The limit that clients see: of several, the one that denies or has the fewest tokens.
struct AppliedLimit {
    name: Arc<str>,
    decision: Decision,
    quota: Option<Quota>,
}

fn rejection_status(rejection: &PolicyRejection) -> LimitStatus {
    let limit = rejection.decision.filter(|(decision, _)| !decision.is_fail_closed());
    let limit = limit.map(|(decision, quota)| AppliedLimit { name: rejection.rule.clone(), decision, quota });
    let reset = rejection.retry_after.map(|wait| Duration::from_secs(ceil_seconds(wait.into())));
    LimitStatus { reset, ..limit_status(LimitCode::OverLimit, limit) }
}

fn limit_status(code: LimitCode, limit: Option<AppliedLimit>) -> LimitStatus {
    let Some(AppliedLimit { name, decision, quota }) = limit else {
        return LimitStatus { code, limit: None, remaining: 0, reset: None };
    };
    let refill = Some(decision.refill_after()).filter(|wait| *wait != Micros::ZERO && *wait != Micros::MAX);
    LimitStatus {
        code,
        limit: quota.as_ref().and_then(calendar_limit).map(|(requests, unit)| (requests, unit, Some(name))),
        remaining: u32::try_from(decision.remaining()).unwrap_or(u32::MAX),
        reset: refill.map(|wait| Duration::from_secs(ceil_seconds(wait))),
    }
}

/// The requests per unit of a quota whose rate is per calendar unit.
fn calendar_limit(quota: &Quota) -> Option<(u32, CalendarUnit)> {
    let rate = quota.rate()?;
    let is_period = |unit: &CalendarUnit| Micros::from_secs(unit.seconds()) == rate.period();
    let unit = CalendarUnit::ALL.into_iter().find(is_period)?;
    Some((u32::try_from(rate.amount()).ok()?, unit))
}

/// The headers and the body are those of the first denied descriptor, or of the one with the fewest tokens.
fn build_verdict(results: Vec<DescriptorResult>) -> DomainVerdict {
    let is_denied = |result: &&DescriptorResult| result.status.code == LimitCode::OverLimit;
    let denied = results.iter().find(is_denied);
    let lowest = || {
        let limited = results.iter().filter(|result| !result.headers.is_empty());
        limited.min_by_key(|result| result.status.remaining)
    };
    let shown = denied.or_else(lowest);
    DomainVerdict {
        overall_code: denied.map_or(LimitCode::Ok, |denied| denied.status.code),
        headers: shown.map(|shown| shown.headers.clone()).unwrap_or_default(),
        body: shown.and_then(|shown| shown.body.clone()),
        statuses: results.into_iter().map(|result| result.status).collect(),
        metadata: None,
    }
}
