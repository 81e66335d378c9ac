//! Another policy in the place of the one in force, as a whole or not at all.

use super::{
    Gateway, Serving, advise,
    listeners::{has_same_connections, listeners},
};
use crate::{metrics::Sending, run::Plans, worker::Order};
use std::sync::Arc;
use tidegate_admin::{Admin, GatewayError, Reloaded};
use tidegate_http_server::{Authorization, Fault, ReadFiles, ThreadedListener};
use tidegate_observe::RequestRecorder;
use tidegate_policy::{Policy, compile::PolicyGate};
use tidegate_service::decisions;

/// Workers of earlier policies that may still finish; of more, the oldest are hurried.
const MOST_RETIRED: usize = 4;

impl Gateway {
    /// Reads the policy again and puts it in force. What is wrong is told, and changes nothing.
    pub(super) async fn reload(&mut self) -> Result<Reloaded, GatewayError> {
        let files = ReadFiles::default();
        let read = self.source.read(&files);
        self.watch.follow(&files);
        let outcome = match read {
            Ok(policy) => self.replace(policy).await,
            Err(error) => Err(error),
        };
        self.observer.reloaded(outcome.as_ref().err().map(ToString::to_string));
        match &outcome {
            Ok(reloaded) => tracing::info!("the policy was read again: {reloaded}"),
            Err(error) => {
                tracing::error!("the policy stays as it was, because the new one is wrong:\n{error}");
            }
        }
        outcome
    }

    async fn replace(&mut self, policy: Policy) -> Result<Reloaded, GatewayError> {
        if policy == self.policy {
            self.gate.reload_lists().map_err(|error| self.source.error(error))?;
            return Ok(Reloaded::Lists);
        }
        let has_moved = policy.admin != self.policy.admin;
        let admin = match has_moved {
            true => Admin::bind(&policy.admin, self.admin.as_ref())?,
            false => None,
        };
        if policy.stores != self.policy.stores {
            self.compiler.connect_stores(&policy).await.map_err(|error| self.source.error(error))?;
        }
        let authorization = Authorization::of_decisions(&policy)?;
        let decisions = self.next_decisions(&policy)?;
        let sending = match &policy.metrics {
            same if *same == self.policy.metrics => Next::Same,
            None => Next::None,
            Some(terms) => Next::Other(Sending::start(terms, &self.observer)?),
        };
        let reloaded = match has_same_connections(&policy, &self.policy) {
            true => self.replace_rules(&policy)?,
            false => self.replace_all(&policy).await?,
        };
        if has_moved {
            self.admin = admin;
            if let (Some(admin), Some(desk)) = (&mut self.admin, &self.desk) {
                admin.start(self.handle.clone(), &self.observer, desk)?;
            }
        }
        self.replace_decisions(&policy, decisions, authorization).await?;
        match sending {
            Next::Same => {}
            Next::None => self.sending = None,
            Next::Other(sending) => self.sending = Some(sending),
        }
        advise(&policy);
        self.policy = policy;
        self.show();
        Ok(reloaded)
    }

    /// The listener of programs that the next policy has, where it is another one.
    fn next_decisions(&self, policy: &Policy) -> Result<Next<ThreadedListener>, Fault> {
        let listener = |policy: &Policy| policy.decisions.clone().map(|it| (it.listen, it.tls));
        if listener(policy) == listener(&self.policy) && policy.connections == self.policy.connections {
            return Ok(Next::Same);
        }
        Ok(match &policy.decisions {
            None => Next::None,
            Some(next) => Next::Other(decisions::bind(next, self.decisions.as_ref())?),
        })
    }

    /// Has questions answered by the policy that is in force now.
    async fn replace_decisions(
        &mut self,
        policy: &Policy,
        next: Next<ThreadedListener>,
        authorization: Authorization,
    ) -> Result<(), Fault> {
        let Some(desk) = self.desk.clone() else { return Ok(()) };
        desk.replace(self.gate.clone(), self.recorder.clone(), authorization);
        let next = match next {
            Next::Same => return Ok(()),
            Next::None => None,
            Next::Other(mut listener) => {
                let server = decisions::server(&desk, &policy.connections);
                listener.start(&server, "decisions", self.workers)?;
                Some(listener)
            }
        };
        if let Some(before) = std::mem::replace(&mut self.decisions, next) {
            self.leaving.retain(|threads| !threads.have_ended());
            self.leaving.extend(before.retire());
        }
        Ok(())
    }

    fn replace_rules(&mut self, policy: &Policy) -> Result<Reloaded, GatewayError> {
        self.gate = self.compile(policy)?;
        self.recorder = self.next_recorder(policy);
        if let Some(serving) = &self.serving {
            serving.filter.replace(self.active(&self.config(policy)));
        }
        Ok(Reloaded::Rules)
    }

    async fn replace_all(&mut self, policy: &Policy) -> Result<Reloaded, GatewayError> {
        // What leaves no trace when it fails comes first; rules come last.
        let plans = Plans::of(self.config(policy)).await?;
        let listeners = listeners(policy, &self.listeners)?;
        self.gate = self.compile(policy)?;
        self.recorder = self.next_recorder(policy);
        self.upstreams = plans.report_upstreams();
        let active = self.active(plans.config());
        let next = Serving::start(plans, &listeners, active)?;
        self.listeners = listeners;
        if let Some(before) = self.serving.replace(next) {
            before.workers.order(Order::Retire);
            self.retired.push_back(before.workers);
        }
        self.retired.retain(|workers| !workers.have_ended());
        let hurried = self.retired.len().saturating_sub(MOST_RETIRED);
        self.retired.iter().take(hurried).for_each(|workers| workers.order(Order::Stop));
        Ok(Reloaded::Connections)
    }

    /// What counts and keeps what a new policy decides.
    fn next_recorder(&self, policy: &Policy) -> Arc<RequestRecorder> {
        RequestRecorder::new(&self.observer, self.gate.views().map(|rule| rule.name()), &policy.observe)
    }

    fn compile(&self, policy: &Policy) -> Result<PolicyGate, GatewayError> {
        self.compiler.compile(policy, Some(&self.gate)).map_err(|error| self.source.error(error))
    }
}

/// What a new policy has in the place of something.
enum Next<T> {
    /// The same.
    Same,
    None,
    Other(T),
}
