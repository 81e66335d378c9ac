//! The store itself.

use crate::{
    address::Address,
    cluster::Cluster,
    dial::{Dial, Security},
    error::ConnectError,
    health::Modes,
    names::Names,
    node::{Answered, Caller, Keys, Node, Problem, as_asked, places},
    servers::Servers,
};
#[cfg(feature = "tls")]
use crate::{
    address::split_authority,
    tls::{HostNames, TlsFiles},
};
use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tidegate_core::{AlgorithmKind, Micros, Quota, algorithm::Concurrency};
use tidegate_limiter::{
    CounterStore, FailureMode, Increment, Store, StoreError,
    store::{KeyRef, RuntimeAffinity, StoreFuture, StoreLimit, StoreReply, StoreRequest},
};
use tokio::runtime::Handle;

/// State in Redis or Valkey: on one server, behind sentinels, or in a cluster.
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    names: Arc<Names>,
    lease: Micros,
    servers: Servers,
    /// What its limiters do without it.
    modes: Arc<Modes>,
    started: std::time::Instant,
    /// The runtime that its connections live on, if it is there for good.
    home: Option<Handle>,
}

/// Settings of a [`RedisStore`].
#[derive(Clone, Debug)]
pub struct RedisStoreBuilder {
    prefix: String,
    deadline: Duration,
    lease: Duration,
    residence: RuntimeAffinity,
    #[cfg(feature = "tls")]
    tls: TlsFiles,
}

impl Default for RedisStoreBuilder {
    fn default() -> Self {
        Self {
            prefix: "tidegate".to_owned(),
            deadline: DEFAULT_DEADLINE,
            lease: Duration::from_secs(30),
            residence: RuntimeAffinity::CreatingRuntime,
            #[cfg(feature = "tls")]
            tls: TlsFiles::default(),
        }
    }
}

/// Long enough that a busy machine does not miss it by chance.
const DEFAULT_DEADLINE: Duration = Duration::from_millis(500);

