//! The request queue: sends requests alone or in batches, and refunds charges whose reply is late.

use super::{CONN_INDEXES, CallOrigin, ConnIndex, NodeResult, RedisNode};
use std::{
    mem,
    pin::Pin,
    sync::{Arc, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};
use tidegate_core::{Micros, Overdraft};
use tidegate_limiter::{
    StoreError,
    store::{StoreReply, StoreRequest},
};
use tokio::{runtime::Handle, sync::oneshot, time::timeout};

/// The maximum number of requests in one call. A script blocks the server while it runs.
const MAX_BATCH: usize = 128;
/// The maximum number of refunds deferred until the server is available again.
const MAX_PENDING_REFUNDS: usize = 4_096;

#[derive(Debug)]
pub(super) struct RequestQueue {
    /// Connections without a call in flight.
    idle_connections: Vec<ConnIndex>,
    pending: Vec<QueuedRequest>,
    /// Deferred until the server is available again; no caller waits for them.
    refunds: Vec<StoreRequest>,
}

#[derive(Debug)]
struct QueuedRequest {
    request: StoreRequest,
    answer: oneshot::Sender<NodeResult>,
}

/// All connections are idle at first.
impl Default for RequestQueue {
    fn default() -> Self {
        Self { idle_connections: CONN_INDEXES.rev().collect(), pending: Vec::new(), refunds: Vec::new() }
    }
}

enum Submission {
    Direct(InFlightCall),
    Queued(oneshot::Receiver<NodeResult>),
}

impl RedisNode {
    /// Executes a request within the deadline, alone or in a batch.
    pub(crate) async fn submit(self: &Arc<Self>, request: StoreRequest, caller: CallOrigin) -> NodeResult {
        if !self.health.is_available()
            && let Err(error) = Box::pin(self.ready()).await
        {
            return match request {
                StoreRequest::Refund { .. } => self.defer_refund(request),
                _ => Err(error.into()),
            };
        }
        let time = self.timeout_for(&request);
        let answer = match self.enqueue(request, caller) {
            Submission::Direct(mut call) => timeout(time, &mut call).await,
            Submission::Queued(answer) => {
                timeout(time, answer).await.map(|answer| answer.unwrap_or_else(|_| dropped_call_error()))
            }
        };
        answer.unwrap_or(Err(StoreError::Timeout.into()))
    }

    /// The time limit of a request. A caller waits for a decision; other requests must reach the server.
    fn timeout_for(&self, request: &StoreRequest) -> Duration {
        match request {
            StoreRequest::Decide(checks)
                if checks.iter().all(|check| check.demand.overdraft != Overdraft::Force) =>
            {
                self.deadline
            }
            StoreRequest::TakeUpTo(_) => self.deadline,
            _ => self.reply_timeout() * 2,
        }
    }

    fn enqueue(self: &Arc<Self>, request: StoreRequest, caller: CallOrigin) -> Submission {
        let mut queue = self.queue();
        let conn = if queue.pending.is_empty() { queue.idle_connections.pop() } else { None };
        if let (Some(conn), CallOrigin::SameRuntime) = (conn, caller) {
            drop(queue);
            return Submission::Direct(InFlightCall::new(self.clone(), conn, request));
        }
        let (answer, receiver) = oneshot::channel();
        queue.pending.push(QueuedRequest { request, answer });
        drop(queue);
        if let Some(conn) = conn {
            // Requests that are queued before the task starts join its first batch.
            let guard = RedisConnGuard { node: self.clone(), conn, is_released: false };
            drop(tokio::spawn(Self::run_batches(guard, Vec::new())));
        }
        Submission::Queued(receiver)
    }

    /// Takes the next batch; releases the connection if the queue is empty. Drops requests whose caller has timed out, so
    /// that they are not charged.
    fn next_batch(&self, conn: ConnIndex) -> Option<Vec<QueuedRequest>> {
        let mut queue = self.queue();
        queue.pending.retain(|one| !one.answer.is_closed());
        if queue.pending.is_empty() {
            queue.idle_connections.push(conn);
            return None;
        }
        if queue.pending.len() <= MAX_BATCH {
            return Some(mem::take(&mut queue.pending));
        }
        Some(queue.pending.drain(..MAX_BATCH).collect())
    }

    /// Makes calls on a connection until the queue is empty, starting with `first` unless it is empty.
    async fn run_batches(mut guard: RedisConnGuard, first: Vec<QueuedRequest>) {
        let node = guard.node.clone();
        let mut next = if first.is_empty() { node.next_batch(guard.conn) } else { Some(first) };
        while let Some(waiting) = next {
            let (requests, answers): (Vec<_>, Vec<_>) =
                waiting.into_iter().map(|one| (one.request, one.answer)).unzip();
            let requests: Arc<[StoreRequest]> = requests.into();
            let sent = node.clock.now();
            let answered = node.call_and_record(guard.conn, requests.clone()).await;
            for ((answer, one), request) in answers.into_iter().zip(answered).zip(requests.iter()) {
                // The caller has timed out or was dropped.
                if let Err(late) = answer.send(one) {
                    node.refund_late_reply(request, late, sent);
                }
            }
            // Lets callers with a reply queue their next request, so that it joins the next batch.
            tokio::task::yield_now().await;
            next = node.next_batch(guard.conn);
        }
        guard.is_released = true;
    }

    /// Makes a call and records its result. After the reply timeout the call keeps its connection, waits for the late
    /// reply in the background and refunds what it charged.
    async fn call_and_record(
        self: &Arc<Self>,
        conn: ConnIndex,
        requests: Arc<[StoreRequest]>,
    ) -> Vec<NodeResult> {
        let (count, sent, reply_timeout) = (requests.len(), self.clock.now(), self.reply_timeout());
        let (node, batch) = (self.clone(), requests.clone());
        let mut call = Box::pin(async move { node.call(conn, &batch, None).await });
        let answers = match timeout(reply_timeout, &mut call).await {
            Ok(answers) => answers,
            Err(_) => {
                self.disconnect();
                if let Ok(runtime) = Handle::try_current() {
                    let node = self.clone();
                    drop(runtime.spawn(async move {
                        let Ok(answers) = timeout(LATE_REPLY_TIMEOUT, call).await else { return };
                        for (request, late) in requests.iter().zip(answers) {
                            node.refund_late_reply(request, late, sent);
                        }
                    }));
                }
                vec![Err(StoreError::Unavailable(format!("no reply within {reply_timeout:?}")).into()); count]
            }
        };
        self.record_call(&answers, self.clock.now().saturating_sub(sent).into());
        answers
    }

    /// Refunds the charges of a reply whose caller no longer waits.
    fn refund_late_reply(self: &Arc<Self>, request: &StoreRequest, answer: NodeResult, sent: Micros) {
        let (Ok(reply), Ok(runtime)) = (answer, Handle::try_current()) else { return };
        let refunds = refunds_for(request, reply);
        if refunds.is_empty() {
            return;
        }
        let node = self.clone();
        drop(runtime.spawn(async move {
            let _ = timeout(LATE_REPLY_TIMEOUT, node.health.wait_until_available()).await;
            for refund in refunds {
                let refund = node.stamp_charge_time(refund, sent).await;
                // A refund without a reply is not repeated: refunding twice would add tokens.
                let _ = node.submit(refund, CallOrigin::SameRuntime).await;
            }
        }));
    }

    /// Sets the earliest possible charge time in receipts without one, so that tokens drained since are not refunded.
    async fn stamp_charge_time(self: &Arc<Self>, refund: StoreRequest, sent: Micros) -> StoreRequest {
        let StoreRequest::Refund { key_ref, mut charge, cost } = refund else { return refund };
        let is_untimed = |receipt: &tidegate_core::Receipt| receipt.cost > 0 && receipt.at == Micros::ZERO;
        if charge.receipts.iter().any(is_untimed)
            && let Ok(time) = self.send(&redis::cmd("TIME")).await
            && let Ok((seconds, micros)) = redis::from_redis_value::<(u64, u64)>(time)
        {
            let server = Micros::new(seconds * 1_000_000 + micros);
            let earliest = server.saturating_sub(self.clock.now().saturating_sub(sent));
            for receipt in charge.receipts.iter_mut().filter(|receipt| is_untimed(receipt)) {
                receipt.at = earliest;
            }
        }
        StoreRequest::Refund { key_ref, charge, cost }
    }

    /// Keeps a refund until the server is available again.
    fn defer_refund(&self, refund: StoreRequest) -> NodeResult {
        let mut queue = self.queue();
        if queue.refunds.len() >= MAX_PENDING_REFUNDS {
            return Err(StoreError::Unavailable("too many pending refunds".to_owned()).into());
        }
        queue.refunds.push(refund);
        Ok(StoreReply::Done)
    }

    /// Sends the deferred refunds.
    pub(super) fn send_refunds(self: &Arc<Self>) {
        let refunds = mem::take(&mut self.queue().refunds);
        for refund in refunds {
            let node = self.clone();
            drop(tokio::spawn(async move { node.submit(refund, CallOrigin::SameRuntime).await }));
        }
    }

    fn queue(&self) -> MutexGuard<'_, RequestQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a call waits for a late reply after the reply timeout.
const LATE_REPLY_TIMEOUT: Duration = Duration::from_secs(300);

/// The requests that undo a granted request; none for a denial, a probe or a forced charge.
fn refunds_for(request: &StoreRequest, reply: StoreReply) -> Vec<StoreRequest> {
    let checks = match request {
        StoreRequest::Decide(checks)
            if checks.iter().all(|check| check.demand.overdraft != Overdraft::Force) =>
        {
            &checks[..]
        }
        StoreRequest::TakeUpTo(check) => std::slice::from_ref(check),
        // The holder has only the receipt of its previous slot and acquires a new one.
        StoreRequest::Renew { key_ref, .. } => {
            let StoreReply::Renewed(Some(receipt)) = reply else { return Vec::new() };
            let is_slot = |index: usize| key_ref.limit.quotas()[index].is_concurrency();
            let receipts = key_ref
                .quota_indices()
                .map(|index| if is_slot(index) { receipt } else { <_>::default() })
                .collect();
            let charge = tidegate_limiter::store::StoreCharge { receipts, generation: 0 };
            return vec![StoreRequest::Refund { key_ref: key_ref.clone(), charge, cost: receipt.cost }];
        }
        _ => return Vec::new(),
    };
    let StoreReply::Decided(answers) = reply else { return Vec::new() };
    if !answers.iter().flat_map(|answer| &answer.results).all(|result| result.decision.is_granted()) {
        return Vec::new();
    }
    let charged = checks.iter().zip(answers).map(|(check, answer)| (check.key_ref.clone(), answer.charge()));
    let refunds = charged.map(|(key_ref, charge)| {
        let cost = charge.receipts.iter().map(|receipt| receipt.cost).max().unwrap_or(0);
        StoreRequest::Refund { key_ref, charge, cost }
    });
    refunds.filter(|refund| matches!(refund, StoreRequest::Refund { cost: 1.., .. })).collect()
}

/// A call with one request. If the caller drops it, it continues in the background and refunds its charge.
struct InFlightCall {
    node: Arc<RedisNode>,
    request: StoreRequest,
    sent_at: Micros,
    call: Option<Pin<Box<dyn Future<Output = NodeResult> + Send>>>,
}

impl InFlightCall {
    fn new(node: Arc<RedisNode>, conn: ConnIndex, request: StoreRequest) -> Self {
        let guard = RedisConnGuard { node: node.clone(), conn, is_released: false };
        let (caller, requests) = (node.clone(), Arc::from([request.clone()]));
        let call = async move {
            let _guard = guard;
            caller.call_and_record(conn, requests).await.pop().unwrap_or_else(dropped_call_error)
        };
        Self { sent_at: node.clock.now(), node, request, call: Some(Box::pin(call)) }
    }
}

impl Future for InFlightCall {
    type Output = NodeResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<NodeResult> {
        let Some(call) = &mut self.call else { return Poll::Ready(dropped_call_error()) };
        let answer = std::task::ready!(call.as_mut().poll(context));
        self.call = None;
        Poll::Ready(answer)
    }
}

impl Drop for InFlightCall {
    fn drop(&mut self) {
        // Without a runtime the call cannot continue; dropping it releases the connection.
        let (Some(call), Ok(runtime)) = (self.call.take(), Handle::try_current()) else { return };
        let (node, request, sent) = (self.node.clone(), self.request.clone(), self.sent_at);
        drop(runtime.spawn(async move {
            let late = call.await;
            node.refund_late_reply(&request, late, sent);
        }));
    }
}

/// Exclusive use of a connection. Dropping it, also when the caller gives up, sends the queued requests.
struct RedisConnGuard {
    node: Arc<RedisNode>,
    conn: ConnIndex,
    /// The connection is already idle, or another guard has it.
    is_released: bool,
}

impl Drop for RedisConnGuard {
    fn drop(&mut self) {
        while !self.is_released {
            let Some(waiting) = self.node.next_batch(self.conn) else { return };
            // Without a runtime the batch is dropped, and its callers get "call cancelled".
            if let Ok(runtime) = Handle::try_current() {
                let guard = Self { node: self.node.clone(), conn: self.conn, is_released: false };
                self.is_released = true;
                drop(runtime.spawn(RedisNode::run_batches(guard, waiting)));
            }
        }
    }
}

fn dropped_call_error() -> NodeResult {
    Err(StoreError::Unavailable("call cancelled".to_owned()).into())
}

/// Removes the receipts that the caller did not request.
pub(crate) fn strip_unrequested_receipts(request: &StoreRequest, answer: NodeResult) -> NodeResult {
    let StoreRequest::Decide(checks) = request else { return answer };
    let mut answer = answer;
    if let Ok(StoreReply::Decided(answers)) = &mut answer {
        for (_, answer) in checks.iter().zip(answers).filter(|(check, _)| !check.receipt) {
            answer.generation = 0;
            answer.results.iter_mut().for_each(|result| result.receipt = <_>::default());
        }
    }
    answer
}
