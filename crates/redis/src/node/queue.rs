//! Requests that go out alone or together, and those that wait for a lane.

use super::{Answered, Caller, LANES, Lane, Node};
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

/// Requests in one call. The server does nothing else while it works on one.
const MOST_TOGETHER: usize = 128;
/// Refunds that wait for a server to be available again.
const MAX_WAITING_REFUNDS: usize = 4_096;

#[derive(Debug)]
pub(super) struct Queue {
    /// Lanes on which nothing is on its way.
    free: Vec<Lane>,
    waiting: Vec<Waiting>,
    /// To be sent when the server is available again: nobody waits for them.
    refunds: Vec<StoreRequest>,
}

#[derive(Debug)]
struct Waiting {
    request: StoreRequest,
    answer: oneshot::Sender<Answered>,
}

/// All lanes are free at first.
impl Default for Queue {
    fn default() -> Self {
        Self { free: LANES.rev().collect(), waiting: Vec::new(), refunds: Vec::new() }
    }
}

enum Entry {
    Alone(InFlight),
    Together(oneshot::Receiver<Answered>),
}

impl Node {
    /// Does what is asked, alone or together with others, by the deadline.
    pub(crate) async fn submit(self: &Arc<Self>, request: StoreRequest, caller: Caller) -> Answered {
        if !self.health.is_available()
            && let Err(error) = Box::pin(self.ready()).await
        {
            return match request {
                StoreRequest::Refund { .. } => self.refund_later(request),
                _ => Err(error.into()),
            };
        }
        let time = self.time_for(&request);
        let answer = match self.enter(request, caller) {
            Entry::Alone(mut call) => timeout(time, &mut call).await,
            Entry::Together(answer) => {
                timeout(time, answer).await.map(|answer| answer.unwrap_or_else(|_| lost()))
            }
        };
        answer.unwrap_or(Err(StoreError::Timeout.into()))
    }

    /// How long a request may take: a decision has a caller who waits for it, the rest has to arrive.
    fn time_for(&self, request: &StoreRequest) -> Duration {
        match request {
            StoreRequest::Decide(asks) if asks.iter().all(|ask| ask.demand.overdraft != Overdraft::Force) => {
                self.deadline
            }
            StoreRequest::TakeUpTo(_) => self.deadline,
            _ => self.patience() * 2,
        }
    }

    fn enter(self: &Arc<Self>, request: StoreRequest, caller: Caller) -> Entry {
        let mut queue = self.queue();
        let lane = if queue.waiting.is_empty() { queue.free.pop() } else { None };
        if let (Some(lane), Caller::AtHome) = (lane, caller) {
            drop(queue);
            return Entry::Alone(InFlight::new(self.clone(), lane, request));
        }
        let (answer, receiver) = oneshot::channel();
        queue.waiting.push(Waiting { request, answer });
        drop(queue);
        if let Some(lane) = lane {
            // Who else asks before it begins goes along.
            let turn = Turn { node: self.clone(), lane, is_over: false };
            drop(tokio::spawn(Self::serve(turn, Vec::new())));
        }
        Entry::Together(receiver)
    }

    /// Those who go next, or the end of a turn. Whoever does not wait any more has its answer already: that it took
    /// too long. It is not charged on top of that.
    fn next(&self, lane: Lane) -> Option<Vec<Waiting>> {
        let mut queue = self.queue();
        queue.waiting.retain(|one| !one.answer.is_closed());
        if queue.waiting.is_empty() {
            queue.free.push(lane);
            return None;
        }
        if queue.waiting.len() <= MOST_TOGETHER {
            return Some(mem::take(&mut queue.waiting));
        }
        Some(queue.waiting.drain(..MOST_TOGETHER).collect())
    }

    /// Makes calls on a lane for as long as anybody waits: these first, if there are any.
    async fn serve(mut turn: Turn, first: Vec<Waiting>) {
        let node = turn.node.clone();
        let mut next = if first.is_empty() { node.next(turn.lane) } else { Some(first) };
        while let Some(waiting) = next {
            let (requests, answers): (Vec<_>, Vec<_>) =
                waiting.into_iter().map(|one| (one.request, one.answer)).unzip();
            let requests: Arc<[StoreRequest]> = requests.into();
            let sent = node.clock.now();
            let answered = node.call_by_patience(turn.lane, requests.clone()).await;
            for ((answer, one), request) in answers.into_iter().zip(answered).zip(requests.iter()) {
                // Nobody may be waiting for it any more.
                if let Err(late) = answer.send(one) {
                    node.give_back_late(request, late, sent);
                }
            }
            // Those who were answered may ask again: let them, so that they go together.
            tokio::task::yield_now().await;
            next = node.next(turn.lane);
        }
        turn.is_over = true;
    }

