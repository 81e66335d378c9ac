//! The request filter of a policy.

use super::log_note;
use crate::{
    Action, Config, ConnectionInfo, FilterContext, FilterDecision, FilterResult, LocalReply, LogNote,
    ParsedBody, Rates, RequestFilter, ResponseCopy, ResponseReader, SharedReply, UpstreamId,
    events::{CostNotStated, RequestBodyNotParsed},
    fallback_cache::{CacheableRequest, FallbackCache},
    http1::ParsedResponse,
};
use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode};
use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tidegate_core::Micros;
use tidegate_http_server::ApiError;
use tidegate_observe::{
    DenialId, HistoryEntry, RecordedCost, RequestBodyOutcome, RequestRecorder, ResponseEnd, ResponseOrigin,
    Sampled,
};
use tidegate_policy::{
    compile::{PolicyAdmission, PolicyGate, PolicyRejection, PolicyResult, RejectAction},
    head::{HttpRequestHead, ParsedRequest},
    matching::RequestView,
    model::{AccessLogFormat, RouteAction},
};
use tidegate_rule::{
    Evaluation, HeaderStyle, RejectionResponse, RequestPermits, ResponseValues, SettledCost, SharedRejection,
    body::JsonPointer, request::RequestHead,
};

/// Evaluates the policy in force for each request.
pub(crate) struct PolicyFilter {
    active: ArcSwap<ActivePolicy>,
}

/// A compiled policy, with the upstream ids of its routes.
pub(super) struct ActivePolicy {
    gate: PolicyGate,
    /// The target of each route, by index; `None` if it depends on the request.
    routes: Vec<Option<RouteTarget>>,
    /// The names of the upstreams, sorted, by their ids.
    upstreams: Vec<String>,
    /// Whether decisions are reported in an access log or traces.
    has_notes: bool,
    recorder: Arc<RequestRecorder>,
    cache: Arc<FallbackCache>,
    /// Whether a body was not parsed, and whether a response stated no cost.
    has_unparsed_bodies: AtomicBool,
    has_unstated_costs: AtomicBool,
}

/// The target of an admitted request.
#[derive(Clone)]
enum RouteTarget {
    Upstream(UpstreamId),
    Respond(RejectAction),
    /// No route matches.
    None,
}

/// The result of a lookup in the cache of responses.
enum CacheLookup {
    Hit(LocalReply),
    Miss,
}

/// The state of a request until its exchange ends.
struct PolicyContext {
    state: ContextState,
    /// The request, if a good response is stored for fallbacks.
    cached_request: Option<Box<StoredRequest>>,
    telemetry: Option<PolicyTelemetry>,
    /// Its costs by the rules that count tokens, if single requests are logged or recorded.
    costs: Vec<RecordedCost>,
}

/// A request whose response is stored.
struct StoredRequest {
    request: CacheableRequest,
    policy: Arc<ActivePolicy>,
}

enum ContextState {
    /// Admitted, waiting for its response.
    Admitted(PolicyAdmission, Arc<ActivePolicy>),
    /// Has a response; holds its permits until the body is sent, and tokens whose cost the body states.
    Settled { permits: RequestPermits, policy: Arc<ActivePolicy> },
    /// Has no permits and nothing to settle.
    Free,
}

/// The data that is recorded when the exchange ends, and the id of the denial.
struct PolicyTelemetry {
    received_at: Micros,
    /// The indexes of the rules that admitted the request, whose latency is recorded.
    rules: Vec<usize>,
    recorder: Arc<RequestRecorder>,
    denial: Option<DenialId>,
    history: Option<HistoryEntry>,
}

impl PolicyFilter {
    pub(super) fn new(active: ActivePolicy) -> Self {
        Self { active: ArcSwap::from_pointee(active) }
    }

    /// Evaluates another policy for all new requests. Admitted requests are settled by the policy that admitted them.
    pub(super) fn replace(&self, active: ActivePolicy) {
        self.active.store(Arc::new(active));
    }
}

impl RequestFilter for PolicyFilter {
    fn body_pointers(
        &self,
        request: &ParsedRequest,
        connection: &ConnectionInfo,
    ) -> Option<Arc<[JsonPointer]>> {
        let policy = self.active.load();
        let head = connection.head(request);
        policy.gate.body_pointers(&policy.gate.view_request(&head))
    }

