//! Upstreams: groups of equivalent servers, with load balancing and connection pools.

mod balancer;
mod config;
mod connection;
mod echo;
mod health;
mod http2;
mod response_deadline;
mod server;

pub(crate) use config::{UpstreamConfig, UpstreamServerConfig};
pub(crate) use connection::{PendingResponse, UpstreamConnection, UpstreamRequest, UpstreamSendError};
pub(crate) use health::{ServerHealth, run_health_checks};
pub(crate) use http2::Http2Permit;
pub(crate) use response_deadline::ResponseDeadline;
pub(crate) use server::{Http2Response, InFlightGuard, UpstreamEndpoint, is_idempotent};

use crate::deadline::Deadlines;
use balancer::Balancer;
use std::{net::IpAddr, rc::Rc, time::Duration};
use tidegate_overload::RetryBudget;
use tidegate_policy::model::HealthCheck;

/// An upstream in one worker.
pub(crate) struct Upstream {
    servers: Vec<Rc<UpstreamEndpoint>>,
    balancer: Balancer,
    max_retries: u64,
    retry_budget: RetryBudget,
    health_check: Option<HealthCheck>,
}

/// The timeouts of an upstream. Those that are set per request are in milliseconds.
#[derive(Clone, Copy)]
pub(crate) struct UpstreamTimeouts {
    pub(crate) connect: Duration,
    pub(crate) response: u64,
    pub(crate) idle: u64,
}

impl Upstream {
    pub(crate) fn new(config: &UpstreamConfig, deadlines: &Rc<Deadlines>) -> Rc<Self> {
        Rc::new(Self {
            servers: config
                .servers
                .iter()
                .map(|server| UpstreamEndpoint::new(server, config, deadlines))
                .collect(),
            balancer: Balancer::new(config.balance, config.servers.len()),
            max_retries: config.retries.max,
            retry_budget: RetryBudget::new(config.retries.budget),
            health_check: config.health_check.clone(),
        })
    }

    /// The next server, with its index.
    #[inline]
    pub(crate) fn next_server(
        &self,
        tried: &[usize],
        client: IpAddr,
    ) -> Option<(usize, &Rc<UpstreamEndpoint>)> {
        let index = self.balancer.next(&self.servers, tried, client)?;
        Some((index, &self.servers[index]))
    }

    /// The host for a request without one.
    pub(crate) fn host(&self) -> Option<&str> {
        self.servers.first().map(|server| server.authority().as_str())
    }

    /// Adds the share of one request to the retry budget.
    #[inline]
    pub(crate) fn add_retry_budget(&self) {
        self.retry_budget.add_call();
    }

    /// Whether a request with this number of retries may be retried; takes the retry from the budget.
    pub(crate) fn take_retry(&self, retries: usize) -> bool {
        (retries as u64) < self.max_retries && self.retry_budget.try_take()
    }

    /// The servers, each with its health check.
    pub(crate) fn health_checks(&self) -> impl Iterator<Item = (Rc<UpstreamEndpoint>, HealthCheck)> {
        self.health_check
            .iter()
            .flat_map(|check| self.servers.iter().map(|server| (server.clone(), check.clone())))
    }

    /// Closes connections that have been idle for too long.
    pub(crate) fn close_idle(&self) {
        self.servers.iter().for_each(|server| server.close_idle());
    }
}
