//! Upstreams: servers that can do the same, and connections to them that are kept.

mod line;
mod plan;
mod server;

pub(crate) use line::{Line, Unsent};
pub(crate) use plan::Plan;
pub(crate) use server::{Server, Visit};

use crate::watch::Watch;
use std::rc::Rc;

/// An upstream, in one worker.
pub(crate) struct Upstream {
    servers: Vec<Rc<Server>>,
    pub(crate) times: Times,
}

/// How long each phase may take, in milliseconds.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) connect: u64,
    pub(crate) response: u64,
    pub(crate) idle: u64,
}

impl Upstream {
    pub(crate) fn new(plan: &Plan, watch: &Rc<Watch>) -> Rc<Self> {
        Rc::new(Self {
            servers: plan.servers.iter().map(|server| Server::new(server, plan, watch)).collect(),
            times: plan.times,
        })
    }

    /// A server to ask next.
    pub(crate) fn pick(&self) -> Option<&Rc<Server>> {
        self.servers.first()
    }

    /// Closes connections that nobody has used for long.
    pub(crate) fn sweep(&self) {
        self.servers.iter().for_each(|server| server.sweep());
    }
}