    fn filter(
        &self,
        parsed: &mut ParsedRequest,
        connection: &ConnectionInfo,
        body: Option<&ParsedBody>,
    ) -> FilterResult {
        let policy = self.active.load();
        if let Some(body) = body {
            policy.record_body(body.outcome);
        }
        let head = connection.head(parsed).with_body(body.and_then(|body| body.values.as_ref()));
        let request = policy.gate.view_request(&head);
        let counters = &policy.recorder.counters;
        let received_at = counters.now();
        if let Some(banned) = policy.recorder.reject_banned(&request, &policy.gate) {
            return FilterResult::Ready(policy.reject_banned(banned, received_at, &head));
        }
        let route = policy.route(&request);
        let timed = counters.begin_decision();
        let evaluation = match policy.gate.evaluate_matching(&request) {
            Some(evaluation) => evaluation,
            None if policy.needs_requests() => policy.gate.evaluate(&request),
            None => {
                counters.record_unlimited();
                return FilterResult::Ready(route.into_action().into());
            }
        };
        match evaluation {
            Evaluation::Ready(result) => {
                if timed == Sampled::Yes {
                    counters.end_decision(received_at);
                }
                FilterResult::Ready(policy.apply(result, received_at, route, Some(&head)))
            }
            Evaluation::Pending(evaluation) => {
                let policy = Arc::clone(&policy);
                let request =
                    policy.needs_requests().then(|| (parsed.clone(), connection.clone(), body.cloned()));
                FilterResult::Deferred(Box::pin(async move {
                    let result = evaluation.await;
                    policy.recorder.counters.end_async_decision(received_at, result.wait_time());
                    let head = request.as_ref().map(|(parsed, connection, body)| {
                        connection.head(parsed).with_body(body.as_ref().and_then(|body| body.values.as_ref()))
                    });
                    policy.apply(result, received_at, route, head.as_ref())
                }))
            }
        }
    }

    fn record(&self, response: Option<(StatusCode, ResponseOrigin)>) {
        if let Some((status, by)) = response {
            self.active.load().recorder.counters.record_response(status.as_u16(), by);
        }
    }
}

impl FilterContext for PolicyContext {
    fn rates(&self) -> Rates<'_> {
        match &self.state {
            ContextState::Admitted(admission, _) => {
                Rates { upload: admission.request_rates(), download: admission.response_rates() }
            }
            ContextState::Settled { .. } | ContextState::Free => Rates::default(),
        }
    }

    fn copy_response(&mut self, response: &ParsedResponse) -> Option<ResponseCopy> {
        let StoredRequest { request, policy } = *self.cached_request.take()?;
        let is_personal = |headers: &HeaderMap| policy.gate.cached_fallbacks().is_personal(headers);
        policy.cache.copy(request, &response.to_parts(), is_personal)
    }

    fn on_response(&mut self, response: &mut ParsedResponse) -> Option<LocalReply> {
        self.settle(response);
        None
    }

    fn read_response(&mut self, response: &ParsedResponse) -> Option<ResponseReader> {
        let ContextState::Settled { permits, .. } = &self.state else { return None };
        let mut costs = permits.body_costs().peekable();
        costs.peek().is_some().then(|| ResponseReader::new(costs, response))
    }

    fn settle_response(&mut self, values: &ResponseValues, end: ResponseEnd) {
        if let ContextState::Settled { permits, policy } = &mut self.state {
            let settled = permits.settle(values);
            policy.record_settled(&settled, end);
            policy.record_costs(&settled, &mut self.costs);
        }
    }

    fn costs(&self) -> &[RecordedCost] {
        &self.costs
    }

    fn record(self: Box<Self>, response: Option<(StatusCode, ResponseOrigin)>) {
        let Some(telemetry) = self.telemetry else { return };
        telemetry.recorder.counters.record_latency(&telemetry.rules, telemetry.received_at);
        if let Some(mut entry) = telemetry.history {
            let status = response.map_or(0, |(status, _)| status.as_u16());
            entry.costs = self.costs;
            telemetry.recorder.record_history(entry, status);
        }
    }
}

