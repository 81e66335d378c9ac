//! Counts and records the decisions of a policy.

use super::{
    BanTarget, ConfigSnapshot, DenialId, DenialRecord, HistoryEntry, Observer, PolicyCounters,
    SAMPLE_INTERVAL, TopBy,
    denial::DenialKind,
    key_label::{KeyLabel, effective_key_display, truncate},
    shard::Sampled,
};
use std::{fmt, net::IpAddr, sync::Arc};
use tidegate_access::AccessDecision;
use tidegate_core::{Decision, Micros, Outcome, Quota, Retry, header::ceil_seconds};
use tidegate_policy::{
    compile::{PolicyAdmission, PolicyGate, PolicyRejection, PolicyResult, RejectAction, RuleResult},
    matching::RequestView,
    model::{KeyDisplay, Observe},
};
use tidegate_rule::{
    Hole, NumberForm, RejectionNumbers, RejectionResponse, RejectionTemplate, SharedRejection, is_in_rollout,
    key_hash,
    request::{KeyValue, RequestHead, normalize_host},
};

/// Counts the decisions of a policy, and records single requests: denials, frequent keys, a history.
pub struct RequestRecorder {
    observer: Arc<Observer>,
    /// The counters of the policy.
    pub counters: Arc<PolicyCounters>,
    settings: Observe,
    /// The response to requests that an operator ban applies to.
    banned: Arc<RejectionTemplate>,
}

