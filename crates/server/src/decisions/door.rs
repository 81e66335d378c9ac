//! The listener of programs that ask, with threads of its own.

use super::{desk::Desk, routes};
use crate::{
    Bound, Fault,
    hall::{Hall, Threads},
};
use hyper::{body::Incoming, service::service_fn};
use std::{convert::Infallible, net::SocketAddr, num::NonZeroUsize, sync::Arc};
use tidegate_policy::model::{Connections, Decisions, Listener};

/// The listener of programs that ask. Dropping it has its threads end when their requests have.
pub(crate) struct DecisionDoor {
    bound: Bound,
    serving: Option<Threads>,
}

impl DecisionDoor {
    pub(crate) fn bind(declared: &Decisions) -> Result<Self, Fault> {
        Ok(Self { bound: Bound::bind(&listener(declared))?, serving: None })
    }

    /// The same socket where the address stays, with what is declared now.
    pub(crate) fn again(&self, declared: &Decisions) -> Result<Self, Fault> {
        let listener = listener(declared);
        let bound = match self.bound.declared().address == listener.address {
            true => self.bound.again(&listener)?,
            false => Bound::bind(&listener)?,
        };
        Ok(Self { bound, serving: None })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.bound.address()
    }

    /// Serves from now on, by so many threads.
    pub(crate) fn start(
        &mut self,
        desk: &Arc<Desk>,
        threads: NonZeroUsize,
        terms: &Connections,
    ) -> Result<(), Fault> {
        let desk = desk.clone();
        let service = service_fn(move |request: http::Request<Incoming>| {
            let desk = desk.clone();
            async move { Ok::<_, Infallible>(routes::serve(&desk, request).await) }
        });
        let hall = Hall::new(service, terms);
        self.serving = Some(Threads::start(&self.bound, &hall, "decisions", threads)?);
        Ok(())
    }

    /// Others listen now: takes no more connections, and has those answered who came here.
    pub(crate) fn leave(self) -> Option<Threads> {
        self.serving.inspect(Threads::leave)
    }

    /// Takes no more connections, and returns when requests in flight have ended.
    pub(crate) async fn end(self) {
        let Self { bound, serving } = self;
        drop(bound);
        if let Some(serving) = serving {
            serving.end().await;
        }
    }
}

fn listener(declared: &Decisions) -> Listener {
    Listener { name: None, address: declared.listen, tls: declared.tls.clone() }
}
