//! Where operators come in.
//!
//! | request | does |
//! |---|---|
//! | `GET /health` | says that the gateway runs |
//! | `POST /reload` | has the policy read again, and says what has changed, or all that is wrong with it; needs the token of operators where one is declared |

use super::{GatewayError, Handle};
use crate::{
    Bound, Config, Fault, Judge, Judged, Origin, Outcome,
    answer::problem,
    decisions::{Secret, bearer},
    run::{Plans, Workers},
};
use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header, request};
use std::{net::SocketAddr, num::NonZeroUsize, sync::Arc};
use tidegate_policy::{
    Policy,
    model::{Admin as Declared, Listener},
};

/// The listener of operators, with a worker of its own.
pub(super) struct Admin {
    bound: Bound,
    secret: Option<Arc<Secret>>,
    workers: Option<Workers>,
}

impl Admin {
    /// Binds it, if it is declared.
    pub(super) fn bind(declared: &Declared) -> Result<Option<Self>, Fault> {
        let Some(address) = declared.listen else { return Ok(None) };
        let bound = Bound::bind(&Listener { address, tls: None })?;
        Ok(Some(Self { bound, secret: secret(declared)?, workers: None }))
    }

    /// The same socket where the address stays, with what is declared now.
    pub(super) fn again(&self, declared: &Declared) -> Result<Option<Self>, Fault> {
        match declared.listen {
            Some(address) if address == self.bound.declared().address => {
                let bound = self.bound.again(&Listener { address, tls: None })?;
                Ok(Some(Self { bound, secret: secret(declared)?, workers: None }))
            }
            _ => Self::bind(declared),
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.bound.address()
    }

    /// Serves operators from now on.
    pub(super) async fn start(&mut self, gateway: Handle) -> Result<(), Fault> {
        let config = Config { workers: NonZeroUsize::MIN, ..Config::of(&Policy::default()) };
        let bound = std::slice::from_ref(&self.bound);
        self.workers = Some(Workers::start(
            Plans::of(config).await?,
            bound,
            Arc::new(Operators { gateway, secret: self.secret.clone() }),
        )?);
        Ok(())
    }

    pub(super) fn into_workers(self) -> Option<Workers> {
        self.workers
    }
}

/// Does what operators ask for.
struct Operators {
    gateway: Handle,
    /// What they must know.
    secret: Option<Arc<Secret>>,
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
            (&Method::POST, "/reload") if !self.is_operator(head) => unauthorized(),
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

impl Operators {
    fn is_operator(&self, head: &request::Parts) -> bool {
        self.secret.as_ref().is_none_or(|secret| secret.is(bearer(&head.headers)))
    }
}

fn secret(declared: &Declared) -> Result<Option<Arc<Secret>>, Fault> {
    Ok(declared.token.as_ref().map(Secret::read).transpose()?.map(Arc::new))
}

fn unauthorized() -> Response<Bytes> {
    let told = "Send the token of operators as `Authorization: Bearer TOKEN`.";
    let mut response = problem(StatusCode::UNAUTHORIZED, told);
    let scheme = HeaderValue::from_static("Bearer realm=\"tidegate\"");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
    response
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