impl ActivePolicy {
    pub(super) fn new(
        gate: PolicyGate,
        config: &Config,
        recorder: Arc<RequestRecorder>,
        cache: Arc<FallbackCache>,
    ) -> Self {
        let has_notes = config.log.format != AccessLogFormat::None || config.traces.is_some();
        let target = |action: &RouteAction| match action {
            RouteAction::Forward(upstream) => config.upstream_id(upstream).map(RouteTarget::Upstream),
            RouteAction::Respond(respond) => {
                RejectAction::for_all_requests(respond).map(RouteTarget::Respond)
            }
        };
        let routes = gate.routes().iter().map(|route| target(&route.action)).collect();
        let upstreams = config.upstreams.keys().cloned().collect();
        Self {
            gate,
            routes,
            upstreams,
            has_notes,
            recorder,
            cache,
            has_unparsed_bodies: AtomicBool::new(false),
            has_unstated_costs: AtomicBool::new(false),
        }
    }

    /// Counts a body that rules need. The first one that is not parsed is logged.
    fn record_body(&self, outcome: RequestBodyOutcome) {
        self.recorder.counters.record_request_body(outcome);
        if outcome != RequestBodyOutcome::Parsed && !self.has_unparsed_bodies.swap(true, Ordering::Relaxed) {
            RequestBodyNotParsed { outcome }.emit();
        }
    }

    /// Counts the costs that a response settled. The first response that states no cost is logged.
    fn record_settled(&self, settled: &[SettledCost], end: ResponseEnd) {
        for cost in settled {
            let Some(rule) = self.gate.rule_of_limit(cost.limit) else { continue };
            self.recorder.counters.record_settlement(rule, cost, end);
            if cost.stated.is_none()
                && end == ResponseEnd::Complete
                && !self.has_unstated_costs.swap(true, Ordering::Relaxed)
            {
                let name = self.recorder.counters.names().get(rule);
                CostNotStated { rule: name.map_or("", |name| name) }.emit();
            }
        }
    }

    /// The costs of a request before its response is known.
    fn reserved_costs(&self, head: &HttpRequestHead<'_>) -> Vec<RecordedCost> {
        let names = self.recorder.counters.names();
        let costs = self.gate.token_costs(&self.gate.view_request(head)).into_iter();
        let costs = costs.filter_map(|(index, reserved)| {
            Some(RecordedCost { rule: names.get(index)?.clone(), reserved, stated: None })
        });
        costs.collect()
    }

    /// Adds the costs that a response stated.
    fn record_costs(&self, settled: &[SettledCost], costs: &mut [RecordedCost]) {
        if costs.is_empty() {
            return;
        }
        for cost in settled {
            let name =
                self.gate.rule_of_limit(cost.limit).and_then(|rule| self.recorder.counters.names().get(rule));
            let recorded = costs.iter_mut().find(|recorded| Some(&recorded.rule) == name);
            if let Some(recorded) = recorded {
                recorded.stated = cost.stated;
            }
        }
    }

    fn route(&self, request: &RequestView<'_>) -> RouteTarget {
        let Some(index) = self.gate.find_route_index(request) else { return RouteTarget::None };
        match (self.routes.get(index), self.gate.routes().get(index).map(|route| &route.action)) {
            (Some(Some(target)), _) => target.clone(),
            (_, Some(RouteAction::Respond(respond))) => {
                RouteTarget::Respond(RejectAction::for_route(respond, request))
            }
            _ => RouteTarget::None,
        }
    }

    /// The request, as the cache of responses identifies it. `None` if it has no upstream.
    fn cacheable_request(&self, head: &HttpRequestHead<'_>, route: &RouteTarget) -> Option<CacheableRequest> {
        let RouteTarget::Upstream(target) = route else { return None };
        CacheableRequest::new(head.request(), self.upstreams.get(target.0)?)
    }