impl RedisStoreBuilder {
    /// What all keys start with; `tidegate` unless told otherwise.
    #[must_use]
    pub fn prefix(self, prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), ..self }
    }

    /// How long a decision waits for an answer; 500 ms by default. A decision that misses it is refused, or admitted
    /// where the limiter is open in an outage, and what its late answer took is given back. The store counts as
    /// unavailable, and the mode of the limiter decides at once, when it disconnects, leaves a call unanswered for twice
    /// the deadline and at least a second, or answers late eight times in a row.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// How long a permit is held that its holder does not renew, where its quota does not say; 30 s unless told
    /// otherwise.
    #[must_use]
    pub fn permit_lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// Lives on the runtime that it is made on, which must outlive it: whoever asks on another one has calls made for it
    /// there, together with others. Unless told so, a call is made on the runtime of whoever asks.
    #[must_use]
    pub fn resident(self) -> Self {
        Self { residence: RuntimeAffinity::AnyRuntime, ..self }
    }

    /// Whose signature on a server's certificate counts, in PEM; the machine's own authorities unless told otherwise.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls_authority(self, pem: &[u8]) -> Self {
        let tls = TlsFiles { authority: Some(pem.to_owned()), ..self.tls };
        Self { tls, ..self }
    }

    /// Who we are to a server that wants to know: a certificate and its key, in PEM.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls_identity(self, certificate: &[u8], key: &[u8]) -> Self {
        let tls = TlsFiles { identity: Some((certificate.to_owned(), key.to_owned())), ..self.tls };
        Self { tls, ..self }
    }

    /// Accepts a certificate of a trusted authority for whatever name, as `REDIS_TLS_SKIP_HOSTNAME_VERIFICATION` has it.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls_skip_hostname_verification(self) -> Self {
        let tls = TlsFiles { host_names: HostNames::Skip, ..self.tls };
        Self { tls, ..self }
    }

    /// Makes the store and connects it in the background: it works as soon as the server is there.
    ///
    /// Must be called within a tokio runtime.
    pub fn open(self, url: &str) -> Result<RedisStore, ConnectError> {
        let store = self.build(url)?;
        match &store.inner.servers {
            Servers::One(node) => {
                node.health().connecting();
                node.look_after();
            }
            Servers::Cluster(cluster) => {
                cluster.health().connecting();
                cluster.watch();
            }
        }
        Ok(store)
    }

    /// Makes the store, and fails if the server is not there or not of use.
    pub async fn connect(self, url: &str) -> Result<RedisStore, ConnectError> {
        let store = self.build(url)?;
        match &store.inner.servers {
            Servers::One(node) => {
                node.connect().await.map_err(|error| ConnectError::refused(node.shown(), &error))?;
                node.inspect().await?;
            }
            Servers::Cluster(cluster) => cluster.connect().await?,
        }
        Ok(store)
    }

    #[allow(clippy::disallowed_methods, reason = "no decision depends on when a quota was announced")]
    fn build(self, url: &str) -> Result<RedisStore, ConnectError> {
        let names = Arc::new(Names::new(&self.prefix));
        let modes = Arc::<Modes>::default();
        let node = |dial| Servers::One(Node::new(names.clone(), dial, self.deadline, Keys::Declared, &modes));
        let unreadable = |error: redis::RedisError| ConnectError::url(url, &error.to_string());
        #[cfg(feature = "tls")]
        let (url, authority) = split_authority(url)?;
        #[cfg(feature = "tls")]
        let (url, tls) = (url.as_str(), TlsFiles { authority: authority.or(self.tls.authority), ..self.tls });
        let address = Address::parse(url)?;
        #[cfg(feature = "tls")]
        let security = Security(tls.config()?);
        #[cfg(not(feature = "tls"))]
        let security = Security();
        let servers = match address {
            Address::Server(info) => node(Dial::address(info, &security).map_err(unreadable)?),
            Address::Sentinels { sentinels, master, login, sentinel_login } => {
                let dial = Dial::sentinels(sentinels, &master, &login, &sentinel_login);
                node(dial.map_err(unreadable)?)
            }
            Address::Cluster(seeds) => {
                Servers::Cluster(Cluster::new(names.clone(), (seeds, security), self.deadline, &modes))
            }
        };
        let started = std::time::Instant::now();
        let home = Handle::try_current().ok().filter(|_| self.residence == RuntimeAffinity::AnyRuntime);
        let lease = self.lease.into();
        Ok(RedisStore { inner: Arc::new(Inner { names, lease, servers, modes, started, home }) })
    }
}

