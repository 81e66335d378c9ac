//! Decides what is asked of a domain.

use super::{
    Decide, DescriptorFault, DomainAsk, DomainVerdict, Lookup,
    counters::{Counters, Hold, Home, OverKeys, Purpose, Reserved},
    exposition::Exposition,
    force::{Force, QuotaGroup, Subject},
    metrics::ServiceMetrics,
    settings::{Counting, ServiceSettings},
    verdict::fold,
};
use arc_swap::ArcSwapOption;
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed},
};
use tidegate_limiter::BuildError;

/// Decides what is asked of a domain: which limits apply, how many there were, and what that means.
pub struct DescriptorService {
    pub(super) settings: ServiceSettings,
    home: Home,
    pub(super) units: Counters,
    pub(super) over: Option<OverKeys>,
    metrics: ServiceMetrics,
    force: ArcSwapOption<Force>,
    /// Whoever loads files holds this.
    loading: Mutex<()>,
}

impl DescriptorService {
    /// A service without files: it knows no domain until [`load`](Self::load).
    pub fn new(settings: ServiceSettings) -> Result<Self, BuildError> {
        let home = Home::new(&settings);
        Ok(Self {
            units: Counters::new(&home, &settings)?,
            over: settings.local_cache.filter(|_| settings.counting == Counting::Theirs).map(OverKeys::new),
            metrics: ServiceMetrics::new(settings.most_details),
            force: ArcSwapOption::empty(),
            loading: Mutex::new(()),
            settings,
            home,
        })
    }

    /// Puts files in force. Requests that are being decided end as they began, and what was counted stays counted.
    pub fn load(&self, set: Arc<dyn Lookup>) {
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.force.load_full();
        let force = Force::new(set, before.as_deref(), (&self.home, &self.settings, &self.metrics));
        self.force.store(Some(Arc::new(force)));
        self.metrics.config_loaded();
    }

    /// The files that are in force.
    pub fn loaded(&self) -> Option<Arc<dyn Lookup>> {
        self.force.load().as_ref().map(|force| force.set.clone())
    }

    /// What is counted for operators.
    pub fn metrics(&self) -> &ServiceMetrics {
        &self.metrics
    }

    /// The same as text for Prometheus.
    pub fn prometheus(&self) -> String {
        self.exposition().prometheus()
    }

    /// The same as `/stats` has it.
    pub fn stats(&self) -> String {
        self.exposition().stats_page()
    }

    pub(super) fn exposition(&self) -> Exposition {
        let local_cache = self.over.as_ref().map(|over| over.gauges().to_vec()).unwrap_or_default();
        Exposition::new(&self.metrics, self.home.failures(), &local_cache)
    }

    /// Decides a request. In memory it never waits.
    pub async fn decide(&self, ask: DomainAsk) -> Result<DomainVerdict, DescriptorFault> {
        let (verdict, reserved) = self.answer(&ask, Purpose::Count).await?;
        reserved.into_iter().for_each(Hold::keep);
        Ok(verdict)
    }

    /// What is said, and what is held of it. Counts for operators how that went.
    pub async fn answer(
        &self,
        ask: &DomainAsk,
        purpose: Purpose,
    ) -> Result<(DomainVerdict, Reserved), DescriptorFault> {
        let started = self.settings.clock.now();
        let answer = self.home.decision(ask.deadline, self.judge(ask, purpose)).await;
        self.metrics.answered(self.settings.clock.now().since(started).into());
        match &answer {
            Ok(_) => {}
            Err(DescriptorFault::Unavailable(_)) => {
                self.metrics.store_errors.fetch_add(1, Relaxed);
            }
            Err(DescriptorFault::Invalid(_) | DescriptorFault::NoConfiguration) => {
                self.metrics.service_errors.fetch_add(1, Relaxed);
            }
        }
        answer
    }

    /// What is in force.
    pub(super) fn force(&self) -> Option<Arc<Force>> {
        self.force.load_full()
    }

    async fn judge(
        &self,
        ask: &DomainAsk,
        purpose: Purpose,
    ) -> Result<(DomainVerdict, Reserved), DescriptorFault> {
        self.examine(ask)?;
        let force = self.force().ok_or(DescriptorFault::NoConfiguration)?;
        let Some(domain) = force.set.domain(&ask.domain) else {
            self.metrics.unknown_domain(&ask.domain, ask.descriptors.len());
            let found: Vec<_> =
                ask.descriptors.iter().map(|_| (Subject::Free(QuotaGroup::Outside), None)).collect();
            return Ok((fold(ask, &found, &self.settings).0, Vec::new()));
        };
        let subjects = force.resolve(domain, ask, (&self.settings, &self.metrics));
        let (findings, reserved) = self.count(ask, &subjects, purpose).await?;
        let found: Vec<_> = subjects.into_iter().zip(findings).collect();
        let (verdict, refused) = fold(ask, &found, &self.settings);
        if refused != verdict.overall {
            self.metrics.global_shadow_mode.fetch_add(1, Relaxed);
        }
        tracing::debug!(domain = ask.domain, descriptors = ask.descriptors.len(), over = ?verdict.overall, "decided");
        Ok((verdict, reserved))
    }

    pub(super) fn examine(&self, ask: &DomainAsk) -> Result<(), DescriptorFault> {
        let invalid = |what: String| Err(DescriptorFault::Invalid(what));
        let ServiceSettings { most_descriptors, most_entries, .. } = self.settings;
        if ask.domain.is_empty() {
            return invalid("rate limit domain must not be empty".to_owned());
        }
        if ask.descriptors.is_empty() {
            return invalid("rate limit descriptor list must not be empty".to_owned());
        }
        if ask.descriptors.len() > most_descriptors {
            let count = ask.descriptors.len();
            return invalid(format!(
                "{count} descriptors are too many; send at most {most_descriptors} at once"
            ));
        }
        for (place, asked) in ask.descriptors.iter().enumerate() {
            if asked.entries.len() > most_entries {
                let count = asked.entries.len();
                return invalid(format!(
                    "descriptors[{place}] has {count} entries, which are too many; send at most {most_entries}"
                ));
            }
        }
        Ok(())
    }
}

impl Decide for DescriptorService {
    fn decide(&self, ask: DomainAsk) -> impl Future<Output = Result<DomainVerdict, DescriptorFault>> + Send {
        self.decide(ask)
    }
}

impl fmt::Debug for DescriptorService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DescriptorService").field("settings", &self.settings).finish_non_exhaustive()
    }
}
