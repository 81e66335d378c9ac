//! Keeps what a policy says of single requests.

use super::{
    Banned, Denial, Observer, SAMPLED, Tally, TopBy, Visit,
    denial::{Reason, new_id},
    shard::Sampled,
    who::{Who, short, shown_keys},
};
use std::{fmt, net::IpAddr, sync::Arc};
use tidegate_core::{Decision, Micros, Outcome, Quota, Retry};
use tidegate_policy::{
    compile::{Admission, PolicyGate, Refusal, RejectAction, RuleResult},
    model::{KeysShown, Observe},
};
use tidegate_rule::{
    is_chosen, key_hash,
    request::{Head, KeyValue, host_name},
};

/// Keeps what a policy says of single requests: denials, keys that come often, a history.
pub(crate) struct Watcher {
    observer: Arc<Observer>,
    tally: Arc<Tally>,
    terms: Observe,
}

/// The id of a denial that was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told(pub(crate) String);

impl Watcher {
    /// `None` where nothing is kept.
    pub(crate) fn of(observer: &Arc<Observer>, tally: &Arc<Tally>, terms: &Observe) -> Option<Self> {
        (terms.denials > 0 || terms.history > 0).then(|| Self {
            observer: observer.clone(),
            tally: tally.clone(),
            terms: terms.clone(),
        })
    }

    /// A request was let through: of some, the keys are counted, and of those that a rule in shadow mode would have denied.
    #[inline]
    pub(crate) fn admitted(&self, admission: &Admission, gate: &PolicyGate, head: &dyn Head) {
        if self.terms.denials == 0 {
            return;
        }
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
    pub(crate) fn refused(&self, refusal: &Refusal, gate: &PolicyGate, head: &dyn Head) -> Option<Told> {
        if self.terms.denials == 0 {
            return None;
        }
        self.saw(refusal.place, TopBy::Denied, 1, gate, head);
        if self.tally.is_sampled() == Sampled::Yes {
            self.saw(refusal.place, TopBy::Asked, SAMPLED, gate, head);
        }
        let view = gate.view(refusal.place);
        let key = view.and_then(|rule| rule.key_in(head));
        let status = match &refusal.action {
            RejectAction::Answer(answer) => Some(answer.final_status()),
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
    pub(crate) fn banned(
        &self,
        (whom, left): (&Banned, Micros),
        status: u16,
        gate: &PolicyGate,
        head: &dyn Head,
    ) -> Option<Told> {
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

    /// What the history will tell of a request; `None` if it is not kept.
    pub(crate) fn visit(&self, gate: &PolicyGate, head: &dyn Head) -> Option<Visit> {
        if self.terms.history == 0 {
            return None;
        }
        let client = gate.proxies().client(head);
        // By client, so that whoever is kept is kept whole.
        let whole = client.is_some_and(|client| is_chosen("history", &client, self.terms.share));
        whole.then(|| Visit {
            at: self.observer.clock.now(),
            client: client.map(|client| self.client(client)),
            user: gate.user_of(head).map(|user| {
                let shown = shown_keys(self.terms.keys, gate.is_user_credential());
                Who::of_key(shown, "user", &user)
            }),
            method: short(&head.method()),
            path: short(&head.path()),
            host: head.host().and_then(host_name).map(|host| short(&host)),
            status: 0,
        })
    }

    /// It was answered with this.
    pub(crate) fn answered(&self, visit: Visit, status: u16) {
        self.observer.history.push(Visit { status, ..visit });
    }

    fn saw(&self, place: usize, by: TopBy, weight: u64, gate: &PolicyGate, head: &dyn Head) {
        let Some(rule) = gate.view(place) else { return };
        let Some(key) = rule.key_in(head) else { return };
        let shown = shown_keys(self.terms.keys, rule.has_credential());
        let name = || Who::of_key(shown, rule.name(), &key).shown();
        self.tally.saw(place, by, key_hash(rule.name(), &key), weight, name);
    }

    /// A program was told no by the rule at this place.
    pub(crate) fn told_no(
        &self,
        (place, rule, gate): (usize, &str, &PolicyGate),
        (key, cost): (&KeyValue<'_>, u64),
        (decision, quota): (Decision, Option<Quota>),
        status: u16,
    ) -> Option<Told> {
        if self.terms.denials == 0 {
            return None;
        }
        let shown = self.shown_by(gate, rule);
        let who = || Who::of_key(shown, rule, key);
        self.tally.saw(place, TopBy::Denied, key_hash(rule, key), 1, || who().shown());
        self.keep_of(|denial| Denial {
            rule: Some(rule.into()),
            reason: if decision.is_closed() { Reason::StoreAway } else { Reason::Limited },
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

    fn keep(&self, gate: &PolicyGate, head: &dyn Head, fill: impl FnOnce(Denial) -> Denial) -> Option<Told> {
        self.keep_of(|denial| {
            fill(Denial {
                client: gate.proxies().client(head).map(|client| self.client(client)),
                method: Some(short(&head.method())),
                path: Some(short(&head.path())),
                host: head.host().and_then(host_name).map(|host| short(&host)),
                ..denial
            })
        })
    }

    fn keep_of(&self, fill: impl FnOnce(Denial) -> Denial) -> Option<Told> {
        let at = self.observer.clock.now();
        if self.tally.may_keep(at) == Sampled::No {
            return None;
        }
        let id = new_id(at);
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
        Some(Told(id))
    }

    /// What is shown of the keys of a rule.
    fn shown_by(&self, gate: &PolicyGate, rule: &str) -> KeysShown {
        shown_keys(self.terms.keys, gate.has_credential(rule))
    }

    fn client(&self, client: IpAddr) -> Who {
        self.who("", &client)
    }

    fn who(&self, rule: &str, who: &dyn fmt::Display) -> Who {
        Who::of(self.terms.keys, rule, who)
    }
}
