//! The admin API, the dashboard, and changes of the policy file. `docs/admin-api.md` documents the endpoints.
//!
//! ```
//! use tidegate_admin::{GatewayCommand, GatewayHandle, ReloadScope};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tidegate_admin::GatewayError> {
//! let (handle, mut commands) = GatewayHandle::new();
//! let gateway = async {
//!     if let Some(GatewayCommand::Reload(reply)) = commands.recv().await {
//!         let _ = reply.send(Ok(ReloadScope::Rules));
//!     }
//! };
//! let (reloaded, ()) = tokio::join!(handle.reload(), gateway);
//! assert_eq!(reloaded?, ReloadScope::Rules);
//! # Ok(())
//! # }
//! ```
//!
//! | noun | is |
//! |---|---|
//! | [`AdminServer`] | the listener of the admin API and the dashboard |
//! | [`GatewayHandle`] | sends commands to a running gateway |
//! | [`PolicyFile`] | changes values of rules in the policy file, with a history |
//! | [`RuleChange`] | one change of a value of a rule |
//! | [`KeyOverrides`] | quotas of single keys that operators set, in a file or a store |
//! | [`FeatureChange`] | one change of the override of a feature |
//!
//! | file | endpoints |
//! |---|---|
//! | `read` | `/health`, `/metrics`, `/api/v1/status`, `series`, `top`, `denials`, `policy`, `history` |
//! | `live` | `/api/v1/live` |
//! | `simulate` | `/api/v1/simulate` |
//! | `bans` | `/api/v1/bans` |
//! | `override_routes` | `/api/v1/overrides` |
//! | `features` | `/api/v1/features` |
//! | `change` | `/reload`, `/api/v1/reset` |
//! | `preview` | `/api/v1/rules/NAME/preview` |
//! | `rules` | `/api/v1/rules/NAME/mode` and `settings`, `/api/v1/rollback`, `/api/v1/changes` |
//!
//! With an operator token, all endpoints but `/health`, `/metrics` and the dashboard's files require it. `access` checks
//! host, origin, token and role.
//!
//! It does not decide about requests, and of the policy it changes only modes and numbers of rules. Overrides are not part of
//! the policy.

mod access;
mod bans;
mod change;
mod dashboard;
mod error;
mod events;
mod features;
mod handle;
mod live;
mod override_routes;
mod overrides;
mod policy_file;
mod preview;
mod read;
mod routes;
mod rules;
mod simulate;

pub use error::GatewayError;
pub use handle::{
    FeatureChange, FeatureError, GatewayCommand, GatewayHandle, PolicyChange, PolicyFileEdit, ReloadScope,
};
pub use overrides::{KeyOverrides, OpenedOverrides};
pub use policy_file::{
    ChangeResult, ExpectedValue, PolicyFile, PolicyFileError, RuleChange, RuleSetting, replace_file,
    settings_json,
};

use access::AdminAccess;
use hyper_util::service::TowerToHyperService;
use std::{
    net::SocketAddr,
    num::NonZeroUsize,
    sync::{Arc, Mutex},
    time::Duration,
};
use tidegate_http_server::{HttpServer, Operators, StartupError, ThreadedListener};
use tidegate_observe::Observer;
use tidegate_policy::model::{AdminSpec as Declared, Connections, ListenerSpec};
use tidegate_service::decisions::AppState;
use tokio::sync::watch;

/// The listener of the admin API and the dashboard, served by one thread.
pub struct AdminServer {
    listener: ThreadedListener,
    access: Arc<AdminAccess>,
    /// Event streams end when this is dropped.
    shutdown: Option<watch::Sender<()>>,
}

/// The state of the request handlers.
#[derive(Clone)]
struct AdminState {
    gateway: GatewayHandle,
    observer: Arc<Observer>,
    overrides: Arc<KeyOverrides>,
    decision_state: Arc<AppState>,
    access: Arc<AdminAccess>,
    /// Locked while a preview runs.
    running_preview: Arc<Mutex<()>>,
    /// Closes with the listener.
    shutdown: watch::Receiver<()>,
}

impl AdminServer {
    /// Binds the declared address, if there is one; reuses the socket of `existing` if the address is the same.
    pub fn bind(declared: &Declared, existing: Option<&Self>) -> Result<Option<Self>, StartupError> {
        let Some(address) = declared.listen else { return Ok(None) };
        let listener = ListenerSpec { name: None, address, tls: None };
        let listener = ThreadedListener::bind(&listener, existing.map(|existing| &existing.listener))?;
        let operators = Operators::from_env(declared, Some(listener.address().ip()))?;
        let access = Arc::new(AdminAccess::new(operators, declared.hosts.clone()));
        Ok(Some(Self { listener, access, shutdown: None }))
    }

    /// The address that it is bound to.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Starts serving.
    pub fn start(
        &mut self,
        gateway: GatewayHandle,
        observer: &Arc<Observer>,
        overrides: &Arc<KeyOverrides>,
        decision_state: &Arc<AppState>,
    ) -> Result<(), StartupError> {
        observer.set_change_access(self.access.change_access());
        let (sender, open) = watch::channel(());
        let (observer, decision_state) = (observer.clone(), decision_state.clone());
        let (access, overrides) = (self.access.clone(), overrides.clone());
        let router = routes::router(AdminState {
            gateway,
            observer,
            overrides,
            decision_state,
            access,
            running_preview: Arc::default(),
            shutdown: open,
        });
        let server = HttpServer::new(TowerToHyperService::new(router), &connection_settings());
        self.listener.start(&server, "admin", NonZeroUsize::MIN)?;
        self.shutdown = Some(sender);
        Ok(())
    }

    /// Closes the listener, ends event streams, and returns when the requests in flight have ended.
    pub async fn shutdown(self) {
        drop(self.shutdown);
        self.listener.shutdown().await;
    }
}

/// A low limit: admin connections must not use up the file descriptors of the gateway's clients.
fn connection_settings() -> Connections {
    Connections { max: 256, idle_timeout: Duration::from_secs(15), ..Connections::default() }
}
