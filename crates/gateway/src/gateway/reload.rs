//! Another policy in the place of the one in force, as a whole or not at all.

use super::{
    ActiveWorkers, Gateway,
    listeners::{bind_listeners, has_same_connections},
    log_warnings,
};
use crate::{metrics::MetricsExporter, run::PreparedConfig, worker::WorkerCommand};
use std::sync::Arc;
use tidegate_admin::{AdminServer, GatewayError, ReloadScope};
use tidegate_http_server::{Authorization, ReadFiles, StartupError, ThreadedListener};
use tidegate_observe::RequestRecorder;
use tidegate_policy::{Policy, compile::PolicyGate};
use tidegate_service::decisions;

/// Workers of earlier policies that may still finish; of more, the oldest are hurried.
const MAX_RETIRED_WORKERS: usize = 4;

impl Gateway {
    /// Reads the policy again and puts it in force. What is wrong is told, and changes nothing.
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
            Ok(reloaded) => tracing::info!("the policy was read again: {reloaded}"),
            Err(error) => {
                tracing::error!("the policy stays as it was, because the new one is wrong:\n{error}");
            }
        }
        outcome
    }

    async fn replace(&mut self, policy: Policy) -> Result<ReloadScope, GatewayError> {
        if policy == self.policy {
            self.gate.reload_lists().map_err(|error| self.source.gateway_error(error))?;
            return Ok(ReloadScope::Lists);
        }
        let has_moved = policy.admin != self.policy.admin;
        let admin = match has_moved {
            true => AdminServer::bind(&policy.admin, self.admin.as_ref())?,
            false => None,
        };
        if policy.stores != self.policy.stores {
            self.compiler.connect_stores(&policy).await.map_err(|error| self.source.gateway_error(error))?;
        }
        let authorization = Authorization::for_decision_api(&policy)?;
        let decisions = self.bind_decisions(&policy)?;
        let sending = match &policy.metrics {
            same if *same == self.policy.metrics => Replacement::Unchanged,
            None => Replacement::None,
            Some(terms) => Replacement::New(MetricsExporter::start(terms, &self.observer)?),
        };
        let reloaded = match has_same_connections(&policy, &self.policy) {
            true => self.replace_rules(&policy)?,
            false => self.replace_workers(&policy).await?,
        };
        if has_moved {
            self.admin = admin;
            if let (Some(admin), Some(desk)) = (&mut self.admin, &self.decision_state) {
                admin.start(self.handle.clone(), &self.observer, desk)?;
            }
        }
        self.replace_decisions(&policy, decisions, authorization).await?;
        match sending {
            Replacement::Unchanged => {}
            Replacement::None => self.metrics_exporter = None,
            Replacement::New(sending) => self.metrics_exporter = Some(sending),
        }
        log_warnings(&policy);
        self.policy = policy;
        self.publish_config();
        Ok(reloaded)
    }

    /// The listener of programs that the next policy has, where it is another one.
    fn bind_decisions(&self, policy: &Policy) -> Result<Replacement<ThreadedListener>, StartupError> {
        let listener = |policy: &Policy| policy.decisions.clone().map(|it| (it.listen, it.tls));
        if listener(policy) == listener(&self.policy) && policy.connections == self.policy.connections {
            return Ok(Replacement::Unchanged);
        }
        Ok(match &policy.decisions {
            None => Replacement::None,
            Some(next) => Replacement::New(decisions::bind(next, self.decisions.as_ref())?),
        })
    }

    /// Has questions answered by the policy that is in force now.
    async fn replace_decisions(
        &mut self,
        policy: &Policy,
        next: Replacement<ThreadedListener>,
        authorization: Authorization,
    ) -> Result<(), StartupError> {
        let Some(desk) = self.decision_state.clone() else { return Ok(()) };
        desk.replace(self.gate.clone(), self.recorder.clone(), authorization);
        let next = match next {
            Replacement::Unchanged => return Ok(()),
            Replacement::None => None,
            Replacement::New(mut listener) => {
                let server = decisions::server(&desk, &policy.connections);
                listener.start(&server, "decisions", self.workers)?;
                Some(listener)
            }
        };
        if let Some(before) = std::mem::replace(&mut self.decisions, next) {
            self.draining.retain(|threads| !threads.is_finished());
            self.draining.extend(before.retire());
        }
        Ok(())
    }

    fn replace_rules(&mut self, policy: &Policy) -> Result<ReloadScope, GatewayError> {
        self.gate = self.compile(policy)?;
        self.recorder = self.new_recorder(policy);
        if let Some(serving) = &self.active_workers {
            serving.filter.replace(self.active_policy(&self.build_config(policy)));
        }
        Ok(ReloadScope::Rules)
    }

    async fn replace_workers(&mut self, policy: &Policy) -> Result<ReloadScope, GatewayError> {
        // What leaves no trace when it fails comes first; rules come last.
        let plans = PreparedConfig::prepare(self.build_config(policy)).await?;
        let listeners = bind_listeners(policy, &self.listeners)?;
        self.gate = self.compile(policy)?;
        self.recorder = self.new_recorder(policy);
        self.upstreams = plans.upstream_reporter();
        let active = self.active_policy(plans.config());
        let next = ActiveWorkers::start(plans, &listeners, active)?;
        self.listeners = listeners;
        if let Some(before) = self.active_workers.replace(next) {
            before.workers.send_command(WorkerCommand::Retire);
            self.retired_workers.push_back(before.workers);
        }
        self.retired_workers.retain(|workers| !workers.is_finished());
        let hurried = self.retired_workers.len().saturating_sub(MAX_RETIRED_WORKERS);
        self.retired_workers
            .iter()
            .take(hurried)
            .for_each(|workers| workers.send_command(WorkerCommand::Stop));
        Ok(ReloadScope::Connections)
    }

    /// What counts and keeps what a new policy decides.
    fn new_recorder(&self, policy: &Policy) -> Arc<RequestRecorder> {
        RequestRecorder::new(&self.observer, self.gate.views().map(|rule| rule.name()), &policy.observe)
    }

    fn compile(&self, policy: &Policy) -> Result<PolicyGate, GatewayError> {
        self.compiler.compile(policy, Some(&self.gate)).map_err(|error| self.source.gateway_error(error))
    }
}

/// What a new policy has in the place of something.
enum Replacement<T> {
    /// The same.
    Unchanged,
    None,
    New(T),
}
