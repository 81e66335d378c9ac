//! Whom a list and bans keep out.

use super::{service::AccessService, visitor::Visitor};
use crate::held::{HeldBody, Terms};
use actix_web::{
    Error,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use std::{
    fmt,
    future::{Ready, ready},
    net::IpAddr,
    sync::Arc,
};
use tidegate_core::{Report, header};
use tidegate_engine::{AccessControl, Stance, Standing};
use tidegate_rule::{
    Answer,
    request::{Head, Key, Reply, TrustedProxies},
};

/// Keeps out whom a list or a ban keeps out, and bans whoever is denied too often further inside.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_actix::AccessMiddleware;
/// use tidegate_engine::{AccessControl, Bans};
/// use tidegate_rule::request::TrustedProxies;
///
/// let bans = Bans::builder().automatic("10/min for 1h".parse()?).build()?;
/// let control = Arc::new(AccessControl::new("deny 192.0.2.0/24".parse()?, bans));
/// let proxies = TrustedProxies::new(["10.0.0.0/8"])?;
/// let app = move || {
///     let access = AccessMiddleware::new(control.clone());
///     actix_web::App::new().wrap(access.behind(proxies.clone()).ban_on(|reply| reply.status() == 429))
/// };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Whoever is kept out is answered with 403, and a ban says in `Retry-After` when it ends. A request whose sender is not known
/// is kept out too: a list that nobody is held against would go unnoticed. See [`unknown`](Self::unknown).
///
/// Bans of addresses of IPv6 hold for the network of 64 bits that a client has to itself. Make the list and the bans outside
/// of the closure that makes applications, or each worker has its own.
#[derive(Clone)]
pub struct AccessMiddleware {
    door: Door,
    terms: Terms,
}

/// Whom to let in, and what to tell the others.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) control: Arc<AccessControl>,
    who: Who,
    pub(super) unknown: Stance,
    pub(super) answer: Arc<AnswerTo>,
}

#[derive(Clone)]
enum Who {
    Address(Arc<AddressOf>),
    Key(Key),
}

type AddressOf = dyn Fn(&dyn Head) -> Option<IpAddr> + Send + Sync;
type AnswerTo = dyn Fn(Standing) -> Answer + Send + Sync;

impl AccessMiddleware {
    /// Asks for the address at the other end of the connection. Behind a proxy that is the proxy: see
    /// [`behind`](Self::behind).
    pub fn new(control: impl Into<Arc<AccessControl>>) -> Self {
        let door = Door {
            control: control.into(),
            who: Who::Address(Arc::new(|head| head.peer())),
            unknown: Stance::Deny,
            answer: Arc::new(forbidden),
        };
        let terms = Terms { classify: Arc::new(|_| Report::Ignored), ..Terms::new("access") };
        Self { door, terms }
    }

    /// Asks for the address of the client, as these proxies tell it.
    #[must_use]
    pub fn behind(self, proxies: TrustedProxies) -> Self {
        self.address(move |head| proxies.client(head))
    }

    /// Asks for an address that a function finds.
    #[must_use]
    pub fn address(mut self, find: impl Fn(&dyn Head) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        self.door.who = Who::Address(Arc::new(find));
        self
    }

    /// Asks for a key instead of an address: the `key` lines of a list, and bans of keys.
    #[must_use]
    pub fn key(mut self, key: Key) -> Self {
        self.door.who = Who::Key(key);
        self
    }

    /// What becomes of a request without an address or a key; it is kept out unless told otherwise.
    #[must_use]
    pub fn unknown(mut self, stance: Stance) -> Self {
        self.door.unknown = stance;
        self
    }

    /// Counts an answer as a denial where this says so, and has the bans' own rule decide on a ban: a limit further inside
    /// that answers with 429, say.
    #[must_use]
    pub fn ban_on(mut self, is_denial: impl Fn(&dyn Reply) -> bool + Send + Sync + 'static) -> Self {
        self.terms.classify = Arc::new(move |reply| match reply.is_some_and(&is_denial) {
            true => Report::Failure,
            false => Report::Ignored,
        });
        self
    }

    /// What to answer to whoever is kept out. Who is unknown stands as denied.
    #[must_use]
    pub fn answer(mut self, answer: impl Fn(Standing) -> Answer + Send + Sync + 'static) -> Self {
        self.door.answer = Arc::new(answer);
        self
    }
}

impl Door {
    pub(super) fn visitor(&self, head: &dyn Head) -> Visitor {
        let found = match &self.who {
            Who::Address(find) => find(head).map(Visitor::Address),
            Who::Key(key) => key.find(head).map(|key| Visitor::Key(key.to_string().into())),
        };
        found.unwrap_or(Visitor::Unknown)
    }
}

/// 403, and when a ban ends. It tells no more than that.
fn forbidden(standing: Standing) -> Answer {
    let (detail, wait) = match standing {
        Standing::Banned(wait) => ("banned for a time", Some(wait)),
        _ => ("not let in", None),
    };
    let problem = format!(r#"{{"type":"about:blank","title":"Forbidden","status":403,"detail":"{detail}"}}"#);
    let answer = Answer::new(403).json(problem).header("content-type", "application/problem+json");
    match wait {
        Some(wait) => answer.header("retry-after", header::seconds(wait).to_string()),
        None => answer,
    }
}

impl<S, B> Transform<S, ServiceRequest> for AccessMiddleware
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<HeldBody<B>>;
    type Error = Error;
    type Transform = AccessService<S>;
    type InitError = ();
    type Future = Ready<Result<AccessService<S>, ()>>;

    fn new_transform(&self, inner: S) -> Self::Future {
        ready(Ok(AccessService::new(inner, self.door.clone(), Arc::new(self.terms.clone()))))
    }
}

impl fmt::Debug for AccessMiddleware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AccessMiddleware").field(&self.door.control).finish()
    }
}
