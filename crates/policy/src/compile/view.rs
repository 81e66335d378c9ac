//! A rule in force, for operators who look at it.

use super::{PolicyGate, guards::CompiledRule, guards::InFlightLimit};
use crate::model::{RuleEnforcement, RuleSpec};
use tidegate_access::Bans;
use tidegate_core::{Percent, Quota};
use tidegate_limiter::{KeyId, Limiter};
use tidegate_overload::BreakerSnapshot;
use tidegate_rule::{
    Mode, RequestLimit,
    request::{KeyValue, RequestHead},
};

/// A rule in force, as it is at this moment.
#[derive(Clone, Copy)]
pub struct RuleView<'a> {
    rule: &'a CompiledRule,
    limit: Option<&'a RequestLimit>,
}

/// How many may be in flight behind a rule, and how many are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveView {
    /// How many may be.
    pub limit: u32,
    /// How many are.
    pub in_flight: u32,
}

impl PolicyGate {
    /// All rules, in the order of the policy.
    pub fn views(&self) -> impl Iterator<Item = RuleView<'_>> {
        (0..self.inner.rules.len()).filter_map(|place| self.view(place))
    }

    /// The rule at this place of the policy.
    pub fn view(&self, place: usize) -> Option<RuleView<'_>> {
        let rule = self.inner.rules.get(place)?;
        let limit = rule.limit.and_then(|limit| self.inner.gate.limits().get(limit));
        Some(RuleView { rule, limit })
    }

    /// The key of a request for the rule at this index, or the client that its lists check; `None` if it has no such key.
    pub fn key_at<'a>(&self, rule: usize, head: &'a dyn RequestHead) -> Option<KeyValue<'a>> {
        let rule = self.inner.rules.get(rule)?;
        match &rule.request_access {
            Some(door) if rule.limit.is_none() => door.client_key(head),
            _ => rule.key_of(head),
        }
    }

    /// Identifies the key of a request in the limiter of the rule at this index; `None` where it counts nothing in memory.
    pub fn key_id_at(&self, rule: usize, head: &dyn RequestHead) -> Option<KeyId> {
        self.inner.gate.key_id_at(self.inner.rules.get(rule)?.limit?, head)
    }

    /// Identifies the key of all requests together in the rule at this index, where it counts in memory.
    pub fn key_id_of_all(&self, rule: usize) -> Option<KeyId> {
        self.inner.gate.global_key_id(self.inner.rules.get(rule)?.limit?)
    }

    /// Whether the request has the key of the rule at this index, and is not only counted with all others that lack it.
    pub fn has_key(&self, rule: usize, head: &dyn RequestHead) -> bool {
        self.inner.rules.get(rule).is_some_and(|rule| rule.key.find(head).is_some())
    }

    /// Whether the table of a rule was full, so that a key was counted with others.
    pub fn has_overflowed(&self) -> bool {
        !self.overflows().is_empty()
    }

    /// The rules whose tables were full for a key, and how often.
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
    /// Its name.
    pub fn name(&self) -> &'a str {
        self.rule.name()
    }

    /// What the policy says of it.
    pub fn source(&self) -> &'a RuleSpec {
        &self.rule.source
    }

    /// What it does with what it decides; [`share`](Self::percent) says for whom.
    pub fn mode(&self) -> Mode {
        match (self.limit, &self.rule.source.enforcement) {
            (Some(limit), _) => limit.rule().mode(),
            (None, RuleEnforcement::All(mode)) => *mode,
            (None, RuleEnforcement::Percent(_)) => Mode::Enforce,
        }
    }

    /// The part of its keys for which it is enforced; `None` where that is all of them.
    pub fn percent(&self) -> Option<Percent> {
        match self.rule.source.enforcement {
            RuleEnforcement::All(_) => None,
            RuleEnforcement::Percent(share) => Some(share),
        }
    }

    /// Its quotas as they are now; none where it has none.
    pub fn quotas(&self) -> Vec<Quota> {
        self.limit.map(|limit| limit.rule().quotas()).unwrap_or_default()
    }

    /// Where it is counted; `None` where it has no quotas.
    pub fn limiter(&self) -> Option<Limiter> {
        self.limit.and_then(|limit| limit.rule().limiter())
    }

    /// How many wait for their turn; `None` where nobody may.
    pub fn waiting(&self) -> Option<usize> {
        self.rule.queue.as_ref().map(tidegate_rule::LimitQueue::waiter_count)
    }

    /// Its breaker; `None` where it has none.
    pub fn breaker(&self) -> Option<BreakerSnapshot> {
        self.rule.breaker.as_ref().map(|breaker| breaker.snapshot())
    }

    /// Its adaptive limit; `None` where it has none.
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

    /// Whom it has banned; `None` where it bans nobody.
    pub fn bans(&self) -> Option<&'a Bans> {
        self.rule.access_control.as_ref().map(|control| control.bans())
    }

    /// For whom a request is counted.
    pub fn key_for<'h>(&self, head: &'h dyn RequestHead) -> Option<KeyValue<'h>> {
        self.rule.key_of(head)
    }

    /// Whether its keys may be credentials, which nobody is shown.
    pub fn has_credential(&self) -> bool {
        self.rule.has_credential
    }

    /// What a request costs.
    pub fn cost_of(&self, head: &dyn RequestHead) -> u64 {
        self.rule.limiting.as_ref().map_or(1, |limiting| limiting.cost_of(head))
    }
}
