//! Sends what is due, and hears what is answered.

use super::{
    Outcome, Schedule, Target, Template, Twin,
    connection::Connection,
    outcome::Expected,
    request::Sent,
    twin::{Answered, ExpectedResult},
};
use crate::failure::Failure;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use rustix::event::{Timespec, poll};
use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};
use tidegate::Clock;
use tidegate_core::Micros;
use tokio::{
    sync::{
        Mutex as Turn,
        mpsc::{Receiver, Sender, channel},
    },
    time::timeout,
};

/// A load.
pub(crate) struct Plan {
    pub(crate) target: Target,
    pub(crate) template: Template,
    pub(crate) schedule: Schedule,
    pub(crate) connections: usize,
    /// How long an answer may take.
    pub(crate) patience: Duration,
    /// Statuses that are denials.
    pub(crate) denied: BTreeSet<u16>,
    pub(crate) twin: Option<Twin>,
}

/// Requests that wait for a connection at most.
pub(crate) const MOST_WAITING: usize = 100_000;
/// The longest denial that is read for its rule.
const LONGEST_DENIAL: usize = 64 << 10;

/// A request that is due.
#[derive(Clone, Copy)]
struct Due {
    number: u64,
    at: Micros,
}

/// What all connections share.
struct Stage {
    target: Target,
    template: Template,
    patience: Duration,
    denied: BTreeSet<u16>,
    clock: Clock,
    tally: Mutex<Tally>,
    busy: AtomicUsize,
    started: AtomicU64,
    stop: Arc<AtomicBool>,
}

struct Tally {
    outcome: Outcome,
    twin: Option<Twin>,
    expected: Expected,
}

/// Sends a whole load; `told` hears now and then how many were sent, and `stop` ends it early.
pub(crate) async fn run(
    plan: Plan,
    stop: Arc<AtomicBool>,
    mut told: impl FnMut(u64, Micros),
) -> Result<Outcome, Failure> {
    let Plan { target, template, schedule, connections, patience, denied, twin } = plan;
    let mut expected = Expected { keys: vec![(0, 0); template.keys() as usize], ..Expected::default() };
    if let Some(twin) = &twin {
        expected.rules = twin.names().iter().map(|name| (name.clone(), 0)).collect();
        expected.notes = twin.notes().to_vec();
    }
    let mut ready = Vec::new();
    for _ in 0..connections {
        ready.push(Connection::open(&target).await.map_err(|why| silent(&target, &why))?);
    }
    let tally = Mutex::new(Tally { outcome: Outcome::default(), twin, expected });
    let (busy, started, clock) = (AtomicUsize::new(0), AtomicU64::new(0), Clock::system());
    let stage = Arc::new(Stage { target, template, patience, denied, clock, tally, busy, started, stop });
    let clock = &stage.clock;
    let (line, waiting) = channel(MOST_WAITING);
    let waiting = Arc::new(Turn::new(waiting));
    let workers =
        ready.into_iter().map(|connection| tokio::spawn(work(stage.clone(), waiting.clone(), connection)));
    let workers: Vec<_> = workers.collect();
    let start = clock.now();
    let (dispatch, of_stage) = (schedule.clone(), stage.clone());
    let dispatcher = thread::Builder::new()
        .name("schedule".to_owned())
        .spawn(move || send_due(&dispatch, start, &of_stage, &line))
        .map_err(|error| Failure::input(format!("no thread: {error}")))?;
    let mut all = Box::pin(async {
        for worker in workers {
            // One that has panicked has told so.
            let _ = worker.await;
        }
    });
    while timeout(Duration::from_millis(100), &mut all).await.is_err() {
        told(stage.started.load(Ordering::Relaxed), clock.now().since(start));
    }
    let (due, unsent) = dispatcher.join().unwrap_or_default();
    let mut tally = stage.tally();
    let Tally { outcome, twin, expected } = &mut *tally;
    let took = clock.now().since(start);
    // A schedule lasts to its end, though nothing is due in its last moments.
    let took = if outcome.given_up == 0 { took.max(schedule.length()) } else { took };
    (outcome.due, outcome.unsent, outcome.took) = (due, unsent, took);
    outcome.expected = twin.is_some().then(|| std::mem::take(expected));
    Ok(std::mem::take(outcome))
}

/// Puts each request into the line when it is due. How many were, and how many found no room.
fn send_due(schedule: &Schedule, start: Micros, stage: &Stage, line: &Sender<Due>) -> (u64, u64) {
    let (mut due, mut unsent) = (0, 0);
    for (number, moment) in (0..).zip(schedule.moments()) {
        let at = start.plus(moment);
        while !stage.stop.load(Ordering::Relaxed) {
            let left = at.since(stage.clock.now()).get();
            if left == 0 {
                break;
            }
            // Not for longer than it takes to hear of an end.
            let wait = Duration::from_micros(left.min(100_000));
            // A timer of tokio knows milliseconds; this one knows less.
            let _ = poll(&mut [], Timespec::try_from(wait).ok().as_ref());
        }
        if stage.stop.load(Ordering::Relaxed) {
            break;
        }
        due += 1;
        unsent += u64::from(line.try_send(Due { number, at }).is_err());
    }
    (due, unsent)
}

