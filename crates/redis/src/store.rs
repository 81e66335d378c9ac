//! The store itself.

use crate::{
    address::RedisAddress,
    cluster::Cluster,
    connector::{ClientTls, Connector},
    error::ConnectError,
    health::FailureModes,
    key_names::KeyNames,
    node::{CallOrigin, KeyPassing, NodeError, NodeResult, RedisNode, key_refs, strip_unrequested_receipts},
    topology::Topology,
};
#[cfg(feature = "tls")]
use crate::{
    address::split_ca_file,
    tls::{HostnameCheck, TlsFiles},
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
    inner: Arc<RedisStoreInner>,
}

struct RedisStoreInner {
    key_names: Arc<KeyNames>,
    lease: Micros,
    topology: Topology,
    /// What its limiters do without it.
    modes: Arc<FailureModes>,
    started: std::time::Instant,
    /// The runtime that its connections live on, if it is there for good.
    runtime: Option<Handle>,
}

/// Settings of a [`RedisStore`].
#[derive(Clone, Debug)]
pub struct RedisStoreBuilder {
    prefix: String,
    deadline: Duration,
    lease: Duration,
    affinity: RuntimeAffinity,
    #[cfg(feature = "tls")]
    tls: TlsFiles,
}

impl Default for RedisStoreBuilder {
    fn default() -> Self {
        Self {
            prefix: "tidegate".to_owned(),
            deadline: DEFAULT_DEADLINE,
            lease: Duration::from_secs(30),
            affinity: RuntimeAffinity::CreatingRuntime,
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
    pub fn bind_to_runtime(self) -> Self {
        Self { affinity: RuntimeAffinity::AnyRuntime, ..self }
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
        let tls = TlsFiles { hostname_check: HostnameCheck::Skip, ..self.tls };
        Self { tls, ..self }
    }

    /// Makes the store and connects it in the background: it works as soon as the server is there.
    ///
    /// Must be called within a tokio runtime.
    pub fn open(self, url: &str) -> Result<RedisStore, ConnectError> {
        let store = self.build(url)?;
        match &store.inner.topology {
            Topology::Single(node) => {
                node.health().mark_connecting();
                node.reconnect();
            }
            Topology::Cluster(cluster) => {
                cluster.health().mark_connecting();
                cluster.refresh_in_background();
            }
        }
        Ok(store)
    }

    /// Makes the store, and fails if the server is not there or not of use.
    pub async fn connect(self, url: &str) -> Result<RedisStore, ConnectError> {
        let store = self.build(url)?;
        match &store.inner.topology {
            Topology::Single(node) => {
                node.connect()
                    .await
                    .map_err(|error| ConnectError::connection_failed(node.display_name(), &error))?;
                node.inspect().await?;
            }
            Topology::Cluster(cluster) => cluster.connect().await?,
        }
        Ok(store)
    }

    #[allow(clippy::disallowed_methods, reason = "no decision depends on when a quota was announced")]
    fn build(self, url: &str) -> Result<RedisStore, ConnectError> {
        let key_names = Arc::new(KeyNames::new(&self.prefix));
        let modes = Arc::<FailureModes>::default();
        let node = |connector| {
            Topology::Single(RedisNode::new(
                key_names.clone(),
                connector,
                self.deadline,
                KeyPassing::Keys,
                &modes,
            ))
        };
        let unreadable = |error: redis::RedisError| ConnectError::invalid_url(url, &error.to_string());
        #[cfg(feature = "tls")]
        let (url, authority) = split_ca_file(url)?;
        #[cfg(feature = "tls")]
        let (url, tls) = (url.as_str(), TlsFiles { authority: authority.or(self.tls.authority), ..self.tls });
        let address = RedisAddress::parse(url)?;
        #[cfg(feature = "tls")]
        let security = ClientTls(tls.config()?);
        #[cfg(not(feature = "tls"))]
        let security = ClientTls();
        let topology = match address {
            RedisAddress::Server(info) => node(Connector::for_server(info, &security).map_err(unreadable)?),
            RedisAddress::Sentinels { sentinels, master, login, sentinel_login } => {
                let connector = Connector::for_sentinels(sentinels, &master, &login, &sentinel_login);
                node(connector.map_err(unreadable)?)
            }
            RedisAddress::Cluster(seeds) => {
                Topology::Cluster(Cluster::new(key_names.clone(), (seeds, security), self.deadline, &modes))
            }
        };
        let started = std::time::Instant::now();
        let runtime = Handle::try_current().ok().filter(|_| self.affinity == RuntimeAffinity::AnyRuntime);
        let lease = self.lease.into();
        Ok(RedisStore {
            inner: Arc::new(RedisStoreInner { key_names, lease, topology, modes, started, runtime }),
        })
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
    pub fn last_error(&self) -> Option<String> {
        self.inner.topology.last_error()
    }

    /// How often a server went away since the store was made.
    pub fn outages(&self) -> u64 {
        self.inner.topology.outages()
    }

    /// Does what is asked at a moment that the caller names instead of the server's, without a deadline. For checks of
    /// the store itself: with it, time in Redis and in a test can be the same.
    pub async fn execute_at(
        &self,
        requests: &[StoreRequest],
        now: Micros,
    ) -> Vec<Result<StoreReply, StoreError>> {
        for place in requests.iter().flat_map(key_refs) {
            if let Err(error) = self.inner.announce(&place.limit).await {
                return vec![Err(error); requests.len()];
            }
        }
        let mut answers = self.inner.topology.submit_at(requests, now).await;
        for _ in 0..MAX_FOREIGN_LOOKUPS {
            for index in 0..requests.len() {
                if let Err(NodeError::UnknownTag(tag)) = answers[index] {
                    if let Err(error) = self.inner.fetch_foreign_quota(&requests[index], tag).await {
                        return vec![Err(error); requests.len()];
                    }
                    let again = self.inner.topology.submit_at(&requests[index..=index], now).await;
                    answers.splice(index..=index, again);
                }
            }
        }
        let pairs = answers.into_iter().zip(requests);
        pairs
            .map(|(answer, request)| into_store_result(strip_unrequested_receipts(request, answer)))
            .collect()
    }

    /// Removes keys at once, as if they had never been, and what was told of the quotas with these rules and tags.
    pub(crate) async fn remove(
        &self,
        places: &[KeyRef],
        tags: impl Iterator<Item = (&str, u16)>,
    ) -> Result<(), StoreError> {
        let RedisStoreInner { key_names, topology, .. } = &*self.inner;
        let states = places.iter().map(|place| key_names.key(place));
        for key in states.chain(tags.map(|(rule, tag)| key_names.quota_key(rule, tag))) {
            topology.send_command(&key, redis::cmd("UNLINK").arg(&key)).await?;
        }
        Ok(())
    }

    /// Makes a call whose timers and tasks are those of the store's home, wherever it is asked.
    fn call_on_runtime<F>(
        &self,
        call: impl FnOnce(Arc<RedisStoreInner>, CallOrigin) -> F,
    ) -> StoreFuture<F::Output>
    where
        F: Future + Send + 'static,
    {
        let inner = self.inner.clone();
        let Some(runtime) = self.inner.runtime.clone().filter(|runtime| !is_current_runtime(runtime)) else {
            return Box::pin(call(inner, CallOrigin::SameRuntime));
        };
        let call = call(inner, CallOrigin::OtherRuntime);
        Box::pin(async move {
            let mut call = pin!(call);
            poll_fn(|context| {
                let _entered = runtime.enter();
                call.as_mut().poll(context)
            })
            .await
        })
    }

    /// The key in the server under which a place is kept, for operators and tests.
    pub fn key(&self, place: &KeyRef) -> String {
        self.inner.key_names.key(place)
    }
}

impl RedisStoreInner {
    /// What is done rarely is kept apart, here and below: a future has room for everything in it, and this one is made
    /// for each decision.
    async fn execute(&self, request: StoreRequest, caller: CallOrigin) -> Result<StoreReply, StoreError> {
        for place in key_refs(&request) {
            if !self.is_announced(&place.limit) {
                Box::pin(self.announce(&place.limit)).await?;
            }
        }
        match self.topology.submit(request.clone(), caller).await {
            Err(NodeError::UnknownTag(tag)) => {
                Box::pin(self.execute_with_foreign_quotas(request, tag, caller)).await
            }
            answer => into_store_result(strip_unrequested_receipts(&request, answer)),
        }
    }

    /// Learns what the tags in a state mean, one after the other, until it can be read.
    async fn execute_with_foreign_quotas(
        &self,
        request: StoreRequest,
        tag: u16,
        caller: CallOrigin,
    ) -> Result<StoreReply, StoreError> {
        let mut answer = Err(NodeError::UnknownTag(tag));
        for _ in 0..MAX_FOREIGN_LOOKUPS {
            let Err(NodeError::UnknownTag(tag)) = answer else { break };
            self.fetch_foreign_quota(&request, tag).await?;
            answer = self.topology.submit(request.clone(), caller).await;
            self.key_names.forget_unknown();
        }
        into_store_result(strip_unrequested_receipts(&request, answer))
    }

    /// Whether others know what the tags of these quotas mean.
    fn is_announced(&self, limit: &StoreLimit) -> bool {
        let last = limit.store_tag().load(Ordering::Relaxed);
        last != 0 && self.uptime_seconds().saturating_sub(last) < ANNOUNCE_INTERVAL.as_secs()
    }

    fn uptime_seconds(&self) -> u64 {
        self.started.elapsed().as_secs() + 1
    }

    /// Tells other processes what the tags of these quotas mean, before anything is written under them.
    async fn announce(&self, limit: &StoreLimit) -> Result<(), StoreError> {
        if self.is_announced(limit) {
            return Ok(());
        }
        let (now, last) = (self.uptime_seconds(), limit.store_tag().load(Ordering::Relaxed));
        let is_taken =
            || limit.store_tag().compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_err();
        // One caller says it again; what was said before holds for the others.
        if last != 0 && is_taken() {
            return Ok(());
        }
        for (quota, tag) in limit.quotas().iter().zip(limit.tags()) {
            let key = self.key_names.quota_key(limit.name(), *tag);
            let mut set = redis::cmd("SET");
            set.arg(&key).arg(quota.to_string()).arg("EX").arg(ANNOUNCE_TTL.as_secs());
            self.topology.send_command(&key, &set).await?;
        }
        limit.store_tag().store(now, Ordering::Relaxed);
        Ok(())
    }

    /// Learns of a quota that another process writes with.
    async fn fetch_foreign_quota(&self, request: &StoreRequest, tag: u16) -> Result<(), StoreError> {
        for place in key_refs(request) {
            let rule = place.limit.name();
            if self.key_names.is_registered(rule, tag) {
                continue;
            }
            let key = self.key_names.quota_key(rule, tag);
            let text = self.topology.send_command(&key, redis::cmd("GET").arg(&key)).await?;
            let text: Option<String> = redis::from_redis_value(text).unwrap_or(None);
            let quota = text.and_then(|text| text.parse::<Quota>().ok()).filter(|quota| quota.tag() == tag);
            self.key_names.register(rule, tag, quota);
        }
        Ok(())
    }
}

/// How often a quota in use is announced, so that a server that lost everything has it again soon, and how long others
/// can look it up.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(60);
const ANNOUNCE_TTL: Duration = Duration::from_secs(30 * 24 * 3_600);
/// Quotas that one request may have to ask about.
const MAX_FOREIGN_LOOKUPS: usize = 16;

fn into_store_result(answer: NodeResult) -> Result<StoreReply, StoreError> {
    answer.map_err(|problem| match problem {
        NodeError::Store(error) => error,
        NodeError::NotLocal => StoreError::Rejected("this server is part of a cluster".to_owned()),
        NodeError::UnknownTag(tag) => {
            StoreError::Rejected(format!("its state was written by a quota that nobody knows ({tag:04x})"))
        }
    })
}

/// Whether this is a task of that runtime.
fn is_current_runtime(runtime: &Handle) -> bool {
    Handle::try_current().is_ok_and(|here| here.id() == runtime.id())
}

impl Store for RedisStore {
    fn execute(&self, request: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        self.call_on_runtime(|inner, caller| async move { inner.execute(request, caller).await })
    }

    fn last_error(&self) -> Option<String> {
        Self::last_error(self)
    }

    fn ready(&self) -> StoreFuture<Result<(), StoreError>> {
        let inner = self.inner.clone();
        Box::pin(async move {
            inner.topology.ready().await.map_err(|cause| StoreError::Unavailable(cause.to_string()))
        })
    }

    fn wait_recovered(&self) -> StoreFuture<()> {
        let inner = self.inner.clone();
        Box::pin(async move { inner.topology.wait_recovered().await })
    }

    fn add_failure_mode(&self, mode: FailureMode) {
        self.inner.modes.add(mode);
    }

    fn runtime_affinity(&self) -> RuntimeAffinity {
        if self.inner.runtime.is_some() {
            RuntimeAffinity::AnyRuntime
        } else {
            RuntimeAffinity::CreatingRuntime
        }
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
        self.call_on_runtime(|inner, _| async move { inner.topology.add(additions).await })
    }

    fn delete(&self, keys: Vec<String>) -> StoreFuture<Result<(), StoreError>> {
        self.call_on_runtime(|inner, _| async move {
            for key in keys {
                inner.topology.send_command(&key, redis::cmd("UNLINK").arg(&key)).await?;
            }
            Ok(())
        })
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("server", &self.inner.topology.display_name())
            .finish_non_exhaustive()
    }
}
