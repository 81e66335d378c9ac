//! What a polite client does, said once for all of its clones.

use super::{
    advice,
    error::PoliteError,
    hosts::Hosts,
    service::Polite,
    wire::{Inbound, Outbound, server},
};
use std::{fmt, sync::Arc, time::Duration};
use tidegate_core::Micros;
use tidegate_limiter::Clock;
use tidegate_rule::Rule;
use tower_layer::Layer;

/// Makes a client polite: it keeps a limit of its own, and does as servers say.
///
/// A server that answers 429 or 503 with `Retry-After`, or anything with a `RateLimit` of which nothing remains, is not
/// called again before the time it names. Calls to it wait for that moment if it comes within
/// [`wait`](Self::wait), and fail at once if not.
///
/// With the feature `reqwest` it goes around a `reqwest::Client`, and [`Polite::send`] takes its requests:
///
/// ```
/// # #[cfg(feature = "reqwest")]
/// # async fn call() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tidegate_rule::{Declaration, Rules};
/// use tidegate_tower::PoliteLayer;
/// use tower_layer::Layer as _;
///
/// let rule = Rules::global().rule(Declaration::of("outbound").quota("10/s")?.wait(Duration::from_secs(2)))?;
/// let http = reqwest::Client::new();
/// let polite = PoliteLayer::new().rule(rule).wait(Duration::from_secs(5)).layer(http.clone());
///
/// let answer = polite.send(http.get("https://api.example.com/items").build()?).await?;
/// # Ok(())
/// # }
/// ```
///
/// All that are made from one layer, and their clones, share what servers said.
#[derive(Clone)]
pub struct PoliteLayer {
    rule: Option<Rule>,
    patience: Micros,
    longest: Micros,
    places: usize,
    spread: Micros,
    key: Option<Arc<KeyOf>>,
    clock: Clock,
    hosts: Arc<Hosts>,
}

type KeyOf = dyn Fn(&dyn Outbound) -> Option<String> + Send + Sync;

/// No server is obeyed for longer, unless told otherwise.
const LONGEST: Micros = Micros::from_secs(300);
const PLACES: usize = 1_024;

impl PoliteLayer {
    /// Does as servers say, and fails calls that would have to wait.
    pub fn new() -> Self {
        Self {
            rule: None,
            patience: Micros::ZERO,
            longest: LONGEST,
            places: PLACES,
            spread: Micros::ZERO,
            key: None,
            clock: Clock::default(),
            hosts: Arc::default(),
        }
    }

    /// Keeps a limit of our own, for each server; how long a call waits for it is said in the rule.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rule = Some(rule);
        self
    }

    /// How long a call may wait because a server said so; not at all unless told otherwise.
    #[must_use]
    pub fn wait(mut self, longest: Duration) -> Self {
        self.patience = longest.into();
        self
    }

    /// For how long a server is obeyed at most, whatever it says; five minutes unless told otherwise.
    #[must_use]
    pub fn obey_for(mut self, longest: Duration) -> Self {
        self.longest = longest.into();
        self
    }

    /// Of how many servers is remembered what they said; 1024 unless told otherwise. Beyond that, whoever can be called
    /// again first is forgotten.
    #[must_use]
    pub fn remember(mut self, servers: usize) -> Self {
        self.places = servers;
        self
    }

    /// Has calls that waited for the same moment go within this time after it, by chance, instead of all at once.
    #[must_use]
    pub fn spread(mut self, over: Duration) -> Self {
        self.spread = over.into();
        self
    }

    /// Whom the rule counts and whom a server's word is about; the host, and the port if it is an unusual one, unless told
    /// otherwise. Requests for which there is no name share one.
    #[must_use]
    pub fn key(mut self, key: impl Fn(&dyn Outbound) -> Option<String> + Send + Sync + 'static) -> Self {
        self.key = Some(Arc::new(key));
        self
    }

    /// The clock; the machine's unless told otherwise.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Forgets what a server said.
    pub fn forgive(&self, server: &str) {
        self.hosts.forget(server);
    }

    /// How many servers are remembered.
    pub fn remembered(&self) -> usize {
        self.hosts.kept()
    }
}

impl Default for PoliteLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for PoliteLayer {
    type Service = Polite<S>;

    fn layer(&self, inner: S) -> Polite<S> {
        Polite::new(inner, Arc::new(self.clone()))
    }
}

impl fmt::Debug for PoliteLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoliteLayer")
            .field("rule", &self.rule)
            .field("wait", &self.patience)
            .field("remembered", &self.remembered())
            .finish_non_exhaustive()
    }
}

impl PoliteLayer {
    pub(super) fn server_key(&self, request: &dyn Outbound) -> String {
        let key = match &self.key {
            Some(key) => key(request),
            None => request.host().map(|host| server(host, request.port())),
        };
        key.unwrap_or_default()
    }

    /// Waits until a call may go. The server's word comes first, so that no token is spent on a call that is not made; and
    /// once more after the rule, which may have taken its time.
    pub(super) async fn admit<E>(&self, key: &str) -> Result<(), PoliteError<E>> {
        let latest = self.clock.now().plus(self.patience);
        self.heed(key, latest).await?;
        if let Some(rule) = &self.rule {
            rule.admit(key, 1).await.map_err(PoliteError::Limited)?;
            self.heed(key, latest).await?;
        }
        Ok(())
    }

    async fn heed<E>(&self, key: &str, latest: Micros) -> Result<(), PoliteError<E>> {
        let Self { clock, spread, .. } = self;
        loop {
            let now = clock.now();
            let Some(until) = self.hosts.until(key, now) else { return Ok(()) };
            if until > latest {
                return Err(PoliteError::ToldToWait { server: key.into(), wait: until.since(now).into() });
            }
            let late = Micros::new(fastrand::u64(..=spread.get()));
            clock.wait_until(until.plus(late).min(latest)).await;
        }
    }

    /// Takes note of what an answer to a call under this key says.
    pub(super) fn learn(&self, key: &str, answer: &impl Inbound) {
        let Self { clock, longest, places, .. } = self;
        let now = clock.now();
        let Some(wait) = advice::wait(answer, now) else { return };
        let redirected = answer.server().filter(|_| self.key.is_none());
        let until = now.plus(wait.min(*longest));
        self.hosts.note(redirected.as_deref().unwrap_or(key), until, now, *places);
    }
}
