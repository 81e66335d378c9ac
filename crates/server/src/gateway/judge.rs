//! What a policy says of each request.

use super::{note, reply::GatewayReply};
use crate::{
    AnsweredBy, Config, Judge, Judged, LogNote, Origin, Outcome, Rates, Settled, Target,
    api_error::ApiError,
    observe::{self, Observer, OperatorBans, Sampled, Tally, Told, Visit, Watcher},
};
use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header, request, response};
use std::{collections::HashMap, mem, sync::Arc};
use tidegate_core::{Micros, header as field};
use tidegate_policy::{
    compile::{Admission, PolicyGate, PolicyResult, Refusal, RejectAction},
    head::RequestHead,
    matching::Seen,
    model::{LogFormat, Observe, RouteAction},
};
use tidegate_rule::{Answer, Evaluation, Fields, HeldSlots, ProblemDetails};

/// Asks the policy that is in force now.
pub(crate) struct PolicyJudge {
    served: ArcSwap<Served>,
}

/// A policy, and where its names are among the upstreams of the workers.
pub(super) struct Served {
    gate: PolicyGate,
    /// The upstream of each route, by its place; `None` where the gateway answers.
    routes: Vec<Option<Target>>,
    by_name: HashMap<String, Target>,
    notes: Notes,
    tally: Arc<Tally>,
    watcher: Option<Watcher>,
    bans: Arc<OperatorBans>,
}

/// What happens to a request that is admitted.
enum Action {
    Forward(Target),
    Respond(RejectAction),
    /// No route matches.
    NotFound,
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
    kept: Option<Box<Kept>>,
    _stopwatch: Option<Box<Stopwatch>>,
}

/// Counts for the rules that let a request through how long it took, when it is dropped.
struct Stopwatch {
    came: Micros,
    rules: Vec<usize>,
    tally: Arc<Tally>,
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        self.tally.completed(&self.rules, self.came);
    }
}

enum Stage {
    /// It was let through, and waits for its answer. Cases are moved about, so it is boxed.
    Admitted(Box<Admission>),
    /// It was answered, and holds this until the body is gone.
    Settled { _held: HeldSlots },
    /// Nothing is held, and there is nothing to tell.
    Free,
}

/// What the log, the client and the history are told with the answer.
#[derive(Default)]
struct Kept {
    note: Option<LogNote>,
    denial: Option<Told>,
    visit: Option<(Visit, Arc<Served>)>,
}