impl RedisStore {
    /// A store with the usual settings; fails if the server is not there or not of use.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder().connect(url).await
    }

    /// A store with the usual settings, connected in the background.
    pub fn open(url: &str) -> Result<Self, ConnectError> {
        Self::builder().open(url)
    }

    /// A store with settings of its own.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::default()
    }

    /// Why decisions are degraded at the moment, if they are.
    pub fn trouble(&self) -> Option<String> {
        self.inner.servers.trouble()
    }

    /// How often a server went away since the store was made.
    pub fn outages(&self) -> u64 {
        self.inner.servers.outages()
    }

    /// Does what is asked at a moment that the caller names instead of the server's, without a deadline. For checks of
    /// the store itself: with it, time in Redis and in a test can be the same.
    pub async fn perform_at(
        &self,
        requests: &[StoreRequest],
        now: Micros,
    ) -> Vec<Result<StoreReply, StoreError>> {
        for place in requests.iter().flat_map(places) {
            if let Err(error) = self.inner.announce(&place.limit).await {
                return vec![Err(error); requests.len()];
            }
        }
        let mut answers = self.inner.servers.submit_at(requests, now).await;
        for _ in 0..MOST_MEETINGS {
            for index in 0..requests.len() {
                if let Err(Problem::Stranger(tag)) = answers[index] {
                    if let Err(error) = self.inner.meet(&requests[index], tag).await {
                        return vec![Err(error); requests.len()];
                    }
                    let again = self.inner.servers.submit_at(&requests[index..=index], now).await;
                    answers.splice(index..=index, again);
                }
            }
        }
        let asked = answers.into_iter().zip(requests);
        asked.map(|(answer, request)| plain(as_asked(request, answer))).collect()
    }

    /// Removes keys at once, as if they had never been, and what was told of the quotas with these rules and tags.
    pub(crate) async fn remove(
        &self,
        places: &[KeyRef],
        tags: impl Iterator<Item = (&str, u16)>,
    ) -> Result<(), StoreError> {
        let Inner { names, servers, .. } = &*self.inner;
        let states = places.iter().map(|place| names.key(place));
        for key in states.chain(tags.map(|(rule, tag)| names.quota(rule, tag))) {
            servers.command(&key, redis::cmd("UNLINK").arg(&key)).await?;
        }
        Ok(())
    }

    /// Makes a call whose timers and tasks are those of the store's home, wherever it is asked.
    fn at_home<F>(&self, call: impl FnOnce(Arc<Inner>, Caller) -> F) -> StoreFuture<F::Output>
    where
        F: Future + Send + 'static,
    {
        let inner = self.inner.clone();
        let Some(home) = self.inner.home.clone().filter(|home| !is_here(home)) else {
            return Box::pin(call(inner, Caller::AtHome));
        };
        let call = call(inner, Caller::Abroad);
        Box::pin(async move {
            let mut call = pin!(call);
            poll_fn(|context| {
                let _entered = home.enter();
                call.as_mut().poll(context)
            })
            .await
        })
    }

    /// The key in the server under which a place is kept, for operators and tests.
    pub fn key(&self, place: &KeyRef) -> String {
        self.inner.names.key(place)
    }
}

impl Inner {
    /// What is done rarely is kept apart, here and below: a future has room for everything in it, and this one is made
    /// for each decision.
    async fn perform(&self, request: StoreRequest, caller: Caller) -> Result<StoreReply, StoreError> {
        for place in places(&request) {
            if !self.is_announced(&place.limit) {
                Box::pin(self.announce(&place.limit)).await?;
            }
        }
        match self.servers.submit(request.clone(), caller).await {
            Err(Problem::Stranger(tag)) => Box::pin(self.perform_among_strangers(request, tag, caller)).await,
            answer => plain(as_asked(&request, answer)),
        }
    }

    /// Learns what the tags in a state mean, one after the other, until it can be read.
    async fn perform_among_strangers(
        &self,
        request: StoreRequest,
        tag: u16,
        caller: Caller,
    ) -> Result<StoreReply, StoreError> {
        let mut answer = Err(Problem::Stranger(tag));
        for _ in 0..MOST_MEETINGS {
            let Err(Problem::Stranger(tag)) = answer else { break };
            self.meet(&request, tag).await?;
            answer = self.servers.submit(request.clone(), caller).await;
            self.names.forget_unknown();
        }
        plain(as_asked(&request, answer))
    }

    /// Whether others know what the tags of these quotas mean.
    fn is_announced(&self, limit: &StoreLimit) -> bool {
        let last = limit.store_tag().load(Ordering::Relaxed);
        last != 0 && self.seconds().saturating_sub(last) < ANNOUNCE_EVERY.as_secs()
    }

    fn seconds(&self) -> u64 {
        self.started.elapsed().as_secs() + 1
    }

    /// Tells other processes what the tags of these quotas mean, before anything is written under them.
    async fn announce(&self, limit: &StoreLimit) -> Result<(), StoreError> {
        if self.is_announced(limit) {
            return Ok(());
        }
        let (now, last) = (self.seconds(), limit.store_tag().load(Ordering::Relaxed));
        let is_taken =
            || limit.store_tag().compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_err();
        // One caller says it again; what was said before holds for the others.
        if last != 0 && is_taken() {
            return Ok(());
        }
        for (quota, tag) in limit.quotas().iter().zip(limit.tags()) {
            let key = self.names.quota(limit.name(), *tag);
            let mut set = redis::cmd("SET");
            set.arg(&key).arg(quota.to_string()).arg("EX").arg(ANNOUNCED_FOR.as_secs());
            self.servers.command(&key, &set).await?;
        }
        limit.store_tag().store(now, Ordering::Relaxed);
        Ok(())
    }

