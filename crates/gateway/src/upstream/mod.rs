//! Upstreams: servers that can do the same, and connections to them that are kept.

mod balance;
mod health;
mod line;
mod pace;
mod plan;
mod server;

pub(crate) use health::{Health, check};
pub(crate) use line::{Ask, Line, Unsent};
pub(crate) use pace::Pace;
pub(crate) use plan::{Plan, ServerPlan};
pub(crate) use server::{Server, Visit};

use crate::{proxy::RequestBody, watch::Watch};
use balance::Turns;
use std::{cell::Cell, net::IpAddr, rc::Rc, time::Duration};
use tidegate_policy::model::HealthCheck;

/// An upstream, in one worker.
pub(crate) struct Upstream {
    servers: Vec<Rc<Server>>,
    turns: Turns,
    most_retries: u64,
    /// What a request adds to the budget of retries, and what there is.
    share: f64,
    budget: Cell<f64>,
    check: Option<HealthCheck>,
}

/// How long each phase may take; in milliseconds where a deadline is set for each request.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) connect: Duration,
    pub(crate) response: u64,
    pub(crate) idle: u64,
}

/// Retries that may be saved up.
const SAVINGS: f64 = 10.0;

impl Upstream {
    pub(crate) fn new(plan: &Plan, watch: &Rc<Watch>) -> Rc<Self> {
        Rc::new(Self {
            servers: plan.servers.iter().map(|server| Server::new(server, plan, watch)).collect(),
            turns: Turns::new(plan.balance, plan.servers.len()),
            most_retries: plan.retries.max,
            share: plan.retries.budget.as_f64(),
            budget: Cell::new(SAVINGS),
            check: plan.check.clone(),
        })
    }

    /// The place of the server to ask next, and the server.
    #[inline]
    pub(crate) fn next(&self, tried: &[usize], client: IpAddr) -> Option<(usize, &Rc<Server>)> {
        let place = self.turns.next(&self.servers, tried, client)?;
        Some((place, &self.servers[place]))
    }

    /// A request comes, and pays into the budget.
    #[inline]
    pub(crate) fn asked(&self) {
        self.budget.set((self.budget.get() + self.share).min(SAVINGS));
    }

    /// Whether a request that was sent so often may be sent once more; the budget pays.
    pub(crate) fn may_retry(&self, retries: usize) -> bool {
        let (retries, budget) = (retries as u64, self.budget.get());
        let may = retries < self.most_retries && budget >= 1.0;
        if may {
            self.budget.set(budget - 1.0);
        }
        may
    }

    /// Its servers, and how each is checked.
    pub(crate) fn checks(&self) -> impl Iterator<Item = (Rc<Server>, HealthCheck)> {
        self.check.iter().flat_map(|check| self.servers.iter().map(|server| (server.clone(), check.clone())))
    }

    /// Closes connections that nobody has used for long.
    pub(crate) fn sweep(&self) {
        self.servers.iter().for_each(|server| server.sweep());
    }
}