    /// Makes a call and records how it went. When the server counts as unavailable before it answers, its connection is
    /// left to this call alone: what the answer took is given back whenever it comes.
    async fn call_by_patience(self: &Arc<Self>, lane: Lane, requests: Arc<[StoreRequest]>) -> Vec<Answered> {
        let (count, sent, patience) = (requests.len(), self.clock.now(), self.patience());
        let (node, asked) = (self.clone(), requests.clone());
        let mut call = Box::pin(async move { node.call(lane, &asked, None).await });
        let answers = match timeout(patience, &mut call).await {
            Ok(answers) => answers,
            Err(_) => {
                self.disconnect();
                if let Ok(runtime) = Handle::try_current() {
                    let node = self.clone();
                    drop(runtime.spawn(async move {
                        let Ok(answers) = timeout(LATEST_ANSWER, call).await else { return };
                        for (request, late) in requests.iter().zip(answers) {
                            node.give_back_late(request, late, sent);
                        }
                    }));
                }
                vec![Err(StoreError::Unavailable(format!("no answer within {patience:?}")).into()); count]
            }
        };
        self.record_call(&answers, self.clock.now().since(sent).into());
        answers
    }

    /// Gives back what an answer took that came when nobody waited for it any more.
    fn give_back_late(self: &Arc<Self>, request: &StoreRequest, answer: Answered, sent: Micros) {
        let (Ok(reply), Ok(runtime)) = (answer, Handle::try_current()) else { return };
        let refunds = refunds(request, reply);
        if refunds.is_empty() {
            return;
        }
        let node = self.clone();
        drop(runtime.spawn(async move {
            let _ = timeout(LATEST_ANSWER, node.health.until_available()).await;
            for refund in refunds {
                let refund = node.with_time(refund, sent).await;
                // An answer that never comes leaves it charged: twice given back would be tokens out of nothing.
                let _ = node.submit(refund, Caller::AtHome).await;
            }
        }));
    }

    /// Gives a refund the earliest time at which it can have been charged, where the answer had none: what has drained
    /// since then is not given back.
    async fn with_time(self: &Arc<Self>, refund: StoreRequest, sent: Micros) -> StoreRequest {
        let StoreRequest::Refund { key_ref: place, mut charge, cost } = refund else { return refund };
        let is_untimed = |receipt: &tidegate_core::Receipt| receipt.cost > 0 && receipt.at == Micros::ZERO;
        if charge.receipts.iter().any(is_untimed)
            && let Ok(time) = self.send(&redis::cmd("TIME")).await
            && let Ok((seconds, micros)) = redis::from_redis_value::<(u64, u64)>(time)
        {
            let server = Micros::new(seconds * 1_000_000 + micros);
            let earliest = server.since(self.clock.now().since(sent));
            for receipt in charge.receipts.iter_mut().filter(|receipt| is_untimed(receipt)) {
                receipt.at = earliest;
            }
        }
        StoreRequest::Refund { key_ref: place, charge, cost }
    }

    /// Keeps a refund until the server is available again.
    fn refund_later(&self, refund: StoreRequest) -> Answered {
        let mut queue = self.queue();
        if queue.refunds.len() >= MAX_WAITING_REFUNDS {
            return Err(StoreError::Unavailable("too many refunds wait for it".to_owned()).into());
        }
        queue.refunds.push(refund);
        Ok(StoreReply::Done)
    }

