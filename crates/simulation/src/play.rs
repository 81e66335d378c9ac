//! One event after the other.

use crate::{
    backend::{Ending, Floor, Served},
    guard::{Guard, Pass, Side},
    scene::Scene,
    story::Story,
};
use fastrand::Rng;
use std::{cmp::Reverse, collections::BinaryHeap};
use tidegate_core::Micros;
use tidegate_overload::Report;

/// Lets a scene happen.
pub(crate) fn play(scene: &Scene, guard: impl Guard) -> Story {
    let mut play = Play {
        scene,
        guard,
        rng: Rng::with_seed(scene.seed),
        floor: Floor::default(),
        events: BinaryHeap::new(),
        counted: 0,
        calls: Vec::new(),
        story: Story::new(scene),
    };
    play.schedule(Micros::ZERO, Event::Request);
    while let Some(Reverse((now, _, event))) = play.events.pop() {
        if now >= scene.length {
            break;
        }
        play.happen(now, event);
    }
    play.story
}

struct Play<'a, G> {
    scene: &'a Scene,
    guard: G,
    rng: Rng,
    floor: Floor,
    /// By time; those of one moment in the order in which they were scheduled.
    events: BinaryHeap<Reverse<(Micros, u64, Event)>>,
    counted: u64,
    calls: Vec<Attempt>,
    story: Story,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// Somebody comes for the first time.
    Request,
    /// Somebody tries; so often before.
    Attempt(u32),
    /// The backend is done with an attempt.
    Done(usize, Ending),
    /// The client stops to wait for an attempt.
    GiveUp(usize),
}

/// An attempt that was let through.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    pass: Pass,
    tries: u32,
    /// Whether the client still waits.
    is_awaited: bool,
}

impl<G: Guard> Play<'_, G> {
    fn happen(&mut self, now: Micros, event: Event) {
        match event {
            Event::Request => {
                // Poisson: the time to the next is exponential.
                let gap = -self.scene.gap_at(now) * (1.0 - self.rng.f64()).ln();
                self.schedule(now.plus(Micros::new(gap as u64)), Event::Request);
                self.count(now, |bin| bin.requests += 1);
                self.attempt(now, 0);
            }
            Event::Attempt(tries) => self.attempt(now, tries),
            Event::Done(call, ending) => self.done(now, call, ending),
            Event::GiveUp(call) => self.give_up(now, call),
        }
        if let (limit @ Some(_), Some(bin)) = (self.guard.limit(), self.story.at(now)) {
            bin.limit = limit;
        }
    }

    fn attempt(&mut self, now: Micros, tries: u32) {
        self.count(now, |bin| bin.attempts += 1);
        let roll = self.rng.f64();
        let Some(pass) = self.guard.admit(now, roll) else {
            self.count(now, |bin| bin.refused += 1);
            return self.retry(now, tries);
        };
        let call = self.calls.len();
        self.calls.push(Attempt { pass, tries, is_awaited: true });
        self.schedule(now.plus(self.scene.clients.patience), Event::GiveUp(call));
        let served = self.floor.arrive(call, self.scene.backend_at(now), &mut self.rng);
        self.serve(now, served);
    }

    fn done(&mut self, now: Micros, call: usize, ending: Ending) {
        let next = self.floor.leave(self.scene.backend_at(now), &mut self.rng);
        self.serve(now, next);
        let Attempt { pass, tries, is_awaited } = self.calls[call];
        self.calls[call].is_awaited = false;
        if self.guard.side() == Side::Server || is_awaited {
            let report = if ending == Ending::Answer { Report::Success } else { Report::Failure };
            self.guard.end(pass, now, report);
        }
        match ending {
            _ if !is_awaited => {}
            Ending::Answer => self.count(now, |bin| {
                bin.good += 1;
                bin.latency = bin.latency.plus(now.since(pass.start));
            }),
            Ending::Error => self.fail(now, tries),
        }
    }

    fn give_up(&mut self, now: Micros, call: usize) {
        let Attempt { pass, tries, is_awaited } = self.calls[call];
        if !is_awaited {
            return;
        }
        self.calls[call].is_awaited = false;
        if self.guard.side() == Side::Client {
            self.guard.end(pass, now, Report::Failure);
        }
        self.fail(now, tries);
    }

    fn fail(&mut self, now: Micros, tries: u32) {
        self.count(now, |bin| bin.bad += 1);
        self.retry(now, tries);
    }

    fn retry(&mut self, now: Micros, tries: u32) {
        let clients = self.scene.clients;
        if tries < clients.retries {
            let wait = clients.backoff.get() << tries.min(16);
            // Spread by a half, and never in the same moment.
            let wait = (wait as f64 * (0.75 + self.rng.f64() / 2.0)) as u64 + 1;
            self.schedule(now.plus(Micros::new(wait)), Event::Attempt(tries + 1));
        }
    }

    fn serve(&mut self, now: Micros, served: Option<Served>) {
        if let Some(Served { call, takes, ending }) = served {
            self.schedule(now.plus(takes), Event::Done(call, ending));
        }
    }

    fn schedule(&mut self, at: Micros, event: Event) {
        self.counted += 1;
        self.events.push(Reverse((at, self.counted, event)));
    }

    fn count(&mut self, now: Micros, count: impl FnOnce(&mut crate::story::Bin)) {
        if let Some(bin) = self.story.at(now) {
            count(bin);
        }
    }
}
