//! Replaces the policy in force, as a whole or not at all.

use super::{
    ActiveWorkers, Gateway,
    listeners::{bind_listeners, has_same_connections},
    log_warnings,
};
use crate::{
    events, key_set_fetcher::KeySetFetcher, metrics::MetricsExporter, run::PreparedConfig,
    worker::WorkerCommand,
};
use std::{num::NonZeroUsize, sync::Arc};
use tidegate_admin::{AdminServer, GatewayError, ReloadScope};
use tidegate_http_server::{Authorization, HttpServer, ReadFiles, StartupError, ThreadedListener};
use tidegate_observe::{RequestRecorder, policy_version};
use tidegate_policy::{Policy, compile::PolicyGate, model::DecisionListener};
use tidegate_service::decisions::{self, envoy};

/// The number of worker groups of earlier policies that may still drain. Beyond it, the oldest are stopped.
const MAX_DRAINING_WORKERS: usize = 4;

impl Gateway {
    /// Reloads the policy and puts it in force. An invalid policy is logged and changes nothing.
    pub(super) async fn reload(&mut self) -> Result<ReloadScope, GatewayError> {
        let files = ReadFiles::default();
        let read = self.source.read(&files);
        self.watch.watch(&files);
        let outcome = match read {
            Ok(policy) => self.replace(policy).await,
            Err(error) => Err(error),
        };
        self.observer.record_reload(outcome.as_ref().err().map(ToString::to_string));
        match &outcome {
            Ok(scope) => {
                let (version, rules) = (policy_version(&self.policy), self.policy.rules.len());
                events::PolicyReloaded { version: &version, rules, scope: *scope }.emit();
            }
            Err(error) => events::PolicyRejected { error }.emit(),
        }
        outcome
    }

    async fn replace(&mut self, policy: Policy) -> Result<ReloadScope, GatewayError> {
        if policy == self.policy {
            self.gate.reload_lists().map_err(|error| self.source.gateway_error(error))?;
            return Ok(ReloadScope::Lists);
        }
        KeySetFetcher::check(&policy)?;
        let has_moved = policy.admin != self.policy.admin;
        let admin = match has_moved {
            true => AdminServer::bind(&policy.admin, self.admin.as_ref())?,
            false => None,
        };
        if policy.stores != self.policy.stores {
            self.compiler.connect_stores(&policy).await.map_err(|error| self.source.gateway_error(error))?;
        }
        let authorization = Authorization::for_listener(policy.decisions.as_ref(), &policy.admin)?;
        let decisions = self.bind_decisions(&policy)?;
        let envoy_authorization = Authorization::for_listener(policy.envoy.as_ref(), &policy.admin)?;
        let envoy = self.bind_envoy(&policy)?;
        let exporter = match &policy.metrics {
            same if *same == self.policy.metrics => Replacement::Unchanged,
            None => Replacement::None,
            Some(settings) => Replacement::New(MetricsExporter::start(settings, &self.observer)?),
        };
        let reloaded = match has_same_connections(&policy, &self.policy) {
            true => self.replace_rules(&policy).await?,
            false => self.replace_workers(&policy).await?,
        };
        if has_moved {
            self.admin = admin;
            if let (Some(admin), Some(decision_state)) = (&mut self.admin, &self.decision_state) {
                admin.start(self.handle.clone(), &self.observer, &self.overrides, decision_state)?;
            }
        }
        self.replace_decisions(&policy, decisions, authorization)?;
        self.replace_envoy(&policy, envoy, envoy_authorization).await?;
        match exporter {
            Replacement::Unchanged => {}
            Replacement::None => self.metrics_exporter = None,
            Replacement::New(exporter) => self.metrics_exporter = Some(exporter),
        }
        log_warnings(&policy);
        self.policy = policy;
        self.publish_config();
        Ok(reloaded)
    }

    /// Binds the listener of the decision API of the next policy, if it differs.
    fn bind_decisions(&self, policy: &Policy) -> Result<Replacement<ThreadedListener>, StartupError> {
        let listener = |policy: &Policy| policy.decisions.clone().map(|it| (it.listen, it.tls));
        let is_same =
            listener(policy) == listener(&self.policy) && policy.connections == self.policy.connections;
        Replacement::bind(is_same, policy.decisions.as_ref(), self.decisions.as_ref())
    }

    /// Binds the listener of the rate limit service of the next policy, if it differs.
    fn bind_envoy(&self, policy: &Policy) -> Result<Replacement<ThreadedListener>, StartupError> {
        let listener = |policy: &Policy| policy.envoy.clone().map(|it| (it.listen, it.tls));
        let is_same =
            listener(policy) == listener(&self.policy) && policy.connections == self.policy.connections;
        Replacement::bind(is_same, policy.envoy.as_ref(), self.envoy.as_ref())
    }

    /// Switches the decision API to the policy in force.
    fn replace_decisions(
        &mut self,
        policy: &Policy,
        next: Replacement<ThreadedListener>,
        authorization: Authorization,
    ) -> Result<(), StartupError> {
        let Some(decision_state) = self.decision_state.clone() else { return Ok(()) };
        decision_state.replace(self.gate.clone(), self.recorder.clone(), authorization);
        let server = decisions::server(&decision_state, &policy.connections);
        let before = next.start(&mut self.decisions, &server, "decisions", self.workers)?;
        self.drain_listener(before);
        Ok(())
    }