    /// Learns of a quota that another process writes with.
    async fn meet(&self, request: &StoreRequest, tag: u16) -> Result<(), StoreError> {
        for place in places(request) {
            let rule = place.limit.name();
            if self.names.knows(rule, tag) {
                continue;
            }
            let key = self.names.quota(rule, tag);
            let text = self.servers.command(&key, redis::cmd("GET").arg(&key)).await?;
            let text: Option<String> = redis::from_redis_value(text).unwrap_or(None);
            let quota = text.and_then(|text| text.parse::<Quota>().ok()).filter(|quota| quota.tag() == tag);
            self.names.meet(rule, tag, quota);
        }
        Ok(())
    }
}

/// How often a quota in use is announced, so that a server that lost everything has it again soon, and how long others
/// can look it up.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(60);
const ANNOUNCED_FOR: Duration = Duration::from_secs(30 * 24 * 3_600);
/// Quotas that one request may have to ask about.
const MOST_MEETINGS: usize = 16;

fn plain(answer: Answered) -> Result<StoreReply, StoreError> {
    answer.map_err(|problem| match problem {
        Problem::Store(error) => error,
        Problem::Elsewhere => StoreError::Rejected("this server is part of a cluster".to_owned()),
        Problem::Stranger(tag) => {
            StoreError::Rejected(format!("its state was written by a quota that nobody knows ({tag:04x})"))
        }
    })
}

/// Whether this is a task of that runtime.
fn is_here(home: &Handle) -> bool {
    Handle::try_current().is_ok_and(|here| here.id() == home.id())
}

impl Store for RedisStore {
    fn execute(&self, request: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        self.at_home(|inner, caller| async move { inner.perform(request, caller).await })
    }

    fn last_error(&self) -> Option<String> {
        Self::trouble(self)
    }

    fn ready(&self) -> StoreFuture<Result<(), StoreError>> {
        let inner = self.inner.clone();
        Box::pin(async move {
            inner.servers.ready().await.map_err(|cause| StoreError::Unavailable(cause.to_string()))
        })
    }

    fn wait_recovered(&self) -> StoreFuture<()> {
        let inner = self.inner.clone();
        Box::pin(async move { inner.servers.recovered().await })
    }

    fn add_failure_mode(&self, mode: FailureMode) {
        self.inner.modes.add(mode);
    }

    fn runtime_affinity(&self) -> RuntimeAffinity {
        if self.inner.home.is_some() { RuntimeAffinity::AnyRuntime } else { RuntimeAffinity::CreatingRuntime }
    }

    fn effective_quota(&self, quota: Quota) -> Quota {
        match quota.kind() {
            AlgorithmKind::Concurrency(it) if it.lease().is_none() => {
                let leased = Concurrency::with_lease(quota.limit(), self.inner.lease);
                leased.map_or(quota, |leased| AlgorithmKind::Concurrency(leased).into())
            }
            _ => quota,
        }
    }
}

impl CounterStore for RedisStore {
    fn add(&self, additions: Vec<Increment>) -> StoreFuture<Result<Vec<i64>, StoreError>> {
        self.at_home(|inner, _| async move { inner.servers.add(additions).await })
    }

    fn delete(&self, keys: Vec<String>) -> StoreFuture<Result<(), StoreError>> {
        self.at_home(|inner, _| async move {
            for key in keys {
                inner.servers.command(&key, redis::cmd("UNLINK").arg(&key)).await?;
            }
            Ok(())
        })
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("server", &self.inner.servers.shown()).finish_non_exhaustive()
    }
}
