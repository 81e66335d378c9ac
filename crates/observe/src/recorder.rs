//! Counts and keeps what a policy decides about requests.

use super::{
    Banned, Denial, DenialId, HistoryEntry, Observer, SAMPLED, Scene, Tally, TopBy,
    denial::Reason,
    shard::Sampled,
    who::{Who, short, shown_keys},
};
use std::{fmt, net::IpAddr, sync::Arc};
use tidegate_core::{Decision, Micros, Outcome, Quota, Retry};
use tidegate_policy::{
    compile::{PolicyAdmission, PolicyGate, PolicyRefusal, PolicyResult, RejectAction, RuleResult},
    model::{KeyDisplay, Observe},
};
use tidegate_rule::{
    is_in_rollout, key_hash,
    request::{KeyValue, RequestHead, normalize_host},
};

/// Counts what a policy decides, and keeps what it says of single requests: denials, keys that come often, a history.
pub struct RequestRecorder {
    observer: Arc<Observer>,
    /// What is counted.
    pub tally: Arc<Tally>,
    terms: Observe,
}

impl RequestRecorder {
    /// For rules of these names.
    pub fn new<'a>(
        observer: &Arc<Observer>,
        names: impl Iterator<Item = &'a str>,
        terms: &Observe,
    ) -> Arc<Self> {
        let tally = observer.tally(names, terms);
        Arc::new(Self { observer: observer.clone(), tally, terms: terms.clone() })
    }

    /// Whether anything of single requests is kept.
    pub fn keeps_requests(&self) -> bool {
        self.terms.denials > 0 || self.terms.history > 0
    }

    /// Counts a decision, and keeps why it was no; its id, if it is kept. `head` is needed where requests are kept.
    #[inline]
    pub fn decided(
        &self,
        passage: &PolicyResult,
        gate: &PolicyGate,
        head: Option<&dyn RequestHead>,
    ) -> Option<DenialId> {
        self.tally.passed(passage);
        let head = head.filter(|_| self.terms.denials > 0)?;
        match passage {
            PolicyResult::Admitted(admission) => {
                self.admitted(admission, gate, head);
                None
            }
            PolicyResult::Refused(refusal) => self.refused(refusal, gate, head),
        }
    }

    /// A request was let through: of some, the keys are counted, and of those that a rule in shadow mode would have denied.
    fn admitted(&self, admission: &PolicyAdmission, gate: &PolicyGate, head: &dyn RequestHead) {
        let sampled = self.tally.is_sampled();
        for decision in admission.decisions() {
            if sampled == Sampled::Yes {
                self.saw(decision.rule, TopBy::Asked, SAMPLED, gate, head);
            }
            if matches!(decision.result, RuleResult::Denied(_)) {
                self.saw(decision.rule, TopBy::ShadowDenied, 1, gate, head);
            }
        }
    }

    /// A request was not: its key is counted, and why is kept. `None` if it is not, since there are too many.
    fn refused(
        &self,
        refusal: &PolicyRefusal,
        gate: &PolicyGate,
        head: &dyn RequestHead,
    ) -> Option<DenialId> {
        self.saw(refusal.index, TopBy::Denied, 1, gate, head);
        if self.tally.is_sampled() == Sampled::Yes {
            self.saw(refusal.index, TopBy::Asked, SAMPLED, gate, head);
        }
        let view = gate.view(refusal.index);
        let key = view.and_then(|rule| rule.key_for(head));
        let status = match &refusal.action {
            RejectAction::Response(answer) => Some(answer.final_status()),
            RejectAction::Upstream(_) | RejectAction::Drop => None,
        };
        self.keep(gate, head, |denial| Denial {
            rule: Some(refusal.rule.clone()),
            reason: Reason::of(refusal),
            key: key.map(|key| Who::of_key(self.shown_by(gate, &refusal.rule), &refusal.rule, &key)),
            cost: view.map_or(1, |rule| rule.cost_of(head)),
            decision: refusal.decision,
            retry_after: refusal.retry_after.map(Micros::from),
            max_wait: view.map_or(Micros::ZERO, |rule| rule.source().wait.into()),
            status,
            ..denial
        })
    }

    /// An operator has banned whoever sent it.
    pub fn banned(
        &self,
        (whom, left): (&Banned, Micros),
        status: u16,
        gate: &PolicyGate,
        head: &dyn RequestHead,
    ) -> Option<DenialId> {
        self.tally.turned_away();
        if self.terms.denials == 0 {
            return None;
        }
        let key = match whom {
            Banned::Client(network) | Banned::Network(network) => self.who("", network),
            Banned::Key { rule, key } => Who::of(self.shown_by(gate, rule), rule, key),
        };
        self.keep(gate, head, |denial| Denial {
            key: Some(key),
            retry_after: Some(left),
            status: Some(status),
            ..denial
        })
    }

    /// What the history will show of a request; `None` if it is not kept.
    pub fn history_entry(&self, gate: &PolicyGate, head: &dyn RequestHead) -> Option<HistoryEntry> {
        if self.terms.history == 0 {
            return None;
        }
        let client = gate.proxies().client_address(head);
        // By client, so that whoever is kept is kept whole.
        let whole = client.is_some_and(|client| is_in_rollout("history", &client, self.terms.share));
        whole.then(|| HistoryEntry {
            at: self.observer.clock.now(),
            client: client.map(|client| self.client(client)),
            user: gate.user_of(head).map(|user| {
                let shown = shown_keys(self.terms.keys, gate.is_user_credential());
                Who::of_key(shown, "user", &user)
            }),
            method: short(&head.method()),
            path: short(&head.path()),
            host: head.host().and_then(normalize_host).map(|host| short(&host)),
            status: 0,
        })
    }

    /// Keeps a request whose exchange has ended with this status, unless keys are shown in another way by now.
    pub fn keep_history(&self, entry: HistoryEntry, status: u16) {
        let is_same = |scene: Arc<Scene>| scene.policy.observe.keys == self.terms.keys;
        if self.observer.scene().is_none_or(is_same) {
            self.observer.history.push(HistoryEntry { status, ..entry });
        }
    }

    fn saw(&self, place: usize, by: TopBy, weight: u64, gate: &PolicyGate, head: &dyn RequestHead) {
        let Some(rule) = gate.view(place) else { return };
        let Some(key) = rule.key_for(head) else { return };
        let shown = shown_keys(self.terms.keys, rule.has_credential());
        let name = || Who::of_key(shown, rule.name(), &key).shown();
        self.tally.saw(place, by, key_hash(rule.name(), &key), weight, name);
    }

    /// A program was told no by the rule at this place.
    pub fn told_no(
        &self,
        (place, rule, gate): (usize, &str, &PolicyGate),
        (key, cost): (&KeyValue<'_>, u64),
        (decision, quota): (Decision, Option<Quota>),
        status: u16,
    ) -> Option<DenialId> {
        if self.terms.denials == 0 {
            return None;
        }
        let shown = self.shown_by(gate, rule);
        let who = || Who::of_key(shown, rule, key);
        self.tally.saw(place, TopBy::Denied, key_hash(rule, key), 1, || who().shown());
        self.keep_of(|denial| Denial {
            rule: Some(rule.into()),
            reason: if decision.is_fail_closed() { Reason::StoreAway } else { Reason::Limited },
            key: Some(who()),
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

    fn keep(
        &self,
        gate: &PolicyGate,
        head: &dyn RequestHead,
        fill: impl FnOnce(Denial) -> Denial,
    ) -> Option<DenialId> {
        self.keep_of(|denial| {
            fill(Denial {
                client: gate.proxies().client_address(head).map(|client| self.client(client)),
                method: Some(short(&head.method())),
                path: Some(short(&head.path())),
                host: head.host().and_then(normalize_host).map(|host| short(&host)),
                ..denial
            })
        })
    }

    fn keep_of(&self, fill: impl FnOnce(Denial) -> Denial) -> Option<DenialId> {
        let at = self.observer.clock.now();
        if self.tally.may_keep(at) == Sampled::No {
            return None;
        }
        let id = DenialId::new(at);
        self.observer.denials.push(fill(Denial {
            id: id.clone(),
            at,
            rule: None,
            reason: Reason::Banned,
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

    /// What is shown of the keys of a rule.
    fn shown_by(&self, gate: &PolicyGate, rule: &str) -> KeyDisplay {
        shown_keys(self.terms.keys, gate.has_credential(rule))
    }

    fn client(&self, client: IpAddr) -> Who {
        self.who("", &client)
    }

    fn who(&self, rule: &str, who: &dyn fmt::Display) -> Who {
        Who::of(self.terms.keys, rule, who)
    }
}