    /// An admitted request whose response is stored, or that changes a stored response.
    fn stored_request(
        self: &Arc<Self>,
        admission: &PolicyAdmission,
        route: &RouteTarget,
        head: Option<&HttpRequestHead<'_>>,
    ) -> Option<Box<StoredRequest>> {
        let fallbacks = self.gate.cached_fallbacks();
        let head = head.filter(|_| !fallbacks.is_empty())?;
        let is_needed = match head.method() {
            "GET" => admission.decisions().any(|decision| fallbacks.contains(decision.rule)),
            method => Method::from_bytes(method.as_bytes()).is_ok_and(|method| !method.is_safe()),
        };
        if !is_needed {
            return None;
        }
        let request = self.cacheable_request(head, route)?;
        Some(Box::new(StoredRequest { request, policy: self.clone() }))
    }

    /// Whether single requests are logged, traced or recorded, or their responses stored.
    fn needs_requests(&self) -> bool {
        self.has_notes || self.recorder.is_recording_requests() || !self.gate.cached_fallbacks().is_empty()
    }

    /// Applies the result of the policy. `head` is present if single requests are logged, traced, recorded or cached.
    fn apply(
        self: &Arc<Self>,
        mut result: PolicyResult,
        received_at: Micros,
        route: RouteTarget,
        head: Option<&HttpRequestHead<'_>>,
    ) -> FilterDecision {
        let cached = match &mut result {
            PolicyResult::Rejected(rejection) => self.find_cached(rejection, &route, head),
            PolicyResult::Admitted(_) => None,
        };
        let mut note = head.filter(|_| self.has_notes).map(|head| {
            Box::new(match &result {
                PolicyResult::Admitted(admission) => log_note::admitted_note(admission, &self.gate, head),
                PolicyResult::Rejected(rejection) => log_note::rejected_note(rejection, &self.gate, head),
            })
        });
        let denial =
            self.recorder.record_decision(&result, &self.gate, head.map(|head| head as &dyn RequestHead));
        if let (Some(note), Some(id)) = (&mut note, &denial) {
            note.denial = Some(id.0.clone());
        }
        if let (Some(note), Some(lookup)) = (&mut note, &cached) {
            note.cache = Some(if matches!(lookup, CacheLookup::Hit(_)) { "hit" } else { "miss" });
        }
        let rules = match &result {
            PolicyResult::Admitted(admission) => {
                admission.decisions().map(|decision| decision.rule).collect()
            }
            PolicyResult::Rejected(_) => Vec::new(),
        };
        let has_decisions = !rules.is_empty();
        let mut context = PolicyContext {
            state: ContextState::Free,
            cached_request: None,
            telemetry: self.telemetry(received_at, rules, denial, head),
            costs: head.map_or_else(Vec::new, |head| self.reserved_costs(head)),
        };
        let action = match result {
            PolicyResult::Admitted(admission) => {
                context.cached_request = self.stored_request(&admission, &route, head);
                let is_slowed =
                    !admission.request_rates().is_empty() || !admission.response_rates().is_empty();
                let has_headers = has_decisions && admission.header_style() != HeaderStyle::None;
                if admission.has_pending() || is_slowed || has_headers {
                    context.state = ContextState::Admitted(admission, self.clone());
                }
                match route.into_action() {
                    Action::Respond(reply) => context.respond(reply),
                    Action::RespondShared(reply) if !matches!(context.state, ContextState::Free) => {
                        context.respond(reply.to_reply())
                    }
                    action => action,
                }
            }
            PolicyResult::Rejected(rejection) => match (cached, rejection.action) {
                (Some(CacheLookup::Hit(response)), _) => context.respond(response),
                (_, RejectAction::Response(rejection)) => {
                    let reply = SharedReply::from(rejection).with_denial(context.denial().cloned());
                    Action::RespondShared(reply)
                }
                (_, RejectAction::Upstream(name)) => {
                    match self.upstreams.binary_search_by(|one| one.as_str().cmp(&name)) {
                        Ok(index) => Action::Forward(UpstreamId(index)),
                        Err(_) => context.respond(no_route()),
                    }
                }
                (_, RejectAction::Drop) => Action::Drop,
            },
        };
        FilterDecision { action, context: context.boxed(), note }
    }