impl RequestRecorder {
    /// A recorder for rules of these names.
    pub fn new<'a>(
        observer: &Arc<Observer>,
        names: impl Iterator<Item = &'a str>,
        settings: &Observe,
    ) -> Arc<Self> {
        let counters = observer.new_counters(names, settings);
        let numbers = RejectionNumbers::default();
        let render = |form| RejectionResponse::access_denied(AccessDecision::Banned(Micros::ZERO), form);
        let template = RejectionTemplate::new(render, &numbers.with(Hole::RETRY_AFTER, 1));
        let banned = template.unwrap_or_else(|| RejectionTemplate::fixed(render(NumberForm::Digits)));
        Arc::new(Self {
            observer: observer.clone(),
            counters,
            settings: settings.clone(),
            banned: banned.into(),
        })
    }

    /// Whether single requests are recorded.
    pub fn is_recording_requests(&self) -> bool {
        self.settings.denials > 0 || self.settings.history > 0
    }

    /// Counts a decision, and records a denial; returns the id of the record. `head` is required if requests are recorded.
    #[inline]
    pub fn record_decision(
        &self,
        result: &PolicyResult,
        gate: &PolicyGate,
        head: Option<&dyn RequestHead>,
    ) -> Option<DenialId> {
        self.counters.record_result(result);
        let head = head.filter(|_| self.settings.denials > 0)?;
        match result {
            PolicyResult::Admitted(admission) => {
                self.record_admitted(admission, gate, head);
                None
            }
            PolicyResult::Rejected(rejection) => self.record_rejected(rejection, gate, head),
        }
    }

    /// Counts the keys of a sample of admitted requests, and of those that a rule in shadow mode would have denied.
    fn record_admitted(&self, admission: &PolicyAdmission, gate: &PolicyGate, head: &dyn RequestHead) {
        let sampled = self.counters.sample_key();
        for decision in admission.decisions() {
            if sampled == Sampled::Yes {
                self.count_key(decision.rule, TopBy::Requests, SAMPLE_INTERVAL, gate, head);
            }
            if matches!(decision.result, RuleResult::Rejected(_)) {
                self.count_key(decision.rule, TopBy::ShadowDenied, 1, gate, head);
            }
        }
    }

    /// Counts the key of a rejected request, and records the denial; `None` if there are too many denials to record it.
    fn record_rejected(
        &self,
        rejection: &PolicyRejection,
        gate: &PolicyGate,
        head: &dyn RequestHead,
    ) -> Option<DenialId> {
        self.count_key(rejection.index, TopBy::Denied, 1, gate, head);
        if self.counters.sample_key() == Sampled::Yes {
            self.count_key(rejection.index, TopBy::Requests, SAMPLE_INTERVAL, gate, head);
        }
        let view = gate.view(rejection.index);
        let key = view.and_then(|rule| rule.key_for(head));
        let status = match &rejection.action {
            RejectAction::Response(response) => Some(response.status()),
            RejectAction::Upstream(_) | RejectAction::Drop => None,
        };
        self.record_request_denial(gate, head, |denial| DenialRecord {
            rule: Some(rejection.rule.clone()),
            reason: DenialKind::from_rejection(rejection),
            credential: rejection.credential,
            key: key.map(|key| self.key_label(gate, &rejection.rule, &key)),
            cost: view.map_or(1, |rule| rule.cost_of(head)),
            decision: rejection.decision,
            retry_after: rejection.retry_after.map(Micros::from),
            max_wait: view.map_or(Micros::ZERO, |rule| rule.source().wait.into()),
            status,
            ..denial
        })
    }

    /// Rejects a request that an operator ban applies to: the response, and the id of its record.
    #[inline]
    pub fn reject_banned(
        &self,
        request: &RequestView<'_>,
        gate: &PolicyGate,
    ) -> Option<(SharedRejection, Option<DenialId>)> {
        let (ban, left) = self.observer.bans.check(request, gate)?;
        Some(self.banned_response((ban.target(), left), gate, request.head()))
    }

    #[cold]
    fn banned_response(
        &self,
        (target, left): (&BanTarget, Micros),
        gate: &PolicyGate,
        head: &dyn RequestHead,
    ) -> (SharedRejection, Option<DenialId>) {
        let numbers = RejectionNumbers::default().with(Hole::RETRY_AFTER, ceil_seconds(left));
        let rejection = SharedRejection::new(self.banned.clone(), numbers);
        let denial = self.record_banned((target, left), rejection.status(), gate, head);
        (rejection, denial)
    }

    /// Counts and records a request of a client that an operator has banned.
    fn record_banned(
        &self,
        (target, left): (&BanTarget, Micros),
        status: u16,
        gate: &PolicyGate,
        head: &dyn RequestHead,
    ) -> Option<DenialId> {
        self.counters.record_banned();
        if self.settings.denials == 0 {
            return None;
        }
        let key = match target {
            BanTarget::Client(network) | BanTarget::Network(network) => self.label("", network),
            BanTarget::Key { rule, key } => KeyLabel::new(self.key_display(gate, rule), rule, key),
        };
        self.record_request_denial(gate, head, |denial| DenialRecord {
            key: Some(key),
            retry_after: Some(left),
            status: Some(status),
            ..denial
        })
    }

    /// The history entry of a request; `None` if it is not recorded.
    pub fn history_entry(&self, gate: &PolicyGate, head: &dyn RequestHead) -> Option<HistoryEntry> {
        if self.settings.history == 0 {
            return None;
        }
        let client = gate.proxies().client_address(head);
        // Sampled by client, so that the history of a recorded client is complete.
        let is_sampled = client.is_some_and(|client| is_in_rollout("history", &client, self.settings.share));
        is_sampled.then(|| HistoryEntry {
            at: self.observer.clock.now(),
            client: client.map(|client| self.client_label(client)),
            user: gate.user_of(head).map(|user| {
                let display = effective_key_display(self.settings.keys, gate.is_user_credential());
                KeyLabel::from_key(display, "user", &user)
            }),
            method: truncate(&head.method()),
            path: truncate(&head.path()),
            host: head.host().and_then(normalize_host).map(|host| truncate(&host)),
            status: 0,
            costs: Vec::new(),
        })
    }

    /// Records a request that ended with this status, unless the display of keys has changed in the meantime.
    pub fn record_history(&self, entry: HistoryEntry, status: u16) {
        let is_same = |config: Arc<ConfigSnapshot>| config.policy.observe.keys == self.settings.keys;
        if self.observer.config().is_none_or(is_same) {
            self.observer.history.push(HistoryEntry { status, ..entry });
        }
    }

    fn count_key(&self, index: usize, by: TopBy, weight: u64, gate: &PolicyGate, head: &dyn RequestHead) {
        let Some(rule) = gate.view(index) else { return };
        let Some(key) = rule.key_for(head) else { return };
        let display = effective_key_display(self.settings.keys, rule.has_credential());
        let name = || KeyLabel::from_key(display, rule.name(), &key).text();
        self.counters.count_key(index, by, key_hash(rule.name(), &key), weight, name);
    }

    /// Counts and records a denial of the decision API by the rule at this index.
    pub fn record_api_denial(
        &self,
        (index, rule, gate): (usize, &str, &PolicyGate),
        (key, cost): (&KeyValue<'_>, u64),
        (decision, quota): (Decision, Option<Quota>),
        status: u16,
    ) -> Option<DenialId> {
        if self.settings.denials == 0 {
            return None;
        }
        let label = || self.key_label(gate, rule, key);
        self.counters.count_key(index, TopBy::Denied, key_hash(rule, key), 1, || label().text());
        self.record_denial(|denial| DenialRecord {
            rule: Some(rule.into()),
            reason: if decision.is_fail_closed() {
                DenialKind::StoreUnavailable
            } else {
                DenialKind::Limited
            },
            key: Some(label()),
            cost,
            decision: Some((decision, quota)),
            retry_after: match decision.outcome() {
                Outcome::Deny(Retry::After(wait)) => Some(wait),
                _ => None,
            },
            status: Some(status),
            ..denial
        })
    }

    fn record_request_denial(
        &self,
        gate: &PolicyGate,
        head: &dyn RequestHead,
        fill: impl FnOnce(DenialRecord) -> DenialRecord,
    ) -> Option<DenialId> {
        let is_http = head.descriptor().is_none();
        self.record_denial(|denial| {
            fill(DenialRecord {
                client: gate.proxies().client_address(head).map(|client| self.client_label(client)),
                method: is_http.then(|| truncate(&head.method())),
                path: is_http.then(|| truncate(&head.path())),
                host: head.host().and_then(normalize_host).map(|host| truncate(&host)),
                ..denial
            })
        })
    }

    fn record_denial(&self, fill: impl FnOnce(DenialRecord) -> DenialRecord) -> Option<DenialId> {
        let at = self.observer.clock.now();
        if self.counters.sample_denial(at) == Sampled::No {
            return None;
        }
        let id = DenialId::new(at);
        self.observer.denials.push(fill(DenialRecord {
            id: id.clone(),
            at,
            rule: None,
            reason: DenialKind::Banned,
            credential: None,
            key: None,
            client: None,
            method: None,
            path: None,
            host: None,
            cost: 1,
            decision: None,
            retry_after: None,
            max_wait: Micros::ZERO,
            status: None,
        }));
        Some(id)
    }

    /// The label of a key of a rule.
    pub fn key_label(&self, gate: &PolicyGate, rule: &str, key: &KeyValue<'_>) -> KeyLabel {
        KeyLabel::from_key(self.key_display(gate, rule), rule, key)
    }

    /// How the keys of a rule are displayed.
    fn key_display(&self, gate: &PolicyGate, rule: &str) -> KeyDisplay {
        effective_key_display(self.settings.keys, gate.has_credential(rule))
    }

    fn client_label(&self, client: IpAddr) -> KeyLabel {
        self.label("", &client)
    }

    fn label(&self, rule: &str, value: &dyn fmt::Display) -> KeyLabel {
        KeyLabel::new(self.settings.keys, rule, value)
    }
}
