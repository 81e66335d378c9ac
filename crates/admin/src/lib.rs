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
//! Where there is a token of operators, all but `/health` and `/metrics` need it. Who may ask at all is up to `access`.

mod access;
mod amend;
mod bans;
mod change;
mod dashboard;
mod error;
mod handle;
mod live;
mod modes;
mod read;
mod routes;
mod simulate;

pub use amend::{AmendError, Amended, Change, PolicyFile};
pub use error::GatewayError;
pub use handle::{Amendment, Call, Handle, Reloaded};

use access::AdminAccess;
use hyper_util::service::TowerToHyperService;
use std::{net::SocketAddr, num::NonZeroUsize, sync::Arc, time::Duration};
use tidegate_http_server::{Fault, HttpServer, Operators, Secret, ThreadedListener};
use tidegate_observe::Observer;
use tidegate_policy::model::{AdminSpec as Declared, Connections, ListenerSpec};
use tidegate_service::decisions::AppState;
use tokio::sync::watch;

/// The listener of the admin API and the dashboard, served by one thread.
pub struct Admin {
    listener: ThreadedListener,
    access: Arc<AdminAccess>,
    /// Event streams end when this is dropped.
    open: Option<watch::Sender<()>>,
}

/// All that operators may look at and ask for.
#[derive(Clone)]
struct Office {
    gateway: Handle,
    observer: Arc<Observer>,
    desk: Arc<AppState>,
    access: Arc<AdminAccess>,
    /// Ends with the listener.
    open: watch::Receiver<()>,
}

impl Admin {
    /// Binds the declared address, if there is one; reuses the socket of `existing` if the address is the same.
    pub fn bind(declared: &Declared, existing: Option<&Self>) -> Result<Option<Self>, Fault> {
        let Some(address) = declared.listen else { return Ok(None) };
        let listener = ListenerSpec { name: None, address, tls: None };
        let listener = ThreadedListener::bind(&listener, existing.map(|existing| &existing.listener))?;
        let secret = declared.token.as_ref().map(Secret::read).transpose()?;
        let operators = Operators::new(secret, Some(listener.address().ip()));
        let access = Arc::new(AdminAccess::new(operators, declared.hosts.clone()));
        Ok(Some(Self { listener, access, open: None }))
    }

    /// The address that it is bound to.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Starts serving.
    pub fn start(
        &mut self,
        gateway: Handle,
        observer: &Arc<Observer>,
        desk: &Arc<AppState>,
    ) -> Result<(), Fault> {
        observer.takes_changes(self.access.changes());
        let (sender, open) = watch::channel(());
        let (observer, desk, access) = (observer.clone(), desk.clone(), self.access.clone());
        let router = routes::router(Office { gateway, observer, desk, access, open });
        let server = HttpServer::new(TowerToHyperService::new(router), &connections());
        self.listener.start(&server, "admin", NonZeroUsize::MIN)?;
        self.open = Some(sender);
        Ok(())
    }

    /// Closes the listener, ends event streams, and returns when the requests in flight have ended.
    pub async fn end(self) {
        drop(self.open);
        self.listener.end().await;
    }
}

/// Operators are few. Whoever holds connections here must not take those of the gateway's clients.
fn connections() -> Connections {
    Connections { max: 256, idle_timeout: Duration::from_secs(15), ..Connections::default() }
}