    /// Looks up the stored response to a rejected request. `None` if the rule does not fall back to one.
    fn find_cached(
        &self,
        rejection: &mut PolicyRejection,
        route: &RouteTarget,
        head: Option<&HttpRequestHead<'_>>,
    ) -> Option<CacheLookup> {
        let max_age = rejection.max_cache_age?;
        let request = head.and_then(|head| self.cacheable_request(head, route));
        let Some(found) = self.cache.find(request.as_ref(), max_age) else { return Some(CacheLookup::Miss) };
        // The denial is recorded with the status that is sent.
        rejection.action = RejectionResponse::new(found.status().as_u16()).into();
        Some(CacheLookup::Hit(found.into()))
    }

    /// The data to record when the exchange ends; `None` if there is nothing to record.
    fn telemetry(
        &self,
        received_at: Micros,
        rules: Vec<usize>,
        denial: Option<DenialId>,
        head: Option<&HttpRequestHead<'_>>,
    ) -> Option<PolicyTelemetry> {
        let history = head.and_then(|head| self.recorder.history_entry(&self.gate, head));
        let is_any = !rules.is_empty() || denial.is_some() || history.is_some();
        let recorder = || self.recorder.clone();
        is_any.then(|| PolicyTelemetry { received_at, rules, recorder: recorder(), denial, history })
    }

    /// Rejects a request that an operator ban applies to.
    #[cold]
    fn reject_banned(
        &self,
        (rejection, denial): (SharedRejection, Option<DenialId>),
        received_at: Micros,
        head: &HttpRequestHead<'_>,
    ) -> FilterDecision {
        let id = denial.as_ref().map(|id| id.0.clone());
        let reply = SharedReply::from(rejection).with_denial(denial.clone());
        let telemetry = self.telemetry(received_at, Vec::new(), denial, Some(head));
        let context =
            PolicyContext { state: ContextState::Free, cached_request: None, telemetry, costs: Vec::new() };
        let note = self.has_notes.then(|| {
            Box::new(LogNote { decision: Some("banned".to_owned()), denial: id, ..LogNote::default() })
        });
        FilterDecision { action: Action::RespondShared(reply), context: context.boxed(), note }
    }
}

impl RouteTarget {
    /// The action for an admitted request.
    fn into_action(self) -> Action {
        match self {
            Self::Upstream(target) => Action::Forward(target),
            Self::Respond(RejectAction::Drop) => Action::Drop,
            Self::Respond(RejectAction::Response(rejection)) => Action::RespondShared(rejection.into()),
            Self::Respond(RejectAction::Upstream(_)) | Self::None => Action::Respond(no_route()),
        }
    }
}

impl PolicyContext {
    /// `None` if there is nothing to do for the rest of the exchange.
    fn boxed(self) -> Option<Box<dyn FilterContext>> {
        let is_free = matches!(self.state, ContextState::Free);
        let is_empty =
            is_free && self.cached_request.is_none() && self.telemetry.is_none() && self.costs.is_empty();
        (!is_empty).then(|| Box::new(self) as Box<dyn FilterContext>)
    }

    fn denial(&self) -> Option<&DenialId> {
        self.telemetry.as_ref()?.denial.as_ref()
    }

    /// Settles the request with a response of the gateway.
    fn respond(&mut self, mut reply: LocalReply) -> Action {
        self.settle(&mut reply.head);
        Action::Respond(reply)
    }

    /// Settles the admission, and adds the rate limit headers and the denial header.
    fn settle(&mut self, response: &mut ParsedResponse) {
        if let ContextState::Admitted(admission, policy) = mem::replace(&mut self.state, ContextState::Free) {
            if admission.header_style() != HeaderStyle::None {
                admission.write_headers(|name, value| response.fields.set(name.as_bytes(), value.as_bytes()));
            }
            let mut permits = admission.settle(response);
            let settled = permits.take_settled();
            policy.record_settled(&settled, ResponseEnd::Complete);
            policy.record_costs(&settled, &mut self.costs);
            self.state = ContextState::Settled { permits, policy };
        }
        if let Some(id) = self.denial() {
            response.fields.set(DenialId::HEADER.as_bytes(), id.0.as_bytes());
        }
    }
}

fn no_route() -> LocalReply {
    Response::<Bytes>::from(ApiError::new(StatusCode::NOT_FOUND, "No route matches this request.")).into()
}
