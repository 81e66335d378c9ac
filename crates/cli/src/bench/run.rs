//! Sends due requests and records their responses.

use super::{
    BenchOutcome, BenchTarget, ExpectedPolicy, RequestTemplate, Schedule,
    connection::BenchConnection,
    expected::{BenchResponse, ExpectedDecision},
    outcome::ExpectedCounts,
    request::SentRequest,
};
use crate::error::CliError;
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
        Mutex as AsyncMutex,
        mpsc::{Receiver, Sender, channel},
    },
    time::timeout,
};

/// A load.
pub(crate) struct BenchPlan {
    pub(crate) target: BenchTarget,
    pub(crate) template: RequestTemplate,
    pub(crate) schedule: Schedule,
    pub(crate) connections: usize,
    /// The timeout of a response.
    pub(crate) timeout: Duration,
    /// Statuses that are denials.
    pub(crate) denied_statuses: BTreeSet<u16>,
    pub(crate) expected: Option<ExpectedPolicy>,
}

/// The maximum number of requests that wait for a connection.
pub(crate) const MAX_QUEUED: usize = 100_000;
/// The maximum size of a denial that is parsed for its rule.
const MAX_DENIAL_SIZE: usize = 64 << 10;

/// A request that is due.
#[derive(Clone, Copy)]
struct DueRequest {
    number: u64,
    due_at: Micros,
}

/// The state that all connections share.
struct BenchShared {
    target: BenchTarget,
    template: RequestTemplate,
    timeout: Duration,
    denied_statuses: BTreeSet<u16>,
    clock: Clock,
    counts: Mutex<BenchCounts>,
    in_flight: AtomicUsize,
    started: AtomicU64,
    stop: Arc<AtomicBool>,
}

struct BenchCounts {
    outcome: BenchOutcome,
    policy: Option<ExpectedPolicy>,
    expected: ExpectedCounts,
}

/// Sends a whole load. Calls `on_progress` with the number of sent requests; `stop` ends the run early.
pub(crate) async fn run(
    plan: BenchPlan,
    stop: Arc<AtomicBool>,
    mut on_progress: impl FnMut(u64, Micros),
) -> Result<BenchOutcome, CliError> {
    let BenchPlan {
        target,
        template,
        schedule,
        connections,
        timeout: timeout_after,
        denied_statuses,
        expected: policy,
    } = plan;
    let mut expected =
        ExpectedCounts { keys: vec![(0, 0); template.key_count() as usize], ..ExpectedCounts::default() };
    if let Some(policy) = &policy {
        expected.rules = policy.rule_names().iter().map(|name| (name.clone(), 0)).collect();
        expected.notes = policy.notes().to_vec();
    }
    let mut connected = Vec::new();
    for _ in 0..connections {
        let connection = BenchConnection::open(&target).await;
        connected.push(connection.map_err(|error| unreachable_error(&target, &error))?);
    }
    let counts = Mutex::new(BenchCounts { outcome: BenchOutcome::default(), policy, expected });
    let (in_flight, started, clock) = (AtomicUsize::new(0), AtomicU64::new(0), Clock::system());
    let shared = Arc::new(BenchShared {
        target,
        template,
        timeout: timeout_after,
        denied_statuses,
        clock,
        counts,
        in_flight,
        started,
        stop,
    });
    let clock = &shared.clock;
    let (queue, receiver) = channel(MAX_QUEUED);
    let receiver = Arc::new(AsyncMutex::new(receiver));
    let workers = connected
        .into_iter()
        .map(|connection| tokio::spawn(run_worker(shared.clone(), receiver.clone(), connection)));
    let workers: Vec<_> = workers.collect();
    let start = clock.now();
    let (dispatch_schedule, dispatch_shared) = (schedule.clone(), shared.clone());
    let dispatcher = thread::Builder::new()
        .name("schedule".to_owned())
        .spawn(move || dispatch(&dispatch_schedule, start, &dispatch_shared, &queue))
        .map_err(|error| CliError::input(format!("cannot start a thread: {error}")))?;
    let mut joined = Box::pin(async {
        for worker in workers {
            // The panic hook has reported a panic.
            let _ = worker.await;
        }
    });
    while timeout(Duration::from_millis(100), &mut joined).await.is_err() {
        on_progress(shared.started.load(Ordering::Relaxed), clock.now().saturating_sub(start));
    }
    let (due, unsent) = dispatcher.join().unwrap_or_default();
    let mut counts = shared.lock_counts();
    let BenchCounts { outcome, policy, expected } = &mut *counts;
    let elapsed = clock.now().saturating_sub(start);
    // The last request is due before the end of the schedule.
    let elapsed = if outcome.abandoned == 0 { elapsed.max(schedule.length()) } else { elapsed };
    (outcome.due, outcome.unsent, outcome.elapsed) = (due, unsent, elapsed);
    outcome.schedule_length = schedule.length().min(elapsed);
    outcome.expected = policy.is_some().then(|| std::mem::take(expected));
    Ok(std::mem::take(outcome))
}

