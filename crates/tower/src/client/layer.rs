//! The settings of a client that honours `Retry-After`.

use super::{
    backoffs::ServerBackoffs,
    error::{RetryAfterError, ServerBackoff},
    message::{ClientRequest, ClientResponse, server_name},
    retry_after,
    service::RetryAfterService,
};
use std::{fmt, sync::Arc, time::Duration};
use tidegate_core::Micros;
use tidegate_limiter::Clock;
use tidegate_rule::Rule;
use tower_layer::Layer;

/// Lets a client honour `Retry-After` and `RateLimit` of servers, and optionally limits its own calls.
///
/// After a response of 429 or 503 with `Retry-After`, or any response with an exhausted `RateLimit`, the server is not
/// called before the given time. Calls to it wait if the time is within [`max_wait`](Self::max_wait), and fail immediately
/// otherwise.
///
/// With the feature `reqwest` it wraps a `reqwest::Client`, and [`RetryAfterService::send`] sends its requests:
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
/// let response = retry_after.send(http.get("https://api.example.com/items").build()?).await?;
/// # Ok(())
/// # }
/// ```
///
/// All services of one layer and their clones share the backoffs.
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

/// The default maximum backoff.
const DEFAULT_MAX_BACKOFF: Micros = Micros::from_secs(300);
const DEFAULT_MAX_SERVERS: usize = 1_024;

impl RetryAfterLayer {
    /// Creates a layer that honours backoffs and fails calls that would have to wait.
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

    /// Limits calls per server with a rule, which also defines how long a call waits.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rule = Some(rule);
        self
    }

    /// Sets how long a call may wait for the end of a backoff; zero by default.
    #[must_use]
    pub fn max_wait(mut self, longest: Duration) -> Self {
        self.max_wait = longest.into();
        self
    }

    /// Sets the maximum backoff; five minutes by default.
    #[must_use]
    pub fn max_backoff(mut self, longest: Duration) -> Self {
        self.max_backoff = longest.into();
        self
    }

    /// Sets the maximum number of servers with a backoff; 1024 by default. Beyond that, the backoff that expires first is
    /// evicted.
    #[must_use]
    pub fn max_servers(mut self, servers: usize) -> Self {
        self.max_servers = servers;
        self
    }

    /// Spreads calls that waited for the same backoff randomly over this time.
    #[must_use]
    pub fn jitter(mut self, over: Duration) -> Self {
        self.jitter = over.into();
        self
    }

    /// Sets the key of the rule and of backoffs; by default the host, and the port if it is not the default one. Requests
    /// without a key share one.
    #[must_use]
    pub fn key(mut self, key: impl Fn(&dyn ClientRequest) -> Option<String> + Send + Sync + 'static) -> Self {
        self.key = Some(Arc::new(key));
        self
    }

    /// Sets the clock; the system clock by default.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Removes the backoff of a server.
    pub fn clear(&self, server: &str) {
        self.backoffs.remove(server);
    }

    /// Returns the number of servers with a backoff.
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

    /// Waits until a call is admitted. The backoff is checked before the rule, so that a call that is not made costs no
    /// token, and again after the rule, because the rule may wait.
    pub(super) async fn admit<E>(&self, key: &str) -> Result<(), RetryAfterError<E>> {
        let latest = self.clock.now().saturating_add(self.max_wait);
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
                let wait = until.saturating_sub(now).into();
                return Err(RetryAfterError::Backoff(ServerBackoff { server: key.into(), wait }));
            }
            let late = Micros::new(fastrand::u64(..=spread.get()));
            clock.wait_until(until.saturating_add(late).min(latest)).await;
        }
    }

    /// Records the backoff that a response requests.
    pub(super) fn record_response(&self, key: &str, answer: &impl ClientResponse) {
        let Self { clock, max_backoff: longest, max_servers: places, .. } = self;
        let now = clock.now();
        let Some(wait) = retry_after::parse_backoff(answer, now) else { return };
        let redirected = answer.server().filter(|_| self.key.is_none());
        let until = now.saturating_add(wait.min(*longest));
        self.backoffs.block(redirected.as_deref().unwrap_or(key), until, now, *places);
    }
}
