//! What a policy says of each request.

use super::{
    head::{GatewayHead, GatewayReply},
    note,
};
use crate::{Config, Judge, Judged, LogNote, Origin, Outcome, Rates, Settled, Target, answer::problem};
use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, request, response};
use std::{collections::HashMap, mem, sync::Arc};
use tidegate_policy::{
    compile::{Admission, Held, Instead, Passage, PolicyAsked, PolicyGate, Refusal},
    matching::Seen,
    model::LogFormat,
};
use tidegate_rule::Fields;

/// Asks the policy that is in force now.
pub(crate) struct PolicyJudge {
    served: ArcSwap<Served>,
}

/// A policy, and where its names are among the upstreams of the workers.
pub(super) struct Served {
    gate: PolicyGate,
    /// By the place of the route.
    routes: Vec<Option<Target>>,
    by_name: HashMap<String, Target>,
    notes: Notes,
}

/// Whether decisions are noted down, for a log or for traces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Notes {
    None,
    Taken,
}

/// What is kept of a request.
pub(crate) struct PolicyCase {
    stage: Stage,
    note: Option<Box<LogNote>>,
}

enum Stage {
    /// It was let through, and waits for its answer. Cases are moved about, so it is boxed.
    Admitted(Box<Admission>),
    /// It was answered, and holds this until the body is gone.
    Settled { _held: Held },
    /// Nothing is held, and there is nothing to tell.
    Free,
}

impl PolicyJudge {
    pub(super) fn new(served: Served) -> Self {
        Self { served: ArcSwap::from_pointee(served) }
    }

    /// Has all requests from now on asked about elsewhere. Those that were let in are settled where they were asked about.
    pub(super) fn replace(&self, served: Served) {
        self.served.store(Arc::new(served));
    }
}

impl Judge for PolicyJudge {
    type Case = PolicyCase;

    fn judge(&self, parts: &mut request::Parts, origin: &Origin) -> Judged<PolicyCase> {
        let served = self.served.load();
        let head = GatewayHead::new(parts, origin);
        let seen = served.gate.see(&head);
        let target = served.target(&seen);
        match served.gate.ask_seen(&seen) {
            PolicyAsked::Now(passage) => Judged::Now(served.conclude(passage, target, Some(&head))),
            PolicyAsked::Later(asking) => {
                let served = Arc::clone(&served);
                // Only a log needs the request again.
                let seen = (served.notes == Notes::Taken).then(|| (parts.clone(), origin.clone()));
                Judged::Later(Box::pin(async move {
                    let passage = asking.await;
                    let head = seen.as_ref().map(|(parts, origin)| GatewayHead::new(parts, origin));
                    served.conclude(passage, target, head.as_ref())
                }))
            }
        }
    }

    fn rates<'c>(&self, case: &'c PolicyCase) -> Rates<'c> {
        match &case.stage {
            Stage::Admitted(admission) => Rates { up: admission.up(), down: admission.down() },
            Stage::Settled { .. } | Stage::Free => Rates::default(),
        }
    }

    fn settle(&self, case: &mut PolicyCase, answer: &mut response::Parts) -> Settled {
        case.settle(answer);
        Settled::Send
    }
}

impl Served {
    pub(super) fn new(gate: PolicyGate, config: &Config) -> Self {
        let notes = match (config.log.format, &config.traces) {
            (LogFormat::None, None) => Notes::None,
            _ => Notes::Taken,
        };
        let routes = gate.routes().iter().map(|route| config.target(&route.upstream)).collect();
        let named = |name: &String| config.target(name).map(|target| (name.clone(), target));
        let by_name = config.upstreams.keys().filter_map(named).collect();
        Self { gate, routes, by_name, notes }
    }

    fn target(&self, seen: &Seen<'_>) -> Option<Target> {
        self.gate.place_of_route(seen).and_then(|place| *self.routes.get(place)?)
    }

    /// What becomes of a request. `head` is there if it is to be noted down.
    fn conclude(
        &self,
        passage: Passage,
        target: Option<Target>,
        head: Option<&GatewayHead<'_>>,
    ) -> Outcome<PolicyCase> {
        let head = head.filter(|_| self.notes == Notes::Taken);
        match passage {
            Passage::Admitted(admission) => {
                let note = head.map(|head| Box::new(note::admitted(&admission, &self.gate, head)));
                let is_slowed = !admission.up().is_empty() || !admission.down().is_empty();
                let is_free = !admission.holds_anything() && !is_slowed && admission.fields() == Fields::None;
                let stage = if is_free { Stage::Free } else { Stage::Admitted(Box::new(admission)) };
                let mut case = PolicyCase { stage, note };
                match target {
                    Some(target) => Outcome::Go(target, case),
                    None => {
                        let (mut parts, body) = nowhere().into_parts();
                        case.settle(&mut parts);
                        Outcome::Answer(Response::from_parts(parts, body))
                    }
                }
            }
            Passage::Refused(refusal) => {
                let note = head.map(|head| Box::new(note::refused(&refusal, &self.gate, head)));
                self.refuse(*refusal, note)
            }
        }
    }

    fn refuse(&self, refusal: Refusal, note: Option<Box<LogNote>>) -> Outcome<PolicyCase> {
        match refusal.instead {
            Instead::Answer(answer) => {
                let mut response: Response<Bytes> = answer.into();
                if let Some(note) = note {
                    response.extensions_mut().insert(*note);
                }
                Outcome::Answer(response)
            }
            Instead::Upstream(name) => match self.by_name.get(&*name) {
                Some(target) => Outcome::Go(*target, PolicyCase { stage: Stage::Free, note }),
                None => Outcome::Answer(nowhere()),
            },
            Instead::Drop => Outcome::Drop(note.map(|note| *note).unwrap_or_default()),
        }
    }
}

impl PolicyCase {
    /// Tells what is left, and settles what was taken.
    fn settle(&mut self, answer: &mut response::Parts) {
        if let Stage::Admitted(admission) = mem::replace(&mut self.stage, Stage::Free) {
            if admission.fields() != Fields::None {
                admission.verdict().write_fields(|name, value| {
                    if let Ok(value) = HeaderValue::from_str(value) {
                        answer.headers.insert(HeaderName::from_static(name), value);
                    }
                });
            }
            self.stage = Stage::Settled { _held: admission.settle(&GatewayReply(answer)) };
        }
        if let Some(note) = self.note.take() {
            answer.extensions.insert(*note);
        }
    }
}

fn nowhere() -> Response<Bytes> {
    problem(StatusCode::NOT_FOUND, "There is no route for this request.")
}