/// Queues each request when it is due. Returns the number of due requests, and of those dropped since the queue was full.
fn dispatch(
    schedule: &Schedule,
    start: Micros,
    shared: &BenchShared,
    queue: &Sender<DueRequest>,
) -> (u64, u64) {
    let (mut due, mut unsent) = (0, 0);
    for (number, offset) in (0..).zip(schedule.due_times()) {
        let at = start.saturating_add(offset);
        while !shared.stop.load(Ordering::Relaxed) {
            let remaining = at.saturating_sub(shared.clock.now()).get();
            if remaining == 0 {
                break;
            }
            // Wake up often enough to notice `stop`.
            let wait = Duration::from_micros(remaining.min(100_000));
            // `poll` is more precise than Tokio's timer, which has a resolution of a millisecond.
            let _ = poll(&mut [], Timespec::try_from(wait).ok().as_ref());
        }
        if shared.stop.load(Ordering::Relaxed) {
            break;
        }
        due += 1;
        unsent += u64::from(queue.try_send(DueRequest { number, due_at: at }).is_err());
    }
    (due, unsent)
}

/// Sends requests over one connection, and reconnects if it is closed.
async fn run_worker(
    shared: Arc<BenchShared>,
    queue: Arc<AsyncMutex<Receiver<DueRequest>>>,
    connection: BenchConnection,
) {
    let mut connection = Some(connection);
    loop {
        let next = queue.lock().await.recv().await;
        let Some(due) = next else { return };
        if shared.stop.load(Ordering::Relaxed) {
            shared.lock_counts().outcome.abandoned += 1;
            continue;
        }
        let in_flight = shared.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        let sent = timeout(shared.timeout, shared.send(due, &mut connection, in_flight)).await;
        shared.in_flight.fetch_sub(1, Ordering::Relaxed);
        if sent.is_err() {
            connection = None;
            shared.lock_counts().outcome.record_failure("timeout".to_owned());
        }
    }
}

impl BenchShared {
    fn lock_counts(&self) -> MutexGuard<'_, BenchCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one request and records its response.
    async fn send(&self, due: DueRequest, connection: &mut Option<BenchConnection>, in_flight: usize) {
        let key = self.template.key_for(due.number);
        if let Some(open) = connection
            && !open.is_ready().await
        {
            *connection = None;
        }
        if connection.is_none() {
            match BenchConnection::open(&self.target).await {
                Ok(open) => *connection = Some(open),
                Err(error) => return self.record_connect_failure(due, error),
            }
        }
        let Some(open) = connection.as_mut() else { return };
        let request = self.template.request(&self.target, key);
        let admission = self.record_sent(due, key, &request, open.local_ip, in_flight);
        let sent_at = self.clock.now();
        let response = open.send(request).await;
        let now = self.clock.now();
        let mut counts = self.lock_counts();
        let settle = |counts: &mut BenchCounts, status: u16, headers: Option<&HeaderMap>| {
            if let (Some(policy), Some(admission)) = (&mut counts.policy, admission) {
                policy.settle(*admission, &BenchResponse { status, headers }, now);
            }
        };
        match response {
            Ok((head, body)) => {
                settle(&mut counts, head.status().as_u16(), Some(head.headers()));
                counts.outcome.latency.record(now.saturating_sub(due.due_at));
                counts.outcome.service.record(now.saturating_sub(sent_at));
                self.record_response(&mut counts, key, &head, &body);
                if !open.is_reusable(&head) {
                    *connection = None;
                }
            }
            Err(error) => {
                settle(&mut counts, 0, None);
                counts.outcome.record_failure(error);
                *connection = None;
            }
        }
    }

    /// Records a request that is sent now. Returns the expected admission, to be settled with the response.
    fn record_sent(
        &self,
        due: DueRequest,
        key: u32,
        request: &Request<Full<Bytes>>,
        client: IpAddr,
        in_flight: usize,
    ) -> Option<Box<tidegate_policy::compile::PolicyAdmission>> {
        self.started.fetch_add(1, Ordering::Relaxed);
        let mut counts = self.lock_counts();
        // Read the time under the lock, so that the clock of the policy never goes back.
        let now = self.clock.now();
        let BenchCounts { outcome, policy, expected } = &mut *counts;
        outcome.record_sent(now.saturating_sub(due.due_at));
        outcome.max_in_flight = outcome.max_in_flight.max(in_flight);
        let ExpectedDecision { denied_by, admission } =
            policy.as_mut()?.evaluate(&SentRequest { target: &self.target, request, client }, now);
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

    fn record_response(&self, counts: &mut BenchCounts, key: u32, head: &Response<()>, body: &[u8]) {
        let status = head.status().as_u16();
        *counts.outcome.statuses.entry(status).or_default() += 1;
        if self.denied_statuses.contains(&status) || head.headers().contains_key("tidegate-denial") {
            counts.outcome.record_denial(denied_rule(body));
            return;
        }
        counts.outcome.admitted += 1;
        counts.expected.keys.get_mut(key as usize).into_iter().for_each(|(admitted, _)| *admitted += 1);
    }

    /// Records a request that failed to connect.
    fn record_connect_failure(&self, due: DueRequest, reason: String) {
        let mut counts = self.lock_counts();
        counts.outcome.record_sent(self.clock.now().saturating_sub(due.due_at));
        counts.outcome.record_failure(reason);
    }
}

/// Returns the first rule in a problem document.
fn denied_rule(body: &[u8]) -> Option<String> {
    if body.len() > MAX_DENIAL_SIZE {
        return None;
    }
    let problem: serde_json::Value = serde_json::from_slice(body).ok()?;
    problem["violated-policies"][0].as_str().map(str::to_owned)
}

fn unreachable_error(target: &BenchTarget, reason: &str) -> CliError {
    CliError::input(format!("cannot connect to {}: {reason}; start the server, or check the URL", target.url))
}