/// The header that names a denial.
pub(crate) const DENIAL: HeaderName = HeaderName::from_static("tidegate-denial");

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
        let head = origin.head(parts);
        let seen = served.gate.see(&head);
        if let Some((ban, left)) = served.bans.check(&seen, &served.gate) {
            return Judged::Now(served.turn_away(ban.whom(), left, &head));
        }
        let action = served.action(&seen);
        let (timed, came) = (served.tally.begin(), served.tally.now());
        match served.gate.evaluate(&seen) {
            Evaluation::Ready(passage) => {
                if timed == Sampled::Yes {
                    served.tally.end(came);
                }
                Judged::Now(served.conclude(passage, came, action, Some(&head)))
            }
            Evaluation::Pending(evaluation) => {
                let served = Arc::clone(&served);
                // Only what tells of single requests needs the request again.
                let seen = served.tells().then(|| (parts.clone(), origin.clone()));
                Judged::Later(Box::pin(async move {
                    let passage = evaluation.await;
                    served.tally.end_later(came, passage.waited());
                    let head = seen.as_ref().map(|(parts, origin)| origin.head(parts));
                    served.conclude(passage, came, action, head.as_ref())
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

    fn answered(&self, status: StatusCode, by: AnsweredBy) {
        self.served.load().tally.answered(status.as_u16(), by);
    }
}

impl Served {
    pub(super) fn new(
        gate: PolicyGate,
        config: &Config,
        (observer, tally, observe): (&Arc<Observer>, Arc<Tally>, &Observe),
    ) -> Self {
        let notes = match (config.log.format, &config.traces) {
            (LogFormat::None, None) => Notes::None,
            _ => Notes::Taken,
        };
        let routes = gate.routes().iter().map(|route| config.target(route.upstream()?)).collect();
        let named = |name: &String| config.target(name).map(|target| (name.clone(), target));
        let by_name = config.upstreams.keys().filter_map(named).collect();
        let (watcher, bans) = (Watcher::of(observer, &tally, observe), observer.bans.clone());
        Self { gate, routes, by_name, notes, tally, watcher, bans }
    }

    fn action(&self, seen: &Seen<'_>) -> Action {
        let Some(place) = self.gate.place_of_route(seen) else { return Action::NotFound };
        match (self.routes.get(place), self.gate.routes().get(place).map(|route| &route.action)) {
            (Some(Some(target)), _) => Action::Forward(*target),
            (_, Some(RouteAction::Respond(respond))) => Action::Respond(RejectAction::respond(respond, seen)),
            _ => Action::NotFound,
        }
    }

    /// Whether anybody is told of single requests.
    fn tells(&self) -> bool {
        self.notes == Notes::Taken || self.watcher.is_some()
    }

    /// What becomes of a request. `head` is there if anybody is told of it.
    fn conclude(
        self: &Arc<Self>,
        passage: PolicyResult,
        came: Micros,
        action: Action,
        head: Option<&RequestHead<'_>>,
    ) -> Outcome<PolicyCase> {
        self.tally.passed(&passage);
        let kept = match head {
            Some(head) if self.tells() => self.keep(&passage, head),
            _ => None,
        };
        match passage {
            PolicyResult::Admitted(admission) => {
                let is_slowed = !admission.up().is_empty() || !admission.down().is_empty();
                let is_free = !admission.holds_anything() && !is_slowed && admission.fields() == Fields::None;
                let rules: Vec<usize> = admission.decisions().map(|decision| decision.rule).collect();
                let stopwatch = (!rules.is_empty())
                    .then(|| Box::new(Stopwatch { came, rules, tally: self.tally.clone() }));
                let stage = if is_free { Stage::Free } else { Stage::Admitted(Box::new(admission)) };
                let mut case = PolicyCase { stage, kept, _stopwatch: stopwatch };
                let response = match action {
                    Action::Forward(target) => return Outcome::Go(target, case),
                    Action::Respond(RejectAction::Drop) => {
                        return Outcome::Drop(case.kept.map(|kept| kept.dropped()).unwrap_or_default());
                    }
                    Action::Respond(RejectAction::Answer(answer)) => answer.into(),
                    Action::Respond(RejectAction::Upstream(_)) | Action::NotFound => nowhere(),
                };
                let (mut parts, body) = response.into_parts();
                case.settle(&mut parts);
                Outcome::Answer(Response::from_parts(parts, body))
            }
            PolicyResult::Refused(refusal) => self.refuse(*refusal, kept),
        }
    }

    /// Notes down what others are told of a request.
    fn keep(self: &Arc<Self>, passage: &PolicyResult, head: &RequestHead<'_>) -> Option<Box<Kept>> {
        let mut kept = Kept::default();
        if self.notes == Notes::Taken {
            kept.note = Some(match passage {
                PolicyResult::Admitted(admission) => note::admitted(admission, &self.gate, head),
                PolicyResult::Refused(refusal) => note::refused(refusal, &self.gate, head),
            });
        }
        if let Some(watcher) = &self.watcher {
            match passage {
                PolicyResult::Admitted(admission) => watcher.admitted(admission, &self.gate, head),
                PolicyResult::Refused(refusal) => kept.denial = watcher.refused(refusal, &self.gate, head),
            }
            kept.visit = watcher.visit(&self.gate, head).map(|visit| (visit, self.clone()));
        }
        let is_any = kept.note.is_some() || kept.denial.is_some() || kept.visit.is_some();
        is_any.then(|| Box::new(kept))
    }

    fn refuse(&self, refusal: Refusal, kept: Option<Box<Kept>>) -> Outcome<PolicyCase> {
        match refusal.action {
            RejectAction::Answer(mut answer) => {
                if let Some(Told(id)) = kept.as_ref().and_then(|kept| kept.denial.as_ref()) {
                    answer.set_instance(&denial_uri(id));
                }
                let response: Response<Bytes> = answer.into();
                let (mut parts, body) = response.into_parts();
                if let Some(kept) = kept {
                    kept.tell(&mut parts);
                }
                Outcome::Answer(Response::from_parts(parts, body))
            }
            RejectAction::Upstream(name) => match self.by_name.get(&*name) {
                Some(target) => {
                    Outcome::Go(*target, PolicyCase { stage: Stage::Free, kept, _stopwatch: None })
                }
                None => Outcome::Answer(nowhere()),
            },
            RejectAction::Drop => Outcome::Drop(kept.map(|kept| kept.dropped()).unwrap_or_default()),
        }
    }

    /// An operator has banned whoever sent this.
    #[cold]
    fn turn_away(
        self: &Arc<Self>,
        whom: &observe::Banned,
        left: Micros,
        head: &RequestHead<'_>,
    ) -> Outcome<PolicyCase> {
        self.tally.turned_away();
        let mut problem =
            ProblemDetails { detail: "banned for a time", ..ProblemDetails::new(403, "Forbidden") };
        let note = (self.notes == Notes::Taken)
            .then(|| LogNote { decision: Some("banned".to_owned()), ..LogNote::default() });
        let mut kept = Kept { note, ..Kept::default() };
        if let Some(watcher) = &self.watcher {
            kept.denial = watcher.banned((whom, left), problem.status, &self.gate, head);
            kept.visit = watcher.visit(&self.gate, head).map(|visit| (visit, self.clone()));
        }
        let instance = kept.denial.as_ref().map(|Told(id)| denial_uri(id));
        problem.instance = instance.as_deref();
        let response: Response<Bytes> = Answer::problem(&problem).into();
        let (mut parts, body) = response.into_parts();
        parts.headers.insert(header::RETRY_AFTER, field::seconds(left).into());
        kept.tell(&mut parts);
        Outcome::Answer(Response::from_parts(parts, body))
    }
}

impl PolicyCase {
    /// Tells what is left, and settles what was taken.
    fn settle(&mut self, answer: &mut response::Parts) {
        if let Stage::Admitted(admission) = mem::replace(&mut self.stage, Stage::Free) {
            if admission.fields() != Fields::None {
                admission.write_fields(|name, value| {
                    if let Ok(value) = HeaderValue::from_str(value) {
                        answer.headers.insert(HeaderName::from_static(name), value);
                    }
                });
            }
            self.stage = Stage::Settled { _held: admission.settle(&GatewayReply(answer)) };
        }
        if let Some(kept) = self.kept.take() {
            kept.tell(answer);
        }
    }
}

impl Kept {
    /// Tells the log, the client and the history.
    fn tell(self, answer: &mut response::Parts) {
        if let Some(note) = self.note {
            answer.extensions.insert(note);
        }
        if let Some(id) = self.denial.and_then(|Told(id)| HeaderValue::try_from(id).ok()) {
            answer.headers.insert(DENIAL, id);
        }
        if let Some((visit, served)) = self.visit
            && let Some(watcher) = &served.watcher
        {
            watcher.answered(visit, answer.status.as_u16());
        }
    }

    /// There is no answer; what the log is told.
    fn dropped(self) -> LogNote {
        if let Some((visit, served)) = self.visit
            && let Some(watcher) = &served.watcher
        {
            watcher.answered(visit, 0);
        }
        self.note.unwrap_or_default()
    }
}

/// The `instance` of problem details that identifies a denial.
pub(crate) fn denial_uri(id: &str) -> String {
    format!("urn:tidegate:denial:{id}")
}

fn nowhere() -> Response<Bytes> {
    ApiError::new(StatusCode::NOT_FOUND, "There is no route for this request.").into()
}
