//! Where operators come in.
//!
//! | request | does |
//! |---|---|
//! | `GET /health` | says that the gateway runs |
//! | `POST /reload` | has the policy read again, and says what has changed, or all that is wrong with it |

use super::{GatewayError, Handle};
use crate::{
    Bound, Config, Fault, Judge, Judged, Origin, Outcome,
    answer::problem,
    run::{Plans, Workers},
};
use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header, request};
use std::{net::SocketAddr, num::NonZeroUsize, sync::Arc};
use tidegate_policy::{Policy, model::Listener};

/// The listener of operators, with a worker of its own.
pub(super) struct Admin {
    bound: Bound,
    workers: Option<Workers>,
}

impl Admin {
    pub(super) fn bind(address: SocketAddr) -> Result<Self, Fault> {
        Ok(Self { bound: Bound::bind(&Listener { address, tls: None })?, workers: None })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.bound.address()
    }

    /// Serves operators from now on.
    pub(super) async fn start(&mut self, gateway: Handle) -> Result<(), Fault> {
        let config = Config { workers: NonZeroUsize::MIN, ..Config::of(&Policy::default()) };
        let bound = std::slice::from_ref(&self.bound);
        self.workers =
            Some(Workers::start(Plans::of(config).await?, bound, Arc::new(Operators { gateway }))?);
        Ok(())
    }

    pub(super) fn into_workers(self) -> Option<Workers> {
        self.workers
    }
}

/// Does what operators ask for.
struct Operators {
    gateway: Handle,
}

impl Judge for Operators {
    type Case = ();

    fn judge(&self, head: &mut request::Parts, _: &Origin) -> Judged<()> {
        // A page in a browser may send a request here, but none from its own place without saying so.
        if head.headers.contains_key(header::ORIGIN) {
            let told = "Requests from web pages are not taken.";
            return Judged::Now(Outcome::Answer(problem(StatusCode::FORBIDDEN, told)));
        }
        let answer = match (&head.method, head.uri.path()) {
            (&Method::GET | &Method::HEAD, "/health") => text(StatusCode::OK, "ok\n"),
            (&Method::POST, "/reload") => {
                let gateway = self.gateway.clone();
                return Judged::Later(Box::pin(async move { Outcome::Answer(reload(&gateway).await) }));
            }
            (_, "/health" | "/reload") => {
                problem(StatusCode::METHOD_NOT_ALLOWED, "Ask with GET /health or POST /reload.")
            }
            _ => problem(StatusCode::NOT_FOUND, "There is /health and /reload."),
        };
        Judged::Now(Outcome::Answer(answer))
    }
}

async fn reload(gateway: &Handle) -> Response<Bytes> {
    match gateway.reload().await {
        Ok(reloaded) => text(StatusCode::OK, format!("{reloaded}\n")),
        Err(error @ GatewayError::Gone) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
        Err(error) => text(StatusCode::UNPROCESSABLE_ENTITY, format!("{error}\n")),
    }
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Bytes> {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}
