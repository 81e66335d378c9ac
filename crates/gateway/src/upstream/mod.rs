//! Upstreams: servers that can do the same, and connections to them that are kept.

mod balancer;
mod config;
mod connection;
mod health;
mod response_deadline;
mod server;

pub(crate) use config::{UpstreamConfig, UpstreamServerConfig};
pub(crate) use connection::{PendingResponse, UpstreamConnection, UpstreamSendError};
pub(crate) use health::{ServerHealth, run_health_checks};
pub(crate) use response_deadline::ResponseDeadline;
pub(crate) use server::{InFlightGuard, UpstreamEndpoint};

use crate::{deadline::Deadlines, proxy::RequestBody};
use balancer::Balancer;
use std::{cell::Cell, net::IpAddr, rc::Rc, time::Duration};
use tidegate_policy::model::HealthCheck;

/// An upstream, in one worker.
pub(crate) struct Upstream {
    servers: Vec<Rc<UpstreamEndpoint>>,
    balancer: Balancer,
    max_retries: u64,
    /// What a request adds to the budget of retries, and what there is.
    retry_ratio: f64,
    retry_budget: Cell<f64>,
    health_check: Option<HealthCheck>,
}

/// How long each phase may take; in milliseconds where a deadline is set for each request.
#[derive(Clone, Copy)]
pub(crate) struct UpstreamTimeouts {
    pub(crate) connect: Duration,
    pub(crate) response: u64,
    pub(crate) idle: u64,
}

/// Retries that may be saved up.
const MAX_RETRY_BUDGET: f64 = 10.0;

impl Upstream {
    pub(crate) fn new(plan: &UpstreamConfig, watch: &Rc<Deadlines>) -> Rc<Self> {
        Rc::new(Self {
            servers: plan.servers.iter().map(|server| UpstreamEndpoint::new(server, plan, watch)).collect(),
            balancer: Balancer::new(plan.balance, plan.servers.len()),
            max_retries: plan.retries.max,
            retry_ratio: plan.retries.budget.as_f64(),
            retry_budget: Cell::new(MAX_RETRY_BUDGET),
            health_check: plan.health_check.clone(),
        })
    }

    /// The place of the server to ask next, and the server.
    #[inline]
    pub(crate) fn next_server(
        &self,
        tried: &[usize],
        client: IpAddr,
    ) -> Option<(usize, &Rc<UpstreamEndpoint>)> {
        let place = self.balancer.next(&self.servers, tried, client)?;
        Some((place, &self.servers[place]))
    }

    /// A request comes, and pays into the budget.
    #[inline]
    pub(crate) fn add_retry_budget(&self) {
        self.retry_budget.set((self.retry_budget.get() + self.retry_ratio).min(MAX_RETRY_BUDGET));
    }

    /// Whether a request that was sent so often may be sent once more; the budget pays.
    pub(crate) fn take_retry(&self, retries: usize) -> bool {
        let (retries, budget) = (retries as u64, self.retry_budget.get());
        let may = retries < self.max_retries && budget >= 1.0;
        if may {
            self.retry_budget.set(budget - 1.0);
        }
        may
    }

    /// Its servers, and how each is checked.
    pub(crate) fn health_checks(&self) -> impl Iterator<Item = (Rc<UpstreamEndpoint>, HealthCheck)> {
        self.health_check
            .iter()
            .flat_map(|check| self.servers.iter().map(|server| (server.clone(), check.clone())))
    }

    /// Closes connections that nobody has used for long.
    pub(crate) fn close_idle(&self) {
        self.servers.iter().for_each(|server| server.close_idle());
    }
}