    /// Switches the rate limit service to the tokens and the listener of the policy in force. Its rules are those of the decision API.
    async fn replace_envoy(
        &mut self,
        policy: &Policy,
        next: Replacement<ThreadedListener>,
        authorization: Authorization,
    ) -> Result<(), StartupError> {
        let Some(decision_state) = self.decision_state.clone() else { return Ok(()) };
        decision_state.replace_envoy_authorization(authorization);
        if matches!(next, Replacement::Unchanged) {
            return Ok(());
        }
        let server = envoy::server(&decision_state, &policy.connections).await;
        let before = next.start(&mut self.envoy, &server, "envoy", self.workers)?;
        self.drain_listener(before);
        Ok(())
    }

    fn drain_listener(&mut self, before: Option<ThreadedListener>) {
        self.draining_threads.retain(|threads| !threads.is_finished());
        self.draining_threads.extend(before.and_then(ThreadedListener::drain));
    }

    async fn replace_rules(&mut self, policy: &Policy) -> Result<ReloadScope, GatewayError> {
        self.gate = self.compile(policy).await?;
        self.fetch_key_set().await?;
        self.recorder = self.new_recorder(policy);
        if let Some(serving) = &self.active_workers {
            serving.filter.replace(self.active_policy(&self.build_config(policy)));
        }
        Ok(ReloadScope::Rules)
    }

    async fn replace_workers(&mut self, policy: &Policy) -> Result<ReloadScope, GatewayError> {
        // Steps that can fail without side effects run first; the rules are replaced last.
        let prepared = PreparedConfig::prepare(self.build_config(policy)).await?;
        let listeners = bind_listeners(policy, &self.listeners)?;
        self.gate = self.compile(policy).await?;
        self.fetch_key_set().await?;
        self.recorder = self.new_recorder(policy);
        (self.upstreams, self.spans) = (prepared.upstream_reporter(), prepared.span_reporter());
        let active = self.active_policy(prepared.config());
        let next = ActiveWorkers::start(prepared, &listeners, active)?;
        self.listeners = listeners;
        if let Some(before) = self.active_workers.replace(next) {
            before.workers.send_command(WorkerCommand::Drain);
            self.draining_workers.push_back(before.workers);
        }
        self.draining_workers.retain(|workers| !workers.is_finished());
        let excess = self.draining_workers.len().saturating_sub(MAX_DRAINING_WORKERS);
        self.draining_workers
            .iter()
            .take(excess)
            .for_each(|workers| workers.send_command(WorkerCommand::Stop));
        Ok(ReloadScope::Connections)
    }

    /// Fetches the key set of the policy, if it is at a URL, before requests need it.
    pub(super) async fn fetch_key_set(&mut self) -> Result<(), StartupError> {
        let remote = self.gate.remote_key_set();
        let is_same = match (&remote, &self.key_set_fetcher) {
            (Some(remote), Some(fetcher)) => fetcher.is_for(&remote.verifier),
            _ => false,
        };
        if !is_same {
            self.key_set_fetcher = match remote {
                Some(remote) => Some(KeySetFetcher::start(remote).await?),
                None => None,
            };
        }
        Ok(())
    }

    /// Creates the recorder of a new policy.
    fn new_recorder(&self, policy: &Policy) -> Arc<RequestRecorder> {
        RequestRecorder::new(&self.observer, self.gate.views().map(|rule| rule.name()), &policy.observe)
    }

    async fn compile(&mut self, policy: &Policy) -> Result<PolicyGate, GatewayError> {
        let opened = self.overrides.open(policy)?;
        let gate = self
            .compiler
            .compile(policy, Some(&self.gate))
            .map_err(|error| self.source.gateway_error(error))?;
        self.overrides.activate(opened, policy, &gate, &self.rules);
        self.overrides.fetch_changes().await;
        Ok(gate)
    }
}

/// The replacement of a part of the previous policy.
enum Replacement<T> {
    Unchanged,
    None,
    New(T),
}

impl Replacement<ThreadedListener> {
    /// Binds the next listener, unless it is the same.
    fn bind(
        is_same: bool,
        next: Option<&DecisionListener>,
        current: Option<&ThreadedListener>,
    ) -> Result<Self, StartupError> {
        Ok(match next {
            _ if is_same => Self::Unchanged,
            None => Self::None,
            Some(next) => Self::New(decisions::bind(next, current)?),
        })
    }

    /// Starts the next listener in place of the current one, and returns the latter.
    fn start(
        self,
        current: &mut Option<ThreadedListener>,
        server: &HttpServer,
        name: &'static str,
        workers: NonZeroUsize,
    ) -> Result<Option<ThreadedListener>, StartupError> {
        let next = match self {
            Self::Unchanged => return Ok(None),
            Self::None => None,
            Self::New(mut listener) => {
                listener.start(server, name, workers)?;
                Some(listener)
            }
        };
        Ok(std::mem::replace(current, next))
    }
}