/// Sends requests over one connection, and over another one where that has ended.
async fn work(stage: Arc<Stage>, waiting: Arc<Turn<Receiver<Due>>>, connection: Connection) {
    let mut connection = Some(connection);
    loop {
        let next = waiting.lock().await.recv().await;
        let Some(due) = next else { return };
        if stage.stop.load(Ordering::Relaxed) {
            stage.tally().outcome.given_up += 1;
            continue;
        }
        let busy = stage.busy.fetch_add(1, Ordering::Relaxed) + 1;
        let asked = timeout(stage.patience, stage.ask(due, &mut connection, busy)).await;
        stage.busy.fetch_sub(1, Ordering::Relaxed);
        if asked.is_err() {
            connection = None;
            stage.tally().outcome.failed("no answer in time".to_owned());
        }
    }
}

impl Stage {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one request and takes in what is answered.
    async fn ask(&self, due: Due, connection: &mut Option<Connection>, busy: usize) {
        let key = self.template.key_of(due.number);
        if let Some(open) = connection
            && !open.is_ready().await
        {
            *connection = None;
        }
        if connection.is_none() {
            match Connection::open(&self.target).await {
                Ok(open) => *connection = Some(open),
                Err(why) => return self.unsendable(due, why),
            }
        }
        let Some(open) = connection.as_mut() else { return };
        let request = self.template.request(&self.target, key);
        let admission = self.goes(due, key, &request, open.from, busy);
        let answer = open.send(request).await;
        let now = self.clock.now();
        let mut tally = self.tally();
        let settled = |tally: &mut Tally, status: u16, headers: Option<&HeaderMap>| {
            if let (Some(twin), Some(admission)) = (&mut tally.twin, admission) {
                twin.settle(*admission, &Answered { status, headers }, now);
            }
        };
        match answer {
            Ok((head, body)) => {
                settled(&mut tally, head.status().as_u16(), Some(head.headers()));
                tally.outcome.latency.add(now.since(due.at));
                self.note(&mut tally, key, &head, &body);
                if !open.stays(&head) {
                    *connection = None;
                }
            }
            Err(why) => {
                settled(&mut tally, 0, None);
                tally.outcome.failed(why);
                *connection = None;
            }
        }
    }

    /// A request goes now; what it should hold until it is answered.
    fn goes(
        &self,
        due: Due,
        key: u32,
        request: &Request<Full<Bytes>>,
        from: IpAddr,
        busy: usize,
    ) -> Option<Box<tidegate_policy::compile::PolicyAdmission>> {
        self.started.fetch_add(1, Ordering::Relaxed);
        let mut tally = self.tally();
        // Within the lock: the clock of the policy does not go back.
        let now = self.clock.now();
        let Tally { outcome, twin, expected } = &mut *tally;
        outcome.sent(now.since(due.at));
        outcome.busiest = outcome.busiest.max(busy);
        let ExpectedResult { denied_by, admission } =
            twin.as_mut()?.ask(&Sent { target: &self.target, request, from }, now);
        match denied_by {
            Some(rule) => {
                expected.denied += 1;
                expected.rules.get_mut(rule).into_iter().for_each(|(_, denied)| *denied += 1);
            }
            None => {
                expected.admitted += 1;
                expected.keys.get_mut(key as usize).into_iter().for_each(|(_, admitted)| *admitted += 1);
            }
        }
        admission
    }

    fn note(&self, tally: &mut Tally, key: u32, head: &Response<()>, body: &[u8]) {
        let status = head.status().as_u16();
        *tally.outcome.statuses.entry(status).or_default() += 1;
        if self.denied.contains(&status) || head.headers().contains_key("tidegate-denial") {
            tally.outcome.denied(rule_in(body));
            return;
        }
        tally.outcome.admitted += 1;
        tally.expected.keys.get_mut(key as usize).into_iter().for_each(|(admitted, _)| *admitted += 1);
    }

    /// Nobody takes connections any more.
    fn unsendable(&self, due: Due, why: String) {
        let mut tally = self.tally();
        tally.outcome.sent(self.clock.now().since(due.at));
        tally.outcome.failed(why);
    }
}

/// The first rule that a problem names.
fn rule_in(body: &[u8]) -> Option<String> {
    if body.len() > LONGEST_DENIAL {
        return None;
    }
    let problem: serde_json::Value = serde_json::from_slice(body).ok()?;
    problem["violated-policies"][0].as_str().map(str::to_owned)
}

fn silent(target: &Target, why: &str) -> Failure {
    Failure::input(format!("nobody answers at {}: {why}; start it, or say where it is", target.url))
}
