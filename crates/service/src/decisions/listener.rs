//! The listener of the decision API, with threads of its own.

use super::{desk::Desk, routes};
use hyper::{body::Incoming, service::service_fn};
use std::{convert::Infallible, sync::Arc};
use tidegate_http_server::{Fault, HttpServer, HttpService, ThreadedListener};
use tidegate_policy::model::{Connections, Decisions, ListenerSpec};

/// Binds the declared address; reuses the socket of `existing` if the address is the same.
pub fn bind(declared: &Decisions, existing: Option<&ThreadedListener>) -> Result<ThreadedListener, Fault> {
    let listener = ListenerSpec { name: None, address: declared.listen, tls: declared.tls.clone() };
    ThreadedListener::bind(&listener, existing)
}

/// The server of the decision API.
pub fn server(
    desk: &Arc<Desk>,
    connections: &Connections,
) -> HttpServer<impl HttpService<ResponseBody: Send> + use<>> {
    let desk = desk.clone();
    let service = service_fn(move |request: http::Request<Incoming>| {
        let desk = desk.clone();
        async move { Ok::<_, Infallible>(routes::serve(&desk, request).await) }
    });
    HttpServer::new(service, connections)
}
