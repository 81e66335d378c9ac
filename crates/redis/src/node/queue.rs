//! Requests that go out alone or together, and those that wait for a lane.

use super::{Answered, Caller, LANES, Lane, Node, Problem};
use crate::health::Mood;
use std::{
    mem,
    sync::{Arc, MutexGuard, PoisonError},
};
use tidegate_engine::{StoreError, store::Request};
use tokio::{runtime::Handle, sync::oneshot, time::timeout};

/// Requests in one call. The server does nothing else while it works on one.
const MOST_TOGETHER: usize = 128;

#[derive(Debug)]
pub(super) struct Queue {
    /// Lanes on which nothing is on its way.
    free: Vec<Lane>,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    request: Request,
    answer: oneshot::Sender<Answered>,
}

/// All lanes are free at first.
impl Default for Queue {
    fn default() -> Self {
        Self { free: LANES.rev().collect(), waiting: Vec::new() }
    }
}

enum Entry {
    Alone(Request, Lane),
    Together(oneshot::Receiver<Answered>),
}

impl Node {
    /// Does what is asked, alone or together with others, by the deadline.
    pub(crate) async fn submit(self: &Arc<Self>, request: Request, caller: Caller) -> Answered {
        if let Mood::Down(why) = self.health.mood() {
            return Err(StoreError::Away(why).into());
        }
        let answer = match self.enter(request, caller) {
            Entry::Alone(request, lane) => {
                let _turn = Turn { node: self.clone(), lane, is_over: false };
                let call = async { self.call(lane, std::slice::from_ref(&request), None).await };
                let answers = timeout(self.deadline, call).await;
                self.note_lane(lane, answers.is_ok());
                answers.map(|mut answers| answers.pop().unwrap_or_else(lost))
            }
            Entry::Together(answer) => {
                timeout(self.deadline, answer).await.map(|answer| answer.unwrap_or_else(|_| lost()))
            }
        };
        let answer = answer.unwrap_or(Err(StoreError::Late.into()));
        self.take_note(match &answer {
            Err(Problem::Store(error)) => Some(error),
            Ok(_) | Err(_) => None,
        });
        answer
    }

    fn enter(self: &Arc<Self>, request: Request, caller: Caller) -> Entry {
        let mut queue = self.queue();
        let lane = if queue.waiting.is_empty() { queue.free.pop() } else { None };
        if let (Some(lane), Caller::AtHome) = (lane, caller) {
            return Entry::Alone(request, lane);
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
            let answered = node.call_in_time(turn.lane, &requests, None).await;
            // Those who asked may not be there any more to take note.
            if let Some(Err(Problem::Store(error @ StoreError::Away(_)))) = answered.first() {
                node.take_note(Some(error));
            }
            for (answer, one) in answers.into_iter().zip(answered) {
                // Nobody may be waiting for it any more.
                let _ = answer.send(one);
            }
            // Those who were answered may ask again: let them, so that they go together.
            tokio::task::yield_now().await;
            next = node.next(turn.lane);
        }
        turn.is_over = true;
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
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
    Err(StoreError::Away("the call was given up".to_owned()).into())
}
