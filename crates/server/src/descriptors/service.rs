//! Decides what is asked of a domain.

use super::{
    Decide, DescriptorFault, DescriptorStatus, DomainAsk, DomainVerdict, Lookup, OverLimit,
    counters::{Before, Charge, Count, CountedKey, Held, Hits, Home, Manner, UnitCounters, charge_all},
    exposition,
    force::{Force, How, LimitState, Limited, Subject},
    metrics::{Hit, ServiceMetrics, Shadow, near},
    settings::{Counting, ServiceSettings, WhenOver},
    verdict::{Finding, fold, refuses},
};
use arc_swap::ArcSwapOption;
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed},
    time::Duration,
};
use tidegate_core::{Decision, Micros, header::seconds};
use tidegate_engine::{BuildError, Outage};
use tidegate_policy::descriptors::Unit;

/// Decides what is asked of a domain: which limits apply, how many there were, and what that means.
pub struct DescriptorService {
    settings: ServiceSettings,
    home: Home,
    units: UnitCounters,
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
            units: UnitCounters::new(&home)?,
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
        exposition::prometheus(&self.metrics, self.home.failures())
    }

    /// The same as `/stats` has it.
    pub fn stats(&self) -> String {
        exposition::stats(&self.metrics, self.home.failures())
    }

    /// Decides a request. In memory it never waits.
    pub async fn decide(&self, ask: DomainAsk) -> Result<DomainVerdict, DescriptorFault> {
        let started = self.settings.clock.now();
        let verdict = self.home.decision(self.judge(&ask)).await;
        self.metrics.answered(self.settings.clock.now().since(started).into());
        match &verdict {
            Ok(_) => {}
            Err(DescriptorFault::Unavailable(_)) => {
                self.metrics.store_errors.fetch_add(1, Relaxed);
            }
            Err(DescriptorFault::Invalid(_) | DescriptorFault::NoConfiguration) => {
                self.metrics.service_errors.fetch_add(1, Relaxed);
            }
        }
        verdict
    }

    async fn judge(&self, ask: &DomainAsk) -> Result<DomainVerdict, DescriptorFault> {
        self.examine(ask)?;
        let force = self.force.load_full().ok_or(DescriptorFault::NoConfiguration)?;
        let Some(domain) = force.set.domain(&ask.domain) else {
            self.metrics.stranger(&ask.domain);
            return Ok(unlimited(ask));
        };
        let subjects = force.resolve(domain, ask, (&self.settings, &self.metrics));
        let findings = self.count(ask, &subjects).await?;
        let found: Vec<_> = subjects.into_iter().zip(findings).collect();
        let (verdict, refused) = fold(ask, &found, &self.settings);
        if refused != verdict.overall {
            self.metrics.global_shadow_mode.fetch_add(1, Relaxed);
        }
        Ok(verdict)
    }

    fn examine(&self, ask: &DomainAsk) -> Result<(), DescriptorFault> {
        let invalid = |what: String| Err(DescriptorFault::Invalid(what));
        let ServiceSettings { most_descriptors, most_entries, most_bytes, .. } = self.settings;
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
            let bytes: usize =
                asked.entries.iter().map(|entry| entry.key.len().saturating_add(entry.value.len())).sum();
            if bytes.saturating_add(ask.domain.len()) > most_bytes {
                return invalid(format!(
                    "descriptors[{place}] is too long; its keys and values may have {most_bytes} bytes, with the domain"
                ));
            }
        }
        Ok(())
    }

    /// Counts what is to be counted, and says what was found of each subject that is limited.
    async fn count(
        &self,
        ask: &DomainAsk,
        subjects: &[Subject<'_>],
    ) -> Result<Vec<Option<Finding>>, DescriptorFault> {
        let mut counted = self.compare(ask, subjects).await?;
        let mut findings: Vec<Option<Finding>> =
            counted.iter().map(|compared| compared.as_ref().map(|it| it.finding.clone())).collect();
        if has_limiters(subjects) {
            let before = before(subjects, &findings);
            self.charge(ask, subjects, before, &mut findings).await?;
        }
        let over = |finding: &Option<Finding>| finding.as_ref().map(|finding| finding.over);
        let refused = refuses(subjects.iter().zip(findings.iter().map(over)));
        let any_over = counted.iter().flatten().any(|compared| compared.finding.over == OverLimit::Yes);
        for (compared, finding) in counted.iter_mut().zip(&mut findings) {
            let Some(compared) = compared else { continue };
            let is_over = compared.finding.over == OverLimit::Yes;
            let stays = match (self.settings.counting, self.settings.when_over) {
                (Counting::Theirs, WhenOver::CountAll) => true,
                (Counting::Theirs, WhenOver::CountOver) => is_over || !any_over,
                (Counting::Atomic, _) => !is_over && refused == OverLimit::No,
            };
            if let Some(held) = compared.held.take() {
                if stays { held.keep() } else { held.give_back().await }
            }
            if !stays && !is_over {
                let given_back = std::mem::take(&mut compared.hit.hits);
                compared.hit.after = compared.hit.after.saturating_sub(given_back);
                if let Some(finding) = finding {
                    finding.remaining = compared.hit.limit.saturating_sub(compared.hit.after);
                }
            }
        }
        for (subject, compared) in subjects.iter().zip(&counted) {
            if let (Subject::Limited(limited), Some(compared)) = (subject, compared) {
                limited.counts.hit(compared.hit);
            }
        }
        Ok(findings)
    }

    /// Counts those whose counts are compared with a number.
    async fn compare(
        &self,
        ask: &DomainAsk,
        subjects: &[Subject<'_>],
    ) -> Result<Vec<Option<Compared>>, DescriptorFault> {
        let hits_of = |place: usize| hits(ask, place);
        let mut all: Vec<Option<Compared>> = subjects.iter().map(|_| None).collect();
        let (mut places, mut hits) = (Vec::new(), Vec::new());
        for (place, subject) in subjects.iter().enumerate() {
            let Subject::Limited(limited) = subject else { continue };
            let key = CountedKey { domain: &ask.domain, entries: &limited.counted };
            match limited.how {
                How::Compare { unit, .. } => {
                    places.push(place);
                    hits.push(Hits { key, unit, hits: hits_of(place) });
                }
                How::Ban { unit } => {
                    let count = Count::Known { after: hits_of(place), ends: None };
                    all[place] = Some(self.compared(limited, (0, unit), hits_of(place), count, None));
                }
                How::Unlimited | How::Charge(_) => {}
            }
        }
        if hits.is_empty() {
            return Ok(all);
        }
        let is_plain =
            self.settings.counting == Counting::Theirs && self.settings.when_over == WhenOver::CountAll;
        let counts: Vec<(Count, Option<Held>)> = if is_plain {
            self.units.count(&hits).await.into_iter().map(|count| (count, None)).collect()
        } else {
            self.units.hold(&hits).await.into_iter().map(|held| (held.count, Some(held))).collect()
        };
        if counts.iter().any(|(count, _)| *count == Count::Closed) || counts.len() != places.len() {
            return Err(away());
        }
        for (place, (count, held)) in places.into_iter().zip(counts) {
            let Some(Subject::Limited(limited)) = subjects.get(place) else { continue };
            let How::Compare { requests, unit } = limited.how else { continue };
            all[place] = Some(self.compared(limited, (requests, unit), hits_of(place), count, held));
        }
        Ok(all)
    }

    fn compared(
        &self,
        limited: &Limited<'_>,
        told: (u32, Unit),
        hits: u64,
        count: Count,
        held: Option<Held>,
    ) -> Compared {
        let (limit, (after, ends)) = match (count, self.settings.outage) {
            (Count::Local { after, ends }, Outage::Local { nodes }) => (share(told.0, nodes), (after, ends)),
            (Count::Known { after, ends } | Count::Local { after, ends }, _) => (told.0, (after, ends)),
            (Count::Open | Count::Closed, _) => (told.0, (0, None)),
        };
        let limit = u64::from(limit);
        let finding = Finding {
            over: if after > limit { OverLimit::Yes } else { OverLimit::No },
            told,
            quota: 0,
            remaining: limit.saturating_sub(after),
            reset: Some(self.reset(ends.map(Micros::new), told.1)),
        };
        let near = near(limit, self.settings.near_limit_ratio);
        let hit = Hit { hits, after, limit, near, shadow: shadow(limited) };
        Compared { finding, hit, held }
    }

    /// Asks those that are decided by limiters.
    async fn charge(
        &self,
        ask: &DomainAsk,
        subjects: &[Subject<'_>],
        before: Before,
        findings: &mut [Option<Finding>],
    ) -> Result<(), DescriptorFault> {
        let mut charges = Vec::new();
        let mut places = Vec::new();
        for (place, subject) in subjects.iter().enumerate() {
            let Subject::Limited(limited) = subject else { continue };
            let How::Charge(limiter) = &limited.how else { continue };
            let key = CountedKey { domain: &ask.domain, entries: &limited.counted };
            let limiter = limiter.get().map_err(|error| DescriptorFault::Unavailable(error.to_string()))?;
            charges.push(Charge { limiter, key, hits: hits(ask, place), manner: limited.manner });
            places.push((place, limited));
        }
        let decisions = charge_all(&charges, before).await;
        if decisions.iter().any(Decision::is_closed) {
            return Err(away());
        }
        for ((place, limited), decision) in places.into_iter().zip(decisions) {
            let finding = self.decided(limited, &decision);
            let (hits, limit) = (hits(ask, place), u64::from(finding.told.0));
            let after = match finding.over {
                OverLimit::Yes => limit.saturating_add(hits),
                OverLimit::No => limit.saturating_sub(finding.remaining),
            };
            let near = near(limit, self.settings.near_limit_ratio);
            limited.counts.hit(Hit { hits, after, limit, near, shadow: shadow(limited) });
            findings[place] = Some(finding);
        }
        Ok(())
    }

    /// What a limiter's decision says.
    fn decided(&self, limited: &Limited<'_>, decision: &Decision) -> Finding {
        let told = limited.state.map(|state| state.told.as_slice()).unwrap_or_default();
        let quota = decision.quota().min(told.len().saturating_sub(1));
        let told = told.get(quota).copied().unwrap_or((u32::MAX, Unit::Second));
        let wait = match decision.is_granted() {
            true => Some(decision.more_after()).filter(|wait| *wait != Micros::ZERO && *wait != Micros::MAX),
            false => decision.retry_after(),
        };
        let unit = limited.state.and_then(LimitState::unit);
        let reset = match (wait, unit) {
            (None, Some(unit)) => Some(self.reset(None, unit)),
            (wait, _) => wait.map(|wait| Duration::from_secs(seconds(wait))),
        };
        let over = if decision.is_granted() { OverLimit::No } else { OverLimit::Yes };
        let remaining = if over == OverLimit::Yes { 0 } else { decision.remaining().min(told.0.into()) };
        Finding { over, told, quota, remaining, reset }
    }

    /// When a window ends, in whole seconds of which there is always one; where nobody knows, by our own clock.
    fn reset(&self, ends: Option<Micros>, unit: Unit) -> Duration {
        let length = Micros::from_secs(unit.seconds()).get();
        let ends = ends.unwrap_or_else(|| Micros::new(length - self.settings.clock.now().get() % length));
        Duration::from_secs(seconds(ends))
    }
}

/// A count that was compared with a number.
struct Compared {
    finding: Finding,
    hit: Hit,
    /// What can still be given back.
    held: Option<Held>,
}

/// What one descriptor costs.
fn hits(ask: &DomainAsk, place: usize) -> u64 {
    let own = ask.descriptors.get(place).and_then(|asked| asked.hits);
    own.unwrap_or_else(|| ask.hits.max(1).into())
}

fn has_limiters(subjects: &[Subject<'_>]) -> bool {
    let is_limiter =
        |subject: &Subject<'_>| matches!(subject, Subject::Limited(Limited { how: How::Charge(_), .. }));
    subjects.iter().any(is_limiter)
}

/// What is known before limiters are asked.
fn before(subjects: &[Subject<'_>], findings: &[Option<Finding>]) -> Before {
    let mut before = Before::Nothing;
    for (subject, finding) in subjects.iter().zip(findings) {
        let over = finding.as_ref().map(|finding| finding.over);
        match (subject, over) {
            (Subject::Limited(Limited { manner: Manner::Refuse, .. }), Some(OverLimit::Yes)) => {
                return Before::Refused;
            }
            (Subject::Limited(Limited { manner: Manner::RefuseTogether, .. }), Some(OverLimit::No))
            | (Subject::Unlimited(_, Manner::RefuseTogether), _) => before = Before::RoomTogether,
            _ => {}
        }
    }
    before
}

fn shadow(limited: &Limited<'_>) -> Shadow {
    if limited.manner == Manner::Watch { Shadow::Yes } else { Shadow::No }
}

/// What one of so many processes may let through.
fn share(requests: u32, nodes: u64) -> u32 {
    let part = u64::from(requests) / nodes.max(1);
    u32::try_from(part).unwrap_or(u32::MAX).max(requests.min(1))
}

fn away() -> DescriptorFault {
    DescriptorFault::Unavailable("the store that counts is away or late".to_owned())
}

/// Of a domain that is not loaded.
fn unlimited(ask: &DomainAsk) -> DomainVerdict {
    let free = DescriptorStatus { over: OverLimit::No, limit: None, remaining: 0, reset: None };
    DomainVerdict {
        overall: OverLimit::No,
        statuses: vec![free; ask.descriptors.len()],
        headers: Vec::new(),
        body: None,
        metadata: None,
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
