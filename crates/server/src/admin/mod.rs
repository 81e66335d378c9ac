//! Where operators come in. What they find there is written down in `docs/admin-api.md`.
//!
//! | file | answers |
//! |---|---|
//! | `read` | `/health`, `/metrics`, `/api/v1/status`, `top`, `denials`, `policy`, `history` |
//! | `live` | `/api/v1/live` |
//! | `simulate` | `/api/v1/simulate` |
//! | `bans` | `/api/v1/bans` |
//! | `change` | `/reload`, `/api/v1/reset` |
//! | `modes` | `/api/v1/rules/NAME/mode`, `/api/v1/rollback`, `/api/v1/changes` |
//!
//! Where there is a token of operators, all but `/health` and `/metrics` need it. Who may ask at all is up to `callers`.

mod bans;
mod callers;
mod change;
mod live;
mod modes;
mod query;
mod read;
mod routes;
mod simulate;

use crate::{
    Bound, Fault, Handle,
    decisions::{Desk, Secret},
    hall::{Hall, Threads},
    observe::Observer,
};
use callers::Callers;
use hyper_util::service::TowerToHyperService;
use std::{net::SocketAddr, num::NonZeroUsize, sync::Arc, time::Duration};
use tidegate_policy::model::{Admin as Declared, Connections, Listener};
use tokio::sync::watch;

/// The listener of operators, with a thread of its own.
pub(crate) struct Admin {
    bound: Bound,
    callers: Arc<Callers>,
    serving: Option<Serving>,
}

struct Serving {
    threads: Threads,
    /// Streams end when this is gone.
    _open: watch::Sender<()>,
}

/// All that operators may look at and ask for.
#[derive(Clone)]
struct Office {
    gateway: Handle,
    observer: Arc<Observer>,
    desk: Arc<Desk>,
    callers: Arc<Callers>,
    /// Ends with the listener.
    open: watch::Receiver<()>,
}

impl Admin {
    /// Binds it, if it is declared.
    pub(crate) fn bind(declared: &Declared) -> Result<Option<Self>, Fault> {
        let Some(address) = declared.listen else { return Ok(None) };
        Self::with(Bound::bind(&Listener { name: None, address, tls: None })?, declared).map(Some)
    }

    /// The same socket where the address stays, with what is declared now.
    pub(crate) fn again(&self, declared: &Declared) -> Result<Option<Self>, Fault> {
        match declared.listen {
            Some(address) if address == self.bound.declared().address => {
                Self::with(self.bound.again(&Listener { name: None, address, tls: None })?, declared)
                    .map(Some)
            }
            _ => Self::bind(declared),
        }
    }

    fn with(bound: Bound, declared: &Declared) -> Result<Self, Fault> {
        let secret = declared.token.as_ref().map(Secret::read).transpose()?;
        let callers = Arc::new(Callers::new(secret, declared.hosts.clone(), bound.address()));
        Ok(Self { bound, callers, serving: None })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.bound.address()
    }

    /// Serves operators from now on.
    pub(crate) fn start(
        &mut self,
        gateway: Handle,
        observer: &Arc<Observer>,
        desk: &Arc<Desk>,
    ) -> Result<(), Fault> {
        observer.takes_changes(self.callers.changes());
        let (_open, open) = watch::channel(());
        let (observer, desk, callers) = (observer.clone(), desk.clone(), self.callers.clone());
        let router = routes::router(Office { gateway, observer, desk, callers, open });
        let hall = Hall::new(TowerToHyperService::new(router), &connections());
        let threads = Threads::start(&self.bound, &hall, "admin", NonZeroUsize::MIN)?;
        self.serving = Some(Serving { threads, _open });
        Ok(())
    }

    /// Takes no more connections, ends streams, and returns when requests in flight have ended.
    pub(crate) async fn end(self) {
        let Self { bound, serving, .. } = self;
        drop(bound);
        if let Some(Serving { threads, _open }) = serving {
            drop(_open);
            threads.end().await;
        }
    }
}

/// Operators are few. Whoever holds connections here must not take those of the gateway's clients.
fn connections() -> Connections {
    Connections { most: 256, idle_timeout: Duration::from_secs(15), ..Connections::default() }
}
