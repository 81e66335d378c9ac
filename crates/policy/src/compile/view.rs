//! Views of the rules of a compiled policy, for operators.

use super::{CLASSES, PolicyGate, PolicyGateInner, guards::CompiledRule, guards::InFlightLimit};
use crate::{
    matching::RequestView,
    model::{RuleEnforcement, RuleSpec},
};
use std::sync::PoisonError;
use tidegate_access::Bans;
use tidegate_core::{Percent, Quota, Ratio, header::CostUnit};
use tidegate_limiter::{KeyId, Limiter};
use tidegate_overload::{BreakerSnapshot, Feature};
use tidegate_rule::{
    Mode, RequestLimit,
    request::{KeyValue, RequestHead},
};

/// The current state of a rule.
#[derive(Clone, Copy)]
pub struct RuleView<'a> {
    policy: &'a PolicyGateInner,
    rule: &'a CompiledRule,
    limit: Option<&'a RequestLimit>,
}

/// The keys of a rule with `while-failing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailingView {
    /// The number of keys whose calls are counted.
    pub keys: usize,
    /// The number of keys whose calls fail, so that the quotas apply to them.
    pub failing: usize,
}

/// The current state of an adaptive limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveView {
    /// The maximum number of requests in flight.
    pub limit: u32,
    /// The number of requests in flight.
    pub in_flight: u32,
}

impl PolicyGate {
    /// All rules, in the order of the policy.
    pub fn views(&self) -> impl Iterator<Item = RuleView<'_>> {
        (0..self.inner.rules.len()).filter_map(|index| self.view(index))
    }

    /// The rule at this index of the policy.
    pub fn view(&self, index: usize) -> Option<RuleView<'_>> {
        let rule = self.inner.rules.get(index)?;
        let limit = rule.limit.and_then(|limit| self.inner.gate.limits().get(limit));
        Some(RuleView { policy: &self.inner, rule, limit })
    }

    /// The cost of a request, before its response is known, by each rule that applies to it and counts tokens.
    pub fn token_costs(&self, request: &RequestView<'_>) -> Vec<(usize, u64)> {
        let rules = self.inner.rules.iter().enumerate();
        let costs = rules.filter_map(|(index, rule)| {
            let limiting = rule.limiting.as_ref().filter(|_| rule.source.unit() == CostUnit::Tokens)?;
            let applies = rule.mode(request.head()) != Mode::Off && rule.matcher.matches(request);
            applies.then(|| (index, limiting.cost_of(request.head())))
        });
        costs.collect()
    }

    /// The key of a request for the rule at this index, or the client that its lists check; `None` if the request lacks it.
    pub fn key_at<'a>(&self, rule: usize, head: &'a dyn RequestHead) -> Option<KeyValue<'a>> {
        let rule = self.inner.rules.get(rule)?;
        match &rule.request_access {
            Some(access) if rule.limit.is_none() => access.list_key(head),
            _ => rule.key_of(head),
        }
    }

    /// The id of the key of a request in the limiter of the rule at this index; `None` if it does not count in memory.
    pub fn key_id_at(&self, rule: usize, head: &dyn RequestHead) -> Option<KeyId> {
        self.inner.gate.key_id_at(self.inner.rules.get(rule)?.limit?, head)
    }

    /// The id of the key of all requests together in the rule at this index, if it counts in memory.
    pub fn key_id_of_all(&self, rule: usize) -> Option<KeyId> {
        self.inner.gate.global_key_id(self.inner.rules.get(rule)?.limit?)
    }

    /// Whether the request has the key of the rule at this index. Otherwise it may be counted with others that lack it.
    pub fn has_key(&self, rule: usize, head: &dyn RequestHead) -> bool {
        self.inner.rules.get(rule).is_some_and(|rule| rule.key.find(head).is_some())
    }

    /// Whether the table of a rule was full, so that a key was counted with others.
    pub fn has_overflowed(&self) -> bool {
        !self.overflows().is_empty()
    }

    /// The rules whose tables were full, with the number of overflows.
    pub fn overflows(&self) -> Vec<(String, u64)> {
        let overflows = self.views().filter_map(|rule| {
            let size = rule.limiter()?.size()?;
            (size.overflowed > 0).then(|| (rule.name().to_owned(), size.overflowed))
        });
        overflows.collect()
    }

    /// Whether the duration of requests matters to one of its rules.
    pub fn has_in_flight_limits(&self) -> bool {
        self.inner.gate.has_concurrency_limit() || self.inner.rules.iter().any(|rule| rule.adaptive.is_some())
    }
}

