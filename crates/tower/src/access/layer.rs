//! Whom a list and bans keep out.

use super::service::Controlled;
use std::{fmt, net::IpAddr, sync::Arc};
use tidegate_core::Report;
use tidegate_engine::{AccessControl, Stance, Standing};
use tidegate_rule::{
    Answer,
    request::{Head, Key, Reply, TrustedProxies},
    surface::{Door, Terms},
};
use tower_layer::Layer;

/// Keeps out whom a list or a ban keeps out, and bans whoever is denied too often further inside.
///
/// ```
/// use tidegate_engine::{AccessControl, Bans};
/// use tidegate_rule::request::TrustedProxies;
/// use tidegate_tower::AccessLayer;
///
/// let bans = Bans::builder().automatic("10/min for 1h".parse()?).build()?;
/// let control = AccessControl::new("deny 192.0.2.0/24".parse()?, bans);
/// let layer = AccessLayer::new(control)
///     .behind(TrustedProxies::new(["10.0.0.0/8"])?)
///     .ban_on(|reply| reply.status() == 429);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Whoever is kept out is answered with 403, in gRPC with `PERMISSION_DENIED`, and a ban says in `Retry-After` when it ends.
/// A request whose sender is not known is kept out too: a list that nobody is held against would go unnoticed. See
/// [`unknown`](Self::unknown).
///
/// Bans of addresses of IPv6 hold for the network of 64 bits that a client has to itself.
#[derive(Clone)]
pub struct AccessLayer {
    door: Door,
    terms: Terms,
}

impl AccessLayer {
    /// Asks for the address at the other end of the connection. Behind a proxy that is the proxy: see
    /// [`behind`](Self::behind).
    pub fn new(control: impl Into<Arc<AccessControl>>) -> Self {
        let terms = Terms { classify: Arc::new(|_| Report::Ignored), ..Terms::new("access") };
        Self { door: Door::new(control), terms }
    }

    /// Asks for the address of the client, as these proxies tell it.
    #[must_use]
    pub fn behind(self, proxies: TrustedProxies) -> Self {
        Self { door: self.door.behind(proxies), ..self }
    }

    /// Asks for an address that a function finds.
    #[must_use]
    pub fn address(self, find: impl Fn(&dyn Head) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        Self { door: self.door.address(find), ..self }
    }

    /// Asks for a key instead of an address: the `key` lines of a list, and bans of keys.
    #[must_use]
    pub fn key(self, key: Key) -> Self {
        Self { door: self.door.key(key), ..self }
    }

    /// What becomes of a request without an address or a key; it is kept out unless told otherwise.
    #[must_use]
    pub fn unknown(self, stance: Stance) -> Self {
        Self { door: self.door.unknown(stance), ..self }
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
    pub fn answer(self, answer: impl Fn(Standing) -> Answer + Send + Sync + 'static) -> Self {
        Self { door: self.door.answer(answer), ..self }
    }
}

impl<S> Layer<S> for AccessLayer {
    type Service = Controlled<S>;

    fn layer(&self, inner: S) -> Controlled<S> {
        Controlled::new(inner, Arc::new(self.door.clone()), Arc::new(self.terms.clone()))
    }
}

impl fmt::Debug for AccessLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AccessLayer").field(&self.door).finish()
    }
}
