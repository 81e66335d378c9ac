//! The store and its builder.

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
    store::{
        DEFAULT_DEADLINE, DEFAULT_PREFIX, KeyRef, OverrideReply, OverrideRequest, RuntimeAffinity,
        StoreFuture, StoreLimit, StoreReply, StoreRequest,
    },
};
use tokio::runtime::Handle;

/// A store in Redis or Valkey: one server, a primary behind sentinels, or a cluster.
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<RedisStoreInner>,
}

struct RedisStoreInner {
    key_names: Arc<KeyNames>,
    lease: Micros,
    topology: Topology,
    /// The failure modes of its limiters, for the log.
    modes: Arc<FailureModes>,
    started: std::time::Instant,
    /// The runtime of its connections, if the store is bound to one.
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
            prefix: DEFAULT_PREFIX.to_owned(),
            deadline: DEFAULT_DEADLINE,
            lease: Duration::from_secs(30),
            affinity: RuntimeAffinity::CreatingRuntime,
            #[cfg(feature = "tls")]
            tls: TlsFiles::default(),
        }
    }
}

impl RedisStoreBuilder {
    /// Sets the prefix of all keys; `tidegate` by default.
    #[must_use]
    pub fn prefix(self, prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), ..self }
    }

    /// Sets how long a decision waits for a reply; 500 ms by default.
    ///
    /// A decision that exceeds it is denied, or allowed if the limiter fails open, and the charge of a late reply is
    /// refunded. The store becomes unavailable when it disconnects, leaves a call without a reply for twice the deadline
    /// and at least a second, or replies late eight times in a row. The limiter's failure mode then decides at once.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Sets the lease of a permit that its holder does not renew, for quotas without their own lease; 30 s by default.
    #[must_use]
    pub fn permit_lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// Binds the store to the runtime that creates it, which must outlive it.
    ///
    /// Requests from other runtimes are then sent by tasks of that runtime. By default a call runs on the caller's
    /// runtime.
    #[must_use]
    pub fn bind_to_runtime(self) -> Self {
        Self { affinity: RuntimeAffinity::AnyRuntime, ..self }
    }

    /// Sets the CA certificates (PEM) used to verify the server; the system's by default.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls_authority(self, pem: &[u8]) -> Self {
        let tls = TlsFiles { authority: Some(pem.to_owned()), ..self.tls };
        Self { tls, ..self }
    }

    /// Sets the client certificate and its key (PEM), for servers that require one.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls_identity(self, certificate: &[u8], key: &[u8]) -> Self {
        let tls = TlsFiles { identity: Some((certificate.to_owned(), key.to_owned())), ..self.tls };
        Self { tls, ..self }
    }

    /// Accepts a certificate of a trusted CA for any host name, like `REDIS_TLS_SKIP_HOSTNAME_VERIFICATION`.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls_skip_hostname_verification(self) -> Self {
        let tls = TlsFiles { hostname_check: HostnameCheck::Skip, ..self.tls };
        Self { tls, ..self }
    }

    /// Creates the store and connects in the background; it works as soon as the server is available.
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if the address or the TLS settings are invalid.
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

    /// Creates the store and connects.
    ///
    /// # Errors
    ///
    /// Returns an error if the address is invalid, or the server is unavailable or not usable as a store.
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
        let invalid = |error: redis::RedisError| ConnectError::invalid_url(url, &error.to_string());
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
            RedisAddress::Server(info) => node(Connector::for_server(info, &security).map_err(invalid)?),
            RedisAddress::Sentinels { sentinels, master, login, sentinel_login } => {
                let connector = Connector::for_sentinels(sentinels, &master, &login, &sentinel_login);
                node(connector.map_err(invalid)?)
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
    /// Creates a store with default settings and connects.
    ///
    /// # Errors
    ///
    /// Returns an error if the address is invalid, or the server is unavailable or not usable as a store.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder().connect(url).await
    }

    /// Creates a store with default settings and connects in the background.
    ///
    /// # Errors
    ///
    /// Returns an error if the address is invalid.
    pub fn open(url: &str) -> Result<Self, ConnectError> {
        Self::builder().open(url)
    }

    /// Returns a builder with default settings.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::default()
    }

    /// Why decisions are degraded at present, if they are.
    pub fn last_error(&self) -> Option<String> {
        self.inner.topology.last_error()
    }

    /// The number of times that a server became unavailable since the store was created.
    pub fn outages(&self) -> u64 {
        self.inner.topology.outages()
    }

    /// Executes requests at the given time instead of the server's, without a deadline.
    ///
    /// For tests of the store, which use the same time in Redis and in memory.
    pub async fn execute_at(
        &self,
        requests: &[StoreRequest],
        now: Micros,
    ) -> Vec<Result<StoreReply, StoreError>> {
        for key_ref in requests.iter().flat_map(key_refs) {
            if let Err(error) = self.inner.announce(&key_ref.limit).await {
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
        let answered_requests = answers.into_iter().zip(requests);
        answered_requests
            .map(|(answer, request)| into_store_result(strip_unrequested_receipts(request, answer)))
            .collect()
    }

    /// Deletes keys, and the announcements of the quotas with these rules and tags.
    pub(crate) async fn remove(
        &self,
        keys: &[KeyRef],
        tags: impl Iterator<Item = (&str, u16)>,
    ) -> Result<(), StoreError> {
        let RedisStoreInner { key_names, topology, .. } = &*self.inner;
        let states = keys.iter().map(|key_ref| key_names.key(key_ref));
        for key in states.chain(tags.map(|(rule, tag)| key_names.quota_key(rule, tag))) {
            topology.send_command(&key, redis::cmd("UNLINK").arg(&key)).await?;
        }
        Ok(())
    }

    /// Makes a call whose timers and tasks run on the store's runtime, if it is bound to one.
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

    /// The key in the server for a [`KeyRef`], for operators and tests.
    pub fn key(&self, key_ref: &KeyRef) -> String {
        self.inner.key_names.key(key_ref)
    }
}

impl RedisStoreInner {
    /// Executes a request. Rare steps are boxed, because they would enlarge the future of every decision.
    async fn execute(&self, request: StoreRequest, caller: CallOrigin) -> Result<StoreReply, StoreError> {
        for key_ref in key_refs(&request) {
            if !self.is_announced(&key_ref.limit) {
                Box::pin(self.announce(&key_ref.limit)).await?;
            }
        }
        match self.topology.submit(request.clone(), caller).await {
            Err(NodeError::UnknownTag(tag)) => {
                Box::pin(self.execute_with_foreign_quotas(request, tag, caller)).await
            }
            answer => into_store_result(strip_unrequested_receipts(&request, answer)),
        }
    }

    /// Looks up the unknown tags of a state one by one, until the script can read it.
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

    /// Whether the quotas of this limit were announced recently.
    fn is_announced(&self, limit: &StoreLimit) -> bool {
        let last = limit.store_tag().load(Ordering::Relaxed);
        last != 0 && self.uptime_seconds().saturating_sub(last) < ANNOUNCE_INTERVAL.as_secs()
    }

    fn uptime_seconds(&self) -> u64 {
        self.started.elapsed().as_secs() + 1
    }

    /// Publishes the quotas behind the tags of a limit, before any state is written with them.
    async fn announce(&self, limit: &StoreLimit) -> Result<(), StoreError> {
        if self.is_announced(limit) {
            return Ok(());
        }
        let (now, last) = (self.uptime_seconds(), limit.store_tag().load(Ordering::Relaxed));
        let is_claimed =
            || limit.store_tag().compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_err();
        // One caller renews the announcement; the previous one is still valid for the others.
        if last != 0 && is_claimed() {
            return Ok(());
        }
        for (quota, tag) in limit.quotas().iter().zip(limit.tags()) {
            let key = self.key_names.quota_key(limit.name(), *tag);
            let mut set = redis::cmd("SET");
            set.arg(&key).arg(quota.to_string());
            // The states of a total never expire, and without its quota they could not be read.
            if !quota.is_total() {
                set.arg("EX").arg(ANNOUNCE_TTL.as_secs());
            }
            self.topology.send_command(&key, &set).await?;
        }
        limit.store_tag().store(now, Ordering::Relaxed);
        Ok(())
    }

    /// Looks up the quota of another process by its tag.
    async fn fetch_foreign_quota(&self, request: &StoreRequest, tag: u16) -> Result<(), StoreError> {
        for key_ref in key_refs(request) {
            let rule = key_ref.limit.name();
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

/// The interval at which a quota in use is announced, so that a server that lost its data has it again soon.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(60);
/// The lifetime of an announcement, except of a total.
const ANNOUNCE_TTL: Duration = Duration::from_secs(30 * 24 * 3_600);
/// The maximum number of quotas that one request looks up.
const MAX_FOREIGN_LOOKUPS: usize = 16;

fn into_store_result(answer: NodeResult) -> Result<StoreReply, StoreError> {
    answer.map_err(|problem| match problem {
        NodeError::Store(error) => error,
        NodeError::NotLocal => StoreError::ErrorReply("this server is part of a cluster".to_owned()),
        NodeError::UnknownTag(tag) => {
            StoreError::ErrorReply(format!("unknown quota tag {tag:04x} in the stored state"))
        }
    })
}

/// Whether the current task runs on this runtime.
fn is_current_runtime(runtime: &Handle) -> bool {
    Handle::try_current().is_ok_and(|here| here.id() == runtime.id())
}

impl Store for RedisStore {
    fn execute(&self, request: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        self.call_on_runtime(|inner, caller| async move { inner.execute(request, caller).await })
    }

    fn overrides(&self, request: OverrideRequest) -> StoreFuture<Result<OverrideReply, StoreError>> {
        self.call_on_runtime(|inner, _| async move {
            inner.topology.overrides(inner.key_names.prefix(), &request).await
        })
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