impl<'a> RuleView<'a> {
    /// The name of the rule.
    pub fn name(&self) -> &'a str {
        self.rule.name()
    }

    /// The rule in the policy.
    pub fn source(&self) -> &'a RuleSpec {
        &self.rule.source
    }

    /// The mode; [`percent`](Self::percent) is the share of keys that it applies to.
    pub fn mode(&self) -> Mode {
        match (self.limit, &self.rule.source.enforcement) {
            (Some(limit), _) => limit.rule().mode(),
            (None, RuleEnforcement::All(mode)) => *mode,
            (None, RuleEnforcement::Percent(_)) => Mode::Enforce,
        }
    }

    /// The share of keys that the rule is enforced for; `None` for all.
    pub fn percent(&self) -> Option<Percent> {
        match self.rule.source.enforcement {
            RuleEnforcement::All(_) => None,
            RuleEnforcement::Percent(share) => Some(share),
        }
    }

    /// The current quotas; empty for a rule without quotas.
    pub fn quotas(&self) -> Vec<Quota> {
        self.limit.map(|limit| limit.rule().quotas()).unwrap_or_default()
    }

    /// The quota at this index of a decision: one of [`quotas`](Self::quotas), or that of an override.
    pub fn quota_at(&self, index: usize) -> Option<Quota> {
        self.limit.and_then(|limit| limit.rule().quota_at(index))
    }

    /// The limiter; `None` for a rule without quotas.
    pub fn limiter(&self) -> Option<Limiter> {
        self.limit.and_then(|limit| limit.rule().limiter())
    }

    /// The number of waiting requests; `None` if requests may not wait.
    pub fn waiting(&self) -> Option<usize> {
        self.rule.queue.as_ref().map(tidegate_rule::LimitQueue::waiter_count)
    }

    /// The state of the circuit breaker, if the rule has one.
    pub fn breaker(&self) -> Option<BreakerSnapshot> {
        self.rule.breaker.as_ref().map(|breaker| breaker.snapshot())
    }

    /// The state of the adaptive limit, if the rule has one.
    pub fn adaptive(&self) -> Option<AdaptiveView> {
        Some(match self.rule.adaptive.as_ref()? {
            InFlightLimit::Adaptive(limit) => {
                AdaptiveView { limit: limit.limit(), in_flight: limit.in_flight() }
            }
            InFlightLimit::Priority(limit) => {
                AdaptiveView { limit: limit.limit(), in_flight: limit.in_flight() }
            }
        })
    }

    /// The feature that its requests use.
    pub fn feature(&self) -> Option<&'a Feature> {
        self.rule.feature.as_ref()
    }

    /// The priority classes whose requests are shed now, the highest first; `None` for a rule without `shed`.
    pub fn shed_classes(&self) -> Option<Vec<&'static str>> {
        let shedder = self.rule.shedder.as_ref()?;
        let shed = CLASSES.iter().enumerate().filter(|(class, _)| shedder.is_shed(*class));
        Some(shed.map(|(_, (name, _))| *name).collect())
    }

    /// The factor of its quotas by load and schedule; `None` for a rule without `scale`.
    pub fn scale_factor(&self) -> Option<Ratio> {
        self.rule.source.scale.as_ref()?;
        let scaled = self.policy.scaled_limits.lock().unwrap_or_else(PoisonError::into_inner);
        let own = scaled.limiters.iter().find(|(limit, _)| Some(*limit) == self.rule.limit);
        own.map(|(_, scaled)| scaled.factor())
    }

    /// The keys that fail; `None` for a rule without `while-failing`.
    pub fn failing(&self) -> Option<FailingView> {
        let rates = self.rule.error_rate.as_ref()?;
        Some(FailingView { keys: rates.len(), failing: rates.exceeded_count() })
    }

    /// The bans; `None` for a rule without access control.
    pub fn bans(&self) -> Option<&'a Bans> {
        self.rule.access_control.as_ref().map(|control| control.bans())
    }

    /// The key that a request is counted by.
    pub fn key_for<'h>(&self, head: &'h dyn RequestHead) -> Option<KeyValue<'h>> {
        self.rule.key_of(head)
    }

    /// Whether its keys may be credentials, which must not be shown.
    pub fn has_credential(&self) -> bool {
        self.rule.has_credential
    }

    /// The cost of a request.
    pub fn cost_of(&self, head: &dyn RequestHead) -> u64 {
        self.rule.limiting.as_ref().map_or(1, |limiting| limiting.cost_of(head))
    }
}