    /// Sends the refunds that waited.
    pub(super) fn send_refunds(self: &Arc<Self>) {
        let refunds = mem::take(&mut self.queue().refunds);
        for refund in refunds {
            let node = self.clone();
            drop(tokio::spawn(async move { node.submit(refund, Caller::AtHome).await }));
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long an answer is waited for after the server counts as unavailable.
const LATEST_ANSWER: Duration = Duration::from_secs(300);

/// What undoes a request that was granted; nothing where it was denied, only looked, or settled a cost.
fn refunds(request: &StoreRequest, reply: StoreReply) -> Vec<StoreRequest> {
    let asks = match request {
        StoreRequest::Decide(asks) if asks.iter().all(|ask| ask.demand.overdraft != Overdraft::Force) => {
            &asks[..]
        }
        StoreRequest::TakeUpTo(ask) => std::slice::from_ref(ask),
        // The holder knows only the slot that it had before: it takes another.
        StoreRequest::Renew { key_ref: place, .. } => {
            let StoreReply::Renewed(Some(receipt)) = reply else { return Vec::new() };
            let is_slot = |index: usize| place.limit.quotas()[index].rate().is_none();
            let receipts = place
                .quota_indices()
                .map(|index| if is_slot(index) { receipt } else { <_>::default() })
                .collect();
            let charge = tidegate_limiter::store::StoreCharge { receipts, generation: 0 };
            return vec![StoreRequest::Refund { key_ref: place.clone(), charge, cost: receipt.cost }];
        }
        _ => return Vec::new(),
    };
    let StoreReply::Decided(answers) = reply else { return Vec::new() };
    if !answers.iter().flat_map(|answer| &answer.steps).all(|step| step.decision.is_granted()) {
        return Vec::new();
    }
    let charged = asks.iter().zip(answers).map(|(ask, answer)| (ask.key_ref.clone(), answer.charge()));
    let refunds = charged.map(|(place, charge)| {
        let cost = charge.receipts.iter().map(|receipt| receipt.cost).max().unwrap_or(0);
        StoreRequest::Refund { key_ref: place, charge, cost }
    });
    refunds.filter(|refund| matches!(refund, StoreRequest::Refund { cost: 1.., .. })).collect()
}

/// A lone call. When its caller leaves it goes on, and what its answer takes is given back.
struct InFlight {
    node: Arc<Node>,
    request: StoreRequest,
    sent: Micros,
    call: Option<Pin<Box<dyn Future<Output = Answered> + Send>>>,
}

impl InFlight {
    fn new(node: Arc<Node>, lane: Lane, request: StoreRequest) -> Self {
        let turn = Turn { node: node.clone(), lane, is_over: false };
        let (caller, requests) = (node.clone(), Arc::from([request.clone()]));
        let call = async move {
            let _turn = turn;
            caller.call_by_patience(lane, requests).await.pop().unwrap_or_else(lost)
        };
        Self { sent: node.clock.now(), node, request, call: Some(Box::pin(call)) }
    }
}

impl Future for InFlight {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answered> {
        let Some(call) = &mut self.call else { return Poll::Ready(lost()) };
        let answer = std::task::ready!(call.as_mut().poll(context));
        self.call = None;
        Poll::Ready(answer)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // Without a runtime nobody can wait for it: the lane is left to others.
        let (Some(call), Ok(runtime)) = (self.call.take(), Handle::try_current()) else { return };
        let (node, request, sent) = (self.node.clone(), self.request.clone(), self.sent);
        drop(runtime.spawn(async move {
            let late = call.await;
            node.give_back_late(&request, late, sent);
        }));
    }
}

/// A turn at the server: when it ends, also because its caller gave up, those who wait go.
struct Turn {
    node: Arc<Node>,
    lane: Lane,
    /// Nobody waited when it ended.
    is_over: bool,
}

impl Drop for Turn {
    fn drop(&mut self) {
        while !self.is_over {
            let Some(waiting) = self.node.next(self.lane) else { return };
            // Without a runtime nobody can serve them: they hear that the call was given up.
            if let Ok(runtime) = Handle::try_current() {
                let turn = Self { node: self.node.clone(), lane: self.lane, is_over: false };
                self.is_over = true;
                drop(runtime.spawn(Node::serve(turn, waiting)));
            }
        }
    }
}

fn lost() -> Answered {
    Err(StoreError::Unavailable("the call was given up".to_owned()).into())
}

/// The answer as it was asked for: receipts only where the caller wants them.
pub(crate) fn as_asked(request: &StoreRequest, answer: Answered) -> Answered {
    let StoreRequest::Decide(asks) = request else { return answer };
    let mut answer = answer;
    if let Ok(StoreReply::Decided(answers)) = &mut answer {
        for (_, answer) in asks.iter().zip(answers).filter(|(ask, _)| !ask.receipt) {
            answer.generation = 0;
            answer.steps.iter_mut().for_each(|step| step.receipt = <_>::default());
        }
    }
    answer
}
