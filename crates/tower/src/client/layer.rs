//! What a polite client does, said once for all of its clones.

use super::{
    backoffs::ServerBackoffs,
    error::RetryAfterError,
    message::{ClientRequest, ClientResponse, server_name},
    retry_after,
    service::RetryAfterService,
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
/// [`max_wait`](Self::max_wait), and fail at once if not.
///
/// With the feature `reqwest` it goes around a `reqwest::Client`, and [`RetryAfterService::send`] takes its requests:
///
/// ```
/// # #[cfg(feature = "reqwest")]
/// # async fn call() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tidegate_rule::{RuleConfig, Rules};
/// use tidegate_tower::RetryAfterLayer;
/// use tower_layer::Layer as _;
///
/// let rule = Rules::global().declare(RuleConfig::new("outbound").quota("10/s")?.wait(Duration::from_secs(2)))?;
/// let http = reqwest::Client::new();
/// let retry_after = RetryAfterLayer::new().rule(rule).max_wait(Duration::from_secs(5)).layer(http.clone());
///
/// let answer = retry_after.send(http.get("https://api.example.com/items").build()?).await?;
/// # Ok(())
/// # }
/// ```
///
/// All that are made from one layer, and their clones, share what servers said.
#[derive(Clone)]
pub struct RetryAfterLayer {
    rule: Option<Rule>,
    max_wait: Micros,
    max_backoff: Micros,
    max_servers: usize,
    jitter: Micros,
    key: Option<Arc<ServerKeyFn>>,
    clock: Clock,
    backoffs: Arc<ServerBackoffs>,
}

type ServerKeyFn = dyn Fn(&dyn ClientRequest) -> Option<String> + Send + Sync;

/// No server is obeyed for longer, unless told otherwise.
const DEFAULT_MAX_BACKOFF: Micros = Micros::from_secs(300);
const DEFAULT_MAX_SERVERS: usize = 1_024;

impl RetryAfterLayer {
    /// Does as servers say, and fails calls that would have to wait.
    pub fn new() -> Self {
        Self {
            rule: None,
            max_wait: Micros::ZERO,
            max_backoff: DEFAULT_MAX_BACKOFF,
            max_servers: DEFAULT_MAX_SERVERS,
            jitter: Micros::ZERO,
            key: None,
            clock: Clock::default(),
            backoffs: Arc::default(),
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
    pub fn max_wait(mut self, longest: Duration) -> Self {
        self.max_wait = longest.into();
        self
    }

    /// For how long a server is obeyed at most, whatever it says; five minutes unless told otherwise.
    #[must_use]
    pub fn max_backoff(mut self, longest: Duration) -> Self {
        self.max_backoff = longest.into();
        self
    }

    /// Of how many servers is remembered what they said; 1024 unless told otherwise. Beyond that, whoever can be called
    /// again first is forgotten.
    #[must_use]
    pub fn max_servers(mut self, servers: usize) -> Self {
        self.max_servers = servers;
        self
    }

    /// Has calls that waited for the same moment go within this time after it, by chance, instead of all at once.
    #[must_use]
    pub fn jitter(mut self, over: Duration) -> Self {
        self.jitter = over.into();
        self
    }

    /// Whom the rule counts and whom a server's word is about; the host, and the port if it is an unusual one, unless told
    /// otherwise. Requests for which there is no name share one.
    #[must_use]
    pub fn key(mut self, key: impl Fn(&dyn ClientRequest) -> Option<String> + Send + Sync + 'static) -> Self {
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
    pub fn clear(&self, server: &str) {
        self.backoffs.remove(server);
    }

    /// How many servers are remembered.
    pub fn server_count(&self) -> usize {
        self.backoffs.len()
    }
}

impl Default for RetryAfterLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for RetryAfterLayer {
    type Service = RetryAfterService<S>;

    fn layer(&self, inner: S) -> RetryAfterService<S> {
        RetryAfterService::new(inner, Arc::new(self.clone()))
    }
}

impl fmt::Debug for RetryAfterLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryAfterLayer")
            .field("rule", &self.rule)
            .field("max_wait", &self.max_wait)
            .field("server_count", &self.server_count())
            .finish_non_exhaustive()
    }
}

impl RetryAfterLayer {
    pub(super) fn server_key(&self, request: &dyn ClientRequest) -> String {
        let key = match &self.key {
            Some(key) => key(request),
            None => request.host().map(|host| server_name(host, request.port())),
        };
        key.unwrap_or_default()
    }

    /// Waits until a call may go. The server's word comes first, so that no token is spent on a call that is not made; and
    /// once more after the rule, which may have taken its time.
    pub(super) async fn admit<E>(&self, key: &str) -> Result<(), RetryAfterError<E>> {
        let latest = self.clock.now().plus(self.max_wait);
        self.wait_for_server(key, latest).await?;
        if let Some(rule) = &self.rule {
            rule.admit(key, 1).await.map_err(RetryAfterError::Limited)?;
            self.wait_for_server(key, latest).await?;
        }
        Ok(())
    }

    async fn wait_for_server<E>(&self, key: &str, latest: Micros) -> Result<(), RetryAfterError<E>> {
        let Self { clock, jitter: spread, .. } = self;
        loop {
            let now = clock.now();
            let Some(until) = self.backoffs.blocked_until(key, now) else { return Ok(()) };
            if until > latest {
                return Err(RetryAfterError::Backoff { server: key.into(), wait: until.since(now).into() });
            }
            let late = Micros::new(fastrand::u64(..=spread.get()));
            clock.wait_until(until.plus(late).min(latest)).await;
        }
    }

    /// Takes note of what an answer to a call under this key says.
    pub(super) fn record_response(&self, key: &str, answer: &impl ClientResponse) {
        let Self { clock, max_backoff: longest, max_servers: places, .. } = self;
        let now = clock.now();
        let Some(wait) = retry_after::parse_backoff(answer, now) else { return };
        let redirected = answer.server().filter(|_| self.key.is_none());
        let until = now.plus(wait.min(*longest));
        self.backoffs.block(redirected.as_deref().unwrap_or(key), until, now, *places);
    }
}
