//! The listener of the decision API, which has its own threads.

use super::{routes, state::AppState};
use hyper::{body::Incoming, service::service_fn};
use std::{convert::Infallible, sync::Arc};
use tidegate_http_server::{HttpServer, StartupError, ThreadedListener};
use tidegate_policy::model::{Connections, DecisionListener, ListenerSpec};

/// Binds the declared address; reuses the socket of `existing` if the address is the same.
pub fn bind(
    config: &DecisionListener,
    existing: Option<&ThreadedListener>,
) -> Result<ThreadedListener, StartupError> {
    let listener = ListenerSpec { name: None, address: config.listen, tls: config.tls.clone() };
    ThreadedListener::bind(&listener, existing)
}

/// Returns the HTTP server of the decision API.
pub fn server(state: &Arc<AppState>, connections: &Connections) -> HttpServer {
    let state = state.clone();
    let service = service_fn(move |request: http::Request<Incoming>| {
        let state = state.clone();
        async move { Ok::<_, Infallible>(routes::serve(&state, request).await) }
    });
    HttpServer::new(service, connections)
}
